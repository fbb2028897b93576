"""Which tasks a worker can run: tasks with needs have wake queues of their own, one for each set of needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from traceplane.model.resources import Resources
from traceplane.postgres import workers
from traceplane.postgres.database import Database
from traceplane.postgres.workers import RequiredSet

_KNOWN_FOR_SECONDS = 1.0


class Requirements:
    """The needs of deployed jobs, read at most once a second, and only if there is a worker that offers anything."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading = asyncio.Lock()
        self._known: Sequence[RequiredSet] = ()
        self._known_until = 0.0

    async def served_by(self, runtime: str, offers: Resources) -> tuple[str, ...]:
        """The suffixes of the queues that a worker can serve: those of the most demanding tasks first, and
        last that of the tasks that any worker can run."""
        if not offers:
            return ("",)
        able = [s for s in await self._sets() if s.runtime == runtime and not offers.lacks(s.requires)]
        return (*(s.queue_suffix for s in sorted(able, key=_demand, reverse=True)), "")

    async def _sets(self) -> Sequence[RequiredSet]:
        async with self._reading:
            if time.monotonic() >= self._known_until:
                async with self._database.autocommit() as tx:
                    self._known = await workers.required_sets(tx)
                self._known_until = time.monotonic() + _KNOWN_FOR_SECONDS
            return self._known


def _demand(needed: RequiredSet) -> tuple[int, int, int]:
    return needed.requires.gpu, len(needed.requires.labels), needed.requires.memory
