"""With `--no-rematerialize` a job gets batches, loses them or has them cut otherwise, and keeps its data: nothing is
computed again, nothing is left out, and a change recomputes exactly what it was computed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, dag, job, source
from tests.platform import until
from tests.postgres.test_commits import span
from traceplane.dispatcher.in_process import jobs
from traceplane.dispatcher.in_process.operator import Work
from traceplane.errors import Conflict
from traceplane.postgres import aggregator
from traceplane.registry import cutover


def text(batch: str | None, *more: str, entrypoint: str = "basic:copy") -> str:
    bulk = () if batch is None else ("execution_strategy: Bulk", f"batch: {batch}")
    after = job("after", "out", "last")
    return SOURCE + job("sum", "in", "out", *bulk, *more, entrypoint=entrypoint) + after


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        yield opened


class Tasks:
    """The tasks of `sum` since they were last asked for."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.known = plane, 0

    async def new(self) -> list[str]:
        await settle(self.plane)
        rows = await self.plane.sql(
            "select coalesce(partition_key, range_start::text) as scope, kind::text from tasks join jobs using (job_id)"
            " where name = 'sum' order by task_id"
        )
        scopes = [row["scope"] + ("!" if row["kind"] == "invalidation" else "") for row in rows]
        fresh, self.known = scopes[self.known :], len(scopes)
        return fresh


async def settle(plane: ControlPlane) -> None:
    for _ in range(2):
        await plane.meter()
        await plane.batch_closer.run_once()
    await plane.meter()


async def switch(plane: ControlPlane, batch: str | None) -> None:
    before = await identity(plane)
    answer = await plane.deploy(text(batch), no_rematerialize=True)
    assert answer.changed
    assert not answer.building
    assert await identity(plane) == before


async def identity(plane: ControlPlane) -> list[tuple]:
    """The jobs that compute, and the generations that they write."""
    rows = await plane.sql(
        "select j.name, j.job_id, o.generation_id from jobs j join job_outputs o using (job_id)"
        " where j.routed and j.runtime = 'python' order by 1"
    )
    return [tuple(row) for row in rows]


async def test_a_job_gets_batches_and_leaves_what_it_has_as_it_is(plane: ControlPlane) -> None:
    tasks = Tasks(plane)
    await plane.deploy(text(None))
    await plane.emit("in", range(10))
    await plane.run_all()
    await plane.emit("in", range(10, 14))
    running = (await plane.claim(await plane.send()))[:2]
    assert len(await tasks.new()) == 14
    await switch(plane, "{ size: 5 }")
    assert await tasks.new() == []
    await plane.emit("in", range(14, 22))
    assert await tasks.new() == ["14-14", "15-19"]
    assert await plane.complete(*running) == ["committed", "committed"]
    await plane.emit("in", [3, 12, 16], emission="again")
    assert sorted(await tasks.new()) == ["12", "15-19!", "3"]
    await plane.run_all()
    await plane.emit("in", [span(8, 15)], emission="again")
    assert sorted(await tasks.new()) == ["14-14!", "15-19!", "8-13"]
    await plane.run_all()
    assert (
        await plane.value(
            "select coverage_of(current_generation_id)::text from datasets where dataset_id = 'out'"
        )
        == "{[0,20)}"
    )
    assert not (await plane.deploy(text("{ size: 5 }"))).changed, "said once, it holds"


async def test_batches_are_cut_by_another_rule_and_closed_ones_stay(plane: ControlPlane) -> None:
    tasks = Tasks(plane)
    await plane.deploy(text("{ size: 10 }"))
    await plane.emit("in", [*range(18), 25])
    assert await tasks.new() == ["0-9"]
    await switch(plane, "{ size: 4 }")
    assert await tasks.new() == ["10-11", "12-15"]
    await plane.emit("in", [18, 19, 5], emission="again")
    assert sorted(await tasks.new()) == ["0-9!", "16-19"]
    await switch(plane, "{ every: 5m }")
    await plane.emit("in", [22])
    assert await tasks.new() == []
    await plane.set_clock(300)
    assert await tasks.new() == ["20-25"]
    await switch(plane, "{ all: true }")
    await plane.run_all()
    await plane.emit("in", [26, 28])
    assert await tasks.new() == ["26-28"]
    await plane.emit("in", [29, 30])
    assert await tasks.new() == [], "the batch before is not done"
    await switch(plane, "{ size: 10, max_wait: 1m }")
    assert await tasks.new() == ["29-29"]
    await plane.set_clock(360)
    assert await tasks.new() == ["30-30"]


