"""Which processes of the platform there are, and when each was last there."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import uuid4

from traceplane import __version__
from traceplane.errors import PlatformError
from traceplane.postgres.database import Database, Transaction, statements
from traceplane.runtime.process import Outcome, run_loop

_SQL = statements("processes")

_SEEN_EVERY_SECONDS = 10.0
SILENT_SECONDS = 30.0
"""How long a process counts as there after it was seen."""
_SILENT = timedelta(seconds=SILENT_SECONDS)
_FORGOTTEN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SeenProcess:
    kind: str
    name: str
    """Its host and process id, or the id of a worker."""
    version: str | None
    runtime: str | None
    """Of a worker."""
    started_at: datetime | None
    seen_at: datetime
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Seen(Outcome):
    """Says nothing: it happens every few seconds."""


class Presence:
    """Says that this process is there until it stops, and then that it is gone."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database, self._kind = database, kind
        self._id, self._host = uuid4(), socket.gethostname()

    async def run_once(self) -> Seen:
        async with self._database.transaction() as tx:
            await tx.run(
                _SQL["see"],
                *(self._id, self._kind, self._host, os.getpid(), __version__),
                *(_FORGOTTEN, _SILENT),
            )
        return Seen()

    async def run(self, stop: asyncio.Event) -> None:
        await run_loop("presence", self.run_once, interval=_SEEN_EVERY_SECONDS, stop=stop)
        try:
            async with self._database.transaction() as tx:
                await tx.run(_SQL["leave"], self._id)
        except PlatformError:
            pass  # it is forgotten


async def seen(tx: Transaction) -> list[SeenProcess]:
    return await tx.rows_as(SeenProcess, _SQL["seen"])
