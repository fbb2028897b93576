"""When cron sources fire, as text."""

from __future__ import annotations

from datetime import datetime

from traceplane.model.partitions import UnknownZone, zone
from traceplane.wire.control import CronView


def describe(cron: CronView) -> str:
    last = "none yet" if cron.last_tick is None else local(cron.last_tick, cron.time_zone)
    coming = "none" if cron.next_tick is None else local(cron.next_tick, cron.time_zone)
    coming = "none while it is paused" if cron.paused else coming
    return f"cron {cron.schedule} ({cron.time_zone}), last tick {last}, next tick {coming}"


def local(moment: str, time_zone: str) -> str:
    """In the time zone of the schedule; in UTC if this machine does not know that one."""
    found = datetime.fromisoformat(moment)
    try:
        return f"{found.astimezone(zone(time_zone)):%Y-%m-%d %H:%M}"
    except UnknownZone:
        return f"{found:%Y-%m-%d %H:%MZ}"
