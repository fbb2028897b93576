"""Keeps one run of every always-on source alive, always under the same task id.

A source is a task that never ends by itself. Its worker sends heartbeats like any other; if the worker dies, the
reaper requeues the task, and if its code returns or fails, this loop does. The id stays the same, so events that a
restarted source emits again are recognized as duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class SourcesStarted(Outcome):
    started: int = 0
    restarted: int = 0


class SourceMonitor:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> SourcesStarted:
        async with self._database.transaction("source_monitor") as tx:
            return SourcesStarted(*await tasks.start_sources(tx))
