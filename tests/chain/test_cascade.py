"""A reorg recomputes exactly what it changed, through every job: after any number of them, at any depth, with
workers killed at any moment, every dataset equals a build from scratch on the final chain.

Real processes and a simulated chain behind HTTP; what is expected is computed directly from the chain.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.chain.conftest import patient
from tests.operators.chain import busiest, token_volumes
from tests.platform import Platform, until
from traceplane.chain.extract import ALL_TABLES, fetch_range
from traceplane.chain.operators.announcements import Announcement
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.errors import UserError
from traceplane.wire.control import BackfillRequest, BackfillResponse
from traceplane.wire.deploys import DagName, DeployRequest, DeployResponse, MovedResponse, RollbackRequest

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "tests/chain/dag.yaml").read_text()
BATCH = 10
ORDER = ("block_number", "transaction_index", "log_index", "first_block", "token_address")


@dataclass
class Chain:
    """The example on one platform, its simulated chain, and the expected result."""

    platform: Platform
    node: Simulator
    name: str
    highest: int = field(init=False)
    """The greatest height that the chain ever had."""

    def __post_init__(self) -> None:
        self.highest = self.node.ledger.head

    async def deploy(self, kind: str = "erc20") -> None:
        """The example, or a version of it that sums up another kind of token."""
        yaml = EXAMPLE.replace("http://127.0.0.1:8545", self.node.url).replace(
            "dag: chain\n", f"dag: {self.name}\n"
        )
        yaml = yaml.replace("dataset: chain.", f"dataset: {self.name}.").replace("lease: 5s", "lease: 2s")
        yaml = yaml.replace("interval_seconds: 0.5", "interval_seconds: 0.05").replace(
            "base: 200ms", "base: 50ms"
        )
        if kind != "erc20":
            yaml = yaml.replace('chain:volumes"', f'chain:volumes", kind: {kind}')
        request = DeployRequest(yaml, manual_cutover=True)
        assert (await self.platform.api.call("POST", "/api/v1/deploy", DeployResponse, request)).changed

    def mine(self, blocks: int) -> None:
        self.node.ledger.mine(blocks)
        self.highest = max(self.highest, self.node.ledger.head)

    def fork(self, depth: int, new_length: int) -> None:
        self.node.ledger.fork(depth, new_length)
        self.highest = max(self.highest, self.node.ledger.head)

    def complete_last_batch(self) -> None:
        """Extends the chain beyond its greatest height, to the end of a range, as builds from scratch require."""
        self.mine(self.highest - self.node.ledger.head + BATCH - self.highest % BATCH - 1)

    # What the platform made of it ------------------------------------------------------------------

    async def said(self) -> dict[int, str | None]:
        """The follower's latest announcement of each height: a hash, or None for an orphaned block."""
        rows = await self.platform.sql(
            "select distinct on (range_start) range_start, emission, kind::text from events"
            " join datasets using (dataset_uuid) where dataset_id = $1 order by range_start, event_id desc",
            f"{self.name}.head",
        )
        return {r[0]: Announcement.read(*r).hash for r in rows}

    async def settled(self, seconds: float = 240) -> None:
        """Waits until the latest announcement of every height is true and all tasks have finished."""
        ledger = self.node.ledger

        async def announced() -> bool:
            canonical = {n: "0x" + ledger.hash(n).hex() for n in range(ledger.head + 1)}
            heights = await self.said()
            return {n: h for n, h in heights.items() if h is not None} == canonical

        await until(announced, seconds=seconds, what=f"{self.name}: every height is announced")

        async def done() -> bool:
            return not await self.platform.value(
                "select count(*) from tasks t join jobs j using (job_id) join dags d using (dag_id)"
                " where d.name = $1 and j.activation <> 'source' and t.state in ('queued', 'dispatched', 'running')",
                self.name,
            )

        await until(done, seconds=seconds, what=f"{self.name}: all tasks finished")

    async def tasks_since(self, mark: int) -> dict[str, Counter[tuple[int, int]]]:
        """How often each scope of each job ran for events after the mark."""
        rows = await self.platform.sql(
            "select j.name, t.range_start, t.range_end, t.state::text from tasks t join jobs j using (job_id)"
            " join dags d using (dag_id) join task_inputs i using (task_id) where d.name = $1 and i.event_id > $2",
            self.name,
            mark,
        )
        assert {r[3] for r in rows} <= {"completed"}
        by_job: dict[str, Counter[tuple[int, int]]] = {}
        for name, start, end, _ in rows:
            by_job.setdefault(name, Counter())[start, end] += 1
        return by_job

    async def mark(self) -> int:
        return int(await self.platform.value("select coalesce(max(event_id), 0) from events"))

    async def rows_of(self, dataset: str) -> list[dict[str, Any]]:
        commits = await self.platform.sql(
            "select c.files, c.hidden from dataset_commits c"
            " join datasets d on d.current_generation_id = c.generation_id"
            " where d.dataset_id = $1 and c.superseded_by is null",
            f"{self.name}.{dataset}",
        )
        store = self.platform.folder / "objects"
        tables = [
            without(parquet.read_table(store / file["path"]), hidden or [])
            for files, hidden in commits
            for file in json.loads(files)
        ]
        return in_order(tables)

    async def assert_equals_a_build_from_scratch(self, kind: str = "erc20") -> None:
        head = self.node.ledger.head
        async with RpcClient(patient(self.node.url)) as client:
            tables = await fetch_range(client, 0, head, ALL_TABLES)
        transfers = tables["token_transfers"]
        ranges = [(start, start + BATCH - 1) for start in range(0, head + 2 - BATCH, BATCH)]
        sums = [token_volumes(within(transfers, *scope), *scope, kind) for scope in ranges]
        expected = {name: [table] for name, table in tables.items()}
        expected |= {"volumes": sums, "top_tokens": [busiest(table) for table in sums], "discrepancies": []}
        for name, rows in expected.items():
            assert await self.rows_of(name) == in_order(rows), f"{self.name}.{name}"


