"""Minutes of random SIGKILLs of every process, and of Postgres, under load; then the accounts must be exact."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.dags import dag, job, source
from tests.platform import Platform, until
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate

DAG = dag(
    "chaos",
    source(),
    job("copy", "in", "mid", "scaling: {max_concurrency: 6}"),
    job("add_one", "mid", "out", "max_queue_depth: 40", entrypoint="basic:add_one"),
    job("sums", "out", "sums", "execution_strategy: Bulk", "batch: {size: 10}", entrypoint="basic:sum_range"),
    defaults="{lease: 2s, retry: {base: 100ms, max: 1s}, max_attempts: 50}",
)


@pytest.mark.chaos
async def test_random_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    seconds = float(os.environ.get("CHAOS_SECONDS", "150"))
    seed = int(os.environ.get("CHAOS_SEED", str(time.time_ns() % 1_000_000)))
    print(f"\nchaos for {seconds:.0f} s with seed {seed}")
    draw = random.Random(seed)
    tmp_path.chmod(0o711)
    server = await asyncio.to_thread(EmbeddedPostgres.ensure, tmp_path / "postgres", die_with_parent=True)
    await migrate(server.state_url)
    try:
        async with Platform.start(server.state_url, tmp_path / "home", dispatchers=2, workers=2) as platform:
            await platform.deploy(DAG)
            stop = asyncio.Event()
            kills: Counter[str] = Counter()
            chaos = asyncio.create_task(kill_at_random(platform, server, draw, stop, kills))
            emitted = await emit_for(platform, seconds)
            stop.set()
            await chaos
            await platform.settled(seconds=240)
            await account(platform, emitted, kills)
    finally:
        await asyncio.to_thread(server.destroy)


async def emit_for(platform: Platform, seconds: float) -> int:
    """A careful producer: repeats each call until it is answered, and some calls for no reason."""
    deadline = time.monotonic() + seconds
    cursor = accepted = 0
    while time.monotonic() < deadline:
        answer = await platform.emit("in", range(cursor, cursor + 5), patient=True)
        accepted += answer.accepted
        if cursor % 50 == 0:
            repeated = await platform.emit("in", range(cursor, cursor + 5), patient=True)
            assert repeated.accepted == 0, "an event was accepted twice"
        cursor += 5
        await asyncio.sleep(0.25)
    full = -(-cursor // 10) * 10  # so that the last range fills up
    await platform.emit("in", range(cursor, full + 10), patient=True)
    return full + 10


async def kill_at_random(
    platform: Platform,
    server: EmbeddedPostgres,
    draw: random.Random,
    stop: asyncio.Event,
    kills: Counter[str],
) -> None:
    next_outage = time.monotonic() + 15
    while not stop.is_set():
        await asyncio.sleep(draw.uniform(0.3, 2.5))
        if time.monotonic() > next_outage:
            kills["postgres"] += 1
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(draw.uniform(0.0, 1.0))
            await asyncio.to_thread(
                EmbeddedPostgres.ensure, server.folder, settings=server.settings, die_with_parent=True
            )
            next_outage = time.monotonic() + draw.uniform(15, 30)
            continue
        name = draw.choice(sorted(platform.processes))
        kills[name] += 1
        await platform[name].kill()
        await asyncio.sleep(draw.uniform(0.0, 1.0))
        await platform[name].start()
    for process in platform.processes.values():
        if not process.alive:
            await process.start()
    await platform.ready()


async def account(platform: Platform, emitted: int, kills: Counter[str]) -> None:
    states = await platform.states()
    attempts = await platform.value("select count(*) from tasks where attempt > 1")
    print(f"kills: {dict(sorted(kills.items()))}")
    print(f"events emitted: {emitted}; tasks: {states}; tasks that needed another attempt: {attempts}")
    ranges = emitted // 10
    expected = {"numbers": 0, "copy": emitted, "add_one": emitted, "sums__batch": emitted, "sums": ranges}
    for name, count in expected.items():
        assert (await platform.states(name)) == ({"completed": count} if count else {}), name
    assert await platform.value("select count(*) from events where kind = 'data'") == 3 * emitted + 2 * ranges
    twice = await platform.sql(
        "select generation_id, scope_key, count(*) from dataset_commits group by 1, 2 having count(*) > 1"
    )
    assert twice == [], "a scope was committed twice"
    rows = await platform.sql(
        "select d.dataset_id, c.files from dataset_commits c join generations using (generation_id)"
        " join datasets d using (dataset_uuid) order by c.range_start"
    )
    root = platform.folder / "objects"
    data: dict[str, list[dict]] = {}
    for row in rows:
        for file in json.loads(row["files"]):
            data.setdefault(row["dataset_id"], []).extend(parquet.read_table(root / file["path"]).to_pylist())
    assert data["mid"] == [{"position": n} for n in range(emitted)]
    assert data["out"] == [{"position": n, "plus_one": n + 1} for n in range(emitted)]
    assert data["sums"] == [
        {"first": n, "last": n + 9, "sum": sum(range(n + 1, n + 11))} for n in range(0, emitted, 10)
    ]
    print(f"every one of {emitted} events processed, {len(rows)} outputs committed once, no task stuck")

    async def nothing_left() -> bool:
        return await platform.value("select count(*) from outbox") == 0

    await until(nothing_left, what="the outbox is empty")
