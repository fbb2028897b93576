"""Which rows of an input a job reads: comparisons of columns with values, as `where` of a DAG file has them.

    where: { venue: eu, side: [buy, sell], price: { at_least: 10, below: 20 } }

A row is read if every column meets its condition; null meets none. All readers order values alike: text by code point,
and NaN after all other numbers. A value is one of the column's type (`fitted`), written as in JSON: decimals, dates and
times are text, and each reader casts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from traceplane.model import pruning
from traceplane.model.pruning import AskedColumn
from traceplane.model.row_positions import ValueRange

Value = str | int | float | bool
Sign = Literal["=", ">=", ">", "<=", "<"]
Alternatives = tuple[tuple[tuple[Sign, Value], ...], ...]
"""A value meets all comparisons of one alternative; one without comparisons means any value but null."""

SIGNS: Mapping[str, Sign] = {"at_least": ">=", "above": ">", "at_most": "<=", "below": "<"}
"""By the words that `where` has for them."""

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_FLOATS = ("halffloat", "float", "double")
_TEXTS = ("string", "large_string", "string_view")
_EXACT_DIGITS = 15
"""Of a number as YAML and JSON have it."""


class DoesNotFit(ValueError):
    """A value that no row of a column can be compared with, and what to write instead."""

    def __init__(self, suggestion: str) -> None:
        super().__init__(suggestion)
        self.suggestion = suggestion


def alternatives(condition: Any, type_: str | None = None) -> Alternatives:
    """Of one column; raises `DoesNotFit` if its type is known."""

    def fit(value: Value) -> Value:
        return fitted(value, type_) if type_ is not None else value

    match condition:
        case dict():
            return (tuple((SIGNS[word], fit(value)) for word, value in condition.items()),)
        case list():
            return tuple((("=", fit(value)),) for value in condition)
    return ((("=", fit(condition)),),)


def of_ranges(ranges: Sequence[ValueRange]) -> Alternatives:
    """Of a position column."""
    signs: tuple[Sign, Sign] = (">=", "<")
    return tuple(
        tuple((sign, value) for sign, value in zip(signs, values, strict=True) if value is not None)
        for values in ranges
    )


def asked_columns(where: Mapping[str, Any], types: Mapping[str, str]) -> list[AskedColumn]:
    """What files are asked for rows that meet `where`; `types` are Arrow's."""
    columns = []
    for column, condition in where.items():
        if (type_ := types.get(column)) is None:
            continue
        try:
            spans = tuple(_span(one) for one in alternatives(condition, type_))
        except DoesNotFit:  # its reader says so
            continue
        columns.append(AskedColumn(column, type_, spans))
    return columns


def _span(comparisons: Sequence[tuple[Sign, Value]]) -> pruning.Span:
    """An excluded bound as an included one, which costs at most one file too many."""
    lower = next((value for sign, value in comparisons if sign in ("=", ">=", ">")), None)
    upper = next((value for sign, value in comparisons if sign in ("=", "<=", "<")), None)
    return lower, upper


def fitted(value: Value, type_: str) -> Value:
    """A value of a column of this Arrow type, as JSON has it; raises `DoesNotFit`."""
    if type_ == "bool":
        return _of(value, bool, "write true or false, without quotes")
    if type_ in _TEXTS:
        return _of(value, str, "put it in quotes")
    if type_ in _BITS:
        return _whole(value, _BITS[type_])
    if type_ in _FLOATS:
        return _double(value)
    if type_.startswith("decimal"):
        precision, scale = map(int, type_[type_.index("(") + 1 : -1].split(","))
        return _decimal(value, precision, scale)
    if type_.startswith("date"):
        return _date(value)
    if type_.startswith("timestamp"):
        return _time(value, zoned="tz=" in type_)
    if type_.endswith("binary") or "<" in type_:
        raise DoesNotFit("select rows by a column of another type")
    return value


def _of(value: Value, kind: type, suggestion: str) -> Value:
    if type(value) is not kind:  # not isinstance: True is an int
        raise DoesNotFit(suggestion)
    return value


def _number(value: Value) -> int | float:
    if type(value) not in (int, float):
        raise DoesNotFit("write a number, without quotes")
    return value  # type: ignore[return-value]


def _whole(value: Value, bits: int) -> int:
    number = _number(value)
    if number != int(number):
        raise DoesNotFit("write a whole number")
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise DoesNotFit(f"write a number from {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}")
    return int(number)


def _double(value: Value) -> float:
    try:
        return float(_number(value))
    except OverflowError:
        raise DoesNotFit("write a smaller number") from None


def _decimal(value: Value, precision: int, scale: int) -> str:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise DoesNotFit("write a number") from None
    if isinstance(value, bool) or not number.is_finite():
        raise DoesNotFit("write a number")
    _, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int)
    if isinstance(value, float) and len(digits) > _EXACT_DIGITS:
        raise DoesNotFit("put it in quotes, so that it keeps all its digits")
    if -exponent > scale or len(digits) + exponent > precision - scale:
        raise DoesNotFit(
            f"write a number with up to {precision - scale} digits before the point and {scale} after it"
        )
    return format(number, "f")


def _date(value: Value) -> str:
    try:
        if isinstance(value, str) and len(value) == len("2026-11-16"):
            return date.fromisoformat(value).isoformat()
    except ValueError:
        pass
    raise DoesNotFit("write a date, such as 2026-11-16")


def _time(value: Value, *, zoned: bool) -> str:
    moment = pruning.as_moment(value) if isinstance(value, str) else None
    if moment is None or pruning.has_zone(str(value)) != zoned:
        raise DoesNotFit(
            "write a time with its offset from UTC, such as 2026-11-16T05:00:00Z"
            if zoned
            else "write a time without an offset, such as 2026-11-16T05:00:00"
        )
    try:
        return moment.astimezone(UTC).isoformat() if zoned else moment.replace(tzinfo=None).isoformat()
    except OverflowError:
        raise DoesNotFit("write a time within the years 1 to 9999") from None
