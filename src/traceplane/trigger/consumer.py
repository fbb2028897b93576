"""Batches of signals, one after the other: read, matched and written. Reading one overlaps with writing the previous
one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from traceplane import telemetry
from traceplane.adapters.signal_source import DeadLetter, Offsets, Position, SignalSource
from traceplane.errors import PlatformError
from traceplane.postgres import trigger
from traceplane.postgres.database import Database
from traceplane.runtime.process import describe
from traceplane.runtime.retrying import happens, pauses, retrying
from traceplane.trigger.cache import PipelineCache
from traceplane.trigger.figures import SignalFigures
from traceplane.trigger.matching import Index, OrgCounts, Pairs, all_pairs, match, matched_tickers
from traceplane.trigger.messages import Signal, as_stored, decode
from traceplane.trigger.rules import Custom, Judge

MOST_AT_ONCE = 50_000
"""The most signals of one batch, when they pile up."""
_HISTORY_AT_ONCE = 5_000
_SETTLE_SECONDS = 5.0
_RECONNECT_SECONDS = 1.0
_LONGEST_PAUSE = 5.0
_LOG_EVERY = 1.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Matched:
    """Pipelines, the signal that launches each, and these signals."""

    pipelines: Sequence[UUID]
    signal_of: Sequence[int]
    bodies: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was read and matched."""

    positions: Sequence[Position]
    payloads: Sequence[bytes]
    signals: Sequence[Signal | None]
    index: Index
    ruled: Sequence[tuple[int, int]]
    """The (pipeline, signal) pairs that passed the rules of the pipeline."""
    matched: Matched
    of_orgs: Mapping[UUID, OrgCounts]
    usable: int
    oldest_ms: int | None
    lag: int
    seconds: float

    def matched_of(self, pairs: Iterable[tuple[int, int]]) -> Matched:
        return _matched_of(self.index, self.payloads, self.signals, pairs)

    def all_of(self, pipelines: Collection[UUID]) -> Matched:
        """All matches, with every signal that may launch one of these pipelines."""
        numbers = {n for n, key in enumerate(self.index.pipelines) if key in pipelines}
        first = zip(self.matched.pipelines, self.matched.signal_of, strict=True)
        others = [(key, of) for key, of in first if key not in pipelines]
        more = self.matched_of(
            [
                *all_pairs(self.index, self.signals, numbers - self.index.rules.keys()),
                *(pair for pair in self.ruled if pair[0] in numbers),
            ]
        )
        shift = len(self.matched.bodies)
        return Matched(
            [*(key for key, _ in others), *more.pipelines],
            [*(of for _, of in others), *(of + shift for of in more.signal_of)],
            [*self.matched.bodies, *more.bodies],
        )


def _matched_of(
    index: Index,
    payloads: Sequence[bytes],
    signals: Sequence[Signal | None],
    pairs: Iterable[tuple[int, int]],
) -> Matched:
    places: dict[int, int] = {}
    pipelines, signal_of = [], []
    for pipeline, nth in pairs:
        pipelines.append(index.pipelines[pipeline])
        signal_of.append(places.setdefault(nth, len(places)))
    return Matched(pipelines, signal_of, [as_stored(payloads[n], signals[n]) for n in places])  # type: ignore[arg-type]


