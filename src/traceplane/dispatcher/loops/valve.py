"""The valve: queued tasks go out as far as concurrency, window and backpressure allow.

Jobs are locked while they are metered, so two dispatchers never count the same free slot twice. What is in
flight is counted from the tasks themselves; there is no counter that could leak.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceplane.postgres import tasks
from traceplane.postgres.database import Database, again_if_concurrent
from traceplane.runtime.process import Outcome

_PER_JOB = 1000


@dataclass(frozen=True, slots=True)
class Metered(Outcome):
    dispatched: int = 0


class Valve:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Metered:
        return await again_if_concurrent(self._meter)

    async def _meter(self) -> Metered:
        async with self._database.transaction("valve") as tx:
            jobs = await tasks.waiting_jobs(tx, in_process=False)
            if not jobs:
                return Metered()
            # A second statement: it must count with a snapshot taken after the jobs were locked.
            return Metered(await tasks.dispatch(tx, [j.job_id for j in jobs], _PER_JOB))
