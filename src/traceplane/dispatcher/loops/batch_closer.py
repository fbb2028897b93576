"""Closes batches that something else than their last position closes: a time, the end of the work on the batch before,
or somebody by hand. The database's clock decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from traceplane import telemetry
from traceplane.dispatcher.in_process import aggregator
from traceplane.dispatcher.in_process.jobs import definition_of
from traceplane.errors import PlatformError
from traceplane.postgres import aggregator as batches
from traceplane.postgres import events, registry
from traceplane.postgres.database import HEALED_BY_REPETITION, Database, Transaction, retry_on_conflict
from traceplane.runtime.process import Outcome

_REST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BatchesClosed(Outcome):
    closed: int = 0


class _Raised(Exception):
    """An aggregator raised; what it wrote is rolled back with everything else of the pass."""

    def __init__(self, job_id: UUID) -> None:
        super().__init__(str(job_id))
        self.job_id = job_id


class BatchCloser:
    def __init__(self, database: Database, *, work_created: Callable[[], None]) -> None:
        self._database = database
        self._work_created = work_created
        self._resting: dict[UUID, float] = {}
        """Aggregators that raised, until when: others must not wait for them."""

    async def run_once(self) -> BatchesClosed:
        async with self._database.autocommit() as tx:
            if not await batches.any_open(tx):
                return BatchesClosed()
        closed = None
        while closed is None:
            try:
                closed = await retry_on_conflict(self._close)
            except _Raised as raised:
                self._resting[raised.job_id] = time.monotonic() + _REST_SECONDS
                error = raised.__cause__
                message = f"{type(error).__name__} {error}"
                telemetry.emit(
                    "in_process.failed", "warning", operator="aggregator", tasks=0, message=message
                )
        if closed:
            telemetry.count("tasks_created_total", closed)
            self._work_created()
        return BatchesClosed(closed)

    async def _close(self) -> int:
        created = 0
        async with self._database.transaction("in_process") as tx:
            for job_id in await batches.due(tx):
                if self._resting.get(job_id, 0.0) <= time.monotonic():
                    created += await _close_due(tx, job_id)
        return created


async def _close_due(tx: Transaction, job_id: UUID) -> int:
    try:
        (row,) = await registry.job_payloads(tx, [job_id])
        accepted = await events.accept(tx, await aggregator.close_due(tx, definition_of(row)))
    except (*HEALED_BY_REPETITION, PlatformError):
        raise
    except Exception as error:
        raise _Raised(job_id) from error
    return accepted.tasks_created
