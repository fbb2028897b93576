"""Batches of signals, one after the other: read, matched and written. Reading one overlaps with writing the last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import numpy as np

from traceplane import telemetry
from traceplane.adapters.signal_source import DeadLetter, Offsets, Position, SignalSource
from traceplane.errors import PlatformError
from traceplane.postgres import trigger
from traceplane.postgres.database import Database
from traceplane.runtime import describe
from traceplane.trigger.cache import PipelineCache
from traceplane.trigger.matching import match
from traceplane.trigger.messages import as_stored, decode

MOST_AT_ONCE = 50_000
"""Signals of one batch when they pile up."""
_SETTLE_SECONDS = 5.0
_RECONNECT_SECONDS = 1.0
_LONGEST_PAUSE = 5.0
_LOG_EVERY = 1.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was read and matched."""

    positions: Sequence[Position]
    signals: int
    pipelines: Sequence[UUID]
    signal_of: Sequence[int]
    bodies: Sequence[Any]
    oldest_ms: int | None
    lag: int
    seconds: float


class Consumer:
    def __init__(
        self,
        database: Database,
        cache: PipelineCache,
        make_source: Callable[[Offsets], SignalSource],
        *,
        group: str,
        topic: str,
        batch_size: int,
        batch_timeout: float,
    ) -> None:
        self._database = database
        self._cache = cache
        self._make_source = make_source
        self._group = group
        self._topic = topic
        self._batch_size = batch_size
        self._batch_timeout = batch_timeout
        self._settled = asyncio.Event()
        self._settled.set()
        self._report = _Report()

    async def run(self, stop: asyncio.Event) -> None:
        offsets = _StoredOffsets(self._database, self._group, self._topic, self._settled, stop)
        while not stop.is_set():
            try:
                source = await asyncio.to_thread(self._make_source, offsets)
                telemetry.emit("kafka_consumer_initialized", topic=self._topic, group=self._group)
                try:
                    await self._consume(source, stop)
                finally:
                    await asyncio.to_thread(source.close)
            except PlatformError as error:
                # What it had polled is read again by the next one, from the stored offsets.
                telemetry.count("loop_errors_total", loop="consumer")
                telemetry.emit("consumer.error", "error", **describe(error), retry_in=_RECONNECT_SECONDS)
                await _pause(stop, _RECONNECT_SECONDS)
        self._report.flush()

    async def _consume(self, source: SignalSource, stop: asyncio.Event) -> None:
        upcoming = self._start_reading(source)
        try:
            while not stop.is_set():
                batch = await upcoming
                self._settled.clear()
                upcoming = self._start_reading(source)
                counts = batch is None or await self._write(batch, stop)
                self._settled.set()
                if not counts and not stop.is_set():
                    await upcoming  # it began where this batch would have ended
                    await asyncio.to_thread(source.rewind)
                    upcoming = self._start_reading(source)
        finally:
            self._settled.set()
            await asyncio.wait([upcoming])  # the source is its thread's until then

    # Reading, in a thread ---------------------------------------------------------------------------

    def _start_reading(self, source: SignalSource) -> asyncio.Task[Batch | None]:
        return asyncio.create_task(asyncio.to_thread(self._read, source))

    def _read(self, source: SignalSource) -> Batch | None:
        polled = source.poll(self._batch_size, self._batch_timeout, MOST_AT_ONCE)
        if not polled.payloads:
            telemetry.gauge("kafka_consumer_lag", 0)
            telemetry.gauge("kafka_consumer_lag_messages", 0)
            return None
        started = time.perf_counter()
        signals, refused = decode(polled.payloads)
        if refused:
            letters = [
                DeadLetter(polled.payloads[r.nth], *polled.place(r.nth), r.code, r.reason) for r in refused
            ]
            self._put_aside(source, letters)
        index = self._cache.index
        matches = match(index, signals)
        chosen, signal_of = np.unique(matches.signals, return_inverse=True)
        pipelines = index.pipelines
        return Batch(
            positions=polled.positions,
            signals=len(signals) - len(refused),
            pipelines=[pipelines[n] for n in matches.pipelines.tolist()],
            signal_of=signal_of.tolist(),
            bodies=[as_stored(polled.payloads[n], signals[n]) for n in chosen.tolist()],
            oldest_ms=polled.oldest_ms,
            lag=source.lag(),
            seconds=time.perf_counter() - started,
        )

    def _put_aside(self, source: SignalSource, letters: Sequence[DeadLetter]) -> None:
        try:
            kept = source.bury(letters)
        except (PlatformError, OSError) as error:
            telemetry.emit("dead_letters_failed", "error", message=str(error))
            kept = 0
        for letter in letters:
            telemetry.count("signals_refused_total", code=letter.code)
        telemetry.count("dead_letters_lost_total", len(letters) - kept)
        first = letters[0]
        telemetry.emit(
            "signal_refused",
            "warning",
            signals=len(letters),
            kept=kept,
            partition=first.partition,
            offset=first.offset,
            code=first.code,
            message=first.reason,
        )

    # Writing ----------------------------------------------------------------------------------------

    async def _write(self, batch: Batch, stop: asyncio.Event) -> bool:
        """Whether the batch counts; if not, its partitions go on elsewhere."""
        started = time.perf_counter()
        moved = [trigger.Moved(p.partition, p.expected, p.next_offset) for p in batch.positions]
        failures = 0
        while True:
            try:
                async with self._database.statement("launch") as tx:
                    launch = await trigger.launch(
                        tx, self._group, self._topic, moved, batch.pipelines, batch.signal_of, batch.bodies
                    )
                break
            except PlatformError as error:
                # It may have been done all the same; then the next try finds the offsets moved.
                failures += 1
                pause = min(0.1 * 2.0 ** min(failures, 10), _LONGEST_PAUSE)
                telemetry.count("loop_errors_total", loop="launch")
                telemetry.emit("launch.error", "error", **describe(error), failures=failures, retry_in=pause)
                await _pause(stop, pause)
                if stop.is_set():
                    return False
        if not launch.holds:
            telemetry.count("stale_batches_total")
            telemetry.emit(
                "batch_stale",
                "warning",
                partitions=[p.partition for p in batch.positions],
                signals=batch.signals,
            )
            return False
        self._tell(batch, launch, batch.seconds + time.perf_counter() - started)
        return True

    def _tell(self, batch: Batch, launch: trigger.Launch, seconds: float) -> None:
        matched, launched = len(batch.pipelines), len(launch.launched)
        telemetry.count("signals_consumed_total", batch.signals)
        telemetry.count("pipelines_matched_total", matched)
        telemetry.count("pipelines_enqueued_total", launched)
        telemetry.count("pipelines_skipped_running_total", matched - launch.idle)
        telemetry.count("pipelines_without_job_total", launch.without_job)
        telemetry.observe("batch_processing_duration_ms", seconds * 1000)
        lag_ms = max(0.0, time.time() * 1000 - batch.oldest_ms) if batch.oldest_ms is not None else 0.0
        telemetry.gauge("kafka_consumer_lag", lag_ms)
        telemetry.gauge("kafka_consumer_lag_messages", batch.lag)
        self._report.add(
            lag_ms=lag_ms,
            batch_size=batch.signals,
            matched=matched,
            enqueued=launched,
            skipped_running=matched - launch.idle,
            without_job=launch.without_job,
        )


