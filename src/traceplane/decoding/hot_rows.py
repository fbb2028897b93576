"""Rows of an output, checked against their hot table, as CSV for Postgres COPY."""

from __future__ import annotations

from bisect import bisect_left
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
_LONGEST_TEXT = 200
"""Of a value that is quoted."""
_ROW = "#"
"""A column that numbers rows; beside the position column only, and no position is named so."""


def write(file: parquet.ParquetFile, work: HotRowsWork, sink: Any) -> int:
    """Returns the number of rows."""
    _check_types(file.schema_arrow, work.table)
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    count = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
        fitting = _fitted(pa.Table.from_batches([batch]), work, rows_before=count)
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
            expected=misfit.expected,
        )


def _fitted(rows: pa.Table, work: HotRowsWork, rows_before: int) -> pa.Table:
    """The checked rows with the table's columns, in its order and types."""
    try:
        return _checked(rows, work)
    except InvalidContents as invalid:
        if invalid.row is not None:
            invalid.row += rows_before
        raise


def _checked(rows: pa.Table, work: HotRowsWork) -> pa.Table:
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
            is_there = column.name in rows.column_names
            raise _invalid(
                column.name,
                "is null" if is_there else "is missing",
                "write a value in every row",
                row=pc.index(values.is_null(), True).as_py() if is_there else None,
                expected=f"{column.type}, not null",
            )
        columns.append(_storable(values, column.name))
    fitted = pa.table(columns, names=names)
    positions = fitted.select([table.position])
    is_outside = ~meets(table.position, positions.schema.field(0).type, of_ranges([work.values]))
    if positions.filter(is_outside).num_rows:
        numbered = positions.append_column(_ROW, pa.array(range(positions.num_rows)))
        row = numbered.filter(is_outside)[_ROW][0].as_py()
        value, scope = _text(positions[table.position], row), in_words(work.values)
        raise _invalid(
            table.position,
            f"has {value}, which is outside the task's scope {scope}",
            "write only rows of the task's own scope",
            row=row,
            value=value,
            expected=f"a position of the task's scope {scope}",
        )
    return pa.table([_as_text(values) for values in columns], names=names)


def _cast(values: pa.ChunkedArray, name: str, type_: pa.DataType, declared: str) -> pa.ChunkedArray:
    def cast(some: pa.ChunkedArray) -> pa.ChunkedArray:
        some.validate(full=True)  # for example, text may not be UTF-8
        return some if some.type == type_ else some.cast(type_)

    def fails(some: pa.ChunkedArray) -> bool:
        try:
            cast(some)
        except pa.ArrowException:
            return True
        return False

    try:
        return cast(values)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0][:_LONGEST_TEXT]
        row = bisect_left(range(len(values)), True, key=lambda n: fails(values.slice(0, n + 1)))
        value = _text(values, row)
        raise _invalid(
            name,
            f"has {value}, which {declared} cannot hold: {reason}",
            "write it as declared",
            row=row,
            value=value,
            expected=declared,
        ) from None


def _storable(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Rejects values that Arrow can hold but Postgres or CSV cannot."""
    if pa.types.is_string(values.type):
        row = pc.index(pc.match_substring(values, "\0"), True).as_py()
        if row >= 0:
            value = _text(values, row)
            raise _invalid(
                name,
                f"has {value}, text with a NUL character, which Postgres cannot store",
                "remove it",
                row=row,
                value=value,
                expected="text without NUL characters",
            )
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        years = pc.year(values)
        limits = pc.min_max(years).as_py()
        if limits["min"] is not None and not 1 <= limits["min"] <= limits["max"] <= 9999:
            row = pc.index(pc.or_(pc.less(years, 1), pc.greater(years, 9999)), True).as_py()
            value = _text(values, row)
            raise _invalid(
                name,
                f"has {value}, a time outside the years 1 to 9999",
                "write times within them",
                row=row,
                value=value,
                expected="a time in the years 1 to 9999",
            )
    return values


def _text(values: pa.ChunkedArray, row: int) -> str:
    """A value as people and JSON in Postgres can take it. Arrow formats it, since Python may not hold it."""
    one = pa.array(values.slice(row, 1).combine_chunks())
    if pa.types.is_string(one.type) or pa.types.is_large_string(one.type):
        raw = one.view(pa.binary() if pa.types.is_string(one.type) else pa.large_binary())[0].as_py()
        text = (raw or b"").decode(errors="replace")
    elif pa.types.is_binary(one.type) or pa.types.is_large_binary(one.type):
        text = "\\x" + (one[0].as_py() or b"").hex()
    else:
        try:
            text = str(one.cast(pa.string())[0].as_py())
        except pa.ArrowException:  # no such cast
            text = f"a value of the type {one.type}"
    text = text.replace("\0", "\\0")
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Arrow does not write as Postgres reads them, or takes long to write, as text."""
    if pa.types.is_timestamp(values.type) and values.type.tz == "UTC":
        # The same text as Arrow's, which takes ten times as long to write a time with a zone.
        without_zone = values.cast(pa.timestamp(values.type.unit)).cast(pa.string())
        return pc.binary_join_element_wise(without_zone, "Z", "")
    if not pa.types.is_binary(values.type):
        return values
    # Bytes in Postgres' hexadecimal form; Arrow has no function for it, so this works value by value.
    return pa.chunked_array(
        [pa.array([None if v is None else "\\x" + v.hex() for v in values.to_pylist()], pa.string())]
    )


def _invalid(
    column: str,
    what: str,
    next_step: str,
    *,
    row: int | None = None,
    value: str | None = None,
    expected: str | None = None,
) -> InvalidContents:
    """`row`: its index among the rows that are checked together."""
    return InvalidContents(
        f"column {column} {what}",
        column=column,
        next_step=next_step,
        row=None if row is None else row + 1,
        value=value,
        expected=expected,
    )


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
    for values in pa.table(kinds).columns:
        _text(values, 0)
    with parquet.ParquetFile(buffer) as file:
        write(file, HotRowsWork(table, (1, 2)), pa.BufferOutputStream())
