"""Runs jobs of the operator `signal_publish`: publishes committed signals for triggers to read, at least once.

It runs here, rather than in a worker, since operators have no credentials and can access only their own folders. A
signal that is published twice has the same id and launches a pipeline once. History that a backfill or a deploy
recomputes is not published: it would launch pipelines for events long past.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.adapters.object_store import ObjectStore, StoredFile
from traceplane.adapters.signal_publisher import SignalPublisher
from traceplane.decoding.decoder_pool import Budget, Decoders
from traceplane.decoding.messages import FileTooLarge, InvalidContents, SignalLine, SignalsWork, Unreadable
from traceplane.dispatcher.in_process.jobs import fail
from traceplane.model.positions import kept
from traceplane.postgres import commits, registry, tasks
from traceplane.postgres.commits import LiveCommit, ReadRange
from traceplane.postgres.database import Database
from traceplane.postgres.tasks import QueuedTask
from traceplane.runtime.in_parallel import in_parallel
from traceplane.runtime.process import Outcome
from traceplane.wire.tasks import TaskError

_BATCH = 100
_TRANSFERS_AT_ONCE = 16
_TASK_BYTES = 8 << 20
"""Limit for the signals of one task."""
_TASK_SECONDS = 5.0
"""Limit of processor time to read them."""
_PASS_SECONDS = 10.0
"""Then it is another job's turn."""
PASS_BYTES = 16 << 20
"""Limit for the signals in memory; further tasks wait for the next pass."""


_DECODER = msgspec.json.Decoder(SignalLine)
_Inputs = list[tuple[QueuedTask, list[LiveCommit]]]
"""Tasks, each with the live commits of its input."""


@dataclass(frozen=True, slots=True)
class _Signals:
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    """Pairs of ticker and message."""
    errors: dict[UUID, TaskError] = field(default_factory=dict)
    """Errors of tasks whose files cannot be read as signals."""
    left: set[UUID] = field(default_factory=set)
    """Tasks left for the next pass."""


@dataclass(frozen=True, slots=True)
class Published(Outcome):
    tasks: int = 0
    published: int = 0
    suppressed: int = 0
    more: bool = False


class SignalJobs:
    """Publisher and object store are created when there is something to publish: other dispatchers need neither the
    client libraries nor the credentials."""

    def __init__(
        self,
        database: Database,
        publisher: Callable[[], SignalPublisher],
        object_store: Callable[[], ObjectStore],
        decoders: Decoders,
    ) -> None:
        self._database = database
        self._make_publisher = publisher
        self._publisher: SignalPublisher | None = None
        self._open_store = object_store
        self._decoders = decoders
        self._served: dict[UUID, float] = {}
        """When each waiting job last had its turn."""

    async def run_once(self) -> Published:
        async with self._database.transaction() as tx:
            jobs = await tasks.waiting_publishers(tx)
            if not jobs:
                return Published()
            job = min(jobs, key=lambda job: self._served.get(job, 0.0))  # round robin
            self._served = {
                job: time.monotonic(),
                **{j: t for j, t in self._served.items() if j in jobs and j != job},
            }
            batch = await tasks.take_in_process(tx, job, _BATCH)
            (row,) = await registry.job_payloads(tx, [job])
            generation = row.row_generations[0]
            ranges = [ReadRange(generation, (t.range_start, t.range_end)) for t in batch]
            live = list(zip(batch, await commits.read_with_statistics(tx, ranges), strict=True))
            fresh = [(t, c) for t, c in live if not t.backfill]
            signals = await self._signals(row.org, fresh)
            if signals.messages:
                await asyncio.to_thread(self._publish, signals.messages)
            if signals.errors:
                await fail(tx, "signal_publish", batch, signals.errors)
            done = [t.task_id for t in batch if t.task_id not in signals.errors.keys() | signals.left]
            await tasks.finish_in_process(tx, done)
        published, left = len(signals.messages), len(signals.left)
        suppressed = sum(f["rows"] for t, cs in live if t.backfill for c in cs for f in c.files)
        telemetry.count("signals_published_total", published)
        telemetry.count("signals_suppressed_total", suppressed)
        more = len(batch) == _BATCH or len(jobs) > 1 or left > 0
        return Published(len(batch) - left, published, suppressed, more=more)

    def _publish(self, messages: list[tuple[str, bytes]]) -> None:
        if self._publisher is None:
            self._publisher = self._make_publisher()
        self._publisher.publish(messages)

    async def _signals(self, org: str, inputs: _Inputs) -> _Signals:
        paths = {f["path"]: f["bytes"] for _, live in inputs for commit in live for f in commit.files}
        if not paths:
            return _Signals()
        objects = self._open_store()
        with tempfile.TemporaryDirectory(prefix="traceplane-signals-") as folder:
            place = Path(folder).resolve()
            copies = {path: place / str(number) for number, path in enumerate(paths)}
            try:
                await in_parallel(
                    lambda path: objects.get(StoredFile(path, paths[path]), copies[path]),
                    list(paths),
                    _TRANSFERS_AT_ONCE,
                )
            finally:
                await objects.close()
            return await asyncio.to_thread(_read, self._decoders, org, inputs, copies)


def _read(decoders: Decoders, org: str, inputs: _Inputs, copies: dict[str, Path]) -> _Signals:
    signals = _Signals()
    all_lines: list[SignalLine] = []
    held, began = 0, time.monotonic()
    for task, live in inputs:
        if held > PASS_BYTES or time.monotonic() - began > _PASS_SECONDS:
            signals.left.add(task.task_id)
            continue
        try:
            lines = _lines(decoders, org, task, live, copies)
        except FileTooLarge as error:
            message = f"the signals of the task are larger than {_TASK_BYTES >> 20} MB: {error}"
            signals.errors[task.task_id] = TaskError("operator.input_too_large", message)
        except (InvalidContents, Unreadable, msgspec.MsgspecError) as error:
            message = f"the input does not contain signals in the form that signal_generate writes: {error}"
            signals.errors[task.task_id] = TaskError("operator.misconfigured", message)
        else:
            held += sum(len(signal.message) for signal in lines)
            all_lines += lines
    all_lines.sort(key=lambda signal: (signal.position, signal.signal_id))
    signals.messages.extend((signal.ticker, bytes(signal.message)) for signal in all_lines)
    return signals


def _lines(
    decoders: Decoders, org: str, task: QueuedTask, live: Sequence[LiveCommit], copies: dict[str, Path]
) -> list[SignalLine]:
    sink, budget = io.BytesIO(), Budget(_TASK_BYTES, cpu_seconds=_TASK_SECONDS)
    for commit in live:
        work = SignalsWork(kept(commit.positions, (task.range_start, task.range_end), commit.hidden))
        for file in commit.files:
            budget.decode(decoders, org, copies[file["path"]], work, sink)
    return _DECODER.decode_lines(sink.getvalue())
