"""Jobs of the operator `signal_publish`: committed signals go to where triggers read them. At least once.

It runs here, rather than in a worker, since operators hold no credentials and reach no folder but their own. A signal
that is published twice has the same id and launches a pipeline once. History that is computed again, by a backfill
or a deploy, is not published: it would launch pipelines for what is long over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from traceplane import telemetry
from traceplane.adapters.signal_publisher import SignalPublisher
from traceplane.model.positions import kept
from traceplane.postgres import commits, tasks
from traceplane.postgres.commits import LiveCommit
from traceplane.postgres.database import Database
from traceplane.runtime import Outcome

_BATCH = 100
_FIELDS = ("signal_id", "timestamp", "signal_type", "source")


@dataclass(frozen=True, slots=True)
class Published(Outcome):
    tasks: int = 0
    published: int = 0
    suppressed: int = 0
    more: bool = False


class SignalJobs:
    """`publisher` is made when there is something to publish; without `object_store`, files cannot be read here."""

    def __init__(
        self, database: Database, publisher: Callable[[], SignalPublisher], *, object_store: Path | None
    ) -> None:
        self._database = database
        self._make_publisher = publisher
        self._publisher: SignalPublisher | None = None
        self._object_store = object_store

    async def run_once(self) -> Published:
        async with self._database.transaction() as tx:
            jobs = await tasks.waiting_publishers(tx)
            if not jobs:
                return Published()
            batch = await tasks.take_in_process(tx, jobs[0], _BATCH)
            if self._object_store is None:
                error = {
                    "code": "operator.misconfigured",
                    "message": "signal_publish reads files from a folder, and the object store is in S3",
                }
                await tasks.fail_in_process(tx, [t["task_id"] for t in batch], error)
                return Published()
            found = await commits.input_commits(tx, [t["task_id"] for t in batch])
            live = [(t, found.get((t["task_id"], 0), [])) for t in batch]
            fresh = [(t, c) for t, c in live if not t["backfill"]]
            messages = await asyncio.to_thread(self._messages, fresh)
            if messages:
                await asyncio.to_thread(self._publish, messages)
            await tasks.finish_in_process(tx, [t["task_id"] for t in batch])
        suppressed = sum(f["rows"] for t, cs in live if t["backfill"] for c in cs for f in c.files)
        telemetry.count("signals_published_total", len(messages))
        telemetry.count("signals_suppressed_total", suppressed)
        return Published(len(batch), len(messages), suppressed, more=len(batch) == _BATCH or len(jobs) > 1)

    def _publish(self, messages: list[tuple[str, bytes]]) -> None:
        if self._publisher is None:
            self._publisher = self._make_publisher()
        self._publisher.publish(messages)

    def _messages(self, found: list[tuple[dict[str, Any], list[LiveCommit]]]) -> list[tuple[str, bytes]]:
        rows = [row for task, live in found for commit in live for row in self._rows(task, commit)]
        rows.sort(key=lambda row: (row["position"], row["signal_id"]))
        return [(row["ticker"], msgspec.json.encode(_message(row))) for row in rows]

    def _rows(self, task: dict[str, Any], commit: LiveCommit) -> list[dict[str, Any]]:
        import pyarrow.parquet as parquet  # most dispatchers publish nothing, and start faster without it

        assert self._object_store is not None
        ranges = kept(commit.positions, (task["range_start"], task["range_end"]), commit.hidden)
        rows = [
            row
            for f in commit.files
            for row in parquet.read_table(self._object_store / f["path"]).to_pylist()
        ]
        if ranges is None:
            return rows
        return [row for row in rows if any(first <= row["position"] <= last for first, last in ranges)]


def _message(row: dict[str, Any]) -> dict[str, Any]:
    """A signal as triggers read it."""
    about = {"ticker": row["ticker"], "signal": row["signal"], "confidence": row["confidence"]}
    metadata = msgspec.json.decode(row["metadata"]) if row.get("metadata") else {}
    return {**{name: row[name] for name in _FIELDS}, "tickers": [about], "metadata": metadata}
