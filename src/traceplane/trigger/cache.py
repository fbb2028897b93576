"""Pipelines in memory, refreshed when a change is notified and at a fixed interval."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.model.pipeline_rules import parse_rules
from traceplane.postgres import trigger
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome
from traceplane.trigger.matching import Index, IndexBuilder, SignalFilter, Watch

_PIECE = 2000
_BATCHES = 100
"""`cache_hit_rate` covers this many recent batches."""


@dataclass(frozen=True, slots=True)
class Refreshed(Outcome):
    changed: int = 0


class PipelineCache:
    """`index` is always complete: one assignment replaces it."""

    def __init__(self, database: Database, *, interval: float) -> None:
        """`interval` is the time between refreshes, in seconds, while they succeed."""
        self._database = database
        self._interval = interval
        self._refreshed_at = float("-inf")
        self._hits: deque[bool] = deque(maxlen=_BATCHES)
        self._builder = IndexBuilder()
        self._since = 0
        self._failures = 0
        self.index: Index = self._builder.index()

    def index_for_batch(self) -> Index:
        """The index, whatever its age: the launch skips a pipeline that was stopped since. `cache_hit_rate` reports
        how often the index was fresh."""
        # Twice the interval, because a refresh starts after it and takes time. A refresh that hangs does not fail.
        fresh = self._failures == 0 and time.monotonic() - self._refreshed_at <= 2 * self._interval
        self._hits.append(fresh)
        telemetry.gauge("cache_hit_rate", sum(self._hits) / len(self._hits))
        return self.index

    async def refresh(self) -> Refreshed:
        started = time.perf_counter()
        try:
            # In pieces, because a row takes many times the memory of its index entry; in a thread, because many
            # pipelines take a while and batches continue.
            async with self._database.snapshot() as tx:
                latest, changed = await trigger.changed_pipelines(tx, self._since)
                for first in range(0, len(changed), _PIECE):
                    piece = await trigger.pipelines(tx, changed[first : first + _PIECE])
                    await asyncio.to_thread(self._builder.change, {p.pipeline_id: _watch(p) for p in piece})
            if changed:
                self.index = await asyncio.to_thread(self._builder.index)
        except Exception:
            # Whatever failed, the index is no longer fresh, and these figures are what alerts watch.
            self._failures += 1
            telemetry.count("cache_refresh_failures_total")
            telemetry.gauge("cache_refresh_failures_in_a_row", self._failures)
            raise
        self._since, self._failures, self._refreshed_at = latest, 0, time.monotonic()
        telemetry.gauge("cache_refresh_failures_in_a_row", 0)
        telemetry.gauge("cache_pipelines", self.index.live)
        telemetry.gauge("cache_size_bytes", self.index.nbytes)
        milliseconds = (time.perf_counter() - started) * 1000
        telemetry.observe("cache_refresh_duration_ms", milliseconds)
        telemetry.emit(
            "pipeline_cache_refreshed",
            pipelines_count=self.index.live,
            changed=len(changed),
            duration_ms=round(milliseconds, 1),
        )
        return Refreshed(len(changed))


def _watch(pipeline: trigger.StoredPipeline) -> Watch | None:
    if not pipeline.live:
        return None
    try:
        filters = msgspec.convert(pipeline.subscriptions, tuple[SignalFilter, ...])
        rules = parse_rules(pipeline.rules)
    except (msgspec.ValidationError, ValueError) as error:
        _leave_out(pipeline.pipeline_id, str(error))
        return None
    return Watch(pipeline.org_id, pipeline.tickers, filters, rules)


def _leave_out(pipeline_id: UUID, why: str) -> None:
    telemetry.emit("pipeline_left_out", "warning", pipeline_id=pipeline_id, message=why)
