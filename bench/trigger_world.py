"""Pipelines in a database and signals on a topic, for the benchmark of the trigger."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator

import asyncpg
from confluent_kafka import Producer

TICKERS = [f"T{n:04d}" for n in range(5000)]
TYPES = ("golden_cross", "death_cross", "rsi", "volume_spike")
DIRECTIONS = ("BULLISH", "BEARISH")
TOPIC = "trading-signals"

_PREPARE = """
insert into dags (org_id, name) select org_id, 'desk' from orgs;
insert into jobs (dag_id, name, fingerprint, activation, runtime, operator, definition, routed, dispatch_window,
                  timeout, lease, max_attempts, retry_base, retry_max)
select dag_id, 'trade', 'f', 'reactive', 'python', 'python', '{}', true, 1000, '1h', '30s', 5, '1s', '1m' from dags;
"""


async def prepare(connection: asyncpg.Connection) -> None:
    await connection.execute(_PREPARE)


async def add_pipelines(connection: asyncpg.Connection, lists: list[list[str]]) -> None:
    """One pipeline for each list of tickers; every second one wants a confidence of 50 at least."""
    org = await connection.fetchval("select org_id from orgs limit 1")
    config = json.dumps({"dag": "desk", "job": "trade"})
    picky = json.dumps([{"signal_type": kind, "min_confidence": 50} for kind in TYPES[:2]])
    await connection.copy_records_to_table(
        "pipelines",
        schema_name="traceplane",
        columns=[
            "org_id",
            "user_id",
            "name",
            "trigger_mode",
            "scanner_tickers",
            "signal_subscriptions",
            "config",
        ],
        records=[
            (org, f"user-{n % 100}", f"pipeline {n}", "signal", tickers, picky if n % 2 else "[]", config)
            for n, tickers in enumerate(lists)
        ],
        timeout=300,
    )
    await connection.execute("analyze")


def watch_lists(pipelines: int, seed: int = 1) -> list[list[str]]:
    chance = random.Random(seed)
    return [chance.sample(TICKERS, chance.randint(1, 20)) for _ in range(pipelines)]


def signals(seed: int = 2) -> Iterator[bytes]:
    """As the guide's message; one ticker, sometimes two or three."""
    chance = random.Random(seed)
    number = 0
    while True:
        words = ",".join(
            f'{{"ticker":"{chance.choice(TICKERS)}","signal":"{chance.choice(DIRECTIONS)}",'
            f'"confidence":{chance.randint(0, 100)}}}'
            for _ in range(chance.choices((1, 2, 3), (70, 20, 10))[0])
        )
        number += 1
        yield (
            f'{{"signal_id":"s-{seed}-{number}","timestamp":{time.time():.3f},"signal_type":"{chance.choice(TYPES)}",'
            f'"source":"bench","tickers":[{words}],"metadata":{{"run":{seed},"note":"as published"}}}}'
        ).encode()


def publish(brokers: str, topic: str, count: int, made: Iterator[bytes], partitions: int = 4) -> None:
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 20, "batch.num.messages": 10_000, "log_level": 3}
    )
    for number in range(count):
        _produce(producer, topic, next(made), number % partitions)
    assert producer.flush(120) == 0


def publish_at_rate(
    brokers: str, topic: str, rate: int, count: int, make: Callable[[int], bytes], partitions: int = 4
) -> None:
    """So many a second, evenly; each is made when it is due."""
    producer = Producer({"bootstrap.servers": brokers, "log_level": 3})
    producer.list_topics(topic, timeout=30)  # connected before the first signal is made
    started = time.perf_counter()
    for number in range(count):
        ahead = started + number / rate - time.perf_counter()
        if ahead > 0.0005:
            time.sleep(ahead)
        _produce(producer, topic, make(number), number % partitions)
    assert producer.flush(60) == 0


def _produce(producer: Producer, topic: str, value: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition)
            return
        except BufferError:
            producer.poll(0.05)


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
