"""Ten thousand alerts while every process and Postgres are killed and their receiver misbehaves; then the counts.

Everything is real but Spark: evaluations are completed over HTTP by a stand-in, which the kills of dispatchers cut off
as they would a worker.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from tests.alert_evaluators import alerting_dag, evaluating
from tests.chaos.test_chaos import kill_at_random
from tests.delivery.http_receiver import HttpReceiver, Unanswered, http_receiver
from tests.platform import Platform, until
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate
from traceplane.wire.control import BackfillRequest, BackfillResponse
from traceplane.wire.deploys import MovedResponse, RollbackRequest

ALERTS, EACH = 10_000, 20
BLOCKS = ALERTS // EACH
REORGANIZED = 60


class Chain:
    """What is in each block, now."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.blocks: dict[int, set[str]] = {}
        self.forks = 0

    def grow(self, block: int) -> None:
        self.blocks[block] = {f"{block}-{number}" for number in range(EACH)}

    def reorganize(self, block: int) -> str:
        """Some transactions go, some come, and some that had gone come back; the name of the fork."""
        self.forks += 1
        kept = {tx for tx in self.blocks[block] if self._draw.random() < 0.7}
        back = {f"{block}-{number}" for number in range(EACH) if self._draw.random() < 0.1}
        self.blocks[block] = kept | back | {f"{block}-fork{self.forks}"}
        return str(self.forks)

    def finds(self, query: str, block: int) -> set[str]:
        [least] = re.findall(r"value > (\d+)", query)
        also = {f"{block}-small"} if int(least) < 1000 else set()
        return self.blocks.get(block, set()) | also


