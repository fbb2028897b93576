"""Messages to a local receiver: how many a second beside a bare loop of aiohttp, and how soon after their commit.

Ours is the whole path: messages are queued in Postgres, and a delivery process claims them, fills in the body, signs
it, sends it and records the outcome. The bare loop has its bodies in memory, and only sends them. Both use as many
connections, to the same receiver, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from uuid import UUID

import aiohttp
import msgspec
import uvloop

from bench import results
from bench.ours_control import environment
from bench.peers import measure
from bench.postgres_server import PostgresServer
from tests.ports import free_port
from traceplane.model.message import Kind, Message, Severity
from traceplane.postgres import channels, deliveries
from traceplane.postgres.database import Database
from traceplane.postgres.deliveries import NewDelivery
from traceplane.postgres.migrate import migrate

MESSAGES, WARM_UP, CONNECTIONS = 5_000, 500, 64
SINGLE_MESSAGES, SINGLE_PAUSE = 200, 0.02
TIMEOUT = 120.0

Progress = Callable[[str], None]


@dataclass
class Figures:
    """In each round."""

    ours: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    """The median of a round, in ms."""


def measured(server: PostgresServer, suite: str, rounds: int, progress: Progress) -> list[results.Row]:
    figures = Figures()
    for number in range(1, rounds + 1):
        with _receiver() as url:
            figures.bare.append(uvloop.run(_bare(url)))
            state_url = server.fresh_database()
            uvloop.run(_ours(state_url, url, figures))
            server.drop(state_url)
        progress(
            f"round {number}, messages/s, ours and bare: {figures.ours[-1]:,.0f} and {figures.bare[-1]:,.0f};"
            f" committed to received, median: {figures.latency[-1]:.1f} ms"
        )
    return [
        results.compare(
            suite=suite, name="messages to a local receiver", unit="messages/s", better="higher",
            ours=median(figures.ours), peer="bare aiohttp", theirs=median(figures.bare), bar=0.5,
        ),
        results.compare(
            suite=suite, name="message committed → received, median", unit="ms", better="lower",
            ours=median(figures.latency), peer="target", theirs=50.0, bar=1.0,
        ),
    ]  # fmt: skip


@contextlib.contextmanager
def _receiver() -> Iterator[str]:
    port = free_port()
    with measure.worker_processes([sys.executable, "-m", "bench.receiver", str(port)]):
        uvloop.run(_until_it_answers(port))
        yield f"http://127.0.0.1:{port}/in"


async def _until_it_answers(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)


def _message(number: int, run: str) -> Message:
    key = f"{run}:{number}"
    return Message(
        key=key,
        incident=key,
        kind=Kind.ALERT,
        alert="large_transfer",
        severity=Severity.WARNING,
        title=f"Transfer {number}",
        text=f"{number} tokens were moved " + "x" * 200,
        event_time=datetime(2026, 11, 18, tzinfo=UTC),
        subject={"account": "0x" + "a" * 40, "block": number},
    )


async def _bare(url: str) -> float:
    """Messages per second."""
    bodies = {
        m.key: msgspec.json.encode({"key": m.key, "title": m.title, "text": m.text, "subject": m.subject})
        for m in (_message(number, "bare") for number in range(WARM_UP + MESSAGES))
    }
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(waiting: Iterator[tuple[str, bytes]]) -> None:
            for key, body in waiting:
                headers = {"content-type": "application/json", "idempotency-key": key}
                async with session.post(url, data=body, headers=headers) as answer:
                    assert answer.status == 204

        waiting = iter(bodies.items())
        await asyncio.gather(
            *(send(itertools.islice(waiting, WARM_UP // CONNECTIONS)) for _ in range(CONNECTIONS))
        )
        left = list(waiting)
        rest = iter(left)
        began = time.perf_counter()
        await asyncio.gather(*(send(rest) for _ in range(CONNECTIONS)))
        seconds = time.perf_counter() - began
    assert len(await _came(url)) == len(bodies)
    return len(left) / seconds


async def _ours(state_url: str, url: str, figures: Figures) -> None:
    async with _delivery(state_url, url) as (database, org_id, channel_id):

        async def queue(*messages: Message) -> None:
            async with database.transaction() as tx:
                await deliveries.queue(tx, [NewDelivery(org_id, channel_id, m) for m in messages])

        async def all_delivered() -> None:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    async with database.autocommit() as tx:
                        if not await tx.value(
                            "select exists (select 1 from alert_deliveries where state = 'waiting')"
                        ):
                            return
                    await asyncio.sleep(0.01)

        await queue(*(_message(number, "warm") for number in range(WARM_UP)))
        await all_delivered()
        await _came(url)
        messages = [_message(number, "ours") for number in range(MESSAGES)]
        async with database.transaction() as tx:
            await deliveries.queue(tx, [NewDelivery(org_id, channel_id, m) for m in messages])
        began = time.perf_counter()
        await all_delivered()
        figures.ours.append(MESSAGES / (time.perf_counter() - began))
        assert len(await _came(url)) == MESSAGES
        committed = {}
        for number in range(SINGLE_MESSAGES):
            message = _message(number, "single")
            await queue(message)
            committed[message.key] = time.monotonic()
            await asyncio.sleep(SINGLE_PAUSE)
        await all_delivered()
        came = await _came(url)
        figures.latency.append(1000 * median(max(0.0, came[key] - at) for key, at in committed.items()))


async def _came(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        came: dict[str, float] = await answer.json()
        return came


@contextlib.asynccontextmanager
async def _delivery(state_url: str, url: str) -> AsyncIterator[tuple[Database, UUID, UUID]]:
    """A delivery process, and a channel to the receiver that sets it no pace."""
    await migrate(state_url)
    database = await Database.connect(state_url, connections=2)
    config = {"kind": "webhook", "url": url, "per_second": 10_000, "burst": 10_000}
    async with database.transaction() as tx:
        org_id = await tx.value("select org_id from orgs")
        channel_id = await channels.set_channel(
            tx, org_id, "bench", config, platform_alerts=False, by="bench"
        )
    with tempfile.TemporaryDirectory(prefix="bench-home-", ignore_cleanup_errors=True) as home:
        values = {
            "TRACEPLANE_HOME": home,
            "TRACEPLANE_STATE_URL": state_url,
            "TRACEPLANE_OUTGOING_ALLOW": "127.0.0.0/8",
            "TRACEPLANE_LOG_LEVEL": "error",
        }
        command = [sys.executable, "-m", "traceplane.cli.main", "delivery"]
        with environment(values), measure.worker_processes(command):
            yield database, org_id, channel_id
    await database.close()
