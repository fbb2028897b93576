"""Cron schedules: five numeric fields, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import cache

_LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_PART = re.compile(r"(?:([0-9]{1,2})|(\*|([0-9]{1,2})-([0-9]{1,2}))(?:/0?([1-9][0-9]?))?)")
_DAYS_SEARCHED = 366 * 9
"""A 29th of February comes within this many days, turns of the century included."""


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Both days and weekdays are named: one of them has to fit, as cron has always had it."""

    def latest(self, now: datetime) -> datetime | None:
        """The last time at or before `now`; None if it never comes."""
        now = now.astimezone(UTC)
        for back in range(_DAYS_SEARCHED):
            day = (now - timedelta(days=back)).date()
            by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
            fits = by_day or by_weekday if self.either_day else by_day and by_weekday
            if day.month not in self.months or not fits:
                continue
            for hour in reversed(self.hours):
                for minute in reversed(self.minutes):
                    found = datetime.combine(day, time(hour, minute), UTC)
                    if found <= now:
                        return found
        return None


@cache
def parse(text: str) -> Cron:
    """Raises ValueError for what is not a schedule."""
    fields = text.split()
    if len(fields) != 5:
        raise ValueError("a schedule has five fields")
    minutes, hours, days, months, weekdays = (
        _numbers(field, *limits) for field, limits in zip(fields, _LIMITS, strict=True)
    )
    return Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        either_day=not fields[2].startswith("*") and not fields[4].startswith("*"),
    )


def _numbers(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a number, a range or *")
        single, _, first, last, step = match.groups()
        start, end = (int(single), int(single)) if single else (int(first or low), int(last or high))
        if not low <= start <= end <= high:
            raise ValueError(f"{part!r} is not within {low} to {high}")
        found.update(range(start, end + 1, int(step or 1)))
    return frozenset(found)
