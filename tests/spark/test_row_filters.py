"""Spark and Python operators get the same rows of an input."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from traceplane.dataplane import datasets
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.partitions import By, Partitions
from traceplane.model.row_positions import PositionColumn
from traceplane.model.task_payload import OperatorInput, TaskPayload
from traceplane.sdk import OperatorTask
from traceplane.testing import local_spark


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
