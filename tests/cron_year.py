"""A year of ticks in two time zones, and what it must come to. It starts at 2030-01-01 UTC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from typing import Any

DAG = """
version: 1
dag: year
datasets:
  berlin: {partitions: {by: day, time_zone: Europe/Berlin}}
  new_york: {partitions: {by: day, time_zone: America/New_York}}
  hours: {partitions: {by: hour, time_zone: America/New_York}}
jobs:
- name: berlin
  activation: source
  source: {kind: cron, schedule: "30 2 * * *", time_zone: Europe/Berlin, catch_up: all}
  outputs: [{dataset: berlin}]
- name: new_york
  activation: source
  source: {kind: cron, schedule: "30 1,2 * * *", time_zone: America/New_York, catch_up: all, period: previous}
  outputs: [{dataset: new_york}]
- name: hours
  activation: source
  source:
    kind: cron
    schedule: "0 * * * *"
    time_zone: America/New_York
    catch_up: {policy: all, most: 1000}
    jitter: 10m
  outputs: [{dataset: hours}]
"""

_HOURS_OF_A_CHANGE = {"2030-11-03T01": ("2030-11-03T01-04:00", "2030-11-03T01-05:00"), "2030-03-10T02": ()}


async def emitted(sql: Callable[[str], Awaitable[list[Any]]]) -> dict[str, Counter[str]]:
    """By dataset: how many events each partition has."""
    rows = await sql("select dataset_id, partition_key from events join datasets using (dataset_uuid)")
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["dataset_id"], Counter())[row["partition_key"]] += 1
    return found


def expected(days: int) -> dict[str, Counter[str]]:
    """Once the clock has moved on by so many days."""
    dates = [date(2030, 1, 1) + timedelta(days=n) for n in range(days)]
    # 19:00 on New Year's Eve in New York was before the first tick; midnight UTC is late by the jitter.
    local = [date(2029, 12, 31) + timedelta(days=n) for n in range(days + 1)]
    hours = [f"{day}T{hour:02}" for day in local for hour in range(24)][20:]
    hours = [name for hour in hours for name in _HOURS_OF_A_CHANGE.get(hour, (hour,))]
    return {
        "berlin": Counter(day.isoformat() for day in dates),
        # 01:30 and 02:30; on the day without 02:30 that is 03:00.
        "new_york": Counter({(day - timedelta(days=1)).isoformat(): 2 for day in dates}),
        "hours": Counter(hours[: days * 24 - 1]),
    }