class Consumer:
    def __init__(
        self,
        database: Database,
        cache: PipelineCache,
        figures: SignalFigures,
        make_source: Callable[[Offsets], SignalSource],
        *,
        group: str,
        topic: str,
        batch_size: int,
        batch_timeout: float,
        custom: Mapping[str, Custom] | None = None,
    ) -> None:
        self._database = database
        self._cache = cache
        self._figures = figures
        self._make_source = make_source
        self._group = group
        self._topic = topic
        self._batch_size = batch_size
        self._batch_timeout = batch_timeout
        self._settled = asyncio.Event()
        self._settled.set()
        self._report = _Report()
        self._judge = Judge(custom or {})
        self._generation = -1

    async def run(self, stop: asyncio.Event) -> None:
        offsets = _StoredOffsets(self._database, self._group, self._topic, self._settled, stop)
        while not stop.is_set():
            try:
                source = await asyncio.to_thread(self._make_source, offsets)
                self._generation = -1
                telemetry.emit("kafka_consumer_initialized", topic=self._topic, group=self._group)
                try:
                    await self._consume(source, stop)
                finally:
                    await asyncio.to_thread(source.close)
            except PlatformError as error:
                # The next source starts from the stored offsets, so it reads again what this one polled.
                telemetry.count("loop_errors_total", loop="consumer")
                telemetry.emit("consumer.error", "error", **describe(error), retry_in=_RECONNECT_SECONDS)
                await happens(stop, within=_RECONNECT_SECONDS)
        self._report.flush()

    async def _consume(self, source: SignalSource, stop: asyncio.Event) -> None:
        upcoming = self._start_reading(source)
        try:
            while not stop.is_set():
                batch = await upcoming
                if batch is None and source.partitions():
                    self._figures.add({}, lag_seconds=0.0)
                self._settled.clear()
                upcoming = self._start_reading(source)
                counts = batch is None or await self._write(batch, stop)
                self._settled.set()
                if not counts and not stop.is_set():
                    await upcoming  # it started where this batch would have ended
                    await asyncio.to_thread(source.rewind)
                    upcoming = self._start_reading(source)
        finally:
            self._settled.set()
            await asyncio.wait([upcoming])  # until then its thread uses the source

    # Reading, in a thread ---------------------------------------------------------------------------

    def _start_reading(self, source: SignalSource) -> asyncio.Task[Batch | None]:
        return asyncio.create_task(asyncio.to_thread(self._read, source))

    def _read(self, source: SignalSource) -> Batch | None:
        if source.generation != self._generation:
            self._remember(source)
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
        index = self._cache.index_for_batch()
        ruled: list[tuple[int, int]] = []
        matches = match(index, signals, self._judged(index, signals, lambda n: polled.place(n)[0], ruled))
        pairs = list(zip(matches.pipelines.tolist(), matches.signals.tolist(), strict=True))
        if telemetry.writes("debug"):
            _log_signals(index, signals, pairs)
        return Batch(
            positions=polled.positions,
            payloads=polled.payloads,
            signals=signals,
            index=index,
            ruled=ruled,
            matched=_matched_of(index, polled.payloads, signals, pairs),
            of_orgs=matches.of_orgs,
            usable=len(signals) - len(refused),
            oldest_ms=polled.oldest_ms,
            lag=source.lag(),
            seconds=time.perf_counter() - started,
        )

    def _judged(
        self,
        index: Index,
        signals: Sequence[Signal | None],
        partition_of: Callable[[int], int],
        passed: list[tuple[int, int]],
    ) -> Callable[[Pairs], Iterable[tuple[int, int]]]:
        def judged(pairs: Pairs) -> Iterable[tuple[int, int]]:
            passing = self._judge.judged(index, signals, partition_of, pairs)
            passed.extend(passing)
            return passing

        return judged

    def _remember(self, source: SignalSource) -> None:
        """Rebuilds the counts of rules from past signals, after partitions were assigned or rewound."""
        self._judge.forget()
        index = self._cache.index
        if index.longest_window and source.partitions():
            past = iter(source.history(index.longest_window))
            while piece := list(islice(past, _HISTORY_AT_ONCE)):
                signals, _ = decode([payload for _, payload in piece])
                match(index, signals, self._judged(index, signals, lambda n, piece=piece: piece[n][0], []))  # type: ignore[misc]
        self._generation = source.generation

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
        """Whether the batch counts; if not, another instance owns its partitions."""
        started = time.perf_counter()
        moved = [trigger.OffsetMove(p.partition, p.expected, p.next_offset) for p in batch.positions]
        matched, exhaustive = batch.matched, False
        while True:
            try:
                # A failed attempt may have been committed; then the next one finds the offsets moved.
                launch = await retrying(
                    functools.partial(self._launch, moved, matched, exhaustive=exhaustive),
                    on=PlatformError,
                    pauses=pauses(0.2, _LONGEST_PAUSE),
                    stop=stop,
                    failed=_launch_failed,
                )
            except PlatformError:
                return False  # the process stops
            if not launch.repeated:
                break
            matched, exhaustive = await asyncio.to_thread(batch.all_of, set(launch.repeated)), True
        if not launch.holds:
            telemetry.count("stale_batches_total")
            telemetry.emit(
                "batch_stale",
                "warning",
                partitions=[p.partition for p in batch.positions],
                signals=batch.usable,
            )
            return False
        self._record(batch, launch, batch.seconds + time.perf_counter() - started)
        return True

    async def _launch(
        self, moved: Sequence[trigger.OffsetMove], matched: Matched, *, exhaustive: bool
    ) -> trigger.LaunchResult:
        async with self._database.statement("launch") as tx:
            return await trigger.launch(
                tx,
                self._group,
                self._topic,
                moved,
                matched.pipelines,
                matched.signal_of,
                matched.bodies,
                exhaustive=exhaustive,
            )

    def _record(self, batch: Batch, launch: trigger.LaunchResult, seconds: float) -> None:
        if telemetry.writes("debug"):
            _log_pipelines(batch, set(launch.launched))
        matched, launched = len(batch.matched.pipelines), len(launch.launched)
        telemetry.count("signals_consumed_total", batch.usable)
        telemetry.count("pipelines_matched_total", matched)
        telemetry.count("pipelines_enqueued_total", launched)
        telemetry.count("pipelines_skipped_running_total", matched - launch.idle)
        telemetry.count("pipelines_without_job_total", launch.without_job)
        telemetry.count("pipelines_held_back_total", launch.held_back)
        telemetry.observe("batch_processing_duration_ms", seconds * 1000)
        lag_ms = max(0.0, time.time() * 1000 - batch.oldest_ms) if batch.oldest_ms is not None else 0.0
        telemetry.gauge("kafka_consumer_lag", lag_ms)
        telemetry.gauge("kafka_consumer_lag_messages", batch.lag)
        self._figures.add(batch.of_orgs, lag_seconds=lag_ms / 1000 if batch.oldest_ms is not None else None)
        self._report.add(
            lag_ms=lag_ms,
            batch_size=batch.usable,
            matched=matched,
            enqueued=launched,
            skipped_running=matched - launch.idle,
            without_job=launch.without_job,
            held_back=launch.held_back,
        )


