"""A year of ticks in two time zones, while dispatchers die at every boundary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cron_year
from tests.platform import Platform
from tests.process.test_cron_dispatchers import BOUNDARIES, KEEP_HISTORY, fire_while_dispatchers_die


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_a_year_of_ticks_while_dispatchers_die_at_every_boundary(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(
        database_url, tmp_path, dispatchers=3, workers=0, environment=KEEP_HISTORY
    ) as platform:
        deaths = await fire_while_dispatchers_die(platform, 366, jump=6)
        assert await cron_year.emitted(platform.sql) == cron_year.expected(366)
    print(f"deaths: {dict(deaths)}")
    assert all(deaths[boundary] > 10 for boundary in BOUNDARIES), deaths
