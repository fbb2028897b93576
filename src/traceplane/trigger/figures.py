"""Counts of signals and matches for each organization, by the minute: what the web UI shows of the trigger.

A topic is shared, so its traffic is of the platform and stays in the metrics. An organization is shown the signals on
tickers that its own pipelines watch, its own matches, and how late the trigger is, which it could tell from its
executions too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from traceplane.postgres import signal_minutes
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome
from traceplane.trigger.cache import PipelineCache
from traceplane.trigger.matching import OrgCounts

WRITTEN_EVERY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Written(Outcome):
    """Says nothing: it happens every few seconds."""


class SignalFigures:
    """What was counted since it was last written; what a trigger that dies has not written is lost."""

    def __init__(self, database: Database, cache: PipelineCache) -> None:
        self._database, self._cache = database, cache
        self._signals: Counter[UUID] = Counter()
        self._matches: Counter[UUID] = Counter()
        self._lag_seconds: float | None = None

    def add(self, of_orgs: Mapping[UUID, OrgCounts], *, lag_seconds: float | None) -> None:
        """`lag_seconds` is unset if the source does not know when signals were published."""
        for org_id, counts in of_orgs.items():
            self._signals[org_id] += counts.signals
            self._matches[org_id] += counts.matches
        if lag_seconds is not None:
            self._lag_seconds = max(lag_seconds, self._lag_seconds or 0.0)

    async def run_once(self) -> Written:
        signals, matches, lag_seconds = self._signals, self._matches, self._lag_seconds
        self._signals, self._matches, self._lag_seconds = Counter(), Counter(), None
        index = self._cache.index
        watching = {
            org_id for org_id, tickers in zip(index.orgs, index.watched, strict=True) if tickers.any()
        }
        # One that watches and got nothing has a row too: it says that a trigger was there.
        org_ids = sorted(watching | signals.keys())
        try:
            async with self._database.transaction() as tx:
                await signal_minutes.add(
                    tx, org_ids, [signals[o] for o in org_ids], [matches[o] for o in org_ids], lag_seconds
                )
        except Exception:
            self._signals.update(signals)
            self._matches.update(matches)
            self.add({}, lag_seconds=lag_seconds)
            raise
        return Written()
