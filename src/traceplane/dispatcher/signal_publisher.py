"""Jobs of the operator `signal_publish`: committed signals go to where triggers read them. At least once.

It runs here, rather than in a worker, since operators hold no credentials and reach no folder but their own. A signal
that is published twice has the same id and launches a pipeline once. History that is computed again, by a backfill
or a deploy, is not published: it would launch pipelines for what is long over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.adapters.in_parallel import in_parallel
from traceplane.adapters.object_store import ObjectStore, StoredFile
from traceplane.adapters.signal_publisher import SignalPublisher
from traceplane.model.positions import kept
from traceplane.postgres import commits, tasks
from traceplane.postgres.commits import LiveCommit
from traceplane.postgres.database import Database
from traceplane.runtime import Outcome

_BATCH = 100
_TRANSFERS_AT_ONCE = 16
_FIELDS = ("signal_id", "timestamp", "signal_type", "source")

_LONGEST_REASON = 500


class _Signal(msgspec.Struct, frozen=True):
    """A row; others of its columns do not matter."""

    position: int
    signal_id: str
    ticker: str
    signal_type: str
    signal: str
    confidence: float
    timestamp: float
    source: str
    metadata: str | None = None


_Found = list[tuple[dict[str, Any], list[LiveCommit]]]
"""Tasks, and what is committed of what they read."""


@dataclass(frozen=True, slots=True)
class Published(Outcome):
    tasks: int = 0
    published: int = 0
    suppressed: int = 0
    more: bool = False


class SignalJobs:
    """Publisher and object store are made when there is something to publish: other dispatchers need neither their
    clients nor their credentials."""

    def __init__(
        self,
        database: Database,
        publisher: Callable[[], SignalPublisher],
        object_store: Callable[[], ObjectStore],
    ) -> None:
        self._database = database
        self._make_publisher = publisher
        self._publisher: SignalPublisher | None = None
        self._open_store = object_store

    async def run_once(self) -> Published:
        async with self._database.transaction() as tx:
            jobs = await tasks.waiting_publishers(tx)
            if not jobs:
                return Published()
            batch = await tasks.take_in_process(tx, jobs[0], _BATCH)
            found = await commits.input_commits(tx, [t["task_id"] for t in batch])
            live = [(t, found.get((t["task_id"], 0), [])) for t in batch]
            fresh = [(t, c) for t, c in live if not t["backfill"]]
            messages, wrong = await self._messages(fresh)
            if messages:
                await asyncio.to_thread(self._publish, messages)
            for task_id, why in wrong.items():
                await tasks.fail_in_process(tx, [task_id], {"code": "operator.misconfigured", "message": why})
            await tasks.finish_in_process(tx, [t["task_id"] for t in batch if t["task_id"] not in wrong])
        suppressed = sum(f["rows"] for t, cs in live if t["backfill"] for c in cs for f in c.files)
        telemetry.count("signals_published_total", len(messages))
        telemetry.count("signals_suppressed_total", suppressed)
        return Published(len(batch), len(messages), suppressed, more=len(batch) == _BATCH or len(jobs) > 1)

    def _publish(self, messages: list[tuple[str, bytes]]) -> None:
        if self._publisher is None:
            self._publisher = self._make_publisher()
        self._publisher.publish(messages)

    async def _messages(self, found: _Found) -> tuple[list[tuple[str, bytes]], dict[UUID, str]]:
        """The signals of tasks, and which tasks have none that can be understood."""
        paths = {f["path"]: f["bytes"] for _, live in found for commit in live for f in commit.files}
        if not paths:
            return [], {}
        objects = self._open_store()
        with tempfile.TemporaryDirectory(prefix="traceplane-signals-") as folder:
            copies = {path: Path(folder) / str(number) for number, path in enumerate(paths)}
            try:
                await in_parallel(
                    lambda path: objects.get(StoredFile(path, paths[path]), copies[path]),
                    list(paths),
                    _TRANSFERS_AT_ONCE,
                )
            finally:
                await objects.close()
            return await asyncio.to_thread(_read, found, copies)


def _read(found: _Found, copies: dict[str, Path]) -> tuple[list[tuple[str, bytes]], dict[UUID, str]]:
    said, wrong = [], {}
    for task, live in found:
        try:
            rows = [row for commit in live for row in _rows(task, commit, copies)]
            said += [_message(msgspec.convert(row, _Signal)) for row in rows]
        except Exception as error:  # whatever is in the files, which operators wrote, is trouble of their own
            reason = f"{type(error).__name__} {error}"[:_LONGEST_REASON]
            wrong[task["task_id"]] = (
                f"the input does not hold signals as signal_generate makes them: {reason}"
            )
    said.sort(key=lambda signal: signal[0])
    return [(ticker, message) for _, ticker, message in said], wrong


def _rows(task: dict[str, Any], commit: LiveCommit, copies: dict[str, Path]) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet  # most dispatchers publish nothing, and start without it

    ranges = kept(commit.positions, (task["range_start"], task["range_end"]), commit.hidden)
    rows = [row for f in commit.files for row in parquet.read_table(copies[f["path"]]).to_pylist()]
    if ranges is None:
        return rows
    return [row for row in rows if any(first <= row["position"] <= last for first, last in ranges)]


def _message(signal: _Signal) -> tuple[tuple[int, str], str, bytes]:
    """By what it is sorted, its ticker, and the signal as triggers read it."""
    about = {"ticker": signal.ticker, "signal": signal.signal, "confidence": signal.confidence}
    metadata = msgspec.json.decode(signal.metadata) if signal.metadata else {}
    message = {**{name: getattr(signal, name) for name in _FIELDS}, "tickers": [about], "metadata": metadata}
    return (signal.position, signal.signal_id), signal.ticker, msgspec.json.encode(message)
