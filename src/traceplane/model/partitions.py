"""How a dataset is partitioned, and the names of its partitions.

Inside, a position is a 64-bit integer: a number such as that of a block, the index of a period since 1970, or the
number under which a name was registered. People write and read names: `2026-11-16`, `2026-W47`, `2026-11`, `eu`.

Days, weeks and months begin at local midnight in the time zone of the dataset, so a day may have 23 or 25 hours. Hours
are those of UTC and are written in local time, with the offset from UTC where the local time occurs twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from traceplane.model.positions import Range, written

_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_MONDAY = date(1969, 12, 29).toordinal()
_HOUR = timedelta(hours=1)
_YEAR = re.compile(r"\d{4}", re.ASCII)
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_WEEK = re.compile(r"(\d{4})-W(\d\d)", re.ASCII)
_MONTH = re.compile(r"(\d{4})-(\d\d)", re.ASCII)
_HOUR_OF_DAY = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)(Z|[+-]\d\d:00)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_NAMES_IN_WORDS = "a name has up to 100 ASCII letters, digits and _ . -, and begins with a letter or _"


class By(StrEnum):
    POSITION = "position"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    NAME = "name"


EXAMPLES: Mapping[By, str] = {
    By.POSITION: "1207",
    By.HOUR: "2026-11-16T05",
    By.DAY: "2026-11-16",
    By.WEEK: "2026-W47",
    By.MONTH: "2026-11",
    By.NAME: "eu",
}

YEARS = range(1000, 9000)
"""Of periods that are accepted: far enough from the first and the last year of a date that there is room for every
time zone, window and roll-up."""
NAMES_WRITTEN = 3
"""Of several partitions by name, so many are written out."""


class BadPartition(ValueError):
    """A text that names no partition."""


class UnknownZone(ValueError):
    pass


@cache
def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UnknownZone(name) from None


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a dataset."""

    by: By = By.POSITION
    time_zone: str = "UTC"
    start: int | None = None
    """The first position that there will ever be, if it is known."""
    names: tuple[str, ...] = ()
    """Of partitions by name: all that there may be; empty: any."""

    @property
    def is_time(self) -> bool:
        return self.by not in (By.POSITION, By.NAME)

    @property
    def is_named(self) -> bool:
        """Whether a scope is written as the name of its partition."""
        return self.by is not By.POSITION

    @property
    def registered(self) -> Mapping[str, int]:
        """Of partitions by name: the positions of those that are asked about."""
        return {}

    def may_have(self, name: str) -> bool:
        return is_name(name) and (not self.names or name in self.names)

    def aligned_range(self, position: int, size: int) -> Range:
        """The range of `size` that has a position. Ranges are aligned to position 0; that of the start begins there,
        since nothing can arrive of what is before it."""
        first = position // size * size
        last = first + size - 1
        return (self.start if self.start is not None and first < self.start <= last else first), last

    def with_names(self, registered: Mapping[str, int]) -> Partitions:
        return _WithNames(self.by, self.time_zone, self.start, self.names, registered)

    # Text --------------------------------------------------------------------------------------------

    def position(self, text: str) -> int:
        """Of the partition that a text names; raises `BadPartition`."""
        if self.is_time and (year := _YEAR.match(text)) is not None and int(year[0]) not in YEARS:
            raise BadPartition(f"{text} is not within the years {YEARS[0]} to {YEARS[-1]}")
        try:
            position = _PARSERS[self.by](self, text)
        except BadPartition:
            raise
        except ValueError:  # such as 30 February
            raise self._bad(text) from None
        if self.start is not None and position < self.start:
            raise BadPartition(f"{text} is before {self.name(self.start)}, where the dataset starts")
        return position

    def name(self, position: int) -> str:
        if self.by is By.POSITION:
            return str(position)
        if self.by is By.NAME:
            return next((n for n, p in self.registered.items() if p == position), f"#{position}")
        try:
            return _NAMES[self.by](self, position)
        except (OverflowError, ValueError):  # beyond the years 1 to 9999
            return f"#{position}"

    def written(self, positions: Range) -> str:
        """A range, as a scope or a range of scopes is written."""
        if not self.is_named:
            return written(positions)
        if self.by is By.NAME:  # which have no order, so that none is between two others
            count = positions[1] - positions[0] + 1
            names = ", ".join(self.name(positions[0] + n) for n in range(min(count, NAMES_WRITTEN)))
            return names if count <= NAMES_WRITTEN else f"{names} and {count - NAMES_WRITTEN} more"
        first, last = map(self.name, positions)
        return first if first == last else f"{first}..{last}"

    def _bad(self, text: str) -> BadPartition:
        if self.by is By.NAME:
            return BadPartition(f"{text!r} cannot be the name of a partition: {_NAMES_IN_WORDS}")
        article = "an" if self.by is By.HOUR else "a"
        return BadPartition(f"{text!r} does not name {article} {self.by}, for example {EXAMPLES[self.by]}")

    # Time --------------------------------------------------------------------------------------------

    def of_time(self, moment: datetime) -> int:
        """The period that contains a moment."""
        if self.by is By.HOUR:
            return int((moment - _UNIX).total_seconds() // 3600)
        return self.of_date(moment.astimezone(zone(self.time_zone)).date())

    def of_date(self, day: date) -> int:
        """The day, week or month that contains a date."""
        if self.by is By.DAY:
            return day.toordinal() - _EPOCH
        if self.by is By.WEEK:
            return (day.toordinal() - _FIRST_MONDAY) // 7
        if self.by is By.MONTH:
            return (day.year - 1970) * 12 + day.month - 1
        raise ValueError(f"a date is in no {self.by}")

    def first_date(self, position: int) -> date:
        """The first date of a day, week or month."""
        if self.by is By.DAY:
            return date.fromordinal(position + _EPOCH)
        if self.by is By.WEEK:
            return date.fromordinal(position * 7 + _FIRST_MONDAY)
        if self.by is By.MONTH:
            return date(1970 + position // 12, position % 12 + 1, 1)
        raise ValueError(f"a {self.by} has no dates")

    def starts_at(self, position: int) -> datetime:
        """The moment at which a period begins; the period before it ends there."""
        if self.by is By.HOUR:
            return _UNIX + position * _HOUR
        midnight = datetime.combine(self.first_date(position), datetime.min.time(), zone(self.time_zone))
        # A day that begins in a gap of the local time (clocks go forward at midnight) begins when the gap ends.
        return midnight.astimezone(UTC)


_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


def _parse_position(self: Partitions, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or not -(2**63) <= int(text) < 2**63:
        raise self._bad(text)
    return int(text)


def _parse_day(self: Partitions, text: str) -> int:
    if (found := _DAY.fullmatch(text)) is None:
        raise self._bad(text)
    return self.of_date(date(*map(int, found.groups())))


def _parse_week(self: Partitions, text: str) -> int:
    if (found := _WEEK.fullmatch(text)) is None:
        raise self._bad(text)
    return self.of_date(date.fromisocalendar(int(found[1]), int(found[2]), 1))


def _parse_month(self: Partitions, text: str) -> int:
    if (found := _MONTH.fullmatch(text)) is None:
        raise self._bad(text)
    return self.of_date(date(int(found[1]), int(found[2]), 1))


def _parse_hour(self: Partitions, text: str) -> int:
    if (found := _HOUR_OF_DAY.fullmatch(text)) is None:
        raise self._bad(text)
    day, hour, offset = found.groups()
    if offset is not None:
        return self.of_time(datetime.fromisoformat(f"{day}T{hour}:00{offset}"))
    local = datetime.fromisoformat(f"{day}T{hour}:00").replace(tzinfo=zone(self.time_zone))
    moment = local.astimezone(UTC)
    if moment.astimezone(zone(self.time_zone)).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise BadPartition(f"{text} does not exist in {self.time_zone}: clocks go forward over it")
    if moment != local.replace(fold=1).astimezone(UTC):
        both = " or ".join(self.name(self.of_time(local.replace(fold=f))) for f in (0, 1))
        raise BadPartition(f"{text} occurs twice in {self.time_zone}; write {both}")
    return self.of_time(moment)


@dataclass(frozen=True, slots=True)
class _WithNames(Partitions):
    """Apart from the declaration, which is stored."""

    registered: Mapping[str, int] = field(default_factory=dict)


def is_name(text: str) -> bool:
    """Whether a partition may be called so."""
    return _NAME.fullmatch(text) is not None


def _parse_name(self: Partitions, text: str) -> int:
    if not is_name(text):
        raise self._bad(text)
    if not self.may_have(text) or text not in self.registered:
        raise BadPartition(f"there is no partition {text!r}")
    return self.registered[text]


def _name_hour(self: Partitions, position: int) -> str:
    local = self.starts_at(position).astimezone(zone(self.time_zone))
    twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    offset = local.strftime("%z") if twice else ""
    return local.isoformat()[:13] + (f"{offset[:3]}:{offset[3:]}" if offset else "")


def _name_day(self: Partitions, position: int) -> str:
    return self.first_date(position).isoformat()


def _name_month(self: Partitions, position: int) -> str:
    return self.first_date(position).isoformat()[:7]


def _name_week(self: Partitions, position: int) -> str:
    year, week, _ = self.first_date(position).isocalendar()
    return f"{year:04}-W{week:02}"


_PARSERS = {
    By.POSITION: _parse_position,
    By.HOUR: _parse_hour,
    By.DAY: _parse_day,
    By.WEEK: _parse_week,
    By.MONTH: _parse_month,
    By.NAME: _parse_name,
}
_NAMES = {
    By.HOUR: _name_hour,
    By.DAY: _name_day,
    By.WEEK: _name_week,
    By.MONTH: _name_month,
}