class Receiver:
    """Times out, fails, asks for time and drops connections, at random; deduplicates by key."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.answers: Counter[str] = Counter()

    async def decide(self, _key: str, _times: int) -> web.Response | None:
        [answer] = self._draw.choices(
            ["accepted", "accepted, then dropped", "500", "429", "dropped", "timed out"],
            [0.92, 0.02, 0.03, 0.002, 0.02, 0.003],
        )
        self.answers[answer] += 1
        match answer:
            case "500":
                return web.Response(status=500)
            case "429":
                return web.Response(status=429, headers={"Retry-After": "1"})
            case "dropped":
                return None
            case "timed out":
                await asyncio.sleep(60)
                return None
            case "accepted, then dropped":
                return Unanswered(status=204)
        return web.Response(status=204)


def believed(receiver: HttpReceiver) -> set[str]:
    """The transactions that somebody who reads each message once, as it comes first, believes in."""
    open_: set[str] = set()
    for body in receiver.bodies:
        tx = body["subject"]["tx"]
        if body["kind"] == "alert":
            assert tx not in open_, f"{tx} was told twice"
            open_.add(tx)
        else:
            assert tx in open_, f"{tx} was retracted, but never told"
            open_.remove(tx)
    return open_


async def quiet(platform: Platform) -> None:
    """Nothing is left to compute, to build or to send."""
    left = (
        "select (select count(*) from tasks where stage < 2) + (select count(*) from replays)"
        " + (select count(*) from alert_handovers)"
        " + (select count(*) from dag_versions where state = 'building')"
        " + (select count(*) from alert_deliveries where state = 'waiting')"
    )

    async def nothing() -> bool:
        return bool(await platform.value(left) == 0)

    await until(nothing, what="quiet")


@pytest.mark.chaos
async def test_ten_thousand_alerts_arrive_each_once_and_history_is_silent(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", str(time.time_ns() % 1_000_000)))
    print(f"\nalerts with seed {seed}")
    draw = random.Random(seed)
    tmp_path.chmod(0o711)
    server = await asyncio.to_thread(EmbeddedPostgres.ensure, tmp_path / "postgres", die_with_parent=True)
    await migrate(server.state_url)
    settings = {
        "TRACEPLANE_OUTGOING_ALLOW": "127.0.0.0/8",
        "TRACEPLANE_DISPATCHER_RUNS_SINKS": "false",
        "TRACEPLANE_DISPATCHER_RUNS_DELIVERY": "false",
    }
    try:
        async with (
            http_receiver(Receiver(draw).decide) as receiver,
            Platform.start(
                server.state_url, tmp_path / "home", dispatchers=2, workers=0, environment=settings
            ) as platform,
        ):
            for name in ("sink-1", "delivery-1", "delivery-2"):
                await platform.add(name, name.partition("-")[0]).start()
            await run(platform, server, receiver, draw)
    finally:
        await asyncio.to_thread(server.destroy)


async def run(
    platform: Platform, server: EmbeddedPostgres, receiver: HttpReceiver, draw: random.Random
) -> None:
    await platform.sql(
        "insert into channels (org_id, name, config, changed_by) select org_id, 'chain', jsonb_build_object("
        "'kind', 'webhook', 'url', $1::text, 'per_second', 2000, 'burst', 200), 'test' from orgs",
        receiver.url,
    )
    await platform.deploy(alerting_dag("chain"))
    chain = Chain(draw)
    kills: Counter[str] = Counter()
    async with evaluating(platform, chain.finds):
        stop = asyncio.Event()
        chaos = asyncio.create_task(kill_at_random(platform, server, draw, stop, kills))
        started = time.monotonic()
        await grow(platform, chain, receiver)
        print(f"{len(receiver.accepted)} alerts in {time.monotonic() - started:.0f} s, kills: {dict(kills)}")
        assert len(receiver.accepted) == ALERTS
        assert believed(receiver) == set().union(*chain.blocks.values())
        for block in draw.choices(range(BLOCKS), k=REORGANIZED):
            await platform.emit("chain.in", [block], patient=True, emission=chain.reorganize(block))
            await asyncio.sleep(draw.uniform(0, 0.3))
        stop.set()
        await chaos
        await quiet(platform)
        kinds = Counter(body["kind"] for body in receiver.bodies)
        print(f"{REORGANIZED} reorganizations: {dict(kinds)}, {sum(receiver.came.values())} requests")
        assert believed(receiver) == set().union(*chain.blocks.values())
        await check_accounts(platform, receiver)
        await check_that_history_is_silent(platform, receiver)
    print(f"kills: {dict(sorted(kills.items()))}")


async def grow(platform: Platform, chain: Chain, receiver: HttpReceiver) -> None:
    for first in range(0, BLOCKS, 10):
        blocks = range(first, first + 10)
        for block in blocks:
            chain.grow(block)
        await platform.emit("chain.in", blocks, patient=True)
        await asyncio.sleep(0.3)

    async def arrived() -> bool:
        return len(receiver.accepted) >= ALERTS

    await until(arrived, what="all alerts arrived")


async def check_accounts(platform: Platform, receiver: HttpReceiver) -> None:
    """What the platform has recorded is what arrived."""
    rows = await platform.sql("select key, state, tries from alert_deliveries")
    assert {row["state"] for row in rows} <= {"delivered", "withdrawn"}
    assert {row["key"] for row in rows if row["state"] == "delivered"} == set(receiver.accepted)
    assert not any(row["tries"] for row in rows if row["state"] == "withdrawn")


async def check_that_history_is_silent(platform: Platform, receiver: HttpReceiver) -> None:
    before = await platform.value("select count(*) from alert_deliveries"), len(receiver.accepted)
    request = BackfillRequest("chain.large#alerts", 0, BLOCKS - 1, only="all")
    await platform.api.call("POST", "/api/v1/backfill", BackfillResponse, request)
    await quiet(platform)
    for least in (500, 1500):
        await platform.deploy(alerting_dag("chain", least=least))
        await quiet(platform)
    await platform.api.call("POST", "/api/v1/rollback", MovedResponse, RollbackRequest("chain"))
    await quiet(platform)
    assert (await platform.value("select count(*) from alert_deliveries"), len(receiver.accepted)) == before
    suppressed = await platform.sql("select suppressed, count(*) from alert_events group by 1 order by 1")
    print(
        f"after a backfill, two rebuilds and a rollback: nothing sent; {[tuple(row) for row in suppressed]}"
    )
    assert dict(map(tuple, suppressed))["backfill"] == BLOCKS
