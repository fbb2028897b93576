"""Arrow tables from Python's rows and columns. A value that its column cannot hold is named, with its row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from traceplane.columnar.arrow_types import DoesNotFit, TypedColumn, type_of

_UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)


class NotRows(ValueError):
    """What was given has no rows and columns, or a value that no column can hold."""


def table_of(rows: Mapping[str, Any] | Sequence[Any], declared: Iterable[TypedColumn] = ()) -> pa.Table:
    """A table of a list of mappings, or of a mapping from column to values, with the types that Arrow infers. It
    infers none for whole numbers beyond 64 bits: they become the decimal that is declared.

    Raises DoesNotFit and NotRows."""
    columns: Mapping[str, Any] | None = None
    try:
        if not isinstance(rows, Mapping):
            rows = list(rows)
            if _same_columns(rows):
                return pa.Table.from_pylist(rows)
            rows = _transposed(rows)
        columns = _checked(rows)
        return pa.table(columns)
    except NotRows:
        raise
    except (*_UNFIT, AttributeError):  # a row that is no mapping lacks its methods
        columns = columns if columns is not None else _transposed(rows)
    types = {column.name: type_of(column.type) for column in declared}
    arrays = {name: _array(name, values, types.get(name)) for name, values in columns.items()}
    try:
        return pa.table(arrays)
    except _UNFIT as error:
        raise NotRows(str(error)) from None  # such as columns of different lengths


def with_known_types(table: pa.Table) -> pa.Table:
    """Without the columns that are undeclared and have only nulls: whichever type the file gave them, the first value
    of a later commit could have another. They read as null where another commit has values.

    Raises NotRows if there is no other column."""
    known = [column.name for column in table.schema if not pa.types.is_null(column.type)]
    if not known and table.num_rows:
        raise NotRows("it has only nulls, so no column has a type; declare the columns of the dataset")
    return table if len(known) == table.num_columns else table.select(known)


def _same_columns(rows: list[Any]) -> bool:
    """Whether the first row has all columns; Arrow would leave out those that only later rows have."""
    if not rows or not isinstance(rows[0], Mapping):
        return True
    if not rows[0]:
        raise NotRows("row 1 has no columns")
    names = dict.fromkeys(chain.from_iterable(rows))
    _check_names(names)
    return len(names) == len(rows[0])


def _check_names(columns: Iterable[Any]) -> None:
    for name in columns:
        if not isinstance(name, str):
            raise NotRows(f"the column name {str(name)[:200]} is {type(name).__name__}, not text")


def _checked(columns: Mapping[str, Any]) -> dict[str, Iterable[Any]]:
    _check_names(columns)
    for name, values in columns.items():
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise NotRows(f"column {name!r} is {type(values).__name__}, not a list of values")
    return {
        name: list(values) if isinstance(values, Iterator) else values for name, values in columns.items()
    }


def _transposed(rows: Iterable[Any]) -> dict[str, list[Any]]:
    rows = list(rows)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise NotRows(f"row {number} is {type(row).__name__}, not a mapping from column to value")
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))}


def _array(name: str, values: Any, declared: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values)
    except _UNFIT as error:
        values, cause = list(values), error
    if declared is not None and pa.types.is_decimal(declared):
        try:
            return pa.array(values, declared)
        except _UNFIT:
            row = _first_misfit(values, declared)
            raise DoesNotFit(name, values[row], row, declared) from None
    row = _first_misfit(values, None)
    type_, reason = pa.array(values[:row]).type, "the type of the rows before it"
    if pa.types.is_null(type_):
        if not isinstance(values[row], int):
            raise NotRows(f"column {name!r}, row {row + 1}: {cause}")
        type_, reason = pa.int64(), "unless the dataset declares the column as a decimal"
    raise DoesNotFit(name, values[row], row, type_, reason)


def _first_misfit(values: list[Any], type_: pa.DataType | None) -> int:
    """The first value that cannot be in one array with those before it, by binary search."""
    fit, unfit = 0, len(values)
    while unfit - fit > 1:
        middle = (fit + unfit) // 2
        try:
            pa.array(values[:middle], type_)
            fit = middle
        except _UNFIT:
            unfit = middle
    return unfit - 1
