"""Which files can contain rows with a value, judged by column statistics.

A file is skipped only if its statistics prove that it has no such row. Bounds are compared only if JSON and the
column order values the same way: integers, doubles, text, booleans, dates, and times that are written in the usual
way; not single-precision floats, which are rounded, nor decimals, whose bounds are unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

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


class AskedSpan(msgspec.Struct, frozen=True):
    low: str | int | float | bool | None
    high: str | int | float | bool | None
    before: bool = False
    """Whether `high` itself is not asked for."""
    upwards: bool = False
    """Whether a value above all bounds may be meant, which bounds do not show."""


class Asked(msgspec.Struct, frozen=True):
    """A condition as Postgres gets it (`asked_files`): what `narrowed` decides of bounds that it has, decided where the
    bounds are. Values are written as statistics have them, and compare as they stand."""

    column: str
    type: str
    """Of the bounds in JSON; those of another are unknown."""
    pattern: str
    """Of text: what is compared, in parentheses. Other text is unknown."""
    spans: tuple[AskedSpan, ...]


_ANY_TEXT = "^(.*)$"
_SECONDS = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.][0-9]{6})?"


def asked(column: str, spans: Iterable[Span], type_: str, *, before: bool = False) -> Asked:
    """`before`: the last value of each span is not asked for."""
    kind, pattern = _written(type_)
    return Asked(
        column,
        kind,
        pattern,
        tuple(
            AskedSpan(_stored(low, type_), _stored(high, type_), before, _is_open(high, type_))
            for low, high in spans
        ),
    )


def _written(type_: str) -> tuple[str, str]:
    """How statistics of a column have its bounds, as far as they can be compared."""
    if type_ == "bool":
        return "boolean", ""
    if type_ == "double" or _WHOLE.fullmatch(type_):
        return "number", ""
    if type_ in _TEXT:
        return "string", _ANY_TEXT
    if type_ == "date32[day]":
        return "string", f"^({_DAY.pattern})$"
    if (column := _TIMES.fullmatch(type_)) is not None:
        return "string", f"^({_SECONDS}){'(?:Z|[+]00:00)?' if column['zone'] else ''}$"
    return "unknown", ""


def _stored(value: Literal | None, type_: str) -> str | int | float | bool | None:
    """The value as it is written in statistics; None for no bound."""
    match comparable := _comparable(value, type_):
        case datetime():
            return comparable.astimezone(UTC).replace(tzinfo=None).isoformat()
        case float() if not math.isfinite(comparable):
            return None
        case str() if "\0" in comparable or not _is_unicode(comparable):
            return None  # the database has no such text
        case _:
            return comparable


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