def without(table: pa.Table, hidden: list[asyncpg.Range]) -> pa.Table:
    """A commit's rows, without the blocks that newer commits replaced."""
    if not hidden:
        return table
    hidden_blocks = {n for r in hidden for n in range(r.lower, r.upper)}
    return table.filter(
        pa.array([number not in hidden_blocks for number in table["block_number"].to_pylist()])
    )


def within(table: pa.Table, first: int, last: int) -> pa.Table:
    numbers = table["block_number"].to_pylist()
    return table.filter(pa.array([first <= number <= last for number in numbers]))


def in_order(tables: list[pa.Table]) -> list[dict[str, Any]]:
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: [row.get(name, 0) for name in ORDER if name in row])


@asynccontextmanager
async def chains(
    url: str, folder: Path, *seeds: int, blocks: int = 14, **environment: str
) -> AsyncIterator[list[Chain]]:
    """One platform, and on it the example for each seed, each on its own chain."""
    settings = {
        "TRACEPLANE_WORKER_CODE_PATHS": str(ROOT),
        "TRACEPLANE_WORKER_CONCURRENCY": str(2 + 2 * len(seeds)),
        "TRACEPLANE_OPERATOR_NETWORK_ALLOW": "127.0.0.1",
        **environment,
    }
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(serve(seed=seed, blocks=blocks, transactions_per_block=3))
            for seed in seeds
        ]
        platform = await stack.enter_async_context(Platform.start(url, folder, environment=settings))
        all_chains = [Chain(platform, node, f"chain{seed}") for seed, node in zip(seeds, nodes, strict=True)]
        for chain in all_chains:
            await chain.deploy()
        yield all_chains


