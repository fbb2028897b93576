"""Conditions on columns (`model.comparisons`) as Arrow expressions, which Parquet files and tables are filtered by."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

Value = str | int | float | bool
_COMPARE = {"=": operator.eq, ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def meets(
    column: str, type_: pa.DataType | None, alternatives: Sequence[Sequence[tuple[str, Value]]]
) -> pc.Expression:
    """Whether a value meets all comparisons of one alternative. Without the column's type, Arrow finds a common one."""
    return reduce(operator.or_, [_meets_all(pc.field(column), type_, one) for one in alternatives])


def _meets_all(
    field: pc.Expression, type_: pa.DataType | None, comparisons: Sequence[tuple[str, Value]]
) -> pc.Expression:
    tests = [_COMPARE[sign](field, _scalar(value, type_)) for sign, value in comparisons]
    found = reduce(operator.and_, tests, field.is_valid())
    lower_only = comparisons and all(sign in (">=", ">") for sign, _ in comparisons)
    # SQL, unlike Arrow, has NaN after all other numbers.
    return found | field.is_nan() if lower_only and pa.types.is_floating(type_) else found


def _scalar(value: Value, type_: pa.DataType | None) -> pa.Scalar:
    if type_ is None or isinstance(value, bool) or pa.types.is_integer(type_):
        return pa.scalar(value)
    if isinstance(value, str) and pa.types.is_decimal(type_):
        return pa.scalar(Decimal(value), type_)
    return pa.scalar(value).cast(type_) if isinstance(value, str) else pa.scalar(value, type_)
