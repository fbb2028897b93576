"""Which files can hold rows of a value, by what is known of their columns.

A file is left out only if its statistics prove that it has no such row. Bounds are compared only where JSON and
the column order values alike: whole numbers, doubles, text, booleans and days; not single floats, which are rounded,
nor decimals and points in time in their written form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WHOLE = re.compile(r"u?int(8|16|32|64)")
_TEXT = {"string", "large_string", "string_view"}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Literal = str | int | float | bool
Span = tuple[Literal | None, Literal | None]
"""First and last value, both included; None for no bound."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A column's value lies in one of the spans, and is not null."""

    column: str
    spans: tuple[Span, ...]


def may_hold(file: Mapping[str, Any], where: Mapping[str, Any], types: Mapping[str, str]) -> bool:
    """Whether a file can have a row that equals `where` in all its columns; `types` are Arrow's."""
    statistics = file.get("statistics") or {}
    return all(
        may_lie_within(statistics[column], ((value, value),), types.get(column), file["rows"])
        for column, value in where.items()
        if column in statistics and value is not None
    )


def may_lie_within(known: Mapping[str, Any], spans: tuple[Span, ...], type_: str | None, rows: int) -> bool:
    """Whether a file whose column has these statistics can have a row within one of the spans."""
    if known.get("null_count") == rows:
        return False
    low, high = _comparable(known.get("min"), type_), _comparable(known.get("max"), type_)
    return any(_overlap(span, low, high, type_) for span in spans)


def _overlap(span: Span, low: Any, high: Any, type_: str | None) -> bool:
    first, last = _comparable(span[0], type_), _comparable(span[1], type_)
    if last is not None and low is not None and last < low:
        return False
    # Statistics leave NaN out, which is greater than everything: a span that is open upwards may always hold it.
    if type_ == "double" and span[1] is None:
        return True
    return not (first is not None and high is not None and first > high)


def _comparable(value: Any, type_: str | None) -> Any:
    """The value as the column's bounds compare with it, or None if they do not."""
    match value:
        case bool():
            return value if type_ == "bool" else None
        case int():
            return (
                value if _WHOLE.fullmatch(type_ or "") else _as_double(value) if type_ == "double" else None
            )
        case float():
            return value if type_ == "double" and value == value else None
        case str() if type_ in _TEXT:
            return value
        case str() if type_ == "date32[day]" and _DAY.fullmatch(value):
            return value
    return None


def _as_double(value: int) -> float | None:
    """Rounded as the engine rounds it, so that what it finds equal is equal here."""
    try:
        return float(value)
    except OverflowError:
        return None