def ranges_of(first: int, last: int) -> set[tuple[int, int]]:
    return {(n // BATCH * BATCH, n // BATCH * BATCH + BATCH - 1) for n in range(first, last + 1)}


async def test_a_reorg_recomputes_exactly_the_affected_scopes(database_url: str, tmp_path: Path) -> None:
    async with chains(database_url, tmp_path, 1, blocks=19) as (chain,):
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()
        for depth in (1, 4, 13):
            mark, head = await chain.mark(), chain.node.ledger.head
            chain.fork(depth, depth)
            await chain.settled()
            first = head - depth + 1
            ran = await chain.tasks_since(mark)
            assert ran.pop("ingest") == Counter((n, n) for n in range(first, head + 1))
            for batches in ("volumes__batch", "check__batch"):
                assert set(ran.pop(batches)) == {(n, n) for n in range(first, head + 1)}
            assert {name: set(scopes) for name, scopes in ran.items()} == {
                name: ranges_of(first, head) for name in ("volumes", "top_tokens", "check")
            }
            await chain.assert_equals_a_build_from_scratch()


async def test_a_shorter_chain_retracts_blocks_that_it_does_not_reach(
    database_url: str, tmp_path: Path
) -> None:
    async with chains(database_url, tmp_path, 2) as (chain,):
        await chain.settled()
        assert await chain.platform["worker-1"].stop() == 0  # its source does not keep it from stopping
        chain.fork(9, 2)
        await chain.platform["worker-1"].start()
        await chain.settled()
        assert len(await chain.rows_of("blocks")) == chain.node.ledger.head + 1
        chain.complete_last_batch()
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()


async def test_reorgs_during_an_outage_of_the_worker_are_found(database_url: str, tmp_path: Path) -> None:
    async with chains(database_url, tmp_path, 3) as (chain,):
        await chain.settled()
        worker = chain.platform["worker-1"]
        await worker.kill()
        chain.fork(11, 3)
        chain.mine(9)
        chain.fork(5, 7)
        mark = await chain.mark()
        await worker.start()
        await chain.settled()
        ran = await chain.tasks_since(mark)
        assert set(ran["ingest"]) == {(n, n) for n in range(14 - 11 + 1, chain.node.ledger.head + 1)}
        assert set(ran["ingest"].values()) == {1}
        chain.complete_last_batch()
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()


async def test_a_reorg_within_backfilled_ranges(database_url: str, tmp_path: Path) -> None:
    """Blocks of a wider commit are rewritten one by one; readers get the newest of each."""
    async with chains(database_url, tmp_path, 4, blocks=19) as (chain,):
        await chain.settled()
        request = BackfillRequest(f"{chain.name}.blocks", 0, 19, only="all", partition_size=7)
        started = await chain.platform.api.call("POST", "/api/v1/backfill", BackfillResponse, request)
        assert started.created == 3
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()
        chain.fork(9, 9)
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()


async def test_a_changed_job_is_rebuilt_with_its_downstream_while_the_chain_grows(
    database_url: str, tmp_path: Path
) -> None:
    async with chains(database_url, tmp_path, 5, blocks=29) as (chain,):
        await chain.settled()

        async def ingested() -> int:
            return await chain.platform.value(
                "select count(*) from tasks join jobs using (job_id) where name = 'ingest'"
            )

        before = await ingested()
        await chain.deploy(kind="erc721")
        await chain.assert_equals_a_build_from_scratch()  # serves the old data
        chain.fork(7, 17)

        async def cut_over() -> bool:
            try:
                await chain.platform.api.call("POST", "/api/v1/cutover", MovedResponse, DagName(chain.name))
            except UserError as error:
                if error.code != "deploy.not_caught_up":
                    raise
                return False
            return True

        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()  # still does, though the chain grew
        await until(cut_over, seconds=120, what="the new version serves")
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch(kind="erc721")
        assert await ingested() == before + 17  # unchanged blocks were not computed again
        await chain.platform.api.call(
            "POST", "/api/v1/rollback", MovedResponse, RollbackRequest(chain.name, drop_missing=True)
        )
        await chain.settled()

        async def caught_up() -> bool:
            return not await chain.platform.value("select count(*) from replays")

        await until(caught_up, what="all replays are done")
        await chain.settled()
        await chain.assert_equals_a_build_from_scratch()


async def live(chain: Chain, draw: random.Random, steps: int) -> None:
    """Blocks and forks, at random moments."""
    for _ in range(steps):
        if draw.random() < 0.5:
            chain.mine(draw.randint(1, 4))
        else:
            depth = draw.randint(1, min(chain.node.ledger.head, draw.choice((2, 6, 25))))
            chain.fork(depth, max(1, depth + draw.randint(-4, 3)))
        await asyncio.sleep(draw.choice((0.0, 0.05, 0.3, 0.8)))


async def kill_at_random(
    platform: Platform, draw: random.Random, stop: asyncio.Event, names: list[str]
) -> None:
    while not stop.is_set():
        await asyncio.sleep(draw.uniform(0.1, 2.0))
        name = draw.choice(names)
        await platform[name].kill()
        await asyncio.sleep(draw.choice((0.0, 0.2, 1.0)))
        await platform[name].start()


async def random_lives(url: str, folder: Path, seeds: range, *, steps: int, names: list[str]) -> None:
    draw = random.Random(seeds.start)
    async with chains(url, folder, *seeds, blocks=9) as all_chains:
        stop = asyncio.Event()
        killer = asyncio.create_task(kill_at_random(all_chains[0].platform, draw, stop, names))
        await asyncio.gather(*(live(chain, random.Random(chain.name), steps) for chain in all_chains))
        stop.set()
        await killer
        for chain in all_chains:
            chain.complete_last_batch()
        for chain in all_chains:
            await chain.settled(seconds=600)
            await chain.assert_equals_a_build_from_scratch()


async def test_any_history_ends_equal_to_a_build_from_scratch(database_url: str, tmp_path: Path) -> None:
    await random_lives(database_url, tmp_path, range(100, 102), steps=8, names=["worker-1"])


GROUP = 10
"""Histories that share a platform: they mostly wait, for kills and for each other's blocks."""
SEEDS = int(os.environ.get("CHAIN_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("CHAIN_FIRST_SEED", "1000"))


@pytest.mark.chaos
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, GROUP))
async def test_any_history_under_random_kills(first: int, database_url: str, tmp_path: Path) -> None:
    seeds = range(first, min(first + GROUP, FIRST_SEED + SEEDS))
    await random_lives(database_url, tmp_path, seeds, steps=20, names=["worker-1", "dispatcher-1"])
