"""Executions follow what runs them: the task of the same id, or a Celery worker that has until its timeout.

    PENDING ──claimed──► RUNNING ──completed──► COMPLETED
                            └──dead, canceled, timed out──► FAILED

The statement that ends an execution frees its pipeline. Passes are idempotent, and any number of dispatchers may run
them: each skips rows that another has locked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.postgres import executions
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome

_BATCH = 5000
_OVERDUE_SECONDS = 2.0
"""How often timeouts are checked; each check reads all running Celery executions."""


@dataclass(frozen=True, slots=True)
class Followed(Outcome):
    started: int = 0
    completed: int = 0
    failed: int = 0
    more: bool = False


class ExecutionStatus:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._overdue_at = 0.0

    async def run_once(self) -> Followed:
        async with self._database.transaction() as tx:
            moved = await executions.follow_tasks(tx, _BATCH)
            late = 0
            if (now := time.monotonic()) >= self._overdue_at:
                late = await executions.fail_overdue(tx, _BATCH)
                self._overdue_at = now + _OVERDUE_SECONDS
        failed = moved["FAILED"] + late
        telemetry.count("executions_finished_total", moved["COMPLETED"], status="COMPLETED")
        telemetry.count("executions_finished_total", failed, status="FAILED")
        return Followed(moved["RUNNING"], moved["COMPLETED"], failed, more=moved.total() == _BATCH)
