"""Sources: what it costs to keep many of them going, and how many deliveries one of them takes.

Cron: peers keep their schedules in a process, not in a table that several share; the rows are promises of our own.
Webhooks: one gateway, beside a bare Starlette handler with one INSERT per call, on the same Postgres, with the same
requests over as many connections, in turns. Ours checks a signature, parses the body, and commits its key, its row, an
event and a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import uvloop

from bench import deliveries, environments, results
from bench.postgres_server import PostgresServer, running_postgres
from tests.ports import free_port
from traceplane.dispatcher.loops.cron_ticks import CronTicks
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.postgres.database import Database
from traceplane.postgres.migrate import migrate
from traceplane.registry import apply
from traceplane.registry.spec.dag_file import parse

SUITE = "sources"
DAGS, SOURCES_OF_A_DAG = 20, 500
SCHEDULES = DAGS * SOURCES_OF_A_DAG
IDLE_PASSES = 100
BUSY_PASSES = 3
DELIVERIES, WARM_DELIVERIES, CONNECTIONS, ROUNDS = 10_000, 1_000, 64, 3
PEER = "starlette"
KEY_VARIABLE = "TRACEPLANE_HOOK_KEY_BENCH"

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    with running_postgres() as server:
        idle, per_second = asyncio.run(_cron(server.fresh_database(), progress))
        webhooks = _webhooks(server, progress)
    return [
        webhooks,
        results.compare(
            suite=SUITE, name=f"cron: a pass over {SCHEDULES:,} schedules, none due", unit="ms", better="lower",
            ours=idle, peer="target", theirs=50.0, bar=1.0,
        ),
        results.compare(
            suite=SUITE, name=f"cron: ticks of {SCHEDULES:,} schedules, all due", unit="ticks/s", better="higher",
            ours=per_second, peer="target", theirs=1000.0,
        ),
    ]  # fmt: skip


async def _cron(url: str, progress: Progress) -> tuple[float, float]:
    """Milliseconds of a pass when nothing is due; ticks that fire in a second when everything is."""
    await migrate(url)
    database = await Database.connect(url, connections=4)
    try:
        for number in range(DAGS):
            dag = parse(_dag(number), "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
            await apply.deploy(database, "default", dag, runtimes=DEFAULT_RUNTIMES, window=64)
        cron = CronTicks(database)
        await cron.run_once()
        async with database.autocommit() as tx:
            await tx.rows("analyze")
        progress(f"{SCHEDULES:,} schedules deployed")
        idle = [await _seconds(cron) for _ in range(IDLE_PASSES)]
        progress(f"a pass, none due: p50 {median(idle) * 1000:.2f} ms, worst {max(idle) * 1000:.2f} ms")
        busy = []
        for _ in range(BUSY_PASSES):
            async with database.autocommit() as tx:
                await tx.rows("delete from events")  # the same ticks again, and none of them known
                await tx.rows(
                    "update cron_schedules set settled_through = next_tick - interval '61 minutes', due_at = tp_now()"
                )
            busy.append(await _seconds(cron))
        progress(f"all due: {SCHEDULES / median(busy):,.0f} ticks/s")
        return median(idle) * 1000, SCHEDULES / median(busy)
    finally:
        await database.close()


async def _seconds(cron: CronTicks) -> float:
    began = time.perf_counter()
    await cron.run_once()
    return time.perf_counter() - began


def _dag(number: int) -> str:
    """Sources with schedules of their own minute, each with a dataset of hours."""
    names = [f"s{number}_{n}" for n in range(SOURCES_OF_A_DAG)]
    datasets = ", ".join(f"{name}: {{partitions: {{by: hour}}}}" for name in names)
    jobs = "\n".join(
        f"- {{name: {name}, activation: source, outputs: [{{dataset: {name}}}],"
        f' source: {{kind: cron, schedule: "{n % 60} * * * *", time_zone: Europe/Berlin, catch_up: all}}}}'
        for n, name in enumerate(names)
    )
    return f"version: 1\ndag: d{number}\ndatasets: {{{datasets}}}\njobs:\n{jobs}\n"


# Webhooks -----------------------------------------------------------------------------------------------

WEBHOOK = f"""
version: 1
dag: shop
datasets:
  shop.orders: {{columns: [{{name: id, type: bigint}}, {{name: amount, type: "decimal(10, 2)"}}]}}
jobs:
- name: orders
  activation: source
  source: {{kind: webhook, path: orders, verify: {{preset: github}}, secret: {{env: {KEY_VARIABLE}}}}}
  outputs: [{{dataset: shop.orders}}]
"""


def _webhooks(server: PostgresServer, progress: Progress) -> results.Row:
    ours_url, theirs_url = server.fresh_database(), server.fresh_database()
    asyncio.run(_deploy(ours_url))
    ours: list[float] = []
    theirs: list[float] = []
    note = ""
    with contextlib.ExitStack() as running:
        ours_port = running.enter_context(_gateway(ours_url))
        theirs_port = None
        try:
            python = environments.prepare(PEER)
            theirs_port = running.enter_context(_starlette(python, theirs_url))
        except environments.PeerUnavailableError as error:
            note = f"no peer: {error}"
        for number in range(ROUNDS):
            ours.append(_sent(ours_port, f"round-{number}"))
            if theirs_port is not None:
                theirs.append(_sent(theirs_port, f"round-{number}"))
            said = ", ".join(f"{rates[-1]:,.0f}" for rates in (ours, theirs) if rates)
            progress(f"webhook, deliveries/s, ours and a bare handler: {said}")
    return results.compare(
        suite=SUITE, name=f"webhook: deliveries committed, {CONNECTIONS} connections", unit="deliveries/s",
        better="higher", ours=median(ours), peer=f"{PEER} {environments.pinned_version(PEER)}, one INSERT per call",
        theirs=median(theirs) if theirs else None, bar=1.0, note=note,
    )  # fmt: skip


def _sent(port: int, run: str) -> float:
    warm, made = deliveries.requests(WARM_DELIVERIES, f"{run}-warm"), deliveries.requests(DELIVERIES, run)

    async def send() -> float:
        await deliveries.send(port, warm, CONNECTIONS)
        return await deliveries.send(port, made, CONNECTIONS)

    return uvloop.run(send())


async def _deploy(url: str) -> None:
    await migrate(url)
    database = await Database.connect(url, connections=1)
    try:
        dag = parse(WEBHOOK, "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
        await apply.deploy(database, "default", dag, runtimes=DEFAULT_RUNTIMES, window=64)
    finally:
        await database.close()


@contextlib.contextmanager
def _gateway(url: str) -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as folder:
        port = free_port()
        settings = {"HOME": folder, "STATE_URL": url, "GATEWAY_PORT": str(port)}
        environment = {f"TRACEPLANE_{name}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "traceplane.cli.main", "gateway"]
        with _served(command, {**environment, KEY_VARIABLE: deliveries.KEY}, port):
            yield port


@contextlib.contextmanager
def _starlette(python: Path, url: str) -> Iterator[int]:
    port = free_port()
    with _served([str(python), "-m", "bench.peers.starlette_peer", url, str(port)], {}, port):
        yield port


@contextlib.contextmanager
def _served(command: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    """While a process listens on the port."""
    process = subprocess.Popen(command, env=os.environ | environment, start_new_session=True)
    try:
        asyncio.run(_until_answered(process, port))
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


async def _until_answered(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it listened"
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise AssertionError("nobody listens after a minute")
