"""Which files can contain rows with a value, judged by column statistics.

A file is skipped only if its statistics prove that it has no such row. Bounds are compared only if JSON and the
column order values the same way: integers, doubles, text, booleans, dates, and times that are written in the usual
way; not single-precision floats, which are rounded, nor decimals, whose bounds are unknown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from traceplane.model.committed_file import StoredBounds

_WHOLE = re.compile(r"u?int(8|16|32|64)")
_TEXT = {"string", "large_string", "string_view"}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    _DAY.pattern + r"([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(?P<zone>Z|[+-][0-9]{2}(:[0-9]{2})?)?)?"
)
_TIMES = re.compile(r"timestamp\[(s|ms|us)(?P<zone>, tz=.+)?\]")

Literal = str | int | float | bool | datetime
Span = tuple[Literal | None, Literal | None]
"""First and last value, both included; None for no bound."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A column's value is in one of the spans and not null."""

    column: str
    spans: tuple[Span, ...]


Asked = str
"""Conditions as Postgres gets them: a JSON path that selects, of the files of a commit, those that can have rows which
meet all of them. It decides where the bounds are what `narrowed` decides of bounds that it is given."""

_SECONDS = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{6})?"


@dataclass(frozen=True, slots=True)
class AskedColumn:
    name: str
    type: str
    spans: tuple[Span, ...]
    before: bool = False
    """Whether the last value of each span is not asked for."""


def asked(columns: Iterable[AskedColumn]) -> Asked | None:
    """None if nothing is asked. A file is left out if that is true of it which excludes it; what cannot be compared,
    such as text with a number, is neither true nor false, and a filter passes only what is true."""
    excluded = " || ".join(f"({_excluded(column)})" for column in columns)
    return f"$[*] ? (@.rows != 0 && !exists(@ ? ({excluded})))" if excluded else None


def _excluded(column: AskedColumn) -> str:
    known = f"@.statistics.{_quoted(column.name)}"
    outside = [_outside(known, span, column) for span in column.spans]
    never = " && ".join(outside) if all(outside) else ""
    return f"{known}.null_count == @.rows" + (f" || ({never})" if never else "" if outside else " || 1 == 1")


def _outside(known: str, span: Span, column: AskedColumn) -> str:
    """What excludes one span; empty: nothing."""
    low, high = (_stored(end, column.type) for end in span)
    if _is_open(span[1], column.type):
        low = None
    tests = []
    if high is not None:
        tests.append(_compared(f"{known}.min", ">=" if column.before else ">", high, column.type))
    if low is not None:
        tests.append(_compared(f"{known}.max", "<", low, column.type))
    return f"({' || '.join(tests)})" if tests else ""


def _compared(bound: str, sign: str, value: str, type_: str) -> str:
    """Text compares by code point. Dates and times do so only if they are written as the platform writes them."""
    if type_ == "date32[day]":
        form = f"^{_DAY.pattern}$"
    elif (column := _TIMES.fullmatch(type_)) is not None:
        form = f"^{_SECONDS}{'[+]00:00' if column['zone'] else ''}$"
    else:
        return f"{bound} {sign} {value}"
    return f"({bound} {sign} {value} && {bound} like_regex {_quoted(form)})"


def _stored(value: Literal | None, type_: str) -> str | None:
    """The value as it is written in statistics, as JSON; None for no bound."""
    match comparable := _comparable(value, type_):
        case datetime():
            moment = comparable.astimezone(UTC)
            is_zoned = (column := _TIMES.fullmatch(type_)) is not None and column["zone"]
            return _quoted((moment if is_zoned else moment.replace(tzinfo=None)).isoformat())
        case str():
            try:
                return None if "\0" in comparable else _quoted(comparable)
            except UnicodeEncodeError:  # the database has no such text
                return None
        case float() if not math.isfinite(comparable):
            return None
        case None:
            return None
        case _:
            return json.dumps(comparable)  # of any size


def _quoted(text: str) -> str:
    text.encode()  # raises UnicodeEncodeError for half a character
    return json.dumps(text, ensure_ascii=False)


Bounds = tuple[Any, Any] | None
"""The minimum and maximum of a column in a file, each None if unknown; None if there is no value at all."""


def bounds(statistics: StoredBounds | None, type_: str, rows: int) -> Bounds:
    """The bounds in a column's statistics, as far as they can be compared."""
    if not statistics:
        return (None, None)
    if statistics.get("null_count") == rows:
        return None
    return _comparable(statistics.get("min"), type_), _comparable(statistics.get("max"), type_)


def narrowed(files: Iterable[int], bounds: Sequence[Bounds], spans: Sequence[Span], type_: str) -> list[int]:
    """Those of the files, which are indexes into `bounds`, that can have a row within one of the spans."""
    ranges = [(_comparable(a, type_), _comparable(b, type_), _is_open(b, type_)) for a, b in spans]
    left = []
    for index in files:
        bound = bounds[index]
        if bound is None:
            continue
        low, high = bound
        for first, last, open_upwards in ranges:
            if last is not None and low is not None and last < low:
                continue
            if first is not None and high is not None and first > high and not open_upwards:
                continue
            left.append(index)
            break
    return left


def _is_open(last: Literal | None, type_: str) -> bool:
    """Statistics ignore NaN, which is greater than everything, so a span without an upper bound may always match it."""
    return type_ == "double" and last is None


def _comparable(value: Any, type_: str | None) -> Any:
    """The value in a form that compares with the column's bounds, or None if it cannot be compared."""
    match value:
        case bool():
            return value if type_ == "bool" else None
        case int():
            return (
                value if _WHOLE.fullmatch(type_ or "") else _as_double(value) if type_ == "double" else None
            )
        case float() if type_ == "double":
            return None if math.isnan(value) else value
        case float():
            # Beyond it, the engine may round an integer to compare it.
            return value if abs(value) < 2**53 and _WHOLE.fullmatch(type_ or "") else None
        case str() if type_ in _TEXT:
            return value
        case str() if type_ == "date32[day]" and _DAY.fullmatch(value):
            return value
        case str() | datetime() if (column := _TIMES.fullmatch(type_ or "")) is not None:
            moment = as_moment(value) if isinstance(value, str) else value
            # What an offset means for a column without a time zone is up to the engine.
            unclear = isinstance(value, str) and has_zone(value) and not column["zone"]
            return None if unclear else moment
    return None


def has_zone(text: str) -> bool:
    written = _TIME.fullmatch(text)
    return written is not None and written["zone"] is not None


def as_moment(text: str) -> datetime | None:
    """A date or time as it is usually written, in UTC unless it says otherwise; None for any other text."""
    if not _TIME.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _as_double(value: int) -> float | None:
    """Rounded as the engine rounds it, so that values it considers equal are equal here."""
    try:
        return float(value)
    except OverflowError:
        return None
