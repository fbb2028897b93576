"""Three dispatchers, each of which dies at the commit of the first ticks it fires: each tick fires once."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest

from tests import cron_year
from tests.platform import Platform, until

DISPATCHERS = ("dispatcher-1", "dispatcher-2", "dispatcher-3")
KEEP_HISTORY = {"TRACEPLANE_HISTORY": "forever"}
"""Or the first of two ticks of a period, which the second replaces, is deleted before it is counted."""
BOUNDARIES = ("cron.before_commit", "cron.after_commit")


async def fire_while_dispatchers_die(platform: Platform, days: int, *, jump: int) -> Counter[str]:
    """Moves the clock day by day, or by several; how often a dispatcher died at each boundary."""
    deaths: Counter[str] = Counter()
    boundaries = cycle(BOUNDARIES)
    armed = dict.fromkeys(DISPATCHERS, "")

    async def nothing_due() -> bool:
        for name in DISPATCHERS:
            if not platform[name].alive:
                deaths[armed[name]] += 1
                armed[name] = next(boundaries)
                await platform[name].start(crash_at=armed[name])
        due = "select count(*) = 3 from cron_schedules where next_tick is not null and due_at > tp_now()"
        return bool(await platform.value(due))

    await set_clock(platform, 0)
    await platform.deploy(cron_year.DAG)
    for name in DISPATCHERS:
        await platform[name].kill()
    for day in range(jump, days + 1, jump):
        await set_clock(platform, day)
        await until(nothing_due, what=f"all ticks of day {day} have fired")
    del deaths[""]
    return deaths


async def set_clock(platform: Platform, days: int) -> None:
    await platform.sql(
        "create or replace function tp_now() returns timestamptz language sql stable parallel safe"
        f" as 'select timestamptz ''2030-01-01 00:00:00Z'' + interval ''{days} days'''"
    )


@pytest.mark.timeout(300)
async def test_three_dispatchers_that_die_at_every_boundary_fire_each_tick_once(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(
        database_url, tmp_path, dispatchers=3, workers=0, environment=KEEP_HISTORY
    ) as platform:
        deaths = await fire_while_dispatchers_die(platform, 72, jump=12)
        assert await cron_year.emitted(platform.sql) == cron_year.expected(72)
    assert all(deaths[boundary] > 1 for boundary in BOUNDARIES), deaths
