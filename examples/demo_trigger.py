"""The demo's last part: signals from files launch pipelines, while the trigger crashes. No broker is needed."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from examples.demo_failures import Processes
from traceplane.adapters.signal_source_folder import publish
from traceplane.http_service.client import Caller
from traceplane.postgres.database import Database
from traceplane.settings import Settings
from traceplane.wire.deploys import DeployRequest, DeployResponse
from traceplane.wire.pipelines import PipelineConfig, PipelineRequest, PipelineView

DESK = """
version: 1
dag: desk
jobs:
- name: trade
  activation: source
  source: { kind: pipeline }
  runtime: python
  operator: python
  outputs: [{ dataset: desk.trades }]
  config: { entrypoint: "examples.signals.market:trade" }
"""
PIPELINES, SIGNALS = 40, 400
TICKERS = [f"T{number:02d}" for number in range(50)]


class Desk:
    """Pipelines that each watch a few tickers, and signals about all of them."""

    def __init__(self, settings: Settings, database: Database, caller: Caller, processes: Processes) -> None:
        self.settings, self.database, self.caller, self.processes = settings, database, caller, processes
        chance = random.Random(1)
        self.watched = {f"pipeline {n}": chance.sample(TICKERS, 3) for n in range(PIPELINES)}
        self.signals = [(f"signal-{n}", chance.choice(TICKERS)) for n in range(SIGNALS)]

    async def run(
        self, until: Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]
    ) -> dict[str, bool]:
        """The guarantees, and whether each held."""
        await self.caller.call("POST", "/api/v1/deploy", DeployResponse, DeployRequest(DESK, "desk.yaml"))
        for name, tickers in self.watched.items():
            request = PipelineRequest(name, PipelineConfig("desk", "trade"), scanner_tickers=tickers)
            await self.caller.call("POST", "/api/v1/pipelines", PipelineView, request)
        self.publish(self.signals[: SIGNALS // 2])
        await until(self.launched_some, "the trigger has launched a pipeline")
        self.processes.kill("trigger")
        self.publish(self.signals[SIGNALS // 2 :])
        await until(self.consumed, "the trigger has read all signals")
        await until(self.finished, "all executions are finished")
        return await self.checks()

    def publish(self, signals: list[tuple[str, str]]) -> None:
        payloads = [
            json.dumps(
                {
                    "signal_id": name,
                    "timestamp": time.time(),
                    "signal_type": "volume_spike",
                    "tickers": [{"ticker": ticker, "signal": "BULLISH", "confidence": 90}],
                }
            ).encode()
            for name, ticker in signals
        ]
        publish(self.settings.signals_folder, self.settings.kafka_signal_topic, payloads)

    async def launched_some(self) -> bool:
        return bool(await self.value("select count(*) from executions"))

    async def consumed(self) -> bool:
        topic = self.settings.signals_folder / self.settings.kafka_signal_topic
        size = (topic / "0.jsonl").stat().st_size
        return bool(await self.value("select coalesce(max(next_offset), 0) from trigger_offsets") == size)

    async def finished(self) -> bool:
        return not await self.value("select count(*) from executions where status in ('PENDING', 'RUNNING')")

    async def checks(self) -> dict[str, bool]:
        async with self.database.transaction() as tx:
            rows = await tx.rows(
                "select p.name, e.signal_id, e.status, e.created_at, e.finished_at"
                " from executions e join pipelines p using (pipeline_id) order by p.name, e.created_at"
            )
        said = {ticker for _, ticker in self.signals}
        tickers = dict(self.signals)
        expected = {name for name, watched in self.watched.items() if said.intersection(watched)}
        pairs = list(itertools.pairwise(rows))
        return {
            f"{len(rows):>5} executions, each completed and of a pipeline that watches the signal's ticker": all(
                row["status"] == "COMPLETED" and tickers[row["signal_id"]] in self.watched[row["name"]]
                for row in rows
            ),
            f"{len(expected):>5} pipelines had signals, and all of them ran": {r["name"] for r in rows}
            == expected,
            "no pipeline ran twice at once, and none twice for one signal": all(
                a["name"] != b["name"] or a["finished_at"] <= b["created_at"] for a, b in pairs
            )
            and len({(row["name"], row["signal_id"]) for row in rows}) == len(rows),
        }

    async def value(self, sql: str) -> Any:
        async with self.database.transaction() as tx:
            return await tx.value(sql)
