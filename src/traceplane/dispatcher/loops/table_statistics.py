"""Analyzes the hot tables as they grow, so that cached plans stay good."""

from __future__ import annotations

from dataclasses import dataclass

from traceplane.postgres import table_statistics
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class Analyzed(Outcome):
    tables: int = 0


class Statistics:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Analyzed:
        async with self._database.transaction() as tx:
            return Analyzed(await table_statistics.refresh(tx))
