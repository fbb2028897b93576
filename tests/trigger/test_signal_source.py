"""One contract for both sources of signals: Kafka (librdkafka's own cluster) and a folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.platform import until
from tests.trigger.signals import PARTITIONS, TOPIC, Pipelines, Topic, mock_cluster, signal
from traceplane import telemetry
from traceplane.adapters import signal_source_folder
from traceplane.adapters.signal_source import DeadLetter, Offsets, Polled, SignalSource
from traceplane.adapters.signal_source_folder import FolderSignalSource
from traceplane.adapters.signal_source_kafka import KafkaAddress, KafkaSignalSource
from traceplane.postgres.database import Database, Transaction
from traceplane.trigger.cache import PipelineCache
from traceplane.trigger.consumer import Consumer
from traceplane.trigger.figures import SignalFigures

Publish = Callable[[Sequence[bytes], int], None]


class Kept:
    """Offsets as a reader stores them."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}

    def stored(self, partitions: Collection[int]) -> Mapping[int, int]:
        return {n: self.offsets[n] for n in partitions if n in self.offsets}

    def begin(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self.offsets = {**offsets, **self.offsets}
        return self.stored(list(offsets))

    def settle(self) -> None:
        pass

    def keep(self, polled: Polled) -> None:
        for position in polled.positions:
            assert self.offsets[position.partition] == position.expected
            self.offsets[position.partition] = position.next_offset


@dataclass
class Kind:
    open: Callable[[str, Offsets], SignalSource]
    """Starts at latest or earliest."""
    publish: Publish
    buried: Callable[[], list[bytes]]


@pytest.fixture(params=["kafka", "folder"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "folder":
        yield Kind(
            lambda begin, offsets: FolderSignalSource(tmp_path, TOPIC, "g", begin, offsets),
            lambda payloads, n: signal_source_folder.publish(tmp_path, TOPIC, payloads, partition=n),
            lambda: [
                json.loads(line)["payload"].encode()
                for line in (tmp_path / TOPIC / "dead-letter.jsonl").read_bytes().splitlines()
            ],
        )
        return
    with mock_cluster() as topic:
        yield Kind(
            lambda begin, offsets: KafkaSignalSource(_address(topic, begin), offsets),
            lambda payloads, n: topic.publish(payloads, partition=n),
            lambda: [message.value() for message in topic.read(f"{TOPIC}.dead-letter")],
        )


def _address(topic: Topic, begin: str) -> KafkaAddress:
    return KafkaAddress(
        bootstrap_servers=topic.brokers,
        topic=TOPIC,
        group="g",
        begin_at=begin,
        dead_letter_topic=f"{TOPIC}.dead-letter",
        security={},
    )


def polled(source: SignalSource, kept: Kept, count: int) -> list[bytes]:
    """Reads this many messages and stores their offsets."""
    payloads: list[bytes] = []
    deadline = time.monotonic() + 240
    while len(payloads) < count:
        assert time.monotonic() < deadline, f"only {payloads}"
        batch = source.poll(1, 0.2, 1000)
        kept.keep(batch)
        assert [batch.place(n)[0] for n in range(len(batch.payloads))] == sorted(
            batch.place(n)[0] for n in range(len(batch.payloads))
        ) or len(batch.positions) > 1
        payloads += batch.payloads
    return payloads


def test_sources_deliver_every_message_once_and_resume_at_the_readers_offsets(kind: Kind) -> None:
    for n in range(PARTITIONS):
        kind.publish([b"old-%d" % n], n)
    kept = Kept()
    source = kind.open("latest", kept)
    until_assigned = time.monotonic() + 240
    while len(source.partitions()) < PARTITIONS and time.monotonic() < until_assigned:
        assert not source.poll(1, 0.2, 1000).payloads, "latest starts after existing messages"
    before = dict(kept.offsets)
    assert len(before) == PARTITIONS
    assert all(before.values()), "the start is stored before anything is read"
    kind.publish([b"%d" % n for n in range(50)], 1)
    kind.publish([b"x"], 2)
    payloads = polled(source, kept, 51)
    assert [m for m in payloads if m != b"x"] == [b"%d" % n for n in range(50)]
    assert source.lag() == 0
    # A batch that did not count is read again.
    generation = source.generation
    kept.offsets[1] = before[1]
    source.rewind()
    assert source.generation != generation
    assert polled(source, kept, 50) == [b"%d" % n for n in range(50)]
    # Earlier messages can be read.
    past = list(source.history(3600))
    assert [m for n, m in past if n == 1] == [b"old-1", *(b"%d" % n for n in range(50))]
    assert (2, b"x") in past
    letter = DeadLetter(b"\\bad", 1, 7, "signal.malformed", "it is bad")
    assert source.bury([letter]) == 1
    assert kind.buried() == [b"\\bad"]
    # Another member of the group continues where the reader is.
    kind.publish([b"between"], 1)
    source.close()
    follower = kind.open("latest", kept)
    kind.publish([b"after"], 3)
    assert set(polled(follower, kept, 2)) == {b"between", b"after"}
    follower.close()


def test_what_the_client_reads_a_second_time_is_not_delivered_again() -> None:
    with mock_cluster() as topic:
        for n in range(PARTITIONS):
            topic.publish([b"old-%d" % n], partition=n)
        kept = Kept()
        source = KafkaSignalSource(_address(topic, "latest"), kept)
        while len(source.partitions()) < PARTITIONS:
            assert not source.poll(1, 0.2, 1000).payloads
        # As a client may do by itself around a rebalance.
        source._consumer.assign([TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
        topic.publish([b"new"], partition=1)
        assert polled(source, kept, 1) == [b"new"]
        assert kept.offsets == {0: 1, 1: 2, 2: 1, 3: 1}
        source.close()


class Counted(Database):
    """Counts transactions and statements."""

    calls = 0

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Transaction]:
        self.calls += 1
        async with super().autocommit() as tx:
            yield tx

    @contextlib.asynccontextmanager
    async def transaction(self, label: str = "") -> AsyncIterator[Transaction]:
        self.calls += 1
        async with super().transaction(label) as tx:
            yield tx


async def test_a_window_survives_its_reader_and_a_batch_costs_one_statement(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    telemetry.configure("test")
    pipelines = await Pipelines.of(database)
    often = await pipelines.add("A", rules={"signals_within": {"count": 3, "seconds": 60}})
    plain = await pipelines.add("B")
    database = await Counted.connect(database_url, connections=3)
    cache = PipelineCache(database, interval=30)
    await cache.refresh()

    def publish(*messages: dict[str, Any]) -> None:
        signal_source_folder.publish(tmp_path, TOPIC, [json.dumps(m).encode() for m in messages])

    async def consume(until_done: Callable[[], Any]) -> None:
        consumer = Consumer(
            database, cache, SignalFigures(database, cache),
            lambda offsets: FolderSignalSource(tmp_path, TOPIC, "g", "earliest", offsets),
            group="g", topic=TOPIC, batch_size=5, batch_timeout=0.05,
        )  # fmt: skip
        stop = asyncio.Event()
        running = asyncio.create_task(consumer.run(stop))
        await until(until_done, what="consumed")
        stop.set()
        await running

    async def behind() -> int:
        rows = await pipelines.sql("select coalesce(sum(next_offset), 0)::int as n from trigger_offsets")
        return int(rows[0]["n"])

    def size() -> int:
        return (tmp_path / TOPIC / "0.jsonl").stat().st_size

    async def caught_up() -> bool:
        return await behind() == size()

    publish(signal("one", "A"), signal("two", "A"), signal("other", "B"))
    await consume(caught_up)
    assert await pipelines.launched() == {(plain, "other")}
    publish(*(signal(f"noise-{n}", "C") for n in range(200)), signal("three", "A"))
    await consume(caught_up)
    assert await pipelines.launched() == {(plain, "other"), (often, "three")}
    batches = _figure("batch_processing_duration_ms_count")
    # Besides the batches, each of the two readers fetches its offsets once, and the first stores where it starts.
    assert isinstance(database, Counted)
    assert database.calls == batches + 4
    await database.close()


def _figure(name: str) -> float:
    lines = telemetry.render_metrics().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).rpartition(" ")[2])
