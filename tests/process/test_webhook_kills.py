"""A sender that repeats until it is answered, while the gateway and Postgres are killed: each delivery counts once.

Guarantee 12 of docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.platform import Platform
from tests.process.effects import settle, stored_rows
from tests.webhooks import KEYS, body, dag, from_github
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate

SENDERS = 16
SETTINGS = {"fsync": "off"}


async def deliver(
    platform: Platform, session: aiohttp.ClientSession, number: int, draw: random.Random
) -> None:
    """Repeats a delivery until it is answered, and sometimes even then."""
    content = {"id": number, "amount": f"{number}.50"}
    headers = {"content-type": "application/json", **from_github(content, f"d-{number}")}
    answers = 0
    while answers < 1 + (draw.random() < 0.2):
        try:
            async with session.post("/hooks/default/orders", data=body(content), headers=headers) as answer:
                if answer.status == 503:
                    await asyncio.sleep(0.02)
                    continue
                assert answer.status == 200, await answer.text()
                await answer.read()
                answers += 1
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(0.05)


async def deliver_all(
    platform: Platform, at_least: int, draw: random.Random, gateway_kills: Callable[[], int], kills: int
) -> int:
    """Delivers that many, and goes on until the gateway was killed often enough; returns how many those were."""
    timeout = aiohttp.ClientTimeout(total=60)
    sent = 0

    def numbers() -> Iterator[int]:
        nonlocal sent
        while sent < at_least or gateway_kills() < kills:
            sent += 1
            yield sent - 1

    waiting = numbers()

    async def send(session: aiohttp.ClientSession) -> None:
        for number in waiting:
            await deliver(platform, session, number, draw)

    async with aiohttp.ClientSession(platform.gateway_url, timeout=timeout) as session:
        await asyncio.gather(*(send(session) for _ in range(SENDERS)))
    return sent


async def kill_until(
    done: asyncio.Event,
    platform: Platform,
    folder: Path,
    draw: random.Random,
    pauses: tuple[float, float],
    kills: Counter[str],
) -> None:
    """Kills the gateway and, more rarely, Postgres, by SIGKILL, at random moments."""
    server = EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True)
    while not done.is_set():
        await asyncio.sleep(draw.uniform(*pauses))
        if draw.random() < 0.3:
            await asyncio.to_thread(server.kill)
            server = await asyncio.to_thread(
                EmbeddedPostgres.ensure, folder, settings=SETTINGS, die_with_parent=True
            )
            kills["postgres"] += 1
        else:
            await platform["gateway"].kill()
            await platform["gateway"].start()
            kills["gateway"] += 1
            await platform.ready("gateway")


async def each_counts_once(
    tmp_path: Path, count: int, seed: int, *, kills_at_least: int, pauses: tuple[float, float] = (0.1, 1.2)
) -> None:
    draw = random.Random(seed)
    folder = tmp_path / "postgres"
    server = EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True)
    try:
        await migrate(server.state_url)
        async with Platform.start(server.state_url, tmp_path / "home", environment=KEYS) as platform:
            await platform.deploy(dag(config="config: {columns: {position: delivery}}"))
            done = asyncio.Event()
            kills: Counter[str] = Counter()
            killing = asyncio.create_task(kill_until(done, platform, folder, draw, pauses, kills))
            try:
                count = await deliver_all(platform, count, draw, lambda: kills["gateway"], kills_at_least)
            finally:
                done.set()
                await killing
            print(f"{count:,} deliveries, kills: {dict(kills)}")
            generation = await platform.value(
                "select current_generation_id from datasets where dataset_id = 'shop.orders#deliveries'"
            )
            kept = await platform.sql(
                f"select delivery, key from traceplane_hot.g_{generation.hex} order by 1"
            )
            assert [row["delivery"] for row in kept] == list(range(count)), "numbers have no gaps"
            assert sorted(row["key"] for row in kept) == sorted(f"d-{n}" for n in range(count))
            events = await platform.value("select count(*) from events where generation_id = $1", generation)
            assert events == count
            assert await settle(platform, seconds=900) == {"completed": count}
            rows = await stored_rows(platform, "shop.orders", 0, count)
            assert [row["position"] for row in rows] == list(range(count))
            assert sorted(row["id"] for row in rows) == list(range(count))
    finally:
        EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True).destroy()


@pytest.mark.timeout(300)
async def test_a_delivery_counts_once_while_gateway_and_postgres_are_killed(tmp_path: Path) -> None:
    await each_counts_once(tmp_path, 150, 12, kills_at_least=1)


@pytest.mark.chaos
async def test_20000_deliveries_count_once_while_gateway_and_postgres_are_killed(tmp_path: Path) -> None:
    await each_counts_once(tmp_path, 20_000, random.randrange(1 << 30), kills_at_least=5, pauses=(1.0, 6.0))
