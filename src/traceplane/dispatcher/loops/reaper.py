"""Ends attempts whose lease expired: the worker is gone, and the task is retried, or dead.

A dispatcher that just started, or just lost Postgres, reaps nothing for a while: leases may have expired because
nobody could extend them, so workers get time to send heartbeats.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.model.task import TaskState, state_after_failure
from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.postgres.tasks import ExpiredLease, FailedAttempt
from traceplane.runtime.process import Outcome
from traceplane.wire.tasks import TaskError

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
                expired = await tasks.lock_expired(tx, _BATCH)
                states = [state_after_failure(task.facts) for task in expired]
                failed = [
                    FailedAttempt(task.task_id, task.facts.attempt, state, _error(task))
                    for task, state in zip(expired, states, strict=True)
                ]
                if failed:
                    # The worker may be alive but late: its report still counts.
                    await tasks.mark_failed(tx, failed, reported=False)
        except PlatformError:
            self._not_before = time.monotonic() + self._grace_seconds
            raise
        for task, state in zip(expired, states, strict=True):
            telemetry.emit(
                "task.lease_expired",
                "warning",
                task_id=str(task.task_id),
                attempt=task.facts.attempt,
                worker=task.worker_id,
                state=state,
            )
        telemetry.count("tasks_reaped_total", len(expired))
        return Reaped(
            retried=states.count(TaskState.QUEUED),
            dead=states.count(TaskState.DEAD),
            canceled=states.count(TaskState.CANCELED),
            more=len(expired) == _BATCH,
        )


def _error(task: ExpiredLease) -> TaskError:
    return TaskError("lease.expired", f"worker {task.worker_id or '?'} stopped sending heartbeats")
