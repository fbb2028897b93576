"""Stands in for Spark: completes evaluations of alerts over HTTP, with the rows that a test says they find."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pyarrow as pa

from tests.control_plane import ControlPlane, Held
from tests.hot_worker import HotWorker
from tests.platform import Platform
from tests.postgres.test_alerts import SCHEMA
from traceplane.errors import PlatformError
from traceplane.wire.tasks import TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

Finds = Callable[[str, int], Collection[str]]
"""By the query of an evaluation and a position: the transactions that it finds there."""


def alerting_dag(dag: str, *, least: int = 1000, lease: str = "5s") -> str:
    """A DAG whose one alert is on the events of a manual source, so that nothing but its evaluation needs a worker."""
    return f"""
version: 1
dag: {dag}
defaults: {{lease: {lease}, retry: {{base: 50ms, max: 1s}}, max_attempts: 100}}
jobs:
- {{name: blocks, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {dag}.in}}]}}
alerts:
- name: large
  dataset: {dag}.in
  when: value > {least}
  position: block
  subject: [tx]
  title: "{{tx}} moved"
  channels: [{dag}]
"""


def found(position: int, transactions: Collection[str]) -> pa.Table:
    rows = [
        {
            "position": position,
            "subject": json.dumps({"tx": tx}),
            "fields": "{}",
            "event_time": datetime.now(UTC),
            "emission": None,
        }
        for tx in sorted(transactions)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@contextlib.asynccontextmanager
async def evaluating(platform: Platform, finds: Finds, *, at_once: int = 10) -> AsyncIterator[None]:
    """A worker of the runtime spark, whatever happens to the dispatcher that it talks to."""
    client = platform.worker_client()
    running = asyncio.create_task(_evaluate(client, platform.folder / "objects", finds, at_once))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


async def _evaluate(client: DispatcherClient, objects: Path, finds: Finds, at_once: int) -> None:
    worker = HotWorker(cast(ControlPlane, None), objects)
    while True:
        try:
            answer = await client.take(TakeRequest("stand-in", "spark", at_once, 5.0))
            for task in answer.tasks:
                held = Held(task, answer.jobs[str(task.job_id)], answer.tokens[task.token])
                position = held.scope.cursor
                assert position is not None
                table = found(position, finds(held.job.config["query"], position))
                await client.complete([held.capability_token], [worker.done(held, table)])
        except PlatformError:
            await asyncio.sleep(0.1)  # whatever was not reported is given to a worker again
