"""Periodic pipelines are launched when their time has come, by the database's clock.

Of the times that passed while nobody looked, or while the pipeline was running, the newest is made up for; a time
before the pipeline was switched on is not. Two dispatchers launch nothing twice: an index keeps the times apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from traceplane import telemetry
from traceplane.model import cron
from traceplane.postgres import executions
from traceplane.postgres.database import Database
from traceplane.postgres.executions import Scheduled
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class Launched(Outcome):
    launched: int = 0


class PeriodicPipelines:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._warned = False

    async def run_once(self) -> Launched:
        async with self._database.glance() as tx:
            waiting = await executions.scheduled(tx)
        due = [(p.pipeline_id, at) for p in waiting if (at := _due(p)) is not None]
        if not due:
            return Launched()
        async with self._database.transaction() as tx:
            launched, without_job = await executions.launch_scheduled(tx, due)
        if without_job and not self._warned:
            telemetry.emit("pipelines.job_missing", "warning", pipelines=without_job)
        self._warned = without_job > 0
        telemetry.count("executions_scheduled_total", launched)
        return Launched(launched)


def _due(pipeline: Scheduled) -> datetime | None:
    """The time that it is to be launched for."""
    latest = cron.parse(pipeline.schedule).latest(pipeline.now)
    if latest is None or latest <= pipeline.active_since:
        return None
    return latest if pipeline.launched_for is None or latest > pipeline.launched_for else None
