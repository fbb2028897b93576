"""Cron schedules: five fields, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cronsim import CronSim, CronSimError

FORM = "write five fields, such as '*/5 * * * *' or '30 9 * * MON-FRI'"
"""How to fix an invalid schedule."""


def check(schedule: str) -> None:
    """Raises ValueError if the schedule is invalid or names a day that never comes."""
    _times_before(schedule, datetime.now(UTC))


def latest(schedule: str, now: datetime) -> datetime | None:
    """The latest due time at or before `now`; None if there is none."""
    return _latest(schedule, now.astimezone(UTC).replace(second=0, microsecond=0))


@lru_cache(maxsize=4096)  # many pipelines share a schedule and are checked every second
def _latest(schedule: str, minute: datetime) -> datetime | None:
    try:
        return next(_times_before(schedule, minute + timedelta(minutes=1)), None)
    except ValueError:  # stored before schedules of days that never come were rejected
        return None


def _times_before(schedule: str, end: datetime) -> CronSim:
    if len(schedule.split()) != 5:  # with a sixth field the library counts seconds
        raise ValueError("a schedule has five fields")
    try:
        return CronSim(schedule, end, reverse=True)
    except CronSimError as error:
        raise ValueError(str(error).lower()) from None
