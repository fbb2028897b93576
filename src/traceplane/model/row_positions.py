"""Which rows have given positions: the values of the column that tells the rows of a dataset apart.

The column holds the positions themselves, or a date or time; then a row belongs to the period that contains it. Days,
weeks and months begin in the time zone of the partitions, which is also that of times without a time zone.

Values are written as in JSON, and each reader casts them to the column's type: numbers, `2026-11-16`,
`2026-11-15T23:00:00+00:00`, and `2026-11-16T00:00:00` for times without a time zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range

ValueRange = tuple[int | str | None, int | str | None]
"""The first value, which is included, and the end, which is not; None for no bound."""

WHOLE_NUMBERS = ("int8", "int16", "int32", "int64")
"""The Arrow types of columns that hold positions, or seconds."""

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class PositionColumn:
    name: str
    type: str = "int64"
    """As Arrow spells it."""
    partitions: Partitions = Partitions()

    @property
    def is_time(self) -> bool:
        """Whether it holds dates or times rather than the positions themselves."""
        return self.type.startswith(("date", "timestamp"))

    @property
    def misfit(self) -> str | None:
        """Why its dates or times do not say which partition a row belongs to; None if they do."""
        by, zone = self.partitions.by, self.partitions.time_zone
        if not self.is_time:
            return None
        if not self.partitions.is_time:
            return f"partitions by {by} are not periods of time"
        if by is By.HOUR and self.type.startswith("date"):
            return "a date does not say which hour it is"
        if by is By.HOUR and "tz=" not in self.type and zone != "UTC":
            return (
                f"an hour may occur twice in {zone}, and a timestamp_ntz does not say which of the two it is"
            )
        return None

    def values(self, positions: Range) -> ValueRange:
        """Those of the rows at these positions."""
        return self._start(positions[0]), self._start(positions[1] + 1)

    def all_values(self, ranges: Sequence[Range]) -> list[ValueRange]:
        return [self.values(positions) for positions in ranges]

    def has(self, positions: Range, value: int | float | str) -> bool:
        """Whether a row with this value is at one of the positions."""
        first, end = self.values(positions)
        try:
            return (first is None or _ordered(first) <= _ordered(value)) and (
                end is None or _ordered(value) < _ordered(end)
            )
        except (TypeError, ValueError):  # no value of such a column
            return False

    def _start(self, position: int) -> int | str | None:
        """The first value of a position, which is the end of the one before."""
        if not _SMALLEST < position <= _LARGEST:
            return None
        if not self.is_time:
            return position
        try:
            if "tz=" in self.type:
                return self.partitions.starts_at(position).isoformat()
            if self.partitions.by is By.HOUR:
                return self.partitions.starts_at(position).replace(tzinfo=None).isoformat()
            day = self.partitions.first_date(position)
        except (OverflowError, ValueError):  # beyond the years 1 to 9999
            return None
        return day.isoformat() if self.type.startswith("date") else f"{day.isoformat()}T00:00:00"


def in_words(values: ValueRange) -> str:
    first, end = values
    if isinstance(first, int) and isinstance(end, int):
        return f"{first} to {end - 1}"
    return f"from {first} until before {end}"


def _ordered(value: Any) -> Any:
    """A value in a form that compares with others of its column; what has no time zone counts as UTC."""
    if not isinstance(value, str):
        return value
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
