"""The trigger: signals from Kafka to executions in Postgres, as one shipped process, with its presets.

Both begin when every pipeline that signals reach has been launched: who starts a trigger does so once.
Throughput: a topic is filled first, then drained; the time is taken from the offsets in Postgres, from the moment that
they move to the moment that all signals are behind them. 2,000 executions end in each second, and are launched again.
Latency: signals are published evenly; from the time in the signal to the commit of its execution (commit timestamps),
without the first seconds, in which the broker warms up.
The peer is the design of the trigger's guide, a scan of all pipelines per signal, on the same topic and database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from pathlib import Path

import asyncpg

from bench import results, trigger_world
from bench.contender import ContenderFailedError, measure
from bench.postgres_server import PostgresServer, running_postgres
from tests.kafka import KafkaBroker, KafkaUnavailable
from tests.ports import free_port
from tests.trigger.signals import mock_cluster
from traceplane.postgres.migrate import migrate

SUITE = "trigger"
SIGNALS, SIGNALS_LARGE, SIGNALS_PEER = 1_000_000, 400_000, 1_000
WARM = 60_000
"""Signals that reach every pipeline."""
ENDING_PER_SECOND = 2_000
SECONDS, UNMEASURED_SECONDS = 15.0, 5.0
"""A broker that has just started compiles its code while it serves the first thousands of small requests."""

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    with running_postgres({"track_commit_timestamp": "on"}) as server, _broker(progress) as (brokers, note):
        bench = Bench(server, brokers, note, progress)
        return [
            # What fills the disk comes last: the server writes it out for a while.
            *asyncio.run(bench.latency("low_latency", 1_000, every=1, bars={0.5: 60.0, 0.99: 150.0})),
            *asyncio.run(bench.latency("balanced", 10_000, every=10, bars={0.99: 500.0})),
            *asyncio.run(bench.throughput(10_000, SIGNALS, 100_000.0, peer=True)),
            *asyncio.run(bench.throughput(100_000, SIGNALS_LARGE, 20_000.0)),
        ]


@contextlib.contextmanager
def _broker(progress: Progress) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(prefix="bench-kafka-", ignore_cleanup_errors=True) as folder:
        try:
            broker = KafkaBroker.in_folder(Path(folder))
            broker.start(long_running=True)
        except KafkaUnavailable as error:
            progress(f"no real broker, librdkafka's own instead: {error}")
            with mock_cluster() as topic:
                yield topic.brokers, "broker: librdkafka's mock cluster, in the publisher's process"
            return
        try:
            yield broker.address, "broker: Apache Kafka, one node, on the same two cores"
        finally:
            broker.stop()


class Bench:
    def __init__(self, server: PostgresServer, brokers: str, note: str, progress: Progress) -> None:
        self.server, self.brokers, self.note, self.progress = server, brokers, note, progress

    async def throughput(
        self, pipelines: int, count: int, target: float, *, peer: bool = False
    ) -> list[results.Row]:
        topic = f"signals-{pipelines}"
        made = trigger_world.signals()
        trigger_world.publish(self.brokers, topic, WARM, made)
        async with self._database() as (url, connection):
            with self._trigger(url, topic, "high_throughput") as process:
                bare = await self._loaded(process, 0)
            await trigger_world.add_pipelines(connection, trigger_world.watch_lists(pipelines))
            with self._trigger(url, topic, "high_throughput") as process:
                memory = (await self._loaded(process, pipelines) - bare) / pipelines
            await connection.execute("truncate executions, tasks cascade")
            await connection.execute("update trigger_offsets set next_offset = 0")
            with self._trigger(url, topic, "high_throughput"):
                await self._drained(connection, topic, WARM)
            await asyncio.to_thread(trigger_world.publish, self.brokers, topic, count, made)
            with self._trigger(url, topic, "high_throughput"):
                rate = await self._drained(connection, topic, WARM + count, since=WARM)
            launched = await connection.fetchval("select count(*) from executions")
            self.progress(
                f"{pipelines:,} pipelines: {rate:,.0f} signals/s, {launched:,} executions, {memory:,.0f} bytes each"
            )
            rows = [
                self._row(f"drain, {pipelines:,} pipelines", "signals/s", "higher", rate, "target", target, 1.0),
                self._row(f"memory per pipeline, {pipelines:,}", "bytes", "lower", memory, "target", 2048.0,
                          1.0 if pipelines >= 100_000 else None),
            ]  # fmt: skip
            if peer:
                await connection.execute("truncate executions, tasks cascade")
                theirs = self._peer(url, topic)
                rows.append(
                    self._row(
                        "drain, scan per signal", "signals/s", "higher", rate, "guide's design", theirs, 100.0
                    )
                )
        return rows

    def _peer(self, url: str, topic: str) -> float | None:
        options = {"url": url, "brokers": self.brokers, "topic": topic, "signals": SIGNALS_PEER}
        try:
            told = measure(
                Path(sys.executable), "bench.peers.guide_trigger_peer", "drain", options, timeout=300
            )
        except ContenderFailedError as error:
            self.progress(f"the guide's design: {error}")
            return None
        self.progress(f"the guide's design: {told['signals_per_second']:,.0f} signals/s")
        return float(told["signals_per_second"])

    async def latency(
        self, preset: str, rate: int, *, every: int, bars: dict[float, float]
    ) -> list[results.Row]:
        """One of `every` signals has a pipeline of its own, the others one that runs already."""
        topic = f"signals-{preset}"
        trigger_world.publish(self.brokers, topic, WARM, trigger_world.signals())
        unmeasured, count = int(rate * UNMEASURED_SECONDS), int(rate * (UNMEASURED_SECONDS + SECONDS))
        lists = [[f"own-{n}"] for n in range(count // every)] + trigger_world.watch_lists(10_000)
        # Made beforehand: whoever publishes shares the cores with what is measured.
        others = list(islice(trigger_world.signals(seed=3), count))

        def make(number: int) -> bytes:
            if number % every:
                return others[number]
            return (
                f'{{"signal_id":"own-{number}","timestamp":{time.time():.6f},"signal_type":"rsi","source":"bench",'
                f'"tickers":[{{"ticker":"own-{number // every}","signal":"BULLISH","confidence":90}}],"metadata":{{}}}}'
            ).encode()

        async with self._database() as (url, connection):
            await trigger_world.add_pipelines(connection, lists)
            await connection.execute("update pipelines set signal_subscriptions = '[]'")
            with self._trigger(url, topic, preset) as process:
                await self._loaded(process, len(lists))
                await self._drained(connection, topic, WARM)
                await asyncio.to_thread(trigger_world.publish_at_rate, self.brokers, topic, rate, count, make)
                await self._drained(connection, topic, WARM + count)
            rows = await connection.fetch(
                "select extract(epoch from pg_xact_commit_timestamp(xmin))::float8"
                " - (signal->>'timestamp')::float8 as seconds from executions"
                " where signal_id like 'own-%' and split_part(signal_id, '-', 2)::int >= $1 order by 1",
                unmeasured,
            )
        waited = [r["seconds"] * 1000 for r in rows]
        wanted = (count - unmeasured) // every
        assert len(waited) == wanted, f"{len(waited)} executions of {wanted}"
        found = {share: waited[int(share * (len(waited) - 1))] for share in (0.5, 0.99, 1.0)}
        self.progress(
            f"{preset}, {rate:,}/s: " + ", ".join(f"p{s * 100:g} {ms:.0f} ms" for s, ms in found.items())
        )
        return [
            self._row(f"p{share * 100:g}, {rate:,}/s, {preset}", "ms", "lower", found[share], "target", bar, 1.0)
            for share, bar in bars.items()
        ]  # fmt: skip

    # What is measured -------------------------------------------------------------------------------

    async def _drained(self, connection: asyncpg.Connection, topic: str, count: int, since: int = 0) -> float:
        """Signals a second until so many of the topic are behind the stored offsets, from so many on."""
        began, ended_at = None, 0.0
        deadline = time.monotonic() + 600
        while True:
            known, behind = await connection.fetchrow(
                "select count(*), coalesce(sum(next_offset), 0) from trigger_offsets where topic = $1", topic
            )
            now = time.perf_counter()
            if known and (began is None or behind <= since):
                began = now
            if behind >= count:
                return (count - since) / max(now - (began or now), 1e-9)
            if now - ended_at > 1.0:
                ended_at = now
                await connection.execute(
                    "update executions set status = 'COMPLETED', finished_at = now() where execution_id in"
                    " (select execution_id from executions where status = 'PENDING' and signal_id not like 'own-%'"
                    " order by execution_id limit $1)",
                    ENDING_PER_SECOND,
                )
            assert time.monotonic() < deadline, f"only {behind} of {count} signals in ten minutes"
            await asyncio.sleep(0.02)

    async def _loaded(self, process: Running, pipelines: int) -> int:
        """Resident memory once the trigger has so many pipelines."""
        wanted = f"cache_pipelines {float(pipelines)}\n".encode()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert process.process.poll() is None, process.log.read_text()[-1000:]
            with contextlib.suppress(OSError):
                if wanted in await asyncio.to_thread(_get, process.port):
                    return trigger_world.resident_bytes(process.process.pid)
            await asyncio.sleep(0.1)
        raise AssertionError(f"no {pipelines} pipelines in two minutes: {process.log.read_text()[-1000:]}")

    @contextlib.asynccontextmanager
    async def _database(self) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
        url = await asyncio.to_thread(self.server.fresh_database)
        await migrate(url)
        connection = await asyncpg.connect(url, server_settings={"search_path": "traceplane"})
        try:
            await trigger_world.prepare(connection)
            yield url, connection
        finally:
            await connection.close()
            await asyncio.to_thread(self.server.drop, url)

    @contextlib.contextmanager
    def _trigger(self, url: str, topic: str, preset: str) -> Iterator[Running]:
        with tempfile.TemporaryDirectory(prefix="bench-trigger-") as folder:
            port, log = free_port(), Path(folder) / "log"
            environment = os.environ | {
                "TRACEPLANE_HOME": folder,
                "TRACEPLANE_STATE_URL": url,
                "TRACEPLANE_TRIGGER_PORT": str(port),
                "TRACEPLANE_TRIGGER_PRESET": preset,
                "KAFKA_BOOTSTRAP_SERVERS": self.brokers,
                "KAFKA_SIGNAL_TOPIC": topic,
                "KAFKA_AUTO_OFFSET_RESET": "earliest",
            }
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "traceplane.cli.main", "trigger", "run"],
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            try:
                yield Running(process, port, log)
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(30)

    def _row(
        self,
        name: str,
        unit: str,
        better: str,
        ours: float,
        peer: str,
        theirs: float | None,
        bar: float | None,
    ) -> results.Row:
        return results.compare(
            suite=SUITE,
            name=name,
            unit=unit,
            better=better,  # type: ignore[arg-type]
            ours=ours,
            peer=peer,
            theirs=theirs,
            bar=bar,
            note=self.note,
        )


class Running:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log


def _get(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        found: bytes = answer.read()
        return found
