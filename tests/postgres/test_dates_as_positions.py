"""Rows are told apart by a date or a time: in hot tables, in files that a batch wrote, and at the commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.hot_worker import HotWorker
from traceplane.columnar.parquet_facts import statistics
from traceplane.errors import SpecInvalid
from traceplane.model.partitions import By, Partitions
from traceplane.wire.control import ManualEvent
from traceplane.wire.tasks import ColumnStatistics

BERLIN = Partitions(By.DAY, "Europe/Berlin")
KINDS: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
DAYS = ["2026-10-24", "2026-10-25", "2026-10-26", "2026-10-27"]  # the second has 25 hours


def file(kind: str, storage: str) -> str:
    columns = f"columns: [{{name: at, type: {kind}}}, {{name: n, type: int}}], position: at"
    return (
        dag("main", source(), job("store", "in", "kept"), job("reader", "kept", "seen"))
        + job("weekly", "kept", "wide", "execution_strategy: Bulk", "batch: {size: 2}")
        + f"datasets:\n  in: {{partitions: {{by: day, time_zone: Europe/Berlin}}}}\n  kept: {{{storage}{columns}}}\n"
        + f"  wide: {{{columns}}}\n"
    )


def moments(kind: str, day: str) -> list[Any]:
    """The first and last moment of a day in Berlin."""
    position = BERLIN.position(day)
    first, last = BERLIN.starts_at(position), BERLIN.starts_at(position + 1) - timedelta(microseconds=1)
    naive = datetime.fromisoformat(day)
    found: dict[str, list[Any]] = {
        "date": [date.fromisoformat(day)] * 2,
        "timestamp": [first, last],
        "timestamp_ntz": [naive, naive + timedelta(days=1, microseconds=-1)],
    }
    return found[kind]


def rows(kind: str, *days: str, n: int = 0) -> pa.Table:
    at = [moment for day in days for moment in moments(kind, day)]
    return pa.table({"at": pa.array(at, KINDS[kind]), "n": pa.array([n] * len(at), pa.int32())})


@pytest.fixture
async def worker(database_url: str, tmp_path: Path) -> AsyncIterator[HotWorker]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        yield HotWorker(plane, tmp_path / "objects")


async def emit(worker: HotWorker, *days: str, emission: str = "") -> None:
    await worker.plane.emit_events([ManualEvent("in", partition=day, emission=emission) for day in days])


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_hot_table_by_day_holds_exactly_the_newest_rows_of_each_day(
    worker: HotWorker, kind: str
) -> None:
    await worker.plane.deploy(file(kind, "storage: postgres, write_mode: direct, "))
    await emit(worker, *DAYS[:3])
    for held, day in zip(await worker.take("store"), DAYS, strict=False):
        assert await worker.store(held, rows(kind, day)) == "committed"
    await emit(worker, DAYS[1], emission="again")
    [again] = await worker.take("store")
    assert await worker.store(again, rows(kind, DAYS[1], n=1)) == "committed"
    assert sorted((r["at"], r["n"]) for r in await worker.table("kept")) == sorted(
        [(at, n) for day, n in zip(DAYS[:3], (0, 1, 0), strict=True) for at in moments(kind, day)]
    )
    for held in await worker.take("reader"):
        found, _ = await worker.read(held)
        assert found["at"].to_pylist() == moments(kind, str(held.scope.partition_key))
    # A row of the day before, by one microsecond.
    await emit(worker, DAYS[3])
    [late] = await worker.take("store")
    assert await worker.store(late, rows(kind, DAYS[2], DAYS[3])) != "committed"
    assert (await worker.error(late))["code"] == "commit.rows_unfit"


def with_statistics(completion: Any, objects: Path) -> Any:
    """As a worker reports it, with the bounds of each column."""
    [output] = completion.outputs
    files = [
        msgspec.structs.replace(
            f,
            statistics={
                name: ColumnStatistics(facts.min, facts.max, facts.null_count)
                for name, facts in statistics(parquet.read_metadata(objects / f.path)).items()
            },
        )
        for f in output.files
    ]
    return msgspec.structs.replace(completion, outputs=[msgspec.structs.replace(output, files=files)])


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_month_reads_its_own_days_of_a_batch_that_reaches_into_the_next(
    worker: HotWorker, tmp_path: Path, kind: str
) -> None:
    batch = ["2026-10-31", "2026-11-01"]
    size = next(n for n in (2, 3, 5) if BERLIN.position(batch[0]) // n == BERLIN.position(batch[1]) // n)
    await worker.plane.deploy(
        file(kind, "")
        .replace("size: 2", f"size: {size}, max_wait: 1s")
        .replace("datasets:\n", job("monthly", "wide", "seen.months") + "datasets:\n", 1)
        .replace("{from: {dataset: wide}}", "{from: {dataset: wide}, wait_for: any}")
        + "  seen.months: {partitions: {by: month, time_zone: Europe/Berlin}}\n"
    )
    await emit(worker, *batch)
    for held, day in zip(await worker.take("store"), batch, strict=True):
        assert await worker.store(held, rows(kind, day)) == "committed"
    await worker.plane.meter()
    await worker.plane.pass_time(5)
    await worker.plane.batch_closer.run_once()
    [wide] = await worker.take("weekly")
    assert wide.scope.partition_key == "2026-10-31..2026-11-01"
    assert await worker.plane.report(
        (wide, with_statistics(worker.done(wide, rows(kind, *batch)), worker.objects))
    ) == ["committed"]
    months = await worker.take("monthly")
    assert [held.scope.partition_key for held in months] == ["2026-10", "2026-11"]
    for held, day in zip(months, batch, strict=True):
        read = worker.operator(held, tmp_path).read("wide")
        assert read["at"].to_pylist() == moments(kind, day)


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_row_of_another_day_is_refused_at_the_commit(worker: HotWorker, kind: str) -> None:
    await worker.plane.deploy(file(kind, ""))
    await emit(worker, *DAYS[:3])
    good, early, late = await worker.take("store")
    written = [rows(kind, DAYS[1]), rows(kind, DAYS[0], DAYS[1]), rows(kind, DAYS[2], DAYS[3])]
    tasks = {held.scope.partition_key: held for held in (good, early, late)}
    for day, table, outside in zip(
        (DAYS[1], DAYS[0], DAYS[2]), written, (None, DAYS[1], DAYS[3]), strict=True
    ):
        held = tasks[day]
        outcome = await worker.plane.report((held, with_statistics(worker.done(held, table), worker.objects)))
        if outside is None:
            assert outcome == ["committed"]
            continue
        error = await worker.error(held)
        assert error["code"] == "commit.position_out_of_scope"
        last = max(moments(kind, outside))
        assert (
            f"position {last.isoformat()}, which is not in the task's scope {day}, from " in error["message"]
        )


async def test_a_position_of_the_wrong_type_is_refused_at_the_commit_if_columns_are_not_declared(
    worker: HotWorker,
) -> None:
    text = file("date", "")
    declared = text[text.index("columns: [") : text.index(", position: at")]
    text = text.replace(f"{declared}, ", "").replace("by: day, time_zone: Europe/Berlin", "by: hour")
    await worker.plane.deploy(text)
    await emit(worker, "2026-10-24T05")
    [held] = await worker.take("store")
    await worker.plane.report((held, worker.done(held, rows("date", DAYS[0]))))
    error = await worker.error(held)
    assert error["code"] == "commit.position_missing"
    assert "is date32[day], but a date does not say which hour it is" in error["message"]


@pytest.mark.parametrize(
    ("kind", "partitions", "message", "suggestion"),
    [
        (
            "string",
            "by: day",
            "dates or timestamps, but 'at' is string",
            "name a bigint column, or a timestamp column",
        ),
        ("string", "by: position", "dates or timestamps, but 'at' is string", "name a bigint column"),
        (
            "date",
            "by: position",
            "not periods of time",
            "add partitions: { by: day }, or name a bigint column",
        ),
        (
            "timestamp",
            "by: name",
            "not periods of time",
            "add partitions: { by: day }, or name a bigint column",
        ),
        ("date", "by: hour", "which hour", "name a timestamp or bigint column"),
        (
            "timestamp_ntz",
            "by: hour, time_zone: Europe/Berlin",
            "which of the two",
            "name a timestamp or bigint column",
        ),
    ],
)
async def test_a_position_that_says_no_partition_is_refused_with_what_to_write(
    worker: HotWorker, kind: str, partitions: str, message: str, suggestion: str
) -> None:
    text = file(kind, "").replace("by: day, time_zone: Europe/Berlin", partitions)
    with pytest.raises(SpecInvalid) as refused:
        await worker.plane.deploy(text)
    problem = next(p for p in refused.value.problems if p.code == "spec.bad_position")
    assert message in problem.message
    assert problem.suggestion == suggestion
    assert (problem.line, problem.column) == (
        next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("  kept:")),
        next(line.index("position: at") for line in text.splitlines() if line.startswith("  kept:")) + 11,
    )


async def test_a_backfill_of_batches_of_days_has_the_scopes_of_the_batches(worker: HotWorker) -> None:
    months = "  seen.months: {partitions: {by: month, time_zone: Europe/Berlin}}\n"
    monthly = job("monthly", "wide", "seen.months")
    await worker.plane.deploy(file("date", "").replace("datasets:\n", f"{monthly}datasets:\n", 1) + months)
    first = BERLIN.position("2026-10-24") // 2 * 2
    days = [BERLIN.name(first + n) for n in range(4)]
    await emit(worker, *days)
    for held in await worker.take("store"):
        await worker.store(held, rows("date", str(held.scope.partition_key)))
    for dataset, expected in (("wide", 2), ("kept", 4)):
        answer = await worker.plane.backfill(dataset, days[0], days[3], dry_run=True, only="all")
        assert answer.scopes == expected
    answer = await worker.plane.backfill(
        "seen.months", "2026-09", "2026-10", dry_run=True, only="all", allow_gaps=True
    )
    assert answer.scopes == 2
    await worker.plane.backfill("wide", days[0], days[3], only="all")
    names = {held.scope.partition_key for held in await worker.take("weekly")}
    assert names == {f"{days[0]}..{days[1]}", f"{days[2]}..{days[3]}"}
