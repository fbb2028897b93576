"""Which wake queues a worker serves. Tasks of each organization have their own, one for each set of needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

from traceplane.model.resources import Resources
from traceplane.postgres import workers
from traceplane.postgres.database import Database
from traceplane.postgres.workers import OrgQueue, RequiredSet

_KNOWN_FOR_SECONDS = 1.0


class Requirements:
    """The organizations that have jobs, and the needs of these; read at most once a second."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading = asyncio.Lock()
        self._orgs: Sequence[OrgQueue] = ()
        self._sets: Sequence[RequiredSet] = ()
        self._known_until = 0.0
        self._turn = 0

    async def served_by(
        self, runtime: str, offers: Resources, orgs: Collection[str] | None, *, in_use: bool = False
    ) -> tuple[str, ...]:
        """The suffixes of the queues that a worker of these organizations (None: of all) can serve: those of the most
        demanding tasks first, and last those of the tasks that any worker can run. Organizations take turns in being
        first. `in_use`: without organizations that have deployed nothing."""
        if time.monotonic() >= self._known_until:
            await self._read()
        base = [
            o.queue_suffix
            for o in self._orgs
            if (orgs is None or o.slug in orgs) and (o.in_use or not in_use)
        ]
        if len(base) > 1:
            self._turn += 1
            first = self._turn % len(base)
            base = base[first:] + base[:first]
        if not offers:
            return tuple(base)
        able = [
            s
            for s in self._sets
            if s.runtime == runtime and (orgs is None or s.org in orgs) and not offers.lacks(s.requires)
        ]
        turns = self._turn % len(able) if able else 0
        able = sorted(able[turns:] + able[:turns], key=_demand, reverse=True)
        return (*(s.queue_suffix for s in able), *base)

    async def _read(self) -> None:
        async with self._reading:
            if time.monotonic() >= self._known_until:
                async with self._database.transaction() as tx:
                    self._orgs = await workers.org_queues(tx)
                    self._sets = await workers.required_sets(tx)
                self._known_until = time.monotonic() + _KNOWN_FOR_SECONDS


def _demand(needed: RequiredSet) -> tuple[int, int, int]:
    return needed.requires.gpu, len(needed.requires.labels), needed.requires.memory
