"""History by hand: each scope that lacks something gets one task, behind current work, and is marked as history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.control_plane import ControlPlane, completed
from tests.dags import SOURCE, job
from traceplane.errors import TraceplaneError
from traceplane.wire.control import BackfillRequest, BackfillResponse
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import EventOut

DAG = (
    SOURCE
    + job("copy", "in", "mid", "max_attempts: 1")
    + job("daily", "mid", "daily", "execution_strategy: Bulk", "batch: {size: 10}")
    + job("report", "daily", "report")
)


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.deploy(DAG)
        yield opened


async def backfill(
    plane: ControlPlane, dataset: str, start: int, end: int, **fields: Any
) -> BackfillResponse:
    return await plane.api.backfill(plane._call(BackfillRequest(dataset, start, end, **fields)))


async def scopes(plane: ControlPlane, job: str, **wanted: Any) -> list[str]:
    rows = await plane.sql(
        "select scope_key from tasks t join jobs using (job_id)"
        " where name = $1 and ($2::boolean is null or t.backfill = $2) order by task_id",
        job,
        wanted.get("backfill"),
    )
    return [row["scope_key"] for row in rows]


async def test_missing_scopes_get_tasks_and_the_others_do_not(plane: ControlPlane) -> None:
    await plane.emit("in", [2, 3, Scope(partition_key="x", start=5, end=6)])
    await plane.run_all()
    answer = await backfill(plane, "mid", 0, 9)
    assert (answer.job, answer.scopes, answer.created, answer.missing) == ("copy", 10, 6, 6)
    assert await scopes(plane, "copy", backfill=True) == ["c:0", "c:1", "c:4", "c:7", "c:8", "c:9"]
    rows = await plane.sql("select distinct priority, kind::text, state::text from tasks where backfill")
    assert [tuple(r) for r in rows] == [(1, "data", "queued")]
    await plane.run_all()
    answer = await backfill(plane, "mid", 0, 9)
    assert (answer.created, answer.unfinished, answer.missing, answer.failed) == (0, 0, 0, 0)


async def test_the_same_command_twice_doubles_nothing_that_is_under_way(plane: ControlPlane) -> None:
    first = await backfill(plane, "mid", 0, 9, only="all")
    again = await backfill(plane, "mid", 0, 9, only="all")
    assert (first.created, first.unfinished) == (10, 10)
    assert (again.created, again.unfinished) == (0, 10)
    await plane.meter()
    assert (await backfill(plane, "mid", 0, 9, only="all")).created == 0  # now they are out
    await plane.run_all()
    assert (await backfill(plane, "mid", 0, 9, only="all")).created == 10


async def test_two_commands_at_once_make_each_task_once(database_url: str, plane: ControlPlane) -> None:
    async with ControlPlane.open(database_url) as other:
        answers = await asyncio.gather(*(backfill(p, "mid", 0, 999) for p in (plane, other, plane, other)))
    assert sum(a.created for a in answers) == 1000
    assert len(await plane.tasks("copy")) == 1000


async def test_a_dry_run_tells_and_makes_nothing(plane: ControlPlane) -> None:
    answer = await backfill(plane, "mid", 0, 9, dry_run=True)
    assert (answer.created, answer.unfinished, answer.missing) == (10, 0, 10)
    assert await plane.tasks("copy") == []


async def test_only_failed_takes_scopes_whose_last_task_is_dead(plane: ControlPlane) -> None:
    await plane.emit("in", range(4))
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    await plane.fail(held[1], held[2], retryable=False)
    await plane.complete(held[0], held[3])
    assert (await backfill(plane, "mid", 0, 9, dry_run=True)).failed == 2
    answer = await backfill(plane, "mid", 0, 9, only="failed")
    assert (answer.created, answer.failed) == (2, 2)
    assert await scopes(plane, "copy", backfill=True) == ["c:1", "c:2"]
    await plane.run_all()
    answer = await backfill(plane, "mid", 0, 9, only="failed")
    assert (answer.created, answer.failed, answer.missing) == (0, 0, 6)


async def test_force_computes_again_what_is_there_and_says_so_downstream(plane: ControlPlane) -> None:
    await plane.emit("in", range(10))
    await plane.run_all()
    await backfill(plane, "mid", 0, 9, only="all")
    await plane.run_all()
    rows = await plane.sql(
        "select dataset_id, e.kind::text, e.backfill, count(*) from events e join datasets using (dataset_uuid)"
        " where dataset_id <> 'in' group by 1, 2, 3 order by 1, 2"
    )
    assert {tuple(r) for r in rows} == {
        ("mid", "data", False, 10),
        ("mid", "invalidation", True, 10),
        ("mid#daily.batches", "data", False, 1),
        ("mid#daily.batches", "invalidation", True, 1),
        ("daily", "data", False, 1),
        ("daily", "invalidation", True, 1),
        ("report", "data", False, 1),
        ("report", "invalidation", True, 1),
    }
    rows = await plane.sql("select priority, backfill, count(*) from tasks group by 1, 2")
    assert {tuple(r) for r in rows} == {(0, False, 22), (1, True, 22)}


async def test_events_that_a_backfill_task_names_itself_are_marked_too(plane: ControlPlane) -> None:
    await backfill(plane, "mid", 5, 5)
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.emit_running(held, EventOut(0, Scope(cursor=6)))
    await plane.report((held, completed(held, EventOut(0, Scope(cursor=7)))))
    assert await plane.value("select bool_and(backfill) and count(*) = 3 from events")


async def test_current_work_goes_before_history(plane: ControlPlane) -> None:
    await backfill(plane, "mid", 0, 9)
    await plane.emit("in", [100])
    async with plane.database.transaction() as tx:
        await tx.run("update jobs set max_concurrency = 1")
    assert await plane.valve.run_once()
    (held,) = await plane.claim(await plane.send())
    assert held.task.scope == Scope(cursor=100)


async def test_partitions_of_a_size(plane: ControlPlane) -> None:
    await plane.emit("in", [*range(4, 8), 9])
    await plane.run_all()
    answer = await backfill(plane, "mid", 0, 11, partition_size=4)
    assert (answer.scopes, answer.created) == (3, 2)  # the four cursors of the second are all there
    assert await scopes(plane, "copy", backfill=True) == ["p:0-3", "p:8-11"]
    await plane.run_all()
    assert (await backfill(plane, "mid", 0, 11)).missing == 0


@pytest.mark.parametrize("dataset", ["daily", "report"])
async def test_a_job_behind_an_aggregator_gets_its_ranges(plane: ControlPlane, dataset: str) -> None:
    await plane.emit("in", range(10))
    await plane.run_all()
    answer = await backfill(plane, dataset, 5, 25, allow_gaps=True)
    assert (answer.scopes, answer.created) == (3, 2)
    assert await scopes(plane, dataset, backfill=True) == ["p:10-19", "p:20-29"]


async def test_a_wide_range_is_made_in_several_transactions(plane: ControlPlane) -> None:
    answer = await backfill(plane, "mid", 0, 11_999)
    assert (answer.created, answer.unfinished) == (12_000, 12_000)
    assert len(set(await scopes(plane, "copy"))) == 12_000


@pytest.mark.parametrize(
    ("dataset", "start", "end", "fields", "code"),
    [
        ("nothing", 0, 1, {}, "dataset.unknown"),
        ("in", 0, 1, {}, "backfill.source_dataset"),
        ("mid#daily.batches", 0, 1, {}, "backfill.no_rows"),
        ("daily", 0, 1, {"partition_size": 10}, "backfill.fixed_size"),
        ("mid", 1, 0, {}, "backfill.bad_range"),
        ("mid", 0, 100_000, {}, "backfill.bad_range"),
    ],
)
async def test_a_backfill_that_makes_no_sense_is_refused(
    plane: ControlPlane, dataset: str, start: int, end: int, fields: dict[str, Any], code: str
) -> None:
    with pytest.raises(TraceplaneError) as refused:
        await backfill(plane, dataset, start, end, **fields)
    assert refused.value.code == code
    assert refused.value.next_step
    assert await plane.tasks("copy") == []
