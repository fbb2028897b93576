"""Launches periodic pipelines when they are due, by the database's clock.

Of the times missed while no dispatcher ran, or while the pipeline was running, only the newest is launched; times
before the pipeline was activated are not. A unique index keeps two dispatchers from launching the same time twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from traceplane import telemetry
from traceplane.postgres import executions
from traceplane.postgres.database import Database
from traceplane.postgres.executions import Scheduled
from traceplane.runtime.process import Outcome
from traceplane.schedule import cron


@dataclass(frozen=True, slots=True)
class Launched(Outcome):
    launched: int = 0


class PeriodicPipelines:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._warned = False

    async def run_once(self) -> Launched:
        async with self._database.autocommit() as tx:
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
    """The time to launch it for, if one is due."""
    latest = cron.latest(pipeline.schedule, pipeline.now)
    if latest is None or latest <= pipeline.active_since:
        return None
    return latest if pipeline.launched_for is None or latest > pipeline.launched_for else None