class _StoredOffsets:
    """The offsets in Postgres, for a source that asks from its thread. Waits while Postgres is away."""

    def __init__(
        self, database: Database, group: str, topic: str, settled: asyncio.Event, stop: asyncio.Event
    ) -> None:
        self._database, self._group, self._topic = database, group, topic
        self._settled, self._stop = settled, stop
        self._loop = asyncio.get_running_loop()

    def stored(self, partitions: Collection[int]) -> Mapping[int, int]:
        return self._from_here(self._stored(partitions))

    def begin(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        return self._from_here(self._begin(offsets))

    def settle(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._from_here(asyncio.wait_for(self._settled.wait(), _SETTLE_SECONDS))

    def _from_here(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _stored(self, partitions: Collection[int]) -> Mapping[int, int]:
        async def ask() -> Mapping[int, int]:
            async with self._database.glance() as tx:
                return await trigger.stored_offsets(tx, self._group, self._topic, partitions)

        return await self._until_answered(ask)

    async def _begin(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        async def ask() -> Mapping[int, int]:
            async with self._database.transaction() as tx:
                await trigger.begin_partitions(tx, self._group, self._topic, offsets)
                return await trigger.stored_offsets(tx, self._group, self._topic, list(offsets))

        return await self._until_answered(ask)

    async def _until_answered(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        while True:
            try:
                return await ask()
            except PlatformError as error:
                if self._stop.is_set():
                    raise
                telemetry.emit("trigger.offsets_away", "error", **describe(error))
                await _pause(self._stop, 0.5)


class _Report:
    """What batches did, as the guide's log events: once a second with sums, since batches may be many."""

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        self._batches = 0
        self._lag_ms = 0.0
        self._logged_at = -_LOG_EVERY

    def add(self, *, lag_ms: float, **counts: int) -> None:
        self._batches += 1
        self._lag_ms = lag_ms
        for name, n in counts.items():
            self._sums[name] = self._sums.get(name, 0) + n
        if time.monotonic() - self._logged_at >= _LOG_EVERY:
            self.flush()

    def flush(self) -> None:
        if not self._batches:
            return
        sums, batches = self._sums, self._batches
        self._sums, self._batches, self._logged_at = {}, 0, time.monotonic()
        telemetry.emit("processing_signal_batch", batch_size=sums["batch_size"], batches=batches)
        if not sums["matched"]:
            telemetry.emit("no_pipelines_matched", signals_processed=sums["batch_size"])
        else:
            telemetry.emit(
                "batch_enqueue_completed",
                enqueued=sums["enqueued"],
                skipped_running=sums["skipped_running"],
                without_job=sums["without_job"],
            )
        if self._lag_ms > 1000:
            telemetry.emit("kafka_consumer_lag", "warning", lag_ms=round(self._lag_ms))


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
