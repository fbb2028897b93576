"""Partitions older than their dataset's retention are dropped, told as dropped, and do not come back by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, job
from tests.hot_worker import HotWorker
from tests.postgres.hot_history import DATASETS as HOT_DATASETS
from tests.postgres.hot_history import pairs, stored
from tests.postgres.test_garbage import claim, files, staged
from tests.postgres.test_scopes import dag as scopes_dag
from tests.postgres.test_scopes import day, new_scopes
from tests.postgres.test_scopes import job as reading
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.cli.coverage import describe
from traceplane.errors import Conflict
from traceplane.postgres import pinned
from traceplane.query.catalog import Catalog
from traceplane.registry.garbage import Collected, Policy, collect
from traceplane.wire.control import ManualEvent
from traceplane.wire.scalars import Scope

DAY = 86_400.0
POLICY = Policy(timedelta(hours=24), timedelta(days=30))
KEPT = "datasets: {mid: {retention: 90d}}\n"
DAG = SOURCE + job("copy", "in", "mid") + KEPT
REBUILT = SOURCE + job("copy", "in", "mid", entrypoint="basic:other") + KEPT


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


async def end(plane: ControlPlane, root: Path, *, dry_run: bool = False) -> Collected:
    return await collect(plane.database, FolderObjectStore(root), POLICY, dry_run=dry_run)


async def live(plane: ControlPlane, dataset: str = "mid") -> list[int]:
    """The positions that readers have."""
    rows = await plane.sql(
        "select c.range_start from datasets d join dataset_commits c on c.generation_id = d.current_generation_id"
        " where d.dataset_id = $1 and c.superseded_by is null order by 1",
        dataset,
    )
    return [row["range_start"] for row in rows]


async def old_and_new(plane: ControlPlane, root: Path, dag: str = DAG) -> None:
    """Positions 0 to 4 on the first day, 5 to 9 on the 60th; it is day 95."""
    await plane.deploy(dag)
    await plane.complete(*await claim(plane, root, *range(5)))
    await plane.set_clock(60 * DAY)
    await plane.complete(*await claim(plane, root, *range(5, 10)))
    await plane.set_clock(95 * DAY)


async def test_positions_are_dropped_by_the_time_of_their_commit(plane: ControlPlane, root: Path) -> None:
    await old_and_new(plane, root)
    assert (await end(plane, root, dry_run=True)).partitions == 5
    assert await live(plane) == [*range(10)]
    assert (await end(plane, root)).partitions == 5
    assert await live(plane) == [*range(5, 10)]
    assert len(files(root)) == 10  # a reader may still use them
    await plane.set_clock(97 * DAY)
    assert (await end(plane, root)).files == 5
    assert len(files(root)) == 5
    assert (await end(plane, root)).partitions == 0


async def test_a_gateway_that_has_listed_the_files_reads_the_dropped_ones_no_more(
    plane: ControlPlane, root: Path
) -> None:
    await old_and_new(plane, root)
    catalog = Catalog()

    async def listed() -> list[int]:
        async with plane.database.snapshot() as tx:
            dataset = (await pinned.datasets(tx, "default", ["mid"]))["mid"]
            return [commit.positions[0] for commit in (await catalog.files(tx, dataset, ())).commits]

    assert await listed() == [*range(10)]
    await end(plane, root)
    assert await listed() == [*range(5, 10)]


async def test_what_was_dropped_is_told_as_dropped(plane: ControlPlane, root: Path) -> None:
    await old_and_new(plane, root)
    await end(plane, root)
    (dataset,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    assert dataset.coverage is not None
    assert (dataset.coverage.first, dataset.coverage.gap_count) == (5, 0)
    assert (dataset.coverage.dropped, dataset.coverage.dropped_name) == ((0, 4), "0-4")
    assert dataset.coverage.dropped_ranges == 1
    answer = await plane.explain_scope("mid", 3, 6)
    assert answer.missing == ()
    assert [reason.code for reason in answer.reasons] == ["dropped"]


async def test_a_rebuild_does_not_bring_it_back_and_cuts_over(plane: ControlPlane, root: Path) -> None:
    await old_and_new(plane, root)
    await end(plane, root)
    await plane.deploy(REBUILT)
    assert (await plane.builds.run_once()).told == 5
    await plane.run_all()
    assert (await plane.builds.run_once()).cut_over == 1
    assert await live(plane) == [*range(5, 10)]
    await plane.rollback("main")
    await plane.builds.run_once()
    assert await plane.run_all() == 0
    assert await live(plane) == [*range(5, 10)]


async def test_a_version_within_reach_keeps_what_serves(plane: ControlPlane, root: Path) -> None:
    """A rebuild writes everything anew, so its commits are younger; the older version keeps theirs as long."""
    await plane.deploy(DAG)
    await plane.complete(*await claim(plane, root, *range(5)))
    await plane.set_clock(60 * DAY)
    await plane.deploy(REBUILT)
    await plane.builds.run_once()
    await plane.run_all()
    assert (await plane.builds.run_once()).cut_over == 1
    await plane.set_clock(100 * DAY)
    assert (await end(plane, root)).partitions == 0
    await plane.rollback("main")
    assert await live(plane) == [*range(5)]


async def test_a_backfill_brings_it_back_for_as_long_again(plane: ControlPlane, root: Path) -> None:
    await old_and_new(plane, root)
    await end(plane, root)
    await plane.backfill("mid", 2, 3)
    await plane.run_all()
    assert await live(plane) == [2, 3, *range(5, 10)]
    assert (await plane.explain_scope("mid", 2, 3)).reasons[0].code == "held"
    await plane.set_clock(160 * DAY)
    assert (await end(plane, root)).partitions == 5
    assert await live(plane) == [2, 3]
    await plane.set_clock(190 * DAY)
    await end(plane, root)
    assert await live(plane) == []


async def test_periods_are_dropped_by_their_own_time(plane: ControlPlane, root: Path) -> None:
    days = "datasets: {in: {partitions: {by: day}}, mid: {partitions: {by: day}, retention: 90d}}\n"
    await plane.deploy(SOURCE + job("copy", "in", "mid") + days)
    first = 21_915  # 2030-01-01, when the clock of these tests starts
    scopes = [
        Scope(partition_key=name, start=n, end=n)
        for n, name in ((first - 200, "2029-06-15"), (first, "2030-01-01"))
    ]
    await plane.complete(*await claim(plane, root, *scopes))
    assert (await end(plane, root)).partitions == 1
    assert await live(plane) == [first]
    await plane.set_clock(90 * DAY)
    assert (await end(plane, root)).partitions == 0  # it ended less than 90 days ago
    await plane.set_clock(91 * DAY)
    assert (await end(plane, root)).partitions == 1


async def test_nothing_is_computed_from_what_was_dropped(plane: ControlPlane, root: Path) -> None:
    """A derived dataset that is kept for longer than its input stays as it is, and no cutover loses it."""
    after = job("after", "mid", "out")
    await plane.deploy(SOURCE + job("copy", "in", "mid") + after + KEPT)
    await plane.emit("in", range(5))
    await plane.run_all()
    await plane.set_clock(95 * DAY)
    assert (await end(plane, root)).partitions == 5
    await plane.emit("in", [7])
    await plane.run_all()
    assert (await plane.backfill("out", 0, 4, only="all")).created == 0
    await plane.deploy(
        SOURCE + job("copy", "in", "mid") + job("after", "mid", "out", entrypoint="basic:new") + KEPT
    )
    for _ in range(3):
        await plane.builds.run_once()
        await plane.run_all()
    assert await live(plane, "out") == [0, 1, 2, 3, 4, 7]
    with pytest.raises(Conflict, match="out 0-4"):
        await plane.cutover("main")
    await plane.cutover("main", drop_missing=True)
    assert await live(plane, "out") == [7]


AFTER = SOURCE + job("copy", "in", "mid") + job("after", "mid", "out") + KEPT


@pytest.mark.parametrize("batch", ["size: 5", "every: 2s"])
async def test_a_batch_is_not_recomputed_once_some_of_it_is_dropped(
    plane: ControlPlane, root: Path, batch: str
) -> None:
    bulk = job("after", "mid", "out", "execution_strategy: Bulk", f"batch: {{{batch}}}")
    await plane.deploy(SOURCE + job("copy", "in", "mid") + bulk + KEPT)
    await plane.emit("in", range(5))
    await plane.run_all()
    await plane.set_clock(10)
    await plane.batch_closer.run_once()
    await plane.run_all()
    assert await live(plane, "out") == [0]
    await plane.set_clock(95 * DAY)
    assert (await end(plane, root)).partitions == 5
    await plane.emit("in", [3], emission="late")
    await plane.run_all()
    await plane.set_clock(96 * DAY)
    await plane.batch_closer.run_once()
    await plane.run_all()
    assert await plane.states("after") == {}  # what it did before is history


async def waiting_while_dropped(plane: ControlPlane, root: Path) -> UUID:
    """A task that is to replace rows for position 1, whose input is dropped before it runs."""
    await plane.deploy(AFTER)
    await plane.emit("in", range(3))
    await plane.run_all()
    await plane.pause("main", "after")
    await plane.emit("in", [1], emission="again")
    await plane.emit("in", [7])
    await plane.run_all()
    await plane.set_clock(95 * DAY)
    assert (await end(plane, root)).partitions == 4
    return (await plane.tasks("after", "queued"))[0]


async def test_a_task_whose_input_was_dropped_meanwhile_is_not_run(plane: ControlPlane, root: Path) -> None:
    task_id = await waiting_while_dropped(plane, root)
    await plane.resume("main", "after")
    await plane.emit("in", [8])
    assert await plane.run_all() == 2  # copy and after, of 8
    assert await plane.states("after") == {"completed": 1, "canceled": 2}
    assert await live(plane, "out") == [0, 1, 2, 8]
    (reason,) = (await plane.explain(task_id)).reasons
    assert reason.code == "canceled"
    assert reason.sentence == "It was canceled: mid has dropped 1, which it reads."
    (dropped, *_) = (await plane.explain_scope("out", 7, 7)).reasons
    assert dropped.code == "dropped"
    await plane.retry(task_id)
    assert await plane.run_all() == 0
    assert await plane.states("after") == {"completed": 1, "canceled": 2}


async def test_a_window_or_batch_that_was_queued_before_its_input_was_dropped_is_not_run(
    plane: ControlPlane, root: Path
) -> None:
    bulk = job("after", "mid", "out", "execution_strategy: Bulk", "batch: {size: 5}")
    window = job("window", "mid", "seen").replace(
        "{from: {dataset: mid}}", "{from: {dataset: mid}, read: {before: 2}}"
    )
    assert "before" in window
    await plane.deploy(SOURCE + job("copy", "in", "mid") + bulk + window + KEPT)
    await plane.pause("main", "after")
    await plane.pause("main", "window")
    await plane.emit("in", range(5))
    await plane.run_all()
    await plane.set_clock(95 * DAY)
    await end(plane, root)
    await plane.resume("main", "after")
    await plane.resume("main", "window")
    assert await plane.run_all() == 0
    assert await plane.states("after") == {"canceled": 1}
    assert await plane.states("window") == {"canceled": 5}


async def test_a_backfill_with_gaps_does_not_compute_from_what_was_dropped(
    plane: ControlPlane, root: Path
) -> None:
    await plane.deploy(AFTER)
    await plane.emit("in", range(3))
    await plane.run_all()
    await plane.set_clock(95 * DAY)
    await end(plane, root)
    assert (await plane.backfill("out", 0, 2, only="all", allow_gaps=True)).created == 0


@pytest.mark.parametrize("paused", [True, False])
async def test_what_is_dropped_during_a_build_does_not_come_back(
    plane: ControlPlane, root: Path, paused: bool
) -> None:
    await old_and_new(plane, root)
    await plane.deploy(REBUILT)
    await plane.builds.run_once()
    if not paused:
        await plane.meter()
        held = await plane.claim(await plane.send())
        await end(plane, root)
        await plane.complete(*held)
    else:
        await end(plane, root)
    await plane.run_all()
    assert (await plane.builds.run_once()).cut_over == 1
    assert await live(plane) == [*range(5, 10)]
    (dataset,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    assert dataset.coverage is not None
    assert (dataset.coverage.first, dataset.coverage.dropped) == (5, (0, 4))


async def test_a_dataset_that_was_rebuilt_after_it_had_dropped_everything_keeps_its_columns(
    plane: ControlPlane, root: Path
) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(3))
    await plane.run_all()
    await plane.sql(
        "insert into generation_schemas (generation_id, columns, revision, updated_at)"
        " select current_generation_id, $1, 1, tp_now() from datasets where dataset_id = 'mid'",
        [{"name": "n", "type": "int64", "nullable": True}],
    )
    await plane.set_clock(95 * DAY)
    await end(plane, root)
    await plane.deploy(REBUILT)
    assert (await plane.builds.run_once()).cut_over == 1
    async with plane.database.snapshot() as tx:
        dataset = (await pinned.datasets(tx, "default", ["mid"]))["mid"]
    assert [column.name for column in dataset.columns] == ["n"]


async def test_status_names_what_a_dataset_by_name_has_dropped(plane: ControlPlane, root: Path) -> None:
    names = "datasets: {in: {partitions: {by: name}}, mid: {retention: 90d}}\n"
    await plane.deploy(SOURCE + job("copy", "in", "mid") + names)
    await plane.emit_events([ManualEvent("in", partition=name) for name in ("eu", "us", "jp", "br", "za")])
    await plane.run_all()
    await plane.set_clock(95 * DAY)
    assert (await end(plane, root)).partitions == 5
    (dataset,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    assert dataset.coverage is not None
    assert dataset.coverage.dropped_name is not None
    assert dataset.coverage.dropped_name.endswith(" and 2 more")
    assert describe(dataset.coverage) == f", {dataset.coverage.dropped_name} dropped"


async def test_a_dataset_of_events_drops_them(plane: ControlPlane, root: Path) -> None:
    await plane.deploy(SOURCE + job("copy", "in", "mid") + "datasets: {in: {retention: 90d}}\n")
    held = await claim(plane, root, 1, 2)
    await plane.complete(*held)
    await plane.set_clock(95 * DAY)
    assert (await end(plane, root)).events == 2
    assert (await plane.explain_scope("in", 1, 2)).reasons[0].code == "dropped"
    assert await live(plane) == [1, 2]
    assert files(root) == {staged(h) for h in held}


@pytest.mark.parametrize("start", [", start: 2029-12-01", ""])
async def test_a_month_is_not_recomputed_once_some_of_its_days_are_dropped(
    plane: ControlPlane, root: Path, start: str
) -> None:
    days = f"a: {{partitions: {{by: day{start}}}}}, days.out: {{retention: 20d}}, j.out: {{partitions: {{by: month}}}}"
    jobs = reading("days", "{from: {dataset: a}}") + reading("j", "{from: {dataset: days.out}}")
    await plane.deploy(scopes_dag(jobs, f"{{{days}}}", ("a",)))
    december = [day(f"2029-12-{n:02}") for n in range(1, 32)]
    assert await new_scopes(plane, "a", *december) == ["2029-12"]
    assert await new_scopes(plane, "a", december[29], emission="again") == ["2029-12!"]
    await plane.set_clock(10 * DAY)
    assert (await end(plane, root)).partitions == 21
    assert await new_scopes(plane, "a", december[29], emission="late") == []
    assert await new_scopes(plane, "a", december[3], emission="late") == []
    reasons = (await plane.explain_scope("days.out", "2029-12-01", "2029-12-01")).reasons
    assert reasons[0].code == "dropped"


async def test_rows_of_a_hot_table_are_deleted(database_url: str, tmp_path: Path) -> None:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.set_clock(0)
        worker = HotWorker(plane, tmp_path / "objects")
        kept = "direct, retention: 90d"
        await plane.deploy(
            SOURCE + job("store", "in", "hot") + HOT_DATASETS.partition("  seen")[0].replace("direct", kept)
        )
        await stored(worker, 1, (1, 10))
        await plane.set_clock(60 * DAY)
        await stored(worker, 2, (2, 20))
        await plane.set_clock(95 * DAY)
        assert (await end(plane, tmp_path / "objects")).partitions == 1
        assert pairs(await worker.table("hot")) == [(2, 20)]
