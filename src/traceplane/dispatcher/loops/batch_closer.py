"""Closes batches that something else than their last position closes: a time, the end of the work on the batch before,
or somebody by hand. The database's clock decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.dispatcher.in_process import aggregator
from traceplane.dispatcher.in_process.jobs import definition_of
from traceplane.postgres import aggregator as batches
from traceplane.postgres import events, registry
from traceplane.postgres.database import Database, retry_on_conflict
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class BatchesClosed(Outcome):
    closed: int = 0


class BatchCloser:
    def __init__(self, database: Database, *, work_created: Callable[[], None]) -> None:
        self._database = database
        self._work_created = work_created

    async def run_once(self) -> BatchesClosed:
        async with self._database.autocommit() as tx:
            if not await batches.any_open(tx):
                return BatchesClosed()
        closed = await retry_on_conflict(self._close)
        if closed:
            telemetry.count("tasks_created_total", closed)
            self._work_created()
        return BatchesClosed(closed)

    async def _close(self) -> int:
        created = 0
        async with self._database.transaction("in_process") as tx:
            for job_id in await batches.due(tx):
                (row,) = await registry.job_payloads(tx, [job_id])
                accepted = await events.accept(tx, await aggregator.close_due(tx, definition_of(row)))
                created += accepted.tasks_created
        return created
