"""Rows of an output, checked against the hot table that they are for, as CSV that Postgres copies in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from traceplane.columnar.arrow_types import type_of
from traceplane.decoding.messages import HotRowsWork, Misfit
from traceplane.model.hot_table import HotColumn, HotTable

_ROWS_AT_ONCE = 16_384


def write(file: parquet.ParquetFile, work: HotRowsWork, sink: Any) -> int:
    """How many rows there are."""
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    count = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
        fitting = _fitted(pa.Table.from_batches([batch]), work.table, work.start, work.end)
        csv.write_csv(fitting, sink, options)
        count += batch.num_rows
    return count


def _fitted(rows: pa.Table, table: HotTable, start: int, end: int) -> pa.Table:
    """The rows as the table has them: its columns, in its order, in its types, checked."""
    names = [c.name for c in table.columns]
    if unknown := [name for name in rows.column_names if name not in names]:
        raise _misfit(unknown[0], "is not one of the dataset's columns", "declare it, or do not write it")
    columns = []
    for column in table.columns:
        type_ = type_of(column.arrow_type)
        if column.name not in rows.column_names:
            found = pa.chunked_array([pa.nulls(rows.num_rows, type_)])
        elif rows.column_names.count(column.name) > 1:
            raise _misfit(column.name, "is there twice", "write it once")
        else:
            found = _cast(rows[column.name], column.name, type_, column.type)
        if found.null_count and not (column.nullable and column.name != table.position):
            raise _misfit(column.name, "is null or missing", "write a value in every row")
        columns.append(_as_text(_storable(found, column.name)))
    fitted = pa.table(columns, names=names)
    if fitted.num_rows:
        low, high = pc.min_max(fitted[table.position]).as_py().values()
        if low < start or high > end:
            where = low if low < start else high
            raise _misfit(
                table.position,
                f"has {where}, which is outside of the task's scope {start} to {end}",
                "write rows of the task's own scope only",
            )
    return fitted


def _cast(found: pa.ChunkedArray, name: str, type_: pa.DataType, declared: str) -> pa.ChunkedArray:
    try:
        found.validate(full=True)  # text may not be UTF-8, for one
        if found.type == type_:
            return found
        if pa.types.is_temporal(found.type) != pa.types.is_temporal(type_) or _is_text(
            found.type
        ) != _is_text(type_):
            raise pa.ArrowInvalid(f"{found.type} is not {declared}")
        return found.cast(type_)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0][:200]
        raise _misfit(
            name, f"is {declared} and cannot hold what was written: {reason}", "write it as declared"
        ) from None


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _storable(found: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Refuses what Arrow can hold and Postgres cannot, or CSV cannot spell."""
    if pa.types.is_string(found.type) and pc.any(pc.match_substring(found, "\0")).as_py():
        raise _misfit(name, "has text with a NUL character, which Postgres cannot store", "remove it")
    if pa.types.is_date(found.type) or pa.types.is_timestamp(found.type):
        years = pc.min_max(pc.year(found)).as_py()
        if years["min"] is not None and not 1 <= years["min"] <= years["max"] <= 9999:
            raise _misfit(name, "has a time outside of the years 1 to 9999", "write times within them")
    return found


def _as_text(found: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes as Postgres reads them; Arrow has no such function, so this is by value."""
    if not pa.types.is_binary(found.type):
        return found
    return pa.chunked_array(
        [pa.array([None if v is None else "\\x" + v.hex() for v in found.to_pylist()], pa.string())]
    )


def _misfit(column: str, what: str, next_step: str) -> Misfit:
    return Misfit(f"column {column} {what}", column=column, next_step=next_step)


def warm_up(buffer: Any) -> None:
    """A value of each kind: Arrow looks up time zones in files, for one."""
    kinds: dict[str, Any] = {
        "bigint": pa.array([1], pa.int32()),
        "string": ["x"],
        "binary": [b"x"],
        "double": [1.5],
        "decimal(10, 2)": pa.array([1], pa.decimal128(5, 1)),
        "date": [date(2000, 1, 1)],
        "timestamp": [datetime(2000, 1, 1, tzinfo=UTC)],
        "timestamp_ntz": [datetime(2000, 1, 1)],
    }
    parquet.write_table(pa.table(kinds), buffer)
    table = HotTable(UUID(int=0), tuple(HotColumn(kind, kind) for kind in kinds), "bigint")
    with parquet.ParquetFile(buffer) as file:
        write(file, HotRowsWork(table, 1, 1), pa.BufferOutputStream())
