"""When a market is open: opening hours of its weekdays, without its holidays, in its own time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True)
class MarketHours:
    timezone: str
    opens: time
    closes: time
    days: frozenset[int] = frozenset(range(5))
    """0 is Monday."""
    holidays: frozenset[date] = frozenset()
    exchange: str | None = None
    """NYSE: its own holidays and early closes too, of any year."""

    def is_open(self, timestamp: float) -> bool:
        there = datetime.fromtimestamp(timestamp, UTC).astimezone(ZoneInfo(self.timezone))
        day = there.date()
        if day.weekday() not in self.days or day in self.holidays:
            return False
        closes = self.closes
        if self.exchange == "NYSE":
            if day in nyse_holidays(day.year):
                return False
            if day in nyse_early_closes(day.year):
                closes = time(13)
        return self.opens <= there.time() < closes


NYSE = MarketHours("America/New_York", time(9, 30), time(16), exchange="NYSE")


@cache
def nyse_holidays(year: int) -> frozenset[date]:
    """The exchange's holidays as they are kept since 2022. One on a Saturday is kept on Friday, on a Sunday on
    Monday; but the last day of a year is never a holiday for New Year."""
    found = {
        _nth(year, 1, 0, 3),  # Martin Luther King
        _nth(year, 2, 0, 3),  # Washington
        _easter(year) - timedelta(days=2),  # Good Friday
        _nth(year, 6, 0, 1) - timedelta(days=7),  # Memorial Day: the last Monday of May
        _kept(date(year, 6, 19)),
        _kept(date(year, 7, 4)),
        _nth(year, 9, 0, 1),  # Labor Day
        _nth(year, 11, 3, 4),  # Thanksgiving
        _kept(date(year, 12, 25)),
    }
    if date(year, 1, 1).weekday() != 5:
        found.add(_kept(date(year, 1, 1)))
    return frozenset(found)


@cache
def nyse_early_closes(year: int) -> frozenset[date]:
    """One o'clock: before Independence Day, after Thanksgiving, before Christmas."""
    candidates = (date(year, 7, 3), _nth(year, 11, 3, 4) + timedelta(days=1), date(year, 12, 24))
    return frozenset(d for d in candidates if d.weekday() < 5 and d not in nyse_holidays(year))


def _nth(year: int, month: int, weekday: int, n: int) -> date:
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (n - 1))


def _kept(day: date) -> date:
    return day + timedelta(days={5: -1, 6: 1}.get(day.weekday(), 0))


def _easter(year: int) -> date:
    """Gauss, in the form of the anonymous Gregorian algorithm."""
    a, b, c = year % 19, year // 100, year % 100
    h = (19 * a + b - b // 4 - (b - (b + 8) // 25 + 1) // 3 + 15) % 30
    ell = (32 + 2 * (b % 4) + 2 * (c // 4) - h - c % 4) % 7
    m = (a + 11 * h + 22 * ell) // 451
    month, day = divmod(h + ell - 7 * m + 114, 31)
    return date(year, month, day + 1)
