"""Forgets what identified deliveries to webhook sources, once nobody repeats them any more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from traceplane.postgres import webhooks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome

_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Forgotten(Outcome):
    keys: int = 0
    more: bool = False


class WebhookKeys:
    def __init__(self, database: Database, *, days: int) -> None:
        self._database = database
        self._kept = timedelta(days=days)

    async def run_once(self) -> Forgotten:
        async with self._database.transaction() as tx:
            keys = await webhooks.forget_keys(tx, self._kept, _AT_ONCE)
        return Forgotten(keys, more=keys == _AT_ONCE)
