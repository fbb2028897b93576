"""Rows that a hot table cannot hold are refused with their number, their column, their value and what was expected."""

from __future__ import annotations

from datetime import datetime
from io import BytesIO
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from traceplane.decoding import hot_rows
from traceplane.decoding.messages import HotRowsWork, InvalidContents
from traceplane.model.hot_table import HotColumn, HotTable

COLUMNS = (
    HotColumn("block", "bigint"),
    HotColumn("name", "string"),
    HotColumn("at", "timestamp_ntz"),
    HotColumn("n", "int", nullable=False),
)
WORK = HotRowsWork(HotTable(UUID(int=1), COLUMNS, "block"), (5, 7))
AT = datetime(2026, 11, 18)  # noqa: DTZ001 -- the type without a zone


def rows(count: int = 5) -> pa.Table:
    return pa.table(
        {
            "block": pa.array([5] * count, pa.int64()),
            "name": ["x"] * count,
            "at": pa.array([AT] * count, pa.timestamp("us")),
            "n": pa.array([1] * count, pa.int32()),
        }
    )


def with_value(table: pa.Table, row: int, column: str, values: pa.Array) -> pa.Table:
    """The table, with another value in one row."""
    own = table[column].combine_chunks().cast(values.type)
    whole = pa.concat_arrays([own.slice(0, row), values, own.slice(row + 1)])
    return table.set_column(table.column_names.index(column), column, whole)


def refusal(table: pa.Table) -> InvalidContents:
    file = BytesIO()
    parquet.write_table(table, file)
    file.seek(0)
    with parquet.ParquetFile(file) as opened, pytest.raises(InvalidContents) as raised:
        hot_rows.write(opened, WORK, pa.BufferOutputStream())
    return raised.value


def facts(error: InvalidContents) -> tuple[int | None, str | None, str | None, str | None]:
    return error.row, error.column, error.value, error.expected


def test_a_null_has_the_number_of_its_row() -> None:
    error = refusal(with_value(rows(), 3, "n", pa.array([None], pa.int32())))
    assert facts(error) == (4, "n", None, "int, not null")
    assert str(error) == "column n is null"


def test_rows_are_counted_from_the_beginning_of_the_file() -> None:
    error = refusal(with_value(rows(40_000), 39_990, "block", pa.array([9], pa.int64())))
    assert facts(error) == (39_991, "block", "9", "a position of the task's scope 5 to 6")


def test_the_first_of_several_rows_is_named() -> None:
    table = with_value(rows(), 4, "block", pa.array([9], pa.int64()))
    assert refusal(with_value(table, 2, "block", pa.array([-1], pa.int64()))).row == 3


def test_a_missing_column_is_of_no_row() -> None:
    assert facts(refusal(rows().drop_columns(["block"]))) == (None, "block", None, "bigint, not null")


def test_text_that_postgres_cannot_store_can_be_stored_in_the_error() -> None:
    error = refusal(with_value(rows(), 1, "name", pa.array(["a\0b"])))
    assert facts(error) == (2, "name", "a\\0b", "text without NUL characters")


def test_text_that_is_not_utf_8_is_found_and_shown() -> None:
    broken = pa.array([b"caf\xe9"]).view(pa.string())
    error = refusal(with_value(rows(), 2, "name", broken))
    assert facts(error) == (3, "name", "caf\ufffd", "string")


def test_a_time_that_only_arrow_can_hold_is_shown() -> None:
    far = pa.array([400_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us"))
    error = refusal(with_value(rows(), 1, "at", far))
    assert (error.row, error.expected) == (2, "a time in the years 1 to 9999")
    assert error.value is not None
    assert "14645" in error.value in str(error)


def test_a_long_value_is_cut() -> None:
    error = refusal(with_value(rows(), 0, "name", pa.array(["long" * 1000 + "\0"])))
    assert error.value is not None
    assert len(error.value) == 200
    assert error.value.endswith("…")
