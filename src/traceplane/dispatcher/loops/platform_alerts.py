"""The platform's own alerts: dead tasks, tasks that wait too long, sources that fail, checks of datasets that fail
without stopping anything, messages that do not arrive, and disks that fill up.

They are alerts like any other, with definitions that are the same for everyone; Postgres evaluates them rather than
Spark. An alert begins when its condition does, and is retracted when the condition is over. The channels that an
organization has set for it are told.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from traceplane.dispatcher.in_process.alert_route import Comparison
from traceplane.operators.platform_alerts import (
    DEAD_DELIVERIES,
    DEAD_TASKS,
    DEFINITIONS,
    DISK,
    FAILED_CHECK,
    FAILING_SOURCE,
    QUEUE_AGE,
    STALE_DATASET,
    Definition,
)
from traceplane.postgres import alerts, platform_alerts
from traceplane.postgres.alerts import FoundRow
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.platform_alerts import Condition
from traceplane.runtime.process import Outcome

_QUEUE_AGE_SECONDS = 900.0
_LEAST_FREE_SHARE = 0.1
_NOWHERE = [(0, 0)]
"""Their conditions have no positions: each looks at everything."""


@dataclass(frozen=True, slots=True)
class Looked(Outcome):
    changed: int = 0
    """Alerts that are new or gone; those that go on are no news."""


class PlatformAlerts:
    def __init__(self, database: Database, folders: Sequence[Path]) -> None:
        """`folders`: whose disks must not fill up."""
        self._database, self._folders = database, folders
        self._evaluations: dict[str, Callable[[Transaction], Awaitable[list[Condition]]]] = {
            DEAD_TASKS.name: platform_alerts.dead_tasks,
            QUEUE_AGE.name: lambda tx: platform_alerts.queue_age(tx, _QUEUE_AGE_SECONDS),
            FAILING_SOURCE.name: platform_alerts.failing_sources,
            FAILED_CHECK.name: platform_alerts.failed_checks,
            STALE_DATASET.name: platform_alerts.stale_datasets,
            DEAD_DELIVERIES.name: platform_alerts.dead_deliveries,
            DISK.name: self._full_disks,
        }

    async def run_once(self) -> Looked:
        async with self._database.transaction() as tx:
            if not await platform_alerts.lock(tx):
                return Looked()
            channels = await platform_alerts.platform_channels(tx)
            raised = await platform_alerts.open_alerts(tx)
            changed = 0
            for definition in DEFINITIONS:
                conditions: defaultdict[UUID, list[Condition]] = defaultdict(list)
                for condition in await self._evaluations[definition.name](tx):
                    conditions[condition.org_id].append(condition)
                for org_id in conditions.keys() | {org for org, alert in raised if alert == definition.name}:
                    changed += await _compare(
                        tx, org_id, definition, conditions[org_id], channels.get(org_id, [])
                    )
        return Looked(changed)

    async def _full_disks(self, tx: Transaction) -> list[Condition]:
        full = [
            {"folder": str(folder), "free_mb": usage.free >> 20}
            for folder in self._folders
            if folder.exists() and (usage := shutil.disk_usage(folder)).free < usage.total * _LEAST_FREE_SHARE
        ]
        if not full or (org_id := await platform_alerts.first_org(tx)) is None:
            return []
        return [Condition(org_id, {"folder": one["folder"]}, {"free_mb": one["free_mb"]}) for one in full]


async def _compare(
    tx: Transaction,
    org_id: UUID,
    definition: Definition,
    conditions: Sequence[Condition],
    channels: Sequence[str],
) -> int:
    route = await alerts.platform_route(tx, org_id, definition.name)
    rows = [FoundRow(0, condition.subject, condition.fields, None, None) for condition in conditions]
    return await Comparison(tx, route, definition.routed_to(channels), _NOWHERE).compare(rows, _NOWHERE)