def _log_signals(index: Index, signals: Sequence[Signal | None], pairs: Sequence[tuple[int, int]]) -> None:
    for signal in signals:
        if signal is not None:
            tickers = [ticker_signal.ticker for ticker_signal in signal.tickers]
            telemetry.emit("signal_received", "debug", signal_id=signal.signal_id, tickers=tickers)
    matched_by = matched_tickers(index, signals)
    for pipeline, nth in pairs:
        telemetry.emit(
            "signal_matched_to_pipeline",
            "debug",
            pipeline_id=index.pipelines[pipeline],
            signal_id=signals[nth].signal_id,  # type: ignore[union-attr]
            matched_tickers=matched_by[pipeline, nth],
        )


def _log_pipelines(batch: Batch, launched: Collection[UUID]) -> None:
    for pipeline_id in batch.matched.pipelines:
        if pipeline_id in launched:
            telemetry.emit("pipeline_execution_enqueued", "debug", pipeline_id=pipeline_id)
        else:
            telemetry.emit("pipeline_already_running", "debug", pipeline_id=pipeline_id, action="skipped")


class _StoredOffsets:
    """The offsets in Postgres, for a source that calls from its own thread. Waits while Postgres is unavailable."""

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
            async with self._database.autocommit() as tx:
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
                await happens(self._stop, within=0.5)


class _Report:
    """Logs the results of batches, summed up once a second, since there may be many."""

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
                held_back=sums["held_back"],
            )
        if self._lag_ms > 1000:
            telemetry.emit("kafka_consumer_lag", "warning", lag_ms=round(self._lag_ms))


def _launch_failed(error: Exception, failures: int, pause: float) -> None:
    telemetry.count("loop_errors_total", loop="launch")
    telemetry.emit("launch.error", "error", **describe(error), failures=failures, retry_in=round(pause, 3))
