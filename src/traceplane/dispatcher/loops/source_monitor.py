"""Keeps one run of every always-on source alive, always under the same task id.

A source is a task that never ends by itself: its worker heartbeats like any other; when it dies, the reaper
queues it again, and when its code returns or fails, this loop does. The id stays, so what a restarted
source emits again is recognized as a repetition.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class Sources(Outcome):
    started: int = 0
    restarted: int = 0


class SourceMonitor:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Sources:
        async with self._database.transaction("source_monitor") as tx:
            return Sources(*await tasks.start_sources(tx))
