"""Cron sources as people see them: when each fires next, and when it last did."""

from __future__ import annotations

from traceplane.postgres import cron_schedules
from traceplane.postgres.database import Transaction
from traceplane.wire.control import CronView


async def views(tx: Transaction, org: str, dataset_id: str | None = None) -> list[CronView]:
    """Of an organization, or of one dataset."""
    return [
        CronView(
            found.dag,
            found.job,
            found.source.schedule or "",
            found.source.time_zone,
            None if found.next_tick is None else found.next_tick.isoformat(),
            None if found.last_tick is None else found.last_tick.isoformat(),
            found.paused,
        )
        for found in await cron_schedules.of_org(tx, org, dataset_id)
    ]
