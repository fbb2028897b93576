"""A topic, pipelines and signals for the tests of the trigger, and a simple model of the expected launches."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.platform import Process
from tests.ports import free_port
from traceplane.postgres.database import Database

TOPIC = "trading-signals"
PARTITIONS = 4


def signal(signal_id: str, *tickers: str | tuple[str, str, float], **fields: Any) -> dict[str, Any]:
    """A signal in the guide's format; a ticker alone is BULLISH with 80."""
    ticker_signals = [t if isinstance(t, tuple) else (t, "BULLISH", 80) for t in tickers]
    return {
        "signal_id": signal_id,
        "timestamp": time.time(),
        "signal_type": "golden_cross",
        "source": "test",
        "tickers": [{"ticker": t, "signal": s, "confidence": c} for t, s, c in ticker_signals],
        "metadata": {},
        **fields,
    }


@dataclass
class Topic:
    """A topic on a broker."""

    brokers: str
    producer: Producer
    name: str = TOPIC

    def publish(self, messages: Iterable[dict[str, Any] | bytes], *, partition: int | None = None) -> None:
        for n, message in enumerate(messages):
            value = message if isinstance(message, bytes) else json.dumps(message).encode()
            to = n % PARTITIONS if partition is None else partition
            while True:
                try:
                    self.producer.produce(self.name, value, partition=to)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(180) == 0

    @classmethod
    def at(cls, brokers: str) -> Topic:
        # A broker that is killed and restarted gets every message once.
        options = {"bootstrap.servers": brokers, "linger.ms": 5, "enable.idempotence": True, "log_level": 0}
        return cls(brokers, Producer({**options, "message.timeout.ms": 180_000}))

    def ends(self) -> dict[int, int]:
        """How many messages each partition has."""
        consumer = Consumer({"bootstrap.servers": self.brokers, "group.id": str(uuid4()), "log_level": 0})
        try:
            return {
                n: consumer.get_watermark_offsets(TopicPartition(self.name, n), timeout=30)[1]
                for n in range(PARTITIONS)
            }
        finally:
            consumer.close()

    def contents(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in self.read(self.name)]

    def read(self, name: str) -> list[Any]:
        """All messages of a topic, from its four partitions."""
        options = {"bootstrap.servers": self.brokers, "group.id": str(uuid4()), "enable.partition.eof": True}
        consumer = Consumer({**options, "enable.auto.commit": False})
        consumer.assign([TopicPartition(name, n, 0) for n in range(PARTITIONS)])
        messages: list[Message] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + 240
        while len(ended) < PARTITIONS and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                messages.append(message)
            elif message is not None:
                ended.add(message.partition())
        consumer.close()
        return messages


@contextlib.contextmanager
def mock_cluster() -> Iterator[Topic]:
    """librdkafka's own cluster, in this process: groups, rebalances and offsets as a broker has them, in memory."""
    producer = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "x", "linger.ms": 0, "log_level": 0}
    )
    described = producer.list_topics(TOPIC, timeout=30)
    brokers = ",".join(f"{b.host}:{b.port}" for b in described.brokers.values())
    yield Topic.at(brokers)
    producer.flush(1)


@dataclass
class Pipelines:
    """Pipelines of one deployed job, and their executions."""

    database: Database
    org_id: UUID
    job_id: UUID
    watched: dict[UUID, tuple[Sequence[str], Sequence[dict[str, Any]]]] = field(default_factory=dict)
    _by_ticker: dict[str, list[UUID]] = field(default_factory=dict)

    @classmethod
    async def of(cls, database: Database) -> Pipelines:
        async with database.transaction() as tx:
            org_id = await tx.value("select org_id from orgs where slug = 'default'")
            dag_id = await tx.value(
                "insert into dags (org_id, name) values ($1, 'desk') returning dag_id", org_id
            )
            job_id = await tx.value(
                "insert into jobs (dag_id, name, fingerprint, activation, runtime, operator, definition, routed,"
                " dispatch_window, timeout, lease, max_attempts, retry_base, retry_max)"
                " values ($1, 'trade', 'f', 'reactive', 'python', 'python', '{}', true, 1000, '1h', '30s', 5, '1s',"
                " '1m') returning job_id",
                dag_id,
            )
        return cls(database, org_id, job_id)

    async def add(self, *tickers: str, subscriptions: Sequence[dict[str, Any]] = (), **columns: Any) -> UUID:
        (pipeline_id,) = await self.add_many([(tickers, subscriptions)], **columns)
        return pipeline_id

    async def add_many(
        self, watches: Sequence[tuple[Sequence[str], Sequence[dict[str, Any]]]], **columns: Any
    ) -> list[UUID]:
        ids = [uuid4() for _ in watches]
        config = columns.pop("config", {"dag": "desk", "job": "trade"})
        async with self.database.transaction() as tx:
            for pipeline_id, (tickers, subscriptions) in zip(ids, watches, strict=True):
                values = {
                    "pipeline_id": pipeline_id,
                    "org_id": self.org_id,
                    "user_id": "ann",
                    "name": str(pipeline_id),
                    "trigger_mode": "signal",
                    "scanner_tickers": list(tickers),
                    "signal_subscriptions": list(subscriptions),
                    "config": config,
                    **columns,
                }
                names = ", ".join(values)
                places = ", ".join(f"${n + 1}" for n in range(len(values)))
                await tx.run(f"insert into pipelines ({names}) values ({places})", *values.values())
        self.watched |= dict(zip(ids, watches, strict=True))
        for pipeline_id, (tickers, _) in zip(ids, watches, strict=True):
            for ticker in tickers:
                self._by_ticker.setdefault(ticker, []).append(pipeline_id)
        return ids

    async def sql(self, statement: str, *args: object) -> list[Any]:
        async with self.database.autocommit() as tx:
            return await tx.rows(statement, *args)

    async def launched(self) -> set[tuple[UUID, str]]:
        rows = await self.sql("select pipeline_id, signal_id from executions")
        return {(r["pipeline_id"], r["signal_id"]) for r in rows}

    def matching(self, message: dict[str, Any]) -> set[UUID]:
        """The model: compares every ticker of a signal with every pipeline that watches it."""
        return {
            pipeline_id
            for ticker_signal in message["tickers"]
            for pipeline_id in self._by_ticker.get(ticker_signal["ticker"], ())
            if any(
                s.get("signal_type") in (None, message["signal_type"])
                and s.get("direction") in (None, ticker_signal["signal"])
                and ticker_signal["confidence"] >= s.get("min_confidence", 0)
                for s in self.watched[pipeline_id][1] or [{}]
            )
        }


def trigger_process(
    name: str, database_url: str, folder: Path, brokers: str | None, **environment: str
) -> Process:
    """The shipped command, with the guide's own variables."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TRACEPLANE_HOME": str(folder),
        "TRACEPLANE_STATE_URL": database_url,
        "TRACEPLANE_TRIGGER_PORT": str(free_port()),
        "KAFKA_AUTO_OFFSET_RESET": "earliest",
        "BATCH_SIZE": "5",
        "BATCH_TIMEOUT_SECONDS": "0.1",
        **({"KAFKA_BOOTSTRAP_SERVERS": brokers} if brokers else {}),
        **environment,
    }
    return Process(name, ("trigger", "run"), variables, folder / f"{name}.log")
