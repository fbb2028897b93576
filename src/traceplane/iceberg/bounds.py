"""What the statistics of a file say about a column, as Iceberg writes it: what our own queries prune files by, no more.

Iceberg leaves NaN out of bounds, and readers differ on whether it is greater than any number. So doubles have no upper
bound: a file is never skipped because of one.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any

from traceplane.model.committed_file import StoredBounds
from traceplane.model.pruning import Bounds, bounds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_FORMATS = {"int": "<i", "long": "<q", "double": "<d"}


def written_bounds(
    statistics: StoredBounds | None, arrow_type: str, iceberg_type: str, rows: int
) -> tuple[bytes | None, bytes | None]:
    limits = bounds(statistics, arrow_type, rows)
    if limits is None:
        return None, None
    low, high = (written(value, iceberg_type) for value in limits)
    return low, None if iceberg_type == "double" else high


def written(value: Any, iceberg_type: str) -> bytes | None:
    """A value in the form that manifests have it; None if it has none."""
    match value:
        case None:
            return None
        case bool():
            return bytes([value]) if iceberg_type == "boolean" else None
        case str():
            if iceberg_type == "string":
                return value.encode()
            return struct.pack("<i", _days(value)) if iceberg_type == "date" else None
        case datetime():
            micros = (value - _EPOCH) // timedelta(microseconds=1)
            return struct.pack("<q", micros) if iceberg_type.startswith("timestamp") else None
        case int() | float() if (form := _FORMATS.get(iceberg_type)) is not None:
            try:
                return struct.pack(form, value)
            except struct.error:
                return None
    return None


def period_of(limits: Bounds, transform: str) -> int | None:
    """The period that has all dates or times between the bounds, if it is one."""
    if limits is None or None in limits:
        return None
    first, last = (_period(value, transform) for value in limits)
    return first if first == last else None


def _period(value: str | datetime, transform: str) -> int:
    day = _days(value) if isinstance(value, str) else value.toordinal() - _FIRST_DAY
    match transform:
        case "day":
            return day
        case "month":
            then = date.fromordinal(day + _FIRST_DAY)
            return (then.year - 1970) * 12 + then.month - 1
    assert transform == "hour"
    assert isinstance(value, datetime), "a date has no hour"
    return day * 24 + value.hour


def _days(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _FIRST_DAY
