"""All readers of an input get the same rows: Python operators, Spark, and those of hot tables."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml
from pyspark.sql import SparkSession

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.hot_worker import HotWorker
from tests.terminal import blocks
from traceplane.columnar.parquet_facts import statistics
from traceplane.columnar.postgres_csv import as_parquet
from traceplane.dataplane import datasets
from traceplane.model import extents, pruning
from traceplane.model.comparisons import asked_columns
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.partitions import By, Partitions
from traceplane.model.row_positions import PositionColumn
from traceplane.model.task_payload import OperatorInput, TaskPayload
from traceplane.postgres import hot_tables
from traceplane.sdk import OperatorError, OperatorTask
from traceplane.testing import local_spark
from traceplane.wire.scalars import Scope


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark() as session:
        yield session


def read(spark: SparkSession, source: OperatorInput, column: str) -> list[Any]:
    """The values that both runtimes read, once it is known that they are the same."""
    task = OperatorTask(
        task_id="t", attempt=1, payload=TaskPayload(inputs=(source,)), output_folders={}, temp_dir="/tmp"
    )
    by_python = task.read(source.name)[column].to_pylist()
    frame: Any = datasets.read(spark, source)  # type: ignore[arg-type]
    assert sorted(map(str, frame.toArrow()[column].to_pylist())) == sorted(map(str, by_python))
    return by_python


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("type_", ["date32[day]", "timestamp[us, tz=UTC]", "timestamp[us]"])
def test_rows_of_days_are_read_by_their_dates_and_times(
    spark: SparkSession, tmp_path: Path, type_: str, zone: str
) -> None:
    days = Partitions(By.DAY, "Europe/Berlin")
    first = days.position("2026-10-24")  # the next day has 25 hours
    at: list[Any] = []
    for day in range(first, first + 4):
        if type_ == "timestamp[us, tz=UTC]":
            at += [days.starts_at(day), days.starts_at(day + 1) - timedelta(microseconds=1)]
        else:
            start = datetime.combine(days.first_date(day), datetime.min.time())
            at += [start, start + timedelta(days=1, microseconds=-1)]
    arrow = {"date32[day]": pa.date32(), "timestamp[us]": pa.timestamp("us")}.get(
        type_, pa.timestamp("us", "UTC")
    )
    at = [moment.date() for moment in at] if type_ == "date32[day]" else at
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"at": pa.array([*at, None], arrow)}), path)
    column = PositionColumn("at", type_, days)
    kept = tuple(column.all_values([(first - 5, first), (first + 2, first + 2)]))
    source = OperatorInput(
        "rows", (path,), columns=(SchemaColumn("at", type_),), position="at", kept={path: kept}
    )
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert read(spark, source, "at") == at[:2] + at[4:6]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


# Conditions ------------------------------------------------------------------------------------------

NAIVE = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001
MOMENT = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
TICK = timedelta(microseconds=1)
COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "at": ("bigint", pa.int64(), list(range(8))),
    "i": ("int", pa.int32(), [None, -5, 0, 1, 9, 10, 11, 2**31 - 1]),
    "f": ("float", pa.float32(), [None, math.nan, -0.0, 0.1, 0.10000001, 0.2, 1e30, -1.5]),
    "x": ("double", pa.float64(), [None, math.nan, -0.0, 0.1, 0.30000000000000004, 0.3, math.inf, -math.inf]),
    "m": ("decimal(20, 2)", pa.decimal128(20, 2),
          [None, *map(Decimal, ["0", "9.99", "10", "10.01", "-3", "123456789012345678", "123456789012345678.01"])]),
    "s": ("string", pa.string(), [None, "", "a", "B", "b", "é", "z", "\U0001f600"]),
    "d": ("date", pa.date32(), [None, *(date(2026, 10, n) for n in range(22, 29))]),
    "t": ("timestamp", pa.timestamp("us", "UTC"), [None, *(MOMENT + n * TICK for n in range(-3, 4))]),
    "w": ("timestamp_ntz", pa.timestamp("us"), [None, *(NAIVE + n * TICK for n in range(-3, 4))]),
    "b": ("boolean", pa.bool_(), [None, True, False, True, False, None, True, True]),
}  # fmt: skip
CONDITIONS: list[tuple[str, Any]] = [
    ("i", 10), ("i", 10.0), ("i", [1, 9]), ("i", {"at_least": 1, "below": 10}), ("i", {"above": 1, "at_most": 10}),
    ("i", {"above": -5}), ("i", {"below": 0}),
    ("f", 0.1), ("f", [0.1, 0.2]), ("f", {"at_least": 0.1}), ("f", {"above": 0.1}), ("f", {"below": 0.2}),
    ("f", {"above": 0, "at_most": 0.1}), ("f", 0),
    ("x", 0.3), ("x", {"above": 0.3}), ("x", {"at_least": 0, "below": 1}), ("x", {"at_most": 0}), ("x", 0),
    ("m", 10), ("m", 9.99), ("m", "10.01"), ("m", ["-3", 0]), ("m", {"at_least": 9.99, "below": 10.01}),
    ("m", {"above": "123456789012345678"}), ("m", {"below": 0}),
    ("s", "b"), ("s", ""), ("s", ["a", "é"]), ("s", {"at_least": "B", "below": "b"}), ("s", {"above": "z"}),
    ("s", {"below": "b"}),
    ("d", "2026-10-24"), ("d", ["2026-10-22", "2026-10-28"]), ("d", {"at_least": "2026-10-24", "below": "2026-10-26"}),
    ("t", "2026-10-25T00:30:00Z"), ("t", "2026-10-25T02:30:00+02:00"), ("t", {"above": "2026-10-25T01:30:00+01:00"}),
    ("t", {"at_least": "2026-10-25 00:29:59.999998Z", "below": "2026-10-25T00:30:00.000001+00:00"}),
    ("w", "2026-10-25T02:30:00"), ("w", {"at_most": "2026-10-25 02:30"}), ("w", {"at_least": "2026-10-25"}),
    ("b", True), ("b", [False]), ("b", [True, False]),
]  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt
}  # fmt: skip


def in_python(column: str, value: Any) -> Any:
    """A value of a condition as Python compares it with those of the column."""
    kind = COLUMNS[column][0]
    if kind.startswith("decimal"):
        return Decimal(str(value))
    if kind == "float":
        return pa.scalar(value, pa.float32()).as_py()
    return (
        {"date": date, "timestamp": datetime, "timestamp_ntz": datetime}[kind].fromisoformat(value)
        if isinstance(value, str) and kind != "string"
        else value
    )


def meets(column: str, value: Any, condition: Any) -> bool:
    if value is None:
        return False
    if isinstance(condition, dict):
        if isinstance(value, float) and math.isnan(value):  # after all other numbers
            return condition.keys() <= {"at_least", "above"}
        return all(COMPARE[word](value, in_python(column, bound)) for word, bound in condition.items())
    values = condition if isinstance(condition, list) else [condition]
    return value in [in_python(column, one) for one in values]


def rows() -> pa.Table:
    return pa.table({name: pa.array(values, type_) for name, (_, type_, values) in COLUMNS.items()})


async def test_every_reader_selects_the_same_rows(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    columns = ", ".join(f"{{name: {name}, type: '{kind}'}}" for name, (kind, _, _) in COLUMNS.items())
    path, table = str(tmp_path / "rows.parquet"), rows()
    parquet.write_table(table, path)
    schema = tuple(SchemaColumn(c.name, str(c.type)) for c in table.schema)
    stored = {n: {"min": f.min, "max": f.max} for n, f in statistics(parquet.read_metadata(path)).items()}
    types = {c.name: c.type for c in schema}
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        worker = HotWorker(plane, tmp_path / "objects")
        hot = f"datasets:\n  hot: {{storage: postgres, write_mode: direct, position: at, columns: [{columns}]}}\n"
        await plane.deploy(dag("main", source(), job("store", "in", "hot")) + hot)
        await plane.emit("in", [Scope(partition_key="0-7", start=0, end=7)])
        [held] = await worker.take("store")
        assert await worker.store(held, table) == "committed"
        async with plane.database.autocommit() as tx:
            [hot_table] = (await hot_tables.load(tx, [held.job.outputs[0].dataset_version])).values()
            for column, condition in CONDITIONS:
                where = {column: condition}
                expected = [n for n, v in enumerate(table[column].to_pylist()) if meets(column, v, condition)]
                assert expected, where
                file = {"path": path, "rows": 8, "bytes": 1, "statistics": stored}
                asked = pruning.asked(asked_columns(where, types))
                assert await tx.value("select jsonb_path_exists($1, $2::text::jsonpath)", [file], asked), (
                    where
                )
                operator_input = OperatorInput("rows", (path,), where=where, columns=schema)
                assert sorted(read(spark, operator_input, "at")) == expected, where
                view: Any = datasets.narrowed(spark.read.parquet(path), where, ())
                assert sorted(row["at"] for row in view.collect()) == expected, where
                csv = tmp_path / "rows.csv"
                with csv.open("wb") as sink:

                    async def push(piece: bytes) -> None:
                        sink.write(piece)

                    await hot_tables.read(tx, hot_table, 0, 7, push, columns=["at"], where=where)
                as_parquet(csv, tmp_path / "hot.parquet", pa.schema([("at", pa.int64())]))
                assert sorted(parquet.read_table(tmp_path / "hot.parquet")["at"].to_pylist()) == expected, (
                    where
                )


@pytest.mark.parametrize(
    ("column", "condition"), [("i", "x"), ("t", "2026-10-25T00:30:00"), ("m", 1.234), ("d", {"below": 7})]
)
def test_a_value_that_the_column_cannot_hold_is_the_users_error(
    spark: SparkSession, tmp_path: Path, column: str, condition: Any
) -> None:
    path, table = str(tmp_path / "rows.parquet"), rows()
    parquet.write_table(table, path)
    schema = tuple(SchemaColumn(c.name, str(c.type)) for c in table.schema)
    operator_input = OperatorInput("rows", (path,), where={column: condition}, columns=schema)
    for reader in (lambda: read(spark, operator_input, "at"), lambda: datasets.read(spark, operator_input)):  # type: ignore[arg-type]
        with pytest.raises(OperatorError) as refused:
            reader()
        assert refused.value.code == "operator.misconfigured"
        assert "where of the input 'rows'" in str(refused.value)


async def test_the_example_of_the_reference_is_deployed_and_reads_its_rows(
    database_url: str, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/dag.md").read_text()
    [example] = [block for block in blocks(page, "yaml") if block.startswith("where:")]
    where = yaml.safe_load(example)["where"]
    columns = (
        "[{name: venue, type: string}, {name: side, type: string}, {name: price, type: 'decimal(9, 2)'}]"
    )
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        worker = HotWorker(plane, tmp_path / "objects")
        reader = job("reader", "trades", "seen").replace("trades}", f"trades}}, where: {where}")
        text = dag("main", source(), job("store", "in", "trades"), reader)
        await plane.deploy(f"{text}datasets: {{trades: {{columns: {columns}}}}}\n")
        await plane.emit("in", [1])
        [held] = await worker.take("store")
        price = pa.array([Decimal(p) for p in ("10", "19.99", "20", "9.99", "15")], pa.decimal128(9, 2))
        trades = {"venue": ["eu"] * 4 + ["us"], "side": ["buy", "sell", "buy", "buy", "buy"], "price": price}
        assert await worker.store(held, pa.table(trades)) == "committed"
        [task] = await worker.take("reader")
        found = worker.operator(task, tmp_path).read("trades")
        assert found["price"].to_pylist() == [Decimal("10.00"), Decimal("19.99")]


@pytest.mark.parametrize("type_", ["int64", "timestamp[us, tz=UTC]"])
def test_rows_of_an_hour_are_read_by_a_column_of_time(
    spark: SparkSession, tmp_path: Path, type_: str
) -> None:
    hours = Partitions(By.HOUR)
    hour = hours.position("2026-11-16T05")
    at = [hours.starts_at(hour) + timedelta(minutes=minutes) for minutes in (-1, 0, 30, 59, 60)]
    arrow = pa.int64() if type_ == "int64" else pa.timestamp("us", "UTC")
    moments = [int(m.timestamp()) for m in at] if type_ == "int64" else at
    path = str(tmp_path / "rows.parquet")
    rows = {"block": [*range(5), 5], "at": pa.array([*moments, None], arrow), "side": ["buy"] * 6}
    parquet.write_table(pa.table(rows), path)
    source = OperatorInput(
        "rows",
        (path,),
        where={"side": "buy"},
        columns=(SchemaColumn("block", "int64"), SchemaColumn("at", type_), SchemaColumn("side", "string")),
        select=("block",),
        position="block",
        kept={path: ((0, 3),)},
        time_column="at",
        times=extents.values(type_, hours, (hour, hour)),
    )
    assert read(spark, source, "block") == [1, 2]
