"""Guarantee 9 where a child runs several tasks: only those of one job, and only a child in good order."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import pytest_asyncio

from tests.process.warm_runs import CODE, eventually, job, lake_folder, processes_of, run, state_of
from traceplane.sandbox.assignment import Assignment, Reuse
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.confinement import NAMESPACES, UID_SLOTS
from traceplane.sandbox.frames import EmittedEvent, RunLimits
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="children are reused by root workers only"
    ),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest.fixture(scope="module")
def lake() -> Iterator[Path]:
    with lake_folder() as folder:
        yield folder


async def started(lake: Path, **settings: Any) -> Sandbox:
    sandbox = await Sandbox.start(SandboxSettings(folder=lake / "sandbox", **settings))
    if not sandbox.isolation.has(NAMESPACES) or not sandbox.isolation.has(UID_SLOTS):
        await sandbox.close()
        pytest.skip(f"children are not reused here: {sandbox.isolation.missing}")
    return sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(lake: Path) -> AsyncIterator[Sandbox]:
    """With one slot, so that every task meets what the one before it left."""
    sandbox = await started(lake, slots=1)
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_slots(lake: Path) -> AsyncIterator[Sandbox]:
    sandbox = await started(lake, slots=2)
    yield sandbox
    await sandbox.close()


async def test_tasks_of_one_job_share_a_process(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "shared")
    first = await run(sandbox, of, "write_rows")
    second = await run(sandbox, of, "use_process", "write_rows")
    third = await run(sandbox, of)
    assert [first.code, second.code, third.code] == [None, None, None]
    assert first.process == second.process == third.process
    assert third.told["earlier"] == [first.result.task_id, second.result.task_id]
    assert parquet.read_table(second.result.outputs[0].files[0].path).num_rows == 1
    assert third.result.outputs == ()
    for done in (first, second, third):
        assert 0 < done.result.cpu_seconds < 10
        assert done.result.max_rss_bytes > 0
        assert done.result.start_seconds is not None


async def test_each_task_gets_its_own_log(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "logs")
    for _ in range(3):
        assert [line.split()[0] for line in (await run(sandbox, of)).lines] == ["TELL"]


# --- another job -----------------------------------------------------------------------------------------


async def test_a_task_of_another_job_never_gets_a_used_child(sandbox: Sandbox, lake: Path) -> None:
    victim = lake / "victim"
    victim.write_text("whole")
    one, other = job(lake, "one"), job(lake, "other")
    first = await run(sandbox, one, "leave_files", victim=str(victim))
    second = await run(sandbox, other)
    assert second.code is None
    assert second.process != first.process
    assert second.told["earlier"] == []
    assert second.told["temp"] == []
    third = await run(sandbox, one)
    assert third.process not in (first.process, second.process)
    assert third.told["earlier"] == []


@pytest.mark.parametrize("difference", ["key", "readable", "limits", "entrypoint"])
async def test_any_difference_makes_it_another_job(sandbox: Sandbox, lake: Path, difference: str) -> None:
    of = job(lake, "same")
    first = await run(sandbox, of)
    fields: dict[str, Any] = {}
    if difference == "key":
        of = Reuse(key="same/2", readable=of.readable, writable=of.writable)
    elif difference == "readable":
        of = Reuse(key=of.key, readable=(*of.readable, lake), writable=of.writable)
    elif difference == "limits":
        fields = {"limits": RunLimits(open_files=512)}
    else:
        fields = {"entrypoint": "warm_operators:look_then_act", "code": lake}
        shutil.copy(CODE / "warm_operators.py", lake)
    assert (await run(sandbox, of, **fields)).process != first.process


async def test_a_task_without_a_job_never_gets_a_used_child(sandbox: Sandbox, lake: Path) -> None:
    await run(sandbox, job(lake, "before"))
    lines: list[str] = []
    alone = Assignment(
        task_id="alone", attempt=1, entrypoint="warm_operators:look_then_act", code_paths=(CODE,)
    )
    assert (await sandbox.run(alone, log=TaskLog(lines.append), timeout=120)).error is None
    assert json.loads(lines[0].removeprefix("TELL "))["earlier"] == []


async def test_a_child_reaches_the_folders_of_its_own_job_only(sandbox: Sandbox, lake: Path) -> None:
    own, other = job(lake, "mine"), job(lake, "theirs")
    sealed = await run(sandbox, other, "write_rows")
    folder = os.path.dirname(sealed.result.outputs[0].files[0].path)
    for _ in range(2):
        looked = await run(sandbox, own, "look_around", paths=[folder, str(other.writable[0]), str(lake)])
        for outcomes in (looked.told["read"], looked.told["planted"], looked.told["replaced"]):
            assert not any(outcome.startswith("did") for outcome in outcomes.values())
        assert looked.told["listed"][folder] == "ENOENT"


# --- other tasks of the same job -------------------------------------------------------------------------


async def test_slots_of_one_job_cannot_reach_each_others_files(two_slots: Sandbox, lake: Path) -> None:
    of = job(lake, "both")
    used = await asyncio.gather(*(run(two_slots, of, "hold", seconds=0.3) for _ in range(2)))
    assert used[0].process != used[1].process
    before = set(of.writable[0].iterdir())
    busy = asyncio.create_task(run(two_slots, of, "hold", seconds=2.0))
    await eventually(
        lambda: any((f / "1" / "private").exists() for f in set(of.writable[0].iterdir()) - before)
    )
    (held,) = set(of.writable[0].iterdir()) - before
    temps = [str(path) for path in (two_slots.folder / "runs").iterdir()]
    looked = await run(two_slots, of, "look_around", paths=[str(held / "1"), str(held), *temps])
    assert looked.process in {done.process for done in used}
    assert not busy.done()
    for outcomes in (looked.told["read"], looked.told["planted"], looked.told["replaced"]):
        assert not any(outcome.startswith("did") for outcome in outcomes.values())
    assert looked.told["listed"][str(held / "1")] == "EACCES"
    assert {looked.told["listed"][path] for path in temps} == {"ENOENT"}
    assert (await busy).code is None


async def test_sealed_outputs_cannot_be_changed_by_the_process_that_wrote_them(
    sandbox: Sandbox, lake: Path
) -> None:
    of = job(lake, "sealed")
    first = await run(sandbox, of, "write_rows")
    old = first.result.outputs[0].files[0].path
    second = await run(sandbox, of, "reach_old_outputs", old=old)
    assert second.process == first.process
    assert second.told["read"] == "did: True"
    for way in ("wrote", "removed", "planted", "owned"):
        assert second.told[way] in ("EACCES", "EPERM", "EROFS"), way


@pytest.mark.parametrize("act", ["keep_output_open", "keep_output_mapped", "keep_output_in_flight"])
async def test_a_child_that_can_still_write_to_an_output_is_ended_before_it_is_sealed(
    sandbox: Sandbox, lake: Path, act: str
) -> None:
    of = job(lake, "open")
    first = await run(sandbox, of, act)
    assert first.code is None
    file = Path(first.result.outputs[0].files[0].path)
    assert file.stat().st_uid == os.geteuid()
    assert file.stat().st_mode & 0o777 == 0o444
    assert parquet.read_table(file).num_rows == 1
    second = await run(sandbox, of)
    assert second.process != first.process


async def test_unreported_files_of_a_kept_child_are_removed(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "unreported")
    first = await run(sandbox, of, "write_rows", "write_unreported")
    assert first.code is None
    (file,) = first.result.outputs[0].files
    assert os.listdir(os.path.dirname(file.path)) == [os.path.basename(file.path)]


# --- between two tasks ----------------------------------------------------------------------------------


async def test_the_temporary_folder_is_empty_for_the_next_task(sandbox: Sandbox, lake: Path) -> None:
    victim = lake / "precious" / "victim"
    victim.parent.mkdir()
    victim.write_text("whole")
    of = job(lake, "temp")
    first = await run(sandbox, of, "leave_files", victim=str(victim))
    second = await run(sandbox, of)
    assert second.process == first.process
    assert second.told["temp"] == []
    assert victim.read_text() == "whole"


async def test_a_child_whose_temporary_folder_cannot_be_emptied_is_discarded(
    sandbox: Sandbox, lake: Path
) -> None:
    of = job(lake, "deep")
    first = await run(sandbox, of, "leave_deep_folders")
    assert first.code is None
    second = await run(sandbox, of)
    assert second.process != first.process
    assert second.told["temp"] == []


async def test_the_surroundings_are_restored_for_the_next_task(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "surroundings")
    first = await run(sandbox, of, "disturb_surroundings")
    second = await run(sandbox, of)
    assert second.process == first.process
    for fact in ("environment", "cwd", "umask", "path", "arguments", "polite_end"):
        assert second.told[fact] == first.told[fact], fact


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("fail", "operator.raised"),
        ("leave", "operator.exited"),
        ("die", "operator.killed"),
        ("hang", "operator.timeout"),
        ("speak_garbage", "operator.result_invalid"),
        ("start_process", None),
        ("start_orphan", None),
        ("grow", None),
        ("speak_twice", "operator.result_invalid"),
    ],
)
async def test_a_child_that_misbehaved_is_discarded(
    sandbox: Sandbox, lake: Path, act: str, code: str | None
) -> None:
    of = job(lake, "disorder")
    first = await run(sandbox, of)
    second = await run(sandbox, of, act, timeout=1.0 if act == "hang" else 120)
    assert second.process == first.process
    assert second.code == code
    assert second.result.leftovers == (act in ("start_process", "start_orphan"))
    third = await run(sandbox, of)
    assert third.code is None
    assert third.process != first.process


@pytest.mark.parametrize("act", ["print_later", "speak_later", "write_later", "end_later"])
async def test_a_child_that_does_not_wait_silently_is_discarded(
    sandbox: Sandbox, lake: Path, act: str
) -> None:
    of = job(lake, "noise")
    first = await run(sandbox, of, act)
    assert first.code is None
    await asyncio.sleep(0.5)
    second = await run(sandbox, of)
    assert second.code is None
    assert second.process != first.process
    assert [line.split()[0] for line in second.lines] == ["TELL"]


async def test_a_child_is_stopped_while_it_waits(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "frozen")
    first = await run(sandbox, of, "spin_later")
    (child,) = processes_of(sandbox.uids)
    await eventually(lambda: state_of(child) == "T")
    clock = (~child << 3) | 2
    used = time.clock_gettime(clock)
    await asyncio.sleep(0.3)
    # Its threads stop one after the other, microseconds apart; one that ran on would have used most of that time.
    assert time.clock_gettime(clock) - used < 0.05
    second = await run(sandbox, of)
    assert second.code is None
    assert second.process == first.process


async def test_a_canceled_task_ends_its_child(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "canceled")
    first = await run(sandbox, of)
    (child,) = processes_of(sandbox.uids)
    await eventually(lambda: state_of(child) == "T")
    hanging = asyncio.create_task(run(sandbox, of, "hang"))
    await eventually(lambda: state_of(child) != "T")
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert (await run(sandbox, of)).process != first.process


async def test_a_child_runs_a_bounded_number_of_tasks(lake: Path) -> None:
    sandbox = await started(lake, slots=1, tasks_per_child=3)
    try:
        found = [(await run(sandbox, job(lake, "many"))).process for _ in range(7)]
    finally:
        await sandbox.close()
    assert [len(list(group)) for _, group in itertools.groupby(found)] == [3, 3, 1]


async def test_a_child_that_has_grown_old_gets_no_further_task(lake: Path) -> None:
    sandbox = await started(lake, slots=1, child_seconds=0.0)
    try:
        found = [(await run(sandbox, job(lake, "old"))).process for _ in range(3)]
    finally:
        await sandbox.close()
    assert len(set(found)) == 3


async def test_a_killed_child_costs_no_task(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "killed")
    for pause in (0.0, 0.3):
        first = await run(sandbox, of)
        (child,) = processes_of(sandbox.uids)
        os.kill(child, signal.SIGKILL)
        await asyncio.sleep(pause)
        second = await run(sandbox, of)
        assert second.code is None
        assert second.process != first.process


async def test_a_child_that_dies_as_its_task_arrives_costs_no_task(sandbox: Sandbox, lake: Path) -> None:
    """Stopped, so that the task is sent to it, and then killed; its files do not get in the way."""
    of = job(lake, "killed-late")
    for acts in ((), ("write_rows",)):
        first = await run(sandbox, of)
        (child,) = processes_of(sandbox.uids)
        os.kill(child, signal.SIGSTOP)
        second = asyncio.create_task(run(sandbox, of, *acts))
        await asyncio.sleep(0.2)
        os.kill(child, signal.SIGKILL)
        done = await second
        assert done.code is None
        assert done.process != first.process
        assert sum(output.row_count for output in done.result.outputs) == len(acts)


async def test_changed_code_takes_effect_at_the_next_task(sandbox: Sandbox, lake: Path) -> None:
    code = lake / "edited"
    code.mkdir()
    of = job(lake, "edited-job")
    said = []
    for word in ("first", "second", "third"):
        (code / "edited.py").write_text(f"def say(task):\n    print({word!r})\n")
        for _ in range(2):
            done = await run(sandbox, of, entrypoint="edited:say", code=code)
            assert done.code is None
            said += done.lines
    assert said == ["first", "first", "second", "second", "third", "third"]


# --- who may not be kept ---------------------------------------------------------------------------------


async def test_sources_and_tasks_with_a_processor_limit_get_fresh_children(
    sandbox: Sandbox, lake: Path
) -> None:
    of = job(lake, "fresh")

    async def on_events(events: list[EmittedEvent]) -> None:
        pass

    sources = [await run(sandbox, of, on_events=on_events) for _ in range(2)]
    limited = [await run(sandbox, of, limits=RunLimits(cpu_seconds=10)) for _ in range(2)]
    found = [*sources, *limited]
    assert [done.code for done in found] == [None] * 4
    assert len({done.process for done in found}) == 4


async def test_without_namespaces_every_task_gets_a_fresh_child(lake: Path) -> None:
    disabled = frozenset({UID_SLOTS})
    sandbox = await Sandbox.start(
        SandboxSettings(folder=lake / "sandbox", slots=1, disabled_layers=disabled, allow_weak=True)
    )
    try:
        found = [await run(sandbox, job(lake, "weak")) for _ in range(2)]
    finally:
        await sandbox.close()
    assert [done.code for done in found] == [None, None]
    assert found[0].process != found[1].process


# --- who gets which slot ---------------------------------------------------------------------------------


async def test_the_longest_idle_child_makes_room(two_slots: Sandbox, lake: Path) -> None:
    one, two, three = job(lake, "lru-1"), job(lake, "lru-2"), job(lake, "lru-3")
    first = await run(two_slots, one)
    second = await run(two_slots, two)
    await run(two_slots, three)
    assert (await run(two_slots, two)).process == second.process
    assert (await run(two_slots, one)).process != first.process


async def test_a_busy_job_does_not_keep_others_out(sandbox: Sandbox, lake: Path) -> None:
    busy, other = job(lake, "busy"), job(lake, "patient")
    await run(sandbox, busy)
    order: list[str] = []

    async def noted(of: Reuse) -> None:
        await run(sandbox, of)
        order.append(of.key)

    await asyncio.gather(*(noted(of) for of in (busy, busy, other, *(busy for _ in range(100)))))
    assert order.index("patient") <= 34, "it has its turn after one batch of the others"


async def test_many_jobs_on_few_slots_all_get_their_turn(two_slots: Sandbox, lake: Path) -> None:
    jobs = [job(lake, f"turn-{n}") for n in range(5)]
    found = await asyncio.gather(*(run(two_slots, jobs[n % 5]) for n in range(25)))
    assert {done.code for done in found} == {None}


async def test_waiting_for_a_slot_can_be_canceled(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "giving-up")
    busy = asyncio.create_task(run(sandbox, of, "hold", seconds=0.5))
    waiting = [asyncio.create_task(run(sandbox, of)) for _ in range(3)]
    await asyncio.sleep(0.1)
    for task in waiting[:2]:
        task.cancel()
    assert (await busy).code is None
    assert (await waiting[2]).code is None


async def test_closing_ends_idle_children_at_once(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await started(lake, slots=2)
    await asyncio.gather(*(run(sandbox, job(lake, "closing"), "hold", seconds=0.2) for _ in range(2)))
    assert len(processes_of(sandbox.uids)) == 2
    uids = sandbox.uids
    monkeypatch.setattr("traceplane.linux.fork_server._END_SECONDS", 600)
    async with asyncio.timeout(120):
        await sandbox.close()
    assert processes_of(uids) == []
