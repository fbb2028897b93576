"""Notices datasets that got no rows for longer than their `freshness` allows, by the database's clock, and those that
got some again. It needs no task to run, so it notices that none does."""

from __future__ import annotations

from dataclasses import dataclass

from traceplane import telemetry
from traceplane.postgres import check_failures
from traceplane.postgres.database import Database, retry_on_conflict
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class FreshnessJudged(Outcome):
    stale: int = 0
    fresh_again: int = 0


class Freshness:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> FreshnessJudged:
        async def once() -> list[check_failures.Turned]:
            async with self._database.transaction() as tx:
                return await check_failures.judge_freshness(tx)

        turned = await retry_on_conflict(once)
        stale = sum(one.stale for one in turned)
        telemetry.count("datasets_stale_total", stale)
        return FreshnessJudged(stale, len(turned) - stale)
