"""Guarantee 9 where many tasks of a job wait for few children: they go through them one after another, each by itself.

Everything here holds for root and for an ordinary user with namespaces; under root, the last test runs the others as
such a user.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import pytest_asyncio

from tests.process import run_as
from tests.process.warm_runs import WarmRun, eventually, lake_folder, run
from traceplane.sandbox import frames
from traceplane.sandbox.assignment import Reuse
from traceplane.sandbox.confinement import NAMESPACES
from traceplane.sandbox.frames import RunLimits
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings
from traceplane.sandbox.slot import Child

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="children are reused on Linux only"),
    pytest.mark.asyncio(loop_scope="module"),
]

NOBODY = 65534


@pytest.fixture(scope="module")
def lake() -> Iterator[Path]:
    with lake_folder() as folder:
        yield folder


async def started(lake: Path, slots: int) -> Sandbox:
    sandbox = await Sandbox.start(SandboxSettings(folder=lake / f"sandbox-{slots}", slots=slots))
    if not sandbox.isolation.has(NAMESPACES):
        await sandbox.close()
        pytest.skip(f"children are not reused here: {sandbox.isolation.missing}")
    return sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(lake: Path) -> AsyncIterator[Sandbox]:
    sandbox = await started(lake, 1)
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_slots(lake: Path) -> AsyncIterator[Sandbox]:
    sandbox = await started(lake, 2)
    yield sandbox
    await sandbox.close()


def job(lake: Path, name: str) -> Reuse:
    inputs, staging = lake / name / "inputs", lake / name / "generation" / "staging"
    for folder in (inputs, staging):
        folder.mkdir(parents=True, exist_ok=True)
    return Reuse(key=name, readable=(inputs,), writable=(staging,))


async def chain(sandbox: Sandbox, of: Reuse, acts: list[tuple[str, ...]]) -> list[WarmRun]:
    return list(await asyncio.gather(*(run(sandbox, of, *each, timeout=240.0) for each in acts)))


async def test_waiting_tasks_share_a_child_each_with_its_own_log_and_rows(
    sandbox: Sandbox, lake: Path
) -> None:
    runs = await chain(sandbox, job(lake, "many"), [("write_rows",)] * 30)
    assert {done.code for done in runs} == {None}
    assert len({done.process for done in runs}) == 1
    for number, done in enumerate(runs):
        assert len(done.told["earlier"]) == number, "what one task leaves in the process, the next one sees"
        ((file,),) = [output.files for output in done.result.outputs]
        found = os.stat(file.path)
        assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o444)
        assert parquet.read_table(file.path).to_pylist() == [{"n": 1}]
        assert f"/{done.result.task_id}/1/" in file.path


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("fail", "operator.raised"),
        ("die", "operator.killed"),
        ("hang", "operator.timeout"),
        ("grow", "operator.raised"),
        ("speak_garbage", "operator.result_invalid"),
    ],
)
async def test_a_failed_task_in_a_batch_affects_only_itself(
    sandbox: Sandbox, lake: Path, act: str, code: str
) -> None:
    acts: list[tuple[str, ...]] = [("write_rows",)] * 9
    acts[4] = (act,)
    limits = RunLimits(memory_bytes=300 << 20) if act == "grow" else None
    of = job(lake, f"wrong-{act}")
    runs = await asyncio.gather(
        *(
            run(sandbox, of, *each, limits=limits, timeout=2.0 if each == ("hang",) else 240.0)
            for each in acts
        )
    )
    assert [done.code for done in runs] == [None] * 4 + [code] + [None] * 4
    assert [done.result.outputs[0].row_count for done in runs if done.code is None] == [1] * 8
    assert runs[4].process == runs[3].process
    assert runs[5].process != runs[4].process
    if act == "grow":
        assert "memory" in str(runs[4].result.error)


async def test_a_canceled_task_in_a_batch_affects_only_itself(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "canceled-in-a-chain")
    before = [asyncio.create_task(run(sandbox, of)) for _ in range(3)]
    hanging = asyncio.create_task(run(sandbox, of, "hang"))
    after = [asyncio.create_task(run(sandbox, of)) for _ in range(3)]
    await asyncio.gather(*before)
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert [done.code for done in await asyncio.gather(*after)] == [None] * 3


async def test_tasks_behind_a_long_task_do_not_wait_for_it(two_slots: Sandbox, lake: Path) -> None:
    of = job(lake, "one-is-slow")
    await chain(two_slots, of, [()] * 6)  # they are short, so those that follow are handed over together
    first = [asyncio.create_task(run(two_slots, of)) for _ in range(4)]
    slow = asyncio.create_task(run(two_slots, of, "hold", seconds=600.0))
    others = [asyncio.create_task(run(two_slots, of, "write_rows")) for _ in range(40)]
    done = await asyncio.gather(*first, *others)
    assert {each.code for each in done} == {None}
    assert len({each.result.task_id for each in done}) == 44
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_a_slow_child_leaves_the_rest_of_its_batch_to_others(
    sandbox: Sandbox, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch's time is over at once: each child starts one task, and reports that it passes on the others."""
    of = job(lake, "no-time")
    await chain(sandbox, of, [()] * 6)
    monkeypatch.setattr("traceplane.sandbox.pool.BATCH_SECONDS", 0.0)
    runs = await chain(sandbox, of, [("write_rows",)] * 20)
    assert {done.code for done in runs} == {None}
    assert len({done.process for done in runs}) == 1, "it has done nothing wrong"
    seen = sorted(len(done.told["earlier"]) for done in runs)
    assert seen == list(range(6, 26)), "none ran twice, and none was left out"