async def test_a_job_loses_its_batches_and_a_change_still_recomputes_a_whole_one(plane: ControlPlane) -> None:
    tasks = Tasks(plane)
    await plane.deploy(text("{ size: 5 }"))
    await plane.emit("in", [*range(7), 9])
    assert await tasks.new() == ["0-4"]
    await switch(plane, None)
    assert await tasks.new() == ["5-6", "9-9"], "what had begun to fill is closed"
    await plane.emit("in", [7, 10])
    await plane.emit("in", [2, 5], emission="again")
    assert sorted(await tasks.new()) == ["0-4!", "10", "5-6!", "7"]
    await plane.emit("in", [span(4, 8)], emission="again")
    assert sorted(await tasks.new()) == ["0-4!", "5-6!", "7-8"]
    await plane.run_all()
    assert not (await plane.deploy(text(None))).changed
    # Another deploy, which changes something else, keeps it so.
    await plane.deploy(text(None, "max_attempts: 7"))
    await plane.emit("in", [1, 11], emission="once more")
    assert sorted(await tasks.new()) == ["0-4!", "11"]
    await switch(plane, "{ size: 4 }")
    await plane.emit("in", range(12, 16))
    await plane.emit("in", [6, 7], emission="once more")
    assert sorted(await tasks.new()) == ["12-15", "5-6!", "7"]


async def test_a_rollback_brings_the_rule_back_and_keeps_the_data(plane: ControlPlane) -> None:
    tasks = Tasks(plane)
    await plane.deploy(text(None))
    await plane.emit("in", range(3))
    await switch(plane, "{ size: 4 }")
    await plane.emit("in", range(3, 9))
    assert await tasks.new() == ["0", "1", "2", "3-3", "4-7"]
    await plane.rollback("main", to=1)
    assert await tasks.new() == ["8-8"]
    await plane.emit("in", [9])
    await plane.emit("in", [1, 5], emission="again")
    assert sorted(await tasks.new()) == ["1", "4-7!", "9"]
    await plane.rollback("main", to=2)
    await plane.emit("in", [10, 11, 9], emission="again")
    assert sorted(await tasks.new()) == ["10-11", "9"]
    await plane.run_all()
    # A version before it that has other data, and back: nothing that was there is computed again.
    await plane.deploy(text("{ size: 4 }", entrypoint="basic:other"), drop_missing=True)
    for _ in range(3):
        await settle(plane)
        await plane.run_all()
        await plane.builds.run_once()
    assert await plane.value("select number from dag_versions where state = 'active'") == 3
    await tasks.new()
    await plane.rollback("main", to=2, drop_missing=True)
    await plane.builds.run_once()
    assert await tasks.new() == []


async def test_a_rebuild_after_it_begins_without_the_aggregator(plane: ControlPlane) -> None:
    await plane.deploy(text("{ size: 2 }"))
    await plane.emit("in", range(4))
    await settle(plane)
    await plane.run_all()
    await switch(plane, None)
    assert (await plane.deploy(text(None, entrypoint="basic:other"))).building
    for _ in range(3):
        await plane.builds.run_once()
        await settle(plane)
        await plane.run_all()
    assert await plane.value("select number from dag_versions where state = 'active'") == 3
    assert await plane.value("select count(*) from jobs where name = 'sum__batch' and routed") == 0
    live = (
        "select count(*) from dataset_commits join datasets on generation_id = current_generation_id"
        " where dataset_id = 'out' and superseded_by is null"
    )
    assert await plane.value(live) == 4


@pytest.mark.parametrize("step", ["cutover.after_pointers", "cutover.after_jobs", "batches"])
@pytest.mark.parametrize(("before", "after"), [(None, "{ size: 4 }"), ("{ size: 4 }", None)])
async def test_a_kill_at_the_cutover_leaves_everything_as_it_was(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, step: str, before: str | None, after: str | None
) -> None:
    tasks = Tasks(plane)
    await plane.deploy(text(before))
    await plane.emit("in", range(6))
    was = await tasks.new()

    class Killed(Exception):
        pass

    def die_at(name: str) -> None:
        if name == step:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(cutover, "crash_point", die_at)
        if step == "batches":
            last = "put_in_front" if after else "keep_in_front"
            patch.setattr(aggregator, last, _then(getattr(aggregator, last), Killed))
        with pytest.raises(Killed):
            await plane.deploy(text(after), no_rematerialize=True)
    assert await tasks.new() == []
    await plane.emit("in", [6])
    between = await tasks.new()
    assert between == (["6"] if before is None else [])
    await switch(plane, after)
    await plane.emit("in", [7])
    if before is None:
        assert (was, await tasks.new()) == ([str(n) for n in range(6)], ["7-7"])
    else:
        assert (was, sorted(await tasks.new())) == (["0-3"], ["4-6", "7"])


def _then(original: Callable, error: type[Exception]) -> Callable:
    async def both(*args: object) -> None:
        await original(*args)
        raise error

    return both


async def test_tasks_that_waited_read_what_they_would_have_read(plane: ControlPlane) -> None:
    def chain(*more: str) -> str:
        return SOURCE + job("copy", "in", "mid") + job("sum", "mid", "out", *more)

    await plane.deploy(chain())
    await plane.emit("in", range(4))
    await plane.meter()
    await plane.complete(*await plane.claim(await plane.send()))
    waiting = await plane.send()
    await plane.deploy(chain("execution_strategy: Bulk", "batch: { size: 3 }"), no_rematerialize=True)
    held = await plane.claim(waiting)
    assert sorted(h.scope.first for h in held) == [0, 1, 2, 3]
    paths = [[f.path for f in files] for h in held for files in h.task.input_files]
    assert len(held) == 4
    assert all(len(one) == 1 for one in paths)
    assert len({path for one in paths for path in one}) == 4, "each reads the file of its own position"
    assert await plane.complete(*held) == ["committed"] * 4


