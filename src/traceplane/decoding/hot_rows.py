"""Rows of an output, checked against their hot table, as CSV for Postgres COPY."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from traceplane.columnar.arrow_types import type_of
from traceplane.columnar.row_filters import meets
from traceplane.decoding.messages import HotRowsWork, InvalidContents
from traceplane.model.comparisons import of_ranges
from traceplane.model.dataset_schema import SchemaColumn, undeclared
from traceplane.model.hot_table import HotColumn, HotTable
from traceplane.model.row_positions import in_words

_ROWS_AT_ONCE = 16_384


def write(file: parquet.ParquetFile, work: HotRowsWork, sink: Any) -> int:
    """Returns the number of rows."""
    _check_types(file.schema_arrow, work.table)
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    count = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
        fitting = _fitted(pa.Table.from_batches([batch]), work)
        csv.write_csv(fitting, sink, options)
        count += batch.num_rows
    return count


def _check_types(schema: pa.Schema, table: HotTable) -> None:
    """The same rule as for datasets in files: a cast could round a number or drop the time of a day."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise _invalid(name, "occurs twice", "write it once")
    declared = [SchemaColumn(c.name, c.type, c.nullable) for c in table.columns]
    written = [SchemaColumn(field.name, str(field.type), field.nullable) for field in schema]
    if (misfit := undeclared(declared, written, {})) is not None:
        raise _invalid(
            misfit.column,
            f"is {misfit.actual} in this output, {misfit.expected} in the DAG file",
            misfit.next_step or "write the column as it is declared, or declare it as it is",
        )


def _fitted(rows: pa.Table, work: HotRowsWork) -> pa.Table:
    """The checked rows with the table's columns, in its order and types."""
    table = work.table
    names = [c.name for c in table.columns]
    columns = []
    for column in table.columns:
        type_ = type_of(column.arrow_type)
        if column.name not in rows.column_names:
            values = pa.chunked_array([pa.nulls(rows.num_rows, type_)])
        else:
            values = _cast(rows[column.name], column.name, type_, column.type)
        if values.null_count and not (column.nullable and column.name != table.position):
            raise _invalid(column.name, "is null or missing", "write a value in every row")
        columns.append(_as_text(_storable(values, column.name)))
    fitted = pa.table(columns, names=names)
    positions = fitted.select([table.position])
    outside = positions.filter(
        ~meets(table.position, positions.schema.field(0).type, of_ranges([work.values]))
    )
    if outside.num_rows:
        raise _invalid(
            table.position,
            f"has {outside[table.position][0].as_py()}, which is outside the task's scope {in_words(work.values)}",
            "write only rows of the task's own scope",
        )
    return fitted


def _cast(values: pa.ChunkedArray, name: str, type_: pa.DataType, declared: str) -> pa.ChunkedArray:
    try:
        values.validate(full=True)  # for example, text may not be UTF-8
        return values if values.type == type_ else values.cast(type_)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0][:200]
        raise _invalid(
            name, f"is {declared} and cannot hold the written value: {reason}", "write it as declared"
        ) from None


def _storable(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Rejects values that Arrow can hold but Postgres or CSV cannot."""
    if pa.types.is_string(values.type) and pc.any(pc.match_substring(values, "\0")).as_py():
        raise _invalid(name, "has text with a NUL character, which Postgres cannot store", "remove it")
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        years = pc.min_max(pc.year(values)).as_py()
        if years["min"] is not None and not 1 <= years["min"] <= years["max"] <= 9999:
            raise _invalid(name, "has a time outside the years 1 to 9999", "write times within them")
    return values


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes in Postgres' hexadecimal form; Arrow has no function for it, so this works value by value."""
    if not pa.types.is_binary(values.type):
        return values
    return pa.chunked_array(
        [pa.array([None if v is None else "\\x" + v.hex() for v in values.to_pylist()], pa.string())]
    )


def _invalid(column: str, what: str, next_step: str) -> InvalidContents:
    return InvalidContents(f"column {column} {what}", column=column, next_step=next_step)


def warm_up(buffer: Any) -> None:
    """A value of each kind, because Arrow loads some things on first use, such as time zones from files."""
    kinds: dict[str, Any] = {
        "bigint": pa.array([1], pa.int32()),
        "string": ["x"],
        "binary": [b"x"],
        "double": [1.5],
        "decimal(10, 2)": pa.array([1], pa.decimal128(5, 2)),
        "date": [date(2000, 1, 1)],
        "timestamp": [datetime(2000, 1, 1, tzinfo=UTC)],
        "timestamp_ntz": [datetime(2000, 1, 1)],  # noqa: DTZ001 -- the type without a zone
    }
    parquet.write_table(pa.table(kinds), buffer)
    table = HotTable(UUID(int=0), tuple(HotColumn(kind, kind) for kind in kinds), "bigint")
    with parquet.ParquetFile(buffer) as file:
        write(file, HotRowsWork(table, (1, 2)), pa.BufferOutputStream())