async def test_the_last_task_of_a_batch_is_run_even_if_its_child_passes_it_on_late(
    sandbox: Sandbox, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a child may say so only after the batch was given up."""
    of = job(lake, "late")
    await chain(sandbox, of, [()] * 6)
    heard = Child.heard
    passed_on: list[frames.FromChild] = []

    def without_passed(child: Child, limit: int) -> frames.FromChild | None:
        frame = heard(child, limit)
        if not isinstance(frame, frames.Passed):
            return frame
        passed_on.append(frame)
        return None

    monkeypatch.setattr(Child, "heard", without_passed)
    monkeypatch.setattr("traceplane.sandbox.pool.BATCH_SECONDS", 0.0)
    monkeypatch.setattr("traceplane.sandbox.batch._ANSWER_SECONDS", 0.2)
    for short in ("_SHORT_SECONDS", "_EXPECTED_SECONDS"):  # or a busy machine would run them one by one
        monkeypatch.setattr(f"traceplane.sandbox.pool.{short}", 60.0)
    async with asyncio.timeout(60):
        while not passed_on:  # a child whose last task was alone gets the next one alone too
            runs = await chain(sandbox, of, [()] * 2)
            assert [done.code for done in runs] == [None, None]


async def test_a_child_that_answers_and_does_not_read_is_not_waited_for(sandbox: Sandbox, lake: Path) -> None:
    """Its reports about tasks of its own job are trusted; it is ended when no more tasks can be sent to it."""
    of = job(lake, "unread")
    runs = await chain(sandbox, of, [(), (), ("answer_unread",), *([()] * 1500)])
    assert {done.code for done in runs} == {None}
    assert runs[-1].told["earlier"], "the last ones were run by another child"


async def test_a_child_that_leaves_a_process_behind_is_ended_soon(sandbox: Sandbox, lake: Path) -> None:
    of = job(lake, "daemon")
    acts: list[tuple[str, ...]] = [()] * 4
    acts[1] = ("start_orphan",)
    runs = await chain(sandbox, of, acts)
    assert [done.code for done in runs] == [None] * 4
    assert (await run(sandbox, of)).process != runs[1].process


async def test_two_busy_jobs_do_not_end_each_others_children(two_slots: Sandbox, lake: Path) -> None:
    one, other = job(lake, "busy-one"), job(lake, "busy-other")
    runs = await asyncio.gather(*(run(two_slots, (one, other)[n % 2]) for n in range(60)))
    assert {done.code for done in runs} == {None}
    assert len({done.process for done in runs}) <= 15


async def test_concurrent_tasks_of_a_job_cannot_reach_each_other(two_slots: Sandbox, lake: Path) -> None:
    of = job(lake, "side-by-side")
    busy = asyncio.create_task(run(two_slots, of, "hold", seconds=2.0))
    await eventually(lambda: any(of.writable[0].glob("*/*/private")))
    (private,) = of.writable[0].glob("*/*/private")
    looked = await run(two_slots, of, "look_around", paths=[str(private.parent), str(private)])
    assert not busy.done()
    for outcomes in (looked.told["read"], looked.told["planted"], looked.told["replaced"]):
        assert not any(outcome.startswith("did") for outcome in outcomes.values())
    assert (await busy).code is None


async def test_reported_outputs_cannot_be_changed_by_the_process_that_wrote_them(
    sandbox: Sandbox, lake: Path
) -> None:
    of = job(lake, "reported")
    first = await run(sandbox, of, "write_rows")
    old = first.result.outputs[0].files[0].path
    second = await run(sandbox, of, "reach_old_outputs", old=old)
    assert second.process == first.process
    for way in ("wrote", "removed", "planted", "owned"):
        assert second.told[way] in ("EACCES", "EPERM", "EROFS", "ENOENT"), way


@pytest.mark.parametrize("act", ["write_file", "keep_output_open", "keep_output_mapped"])
async def test_files_in_the_output_folder_are_sealed_and_out_of_reach(
    sandbox: Sandbox, lake: Path, act: str
) -> None:
    of = job(lake, f"files-{act}")
    first = await run(sandbox, of, act)
    assert first.code is None
    old = Path(first.result.outputs[0].files[0].path)
    assert parquet.read_table(old).num_rows == 1
    assert old.stat().st_mode & 0o777 == 0o444
    second = await run(sandbox, of, "reach_old_outputs", old=str(old))
    assert not any(second.told[way].startswith("did") for way in ("wrote", "removed", "planted", "owned"))


async def test_a_later_attempt_of_a_childs_first_task_is_out_of_that_childs_reach(
    two_slots: Sandbox, lake: Path
) -> None:
    """The first attempt went well here and was refused by the dispatcher, which an operator can bring about."""
    of = job(lake, "attempts")
    first = await run(two_slots, of, task_id="tried-twice", attempt=1)
    watching = asyncio.create_task(run(two_slots, of, "spoil_what_is_sealed", seconds=3.0))
    await asyncio.sleep(0)
    second = await run(two_slots, of, "write_file", task_id="tried-twice", attempt=2)
    spoiling = await watching
    assert (first.code, second.code) == (None, None)
    assert spoiling.process == first.process != second.process
    assert "spoiled" not in spoiling.told
    assert parquet.read_table(second.result.outputs[0].files[0].path).num_rows == 1


async def test_a_task_cannot_hide_how_long_it_had_its_child(sandbox: Sandbox, lake: Path) -> None:
    """A worker claims as many tasks ahead as it believes to be short."""
    done = await run(sandbox, job(lake, "hurried"), "say_it_starts_now", seconds=0.3)
    assert done.code is None
    assert 0.3 <= done.result.slot_seconds <= done.result.run_seconds


async def test_a_sandbox_that_closes_leaves_nothing_but_outputs(lake: Path) -> None:
    of = job(lake, "closing")
    sandbox = await started(lake, 1)
    await chain(sandbox, of, [("write_rows",), (), ("write_file",), ()])
    await sandbox.close()
    left = sorted(path for path in of.writable[0].glob("*/*") if path.is_dir())
    assert [len(list(folder.iterdir())) for folder in left] == [1, 1]


@pytest.mark.chaos  # `test_ways_of_confining` runs as an ordinary user more often
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above ran as an ordinary user")
async def test_all_of_this_holds_for_an_ordinary_user() -> None:
    command = [sys.executable, "-m", "tests.process.run_as", "nobody", str(NOBODY), sys.executable]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "-m", "pytest", *options, __file__],
        cwd=run_as.REPOSITORY, capture_output=True, text=True, timeout=600, check=False,
        env=os.environ | {"HOME": "/nonexistent"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
