"""The valve: dispatches queued tasks as far as concurrency, window and backpressure allow.

Jobs are locked while they are metered, so two dispatchers never use the same free slot. Tasks in flight are
counted from the tasks themselves; there is no counter that could leak.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceplane.postgres import tasks
from traceplane.postgres.database import Database, retry_on_conflict
from traceplane.runtime.process import Outcome

_PER_JOB = 1000


@dataclass(frozen=True, slots=True)
class Metered(Outcome):
    dispatched: int = 0


class Valve:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Metered:
        return await retry_on_conflict(self._meter)

    async def _meter(self) -> Metered:
        async with self._database.transaction("valve") as tx:
            jobs = await tasks.waiting_jobs(tx, in_process=False)
            if not jobs:
                return Metered()
            # A separate statement: it must count in a snapshot taken after the jobs were locked.
            return Metered(await tasks.dispatch(tx, [j.job_id for j in jobs], _PER_JOB))
