"""Conditions on columns as Arrow expressions, which Parquet files and tables are filtered by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

Bound = int | str | None


def within(column: str, type_: pa.DataType | None, ranges: Sequence[tuple[Bound, Bound]]) -> pc.Expression:
    """Whether a value is in one of the ranges (`model.row_positions`). The column's type may be unknown if it holds
    numbers."""
    return reduce(pc.Expression.__or__, [_between(column, type_, *values) for values in ranges])


def _between(column: str, type_: pa.DataType | None, first: Bound, end: Bound) -> pc.Expression:
    inside = pc.field(column).is_valid()
    if first is not None:
        inside = inside & (pc.field(column) >= _scalar(first, type_))
    if end is not None:
        inside = inside & (pc.field(column) < _scalar(end, type_))
    return inside


def _scalar(value: int | str, type_: pa.DataType | None) -> pa.Scalar:
    return pa.scalar(value) if isinstance(value, int) else pa.scalar(value).cast(type_)
