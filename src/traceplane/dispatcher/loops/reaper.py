"""Ends attempts whose lease ran out: their worker is gone, and the task is retried, or dead.

A dispatcher that just started, or that just lost Postgres, reaps nothing for a while: leases ran out because
nobody could extend them, and the workers are given time to say that they are alive.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Reaped(Outcome):
    retried: int = 0
    dead: int = 0
    canceled: int = 0
    more: bool = False


class Reaper:
    def __init__(self, database: Database, *, grace_seconds: float) -> None:
        self._database = database
        self._grace_seconds = grace_seconds
        self._not_before = time.monotonic() + grace_seconds

    async def run_once(self) -> Reaped:
        if time.monotonic() < self._not_before:
            return Reaped()
        try:
            async with self._database.transaction("reaper") as tx:
                reaped = await tasks.reap(tx, _BATCH)
        except PlatformError:
            self._not_before = time.monotonic() + self._grace_seconds
            raise
        for task in reaped:
            telemetry.emit(
                "task.lease_expired",
                "warning",
                task_id=str(task.task_id),
                attempt=task.attempt,
                worker=task.worker_id,
                state=task.state,
            )
        telemetry.count("tasks_reaped_total", len(reaped))
        states = [task.state for task in reaped]
        return Reaped(
            states.count("queued"), states.count("dead"), states.count("canceled"), more=len(reaped) == _BATCH
        )