async def test_events_that_arrive_during_the_switch_are_each_computed_once(plane: ControlPlane) -> None:
    await plane.deploy(text(None))
    rules = ["{ size: 4 }", None, "{ size: 3 }", "{ size: 5 }", None]

    async def emit(positions: range) -> None:
        for position in positions:
            await plane.emit("in", [position])

    for number, rule in enumerate(rules):
        await asyncio.gather(emit(range(number * 12, number * 12 + 12)), switch(plane, rule), plane.meter())
    await settle(plane)
    rows = await plane.sql(
        "select range_start, range_end, kind::text from tasks join jobs using (job_id) where name = 'sum'"
    )
    assert {row["kind"] for row in rows} == {"data"}
    positions = sorted(p for row in rows for p in range(row["range_start"], row["range_end"] + 1))
    assert positions == list(range(60))


@pytest.mark.parametrize("rule", [None, "{ size: 2 }", "{ all: true }"])
async def test_what_a_pass_brings_while_a_deploy_changes_the_rule_is_cut_by_the_new_one(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, rule: str | None
) -> None:
    await plane.deploy(text(None))
    await switch(plane, "{ size: 5 }")
    await plane.emit("in", range(3))
    brought, may_commit = asyncio.Event(), asyncio.Event()
    original = jobs._OPERATORS["aggregator"]

    async def slowly(*args: Any) -> Work:
        work = await original(*args)
        brought.set()
        await may_commit.wait()
        return work

    monkeypatch.setitem(jobs._OPERATORS, "aggregator", slowly)
    passing = asyncio.create_task(plane.meter())
    await brought.wait()
    switching = asyncio.create_task(switch(plane, rule))
    waiting = "select count(*) from pg_locks where not granted"
    await until(lambda: plane.value(waiting), seconds=60, what="a deploy that waits for the pass")
    may_commit.set()
    await asyncio.gather(passing, switching)
    assert await Tasks(plane).new() == (["0-1"] if rule and "size" in rule else ["0-2"])


async def test_what_cannot_keep_its_data_is_refused(plane: ControlPlane) -> None:
    def joined(*more: str) -> str:
        return dag(
            "main", source(), source("other", name="others"), job("sum", ("in", "other"), "out", *more)
        )

    await plane.deploy(joined())
    with pytest.raises(Conflict, match=r"deploy\.needs_rematerialize"):
        await plane.deploy(joined("execution_strategy: Bulk", "batch: { size: 5 }"), no_rematerialize=True)
    plan = await plane.plan(joined("execution_strategy: Bulk", "batch: { size: 5 }"), no_rematerialize=True)
    assert plan.blocked_code == "deploy.needs_rematerialize"


async def test_a_job_that_has_yet_to_receive_the_past_waits(plane: ControlPlane) -> None:
    await plane.deploy(dag("early", source()))
    await plane.emit("in", range(3))
    late = dag("late", job("sum", "in", "out"))
    await plane.deploy(late)
    bulk = dag("late", job("sum", "in", "out", "execution_strategy: Bulk", "batch: { size: 2 }"))
    with pytest.raises(Conflict, match=r"deploy\.job_catching_up"):
        await plane.deploy(bulk, no_rematerialize=True)
    await plane.builds.run_once()
    await plane.deploy(bulk, no_rematerialize=True)
    await plane.emit("in", [3, 4, 5])
    assert await Tasks(plane).new() == ["0", "1", "2", "3-3", "4-5"]


async def test_a_plan_says_what_changes_in_place(plane: ControlPlane) -> None:
    await plane.deploy(text(None))
    plan = await plane.plan(text("{ size: 5 }"), no_rematerialize=True)
    assert plan.steps is not None
    assert [added.job for added in plan.steps.added] == ["sum__batch"]
    (changed,) = plan.steps.in_place
    assert {c.field: (c.old, c.new) for c in changed.changes} == {
        "execution_strategy": ('"PerUpdate"', '"PerPartition"'),
        "inputs[0].dataset": ('"in"', '"in#sum.batches"'),
    }
    await switch(plane, "{ size: 5 }")
    plan = await plane.plan(text("{ size: 7 }"), no_rematerialize=True)
    assert plan.steps is not None
    (changed,) = plan.steps.in_place
    assert (changed.job, [(c.field, c.old, c.new) for c in changed.changes]) == (
        "sum__batch",
        [("config.size", "5", "7")],
    )
    plan = await plane.plan(text(None), no_rematerialize=True)
    assert plan.steps is not None
    assert (plan.steps.removed, plan.steps.datasets_removed) == ([], [])
    aggregator = plan.steps.in_place[-1]
    assert (aggregator.job, [(c.field, c.old, c.new) for c in aggregator.changes]) == (
        "sum__batch",
        [("config.each", None, "true"), ("config.size", "5", None)],
    )
