"""Which ticks of a cron source fire now, and which are skipped.

Every tick up to `settled_through` has fired or has been skipped. A pass settles what has become due since, by the
source's policy, and says when to look again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile

from traceplane.model.dag import CatchUpPolicy, Period, Source
from traceplane.model.partitions import Partitions
from traceplane.schedule import cron

ON_TIME = timedelta(minutes=1)
"""A tick that fires at most so late was not missed: `none` fires it too."""

_AT_ONCE = 100
"""Ticks of one source that one pass fires; the next pass goes on."""
_COUNTED = 1000
"""Skipped ticks are counted up to this number."""


@dataclass(frozen=True, slots=True)
class DueTicks:
    fire: tuple[datetime, ...]
    """The earliest first."""
    skipped: int
    settled_through: datetime
    next_tick: datetime | None
    """The first one that is not settled; it may be due already. None: there is none in the next 50 years."""


def settle(source: Source, *, settled_through: datetime, now: datetime, delay: timedelta) -> DueTicks:
    """`delay`: how much later than its time each tick of the source fires."""
    assert source.schedule is not None, "a cron source has a schedule"
    end = now - delay
    most = source.catch_up.most if source.catch_up.policy is CatchUpPolicy.ALL else 1
    back = cron.ticks_back(source.schedule, source.time_zone, end)
    unsettled = takewhile(lambda tick: tick > settled_through, back)
    due = list(islice(unsettled, most + _COUNTED))
    match source.catch_up.policy:
        case CatchUpPolicy.NONE:
            wanted = [tick for tick in due if tick > end - ON_TIME]
        case CatchUpPolicy.LATEST | CatchUpPolicy.ALL:
            wanted = due[:most]
    wanted.reverse()
    fire, settled = wanted[:_AT_ONCE], settled_through
    if len(fire) < len(wanted):
        settled = fire[-1]
    elif due:
        settled = due[0]
    upcoming = cron.ticks_after(source.schedule, source.time_zone, max(settled, settled_through))
    return DueTicks(tuple(fire), len(due) - len(wanted), settled, next(upcoming, None))


def delay_of(source: Source, identity: str) -> timedelta:
    """By how much the ticks of a source are late, so that sources of one schedule do not fire at the same moment."""
    digest = hashlib.sha256(identity.encode()).digest()
    return timedelta(seconds=source.jitter_seconds * int.from_bytes(digest[:8]) / 2**64)


def position(source: Source, partitions: Partitions, tick: datetime) -> int | None:
    """The period that the event of a tick names; None if it is before the first one of the dataset."""
    found = partitions.of_time(tick) - (source.period is Period.PREVIOUS)
    return None if partitions.start is not None and found < partitions.start else found


def upcoming(source: Source, now: datetime, count: int) -> list[datetime]:
    assert source.schedule is not None, "a cron source has a schedule"
    return list(islice(cron.ticks_after(source.schedule, source.time_zone, now), count))
