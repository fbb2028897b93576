"""Cron schedules: five fields, in a time zone.

When clocks change, schedules follow Debian's cron. One with fixed times (neither its minutes nor its hours begin with
`*`) fires once for each of them: a time that is skipped fires at the first moment after the gap, and of a time that
occurs twice the first counts. Any other schedule follows real time: it fires whenever the local clock shows a time
that matches, so not at all in a gap, and twice in an hour that occurs twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import product

from cronsim import CronSim, CronSimError

from traceplane.model.partitions import zone

FORM = "write five fields, such as '*/5 * * * *' or '30 9 * * MON-FRI'"
"""How to fix an invalid schedule."""

_DAY = timedelta(days=1)
_YEARS = 50
"""A schedule without a time in so many years has none."""


def check(schedule: str) -> None:
    """Raises ValueError if the schedule is invalid or names a day that never comes."""
    _parsed(schedule, datetime.now(UTC))


def latest(schedule: str, now: datetime) -> datetime | None:
    """The latest due time at or before `now`, in UTC; None if there is none."""
    return _latest(schedule, now.astimezone(UTC).replace(second=0, microsecond=0))


@lru_cache(maxsize=4096)  # many pipelines share a schedule and are checked every second
def _latest(schedule: str, minute: datetime) -> datetime | None:
    try:
        return next(_parsed(schedule, minute + timedelta(minutes=1)), None)
    except ValueError:  # stored before schedules of days that never come were rejected
        return None


def ticks_after(schedule: str, time_zone: str, moment: datetime) -> Iterator[datetime]:
    """Its times after a moment, in UTC, the next one first."""
    fields, last = _fields(schedule), moment
    # Beginning a day early: a time in a gap before midnight fires at midnight.
    for day in _days_from(fields, _local_date(moment, time_zone) - _DAY):
        for tick in _ticks_of_day(schedule, time_zone, day):
            if tick > last:
                yield tick
                last = tick


def ticks_back(schedule: str, time_zone: str, moment: datetime) -> Iterator[datetime]:
    """Its times up to and including a moment, in UTC, the latest first."""
    fields, last = _fields(schedule), moment + timedelta(microseconds=1)
    for day in _days_back(fields, _local_date(moment, time_zone)):
        for tick in reversed(_ticks_of_day(schedule, time_zone, day)):
            if tick < last:
                yield tick
                last = tick


def _parsed(schedule: str, moment: datetime) -> CronSim:
    """The library's iterator; going back, since that is how `latest` uses it."""
    if len(schedule.split()) != 5:  # with a sixth field the library counts seconds
        raise ValueError("a schedule has five fields")
    try:
        return CronSim(schedule, moment, reverse=True)
    except CronSimError as error:
        if _never_occurs(schedule):
            raise ValueError("it never occurs: none of its months has such a day") from None
        raise ValueError(str(error).lower()) from None


def _never_occurs(schedule: str) -> bool:
    """Of an invalid schedule: whether its fields are valid, each on its own."""
    minute, hour, day, month, weekday = schedule.split()
    try:
        for fields in (f"{minute} {hour} {day} * {weekday}", f"* * * {month} *"):
            CronSim(fields, datetime.now(UTC))
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=4096)
def _fields(schedule: str) -> CronSim:
    """Only what the fields match. The library's own times depend on where an iteration starts when clocks change by
    half an hour."""
    return _parsed(schedule, datetime.now(UTC))


def _local_date(moment: datetime, time_zone: str) -> date:
    return moment.astimezone(zone(time_zone)).date()


def _days_from(fields: CronSim, day: date) -> Iterator[date]:
    end = day.year + _YEARS
    while day.year < min(end, date.max.year):
        if day.month not in fields.months:
            day = (day.replace(day=1) + 32 * _DAY).replace(day=1)
            continue
        if fields.match_day(day):
            yield day
            end = day.year + _YEARS
        day += _DAY


def _days_back(fields: CronSim, day: date) -> Iterator[date]:
    end = day.year - _YEARS
    while day.year > max(end, date.min.year):
        if day.month not in fields.months:
            day = day.replace(day=1) - _DAY
            continue
        if fields.match_day(day):
            yield day
            end = day.year - _YEARS
        day -= _DAY


@lru_cache(maxsize=256)  # one of them may hold 1440 times
def _ticks_of_day(schedule: str, time_zone: str, day: date) -> tuple[datetime, ...]:
    """In UTC and in order, of a date that matches."""
    fields = _fields(schedule)
    times = [time(hour, minute) for hour, minute in product(sorted(fields.hours), sorted(fields.minutes))]
    here = zone(time_zone)
    midnight, next_midnight = (datetime.combine(d, time(), here).astimezone(UTC) for d in (day, day + _DAY))
    if next_midnight - midnight == _DAY:  # clocks do not change
        return tuple(midnight + timedelta(hours=t.hour, minutes=t.minute) for t in times)
    local = [datetime.combine(day, t, here) for t in times]
    minutes, hours, *_ = schedule.split()
    if minutes.startswith("*") or hours.startswith("*"):
        moments = [t.replace(fold=fold).astimezone(UTC) for t in local for fold in (0, 1) if not _skipped(t)]
    else:
        moments = [_end_of_gap(t) if _skipped(t) else t.astimezone(UTC) for t in local]
    return tuple(sorted(set(moments)))


def _skipped(local: datetime) -> bool:
    """Whether clocks go forward over this local time."""
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None)


def _end_of_gap(local: datetime) -> datetime:
    while _skipped(local):
        local += timedelta(minutes=1)
    return local.astimezone(UTC)
