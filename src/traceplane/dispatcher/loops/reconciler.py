"""Resends wake-ups of dispatched tasks that nobody claimed: the queue may have lost them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from traceplane import telemetry
from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Resent(Outcome):
    resent: int = 0
    more: bool = False


class Reconciler:
    def __init__(self, database: Database, *, resend_after_seconds: float) -> None:
        self._database = database
        self._after = timedelta(seconds=resend_after_seconds)

    async def run_once(self) -> Resent:
        async with self._database.transaction("reconciler") as tx:
            count = await tasks.resend(tx, self._after, _BATCH)
        telemetry.count("wakeups_resent_total", count)
        return Resent(count, more=count == _BATCH)
