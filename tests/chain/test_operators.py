"""The chain operators against a simulated chain, as the sandbox would call them, without a platform."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.chain.conftest import patient
from traceplane.chain.answers import Header
from traceplane.chain.extract import ALL_TABLES, fetch_range
from traceplane.chain.operators import block_follower, integrity_check, range_ingest
from traceplane.chain.operators.announcements import Announcement, Announcements
from traceplane.chain.operators.config import TABLES, ClientConfig, FollowerConfig
from traceplane.chain.rpc import RpcClient, RpcSettings
from traceplane.chain.simulated.ledger import Ledger
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.model.task_payload import DeclaredOutput, OperatorInput, TaskPayload
from traceplane.operators import catalog
from traceplane.registry import job_checks
from traceplane.registry.spec import dag_file
from traceplane.sdk import OperatorError, OperatorTask, Partition

QUICK = {"backoff_seconds": 0.001, "rest_seconds": 0.01, "attempts": 3}


# --- the follower -----------------------------------------------------------------------------------


class Killed(Exception):
    pass


class Platform:
    """Accepts events as the platform does, once per height, kind and emission, and remembers the latest ones."""

    def __init__(self, remembered: int = block_follower.REMEMBERED) -> None:
        self.events: list[tuple[int, str, str]] = []
        self.budget: int | None = None
        self.remembered = remembered

    def accept(self, events: list[dict[str, Any]], wait: bool) -> None:
        assert wait
        for event in events:
            if self.budget is not None:
                if self.budget == 0:
                    raise Killed
                self.budget -= 1
            accepted = (event["scope"]["cursor"], event["emission"], event["kind"])
            assert accepted not in self.events, "an announcement was repeated"
            self.events.append(accepted)

    def last(self) -> dict[int, tuple[int, str, str]]:
        return {event[0]: event for event in self.events}

    def task(self, url: str, **config: Any) -> OperatorTask:
        resume = sorted(self.last().values(), reverse=True)[: self.remembered]
        return OperatorTask(
            task_id="t",
            attempt=1,
            payload=TaskPayload(
                config={"endpoints": [url], "interval_seconds": 0.001, **QUICK, **config},
                outputs=(DeclaredOutput("head"),),
                resume=tuple(resume),
            ),
            output_folders={"head": "/nowhere"},
            temp_dir="/nowhere",
            stream=self.accept,
        )

    def standing(self) -> dict[int, str]:
        announcements = [Announcement.read(*event) for event in self.last().values()]
        return {one.number: one.hash for one in announcements if one.hash is not None}


def canonical(ledger: Ledger, start: int = 0) -> dict[int, str]:
    return {n: "0x" + ledger.hash(n).hex() for n in range(start, ledger.head + 1)}


async def follow_until(platform: Platform, node: Simulator, expected: dict[int, str], **config: Any) -> None:
    """Runs a follower until its announcements are the expected ones."""

    async def reached() -> None:
        while platform.standing() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async with RpcClient(patient(node.url)) as client:
        task = platform.task(node.url, **config)
        settings = FollowerConfig(endpoints=(node.url,), interval_seconds=0.001, **config)
        following = asyncio.ensure_future(block_follower.Follower(task, client, settings).run())
        waiting = asyncio.ensure_future(asyncio.wait_for(reached(), 20))
        try:
            await asyncio.wait((following, waiting), return_when=asyncio.FIRST_COMPLETED)
            (following if following.done() else waiting).result()
        finally:
            following.cancel()
            waiting.cancel()
            await asyncio.gather(following, waiting, return_exceptions=True)


async def test_each_block_is_announced_once_with_its_hash(node: Simulator) -> None:
    platform = Platform()
    await follow_until(platform, node, canonical(node.ledger))
    assert platform.events == [(n, h, "data") for n, h in canonical(node.ledger).items()]
    node.ledger.mine(3)
    await follow_until(platform, node, canonical(node.ledger))
    assert platform.events == [(n, h, "data") for n, h in canonical(node.ledger).items()]


async def test_it_begins_at_start_and_stays_behind_the_head(node: Simulator) -> None:
    platform = Platform()
    expected = {n: h for n, h in canonical(node.ledger).items() if 10 <= n <= 38}
    await follow_until(platform, node, expected, start=10, confirmations=2)
    assert platform.standing() == expected


@pytest.mark.parametrize(("depth", "length"), [(1, 1), (1, 4), (7, 7), (7, 12), (40, 41)])
async def test_a_reorg_while_it_was_down_is_announced_once_per_changed_block(
    depth: int, length: int, node: Simulator
) -> None:
    platform = Platform()
    await follow_until(platform, node, canonical(node.ledger))
    before = len(platform.events)
    node.ledger.fork(depth, length)
    await follow_until(platform, node, canonical(node.ledger))
    changed = range(40 - depth + 1, node.ledger.head + 1)
    expected = canonical(node.ledger)
    kinds = ["invalidation" if n <= 40 else "data" for n in changed]
    assert platform.events[before:] == [
        (n, expected[n], kind) for n, kind in zip(changed, kinds, strict=True)
    ]


async def test_heights_that_a_shorter_chain_lacks_are_orphaned_and_come_back(node: Simulator) -> None:
    platform = Platform()
    old = canonical(node.ledger)
    await follow_until(platform, node, old)
    node.ledger.fork(6, 2)
    await follow_until(platform, node, canonical(node.ledger))
    orphaned = [event for event in platform.events if event[1].startswith("orphaned:")]
    assert orphaned == [(n, f"orphaned:{old[n]}", "invalidation") for n in (40, 39, 38, 37)]
    node.ledger.mine(4)
    await follow_until(platform, node, canonical(node.ledger))
    assert platform.events[-4:] == [(n, f"{canonical(node.ledger)[n]}#2", "data") for n in range(37, 41)]


async def test_a_reorg_deeper_than_the_record_is_announced_from_its_oldest_block(node: Simulator) -> None:
    platform = Platform(remembered=8)
    await follow_until(platform, node, canonical(node.ledger))
    unchanged = {n: h for n, h in canonical(node.ledger).items() if n < 33}
    node.ledger.fork(20, 20)
    expected = unchanged | {n: h for n, h in canonical(node.ledger).items() if n >= 33}
    await follow_until(platform, node, expected)
    assert [event[0] for event in platform.events[41:]] == list(range(33, 41))


class FickleNode:
    """A node that switches chains at any moment, even between two calls, also back to a chain it had before."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.chain: list[str] = ["genesis"]
        self.abandoned: list[list[str]] = []
        self.restless = 0.0
        self.mine(12)

    def mine(self, blocks: int) -> None:
        self.chain = [*self.chain, *(f"0x{self.draw.getrandbits(64):016x}" for _ in range(blocks))]

    def change(self) -> None:
        draw, old = self.draw, self.chain
        match draw.randrange(4):
            case 0:
                self.mine(draw.randint(1, 3))
                return
            case 1 if self.abandoned:
                self.chain = draw.choice(self.abandoned)
            case _:
                self.chain = old[: -draw.randint(1, min(10, len(old) - 1))]
                self.mine(draw.randint(1, 8))
        self.abandoned.append(old)

    async def head(self) -> int:
        if self.draw.random() < self.restless:
            self.change()
        return len(self.chain) - 1

    async def headers(self, numbers: Sequence[int]) -> list[Header | None]:
        if self.draw.random() < self.restless:
            self.change()
        return [
            Header(hex(n), self.chain[n], self.chain[n - 1] if n else "") if n < len(self.chain) else None
            for n in numbers
        ]


@pytest.mark.parametrize("seed", range(150))
async def test_a_follower_killed_at_any_announcement_announces_the_truth_in_the_end(seed: int) -> None:
    """The chain grows, shrinks, forks and returns, between the runs and during them; none announces anything twice."""
    draw = random.Random(seed)
    node, platform = FickleNode(draw), Platform()
    for _ in range(12):
        platform.budget, node.restless = draw.randint(0, 9), draw.choice((0.0, 0.1, 0.4))
        follower = follower_of(platform, node)
        with suppress(Killed):
            record = await follower.resume()
            for _ in range(draw.randint(1, 6)):
                await follower.step(record)
        for _ in range(draw.randint(0, 2)):
            node.change()
    platform.budget, node.restless = None, 0.0
    node.mine(1)
    follower = follower_of(platform, node)
    record = await follower.resume()
    for _ in range(6):
        await follower.step(record)
    assert platform.standing() == dict(enumerate(node.chain))


def follower_of(platform: Platform, node: FickleNode) -> block_follower.Follower:
    task = platform.task("http://unused")
    return block_follower.Follower(task, node, FollowerConfig(endpoints=("http://a",), interval_seconds=1e-6))  # type: ignore[arg-type]


def test_a_chain_that_returns_to_a_block_is_not_taken_for_a_repetition() -> None:
    announcements, emitted = Announcements(), set()
    for block_hash in itertools.islice(itertools.cycle(["0xa", "0xb"]), 7):
        announcement = announcements.of_block(5, block_hash)
        assert announcement is not None
        assert (announcement.kind, announcement.emission) not in emitted
        emitted.add((announcement.kind, announcement.emission))
        announcements.add(announcement, keep=10)
        assert announcements.of_block(5, block_hash) is None
        assert Announcement.read(5, announcement.emission, announcement.kind) == announcement


# --- the ingest -------------------------------------------------------------------------------------


def ingest_task(node: Simulator, folder: Path, scope: dict[str, Any], **changes: Any) -> OperatorTask:
    names = changes.pop("tables", ALL_TABLES)
    config = {"endpoints": [node.url], "patience_seconds": 0.01, **QUICK, **changes.pop("config", {})}
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    return OperatorTask(
        task_id="t",
        attempt=1,
        payload=msgspec.convert(
            {"config": config, "outputs": [{"name": name} for name in names], **scope, **changes}, TaskPayload
        ),
        output_folders={name: str(folder / name) for name in names},
        temp_dir=str(folder),
    )


async def ingest(task: OperatorTask) -> dict[str, pa.Table]:
    await asyncio.to_thread(range_ingest.run, task)
    result = {}
    for name, output in task.outputs.items():
        files = [output.folder / file.name for file in task.written[name].files]
        result[name] = pa.concat_tables([parquet.read_table(file) for file in files])
    return result


async def test_a_range_is_written_in_chunks_and_equals_the_chain(node: Simulator, tmp_path: Path) -> None:
    scope = {"partition": {"name": "3-20", "start": 3, "end": 20}}
    task = ingest_task(node, tmp_path, scope, config={"chunk_blocks": 4})
    result = await ingest(task)
    async with RpcClient(patient(node.url)) as client:
        assert result == await fetch_range(client, 3, 20)
    assert len(task.written["blocks"].files) == 5
    assert result["logs"]["block_number"].to_pylist() == sorted(result["logs"]["block_number"].to_pylist())


async def test_a_subset_of_tables_fetches_only_what_it_needs(node: Simulator, tmp_path: Path) -> None:
    result = await ingest(ingest_task(node, tmp_path, {"cursor": 7}, tables=("blocks",)))
    assert result["blocks"]["block_number"].to_pylist() == [7]
    assert set(node.calls) == {"eth_blockNumber", "eth_getBlockByNumber"}


def hash_of(node: Simulator, number: int) -> str:
    return "0x" + node.ledger.hash(number).hex()


async def test_the_block_that_the_event_names_is_written(node: Simulator, tmp_path: Path) -> None:
    block_hash = hash_of(node, 9)
    result = await ingest(ingest_task(node, tmp_path, {"cursor": 9}, emission=block_hash))
    assert result["blocks"]["block_hash"].to_pylist() == [block_hash]
    assert "eth_getBlockByHash" not in node.calls


async def test_a_chain_that_moved_on_is_written_as_it_is_now(node: Simulator, tmp_path: Path) -> None:
    abandoned = hash_of(node, 40)
    node.ledger.fork(3, 3)
    result = await ingest(ingest_task(node, tmp_path, {"cursor": 40}, emission=abandoned))
    assert result["blocks"]["block_hash"].to_pylist() == [hash_of(node, 40)]


async def test_a_chain_that_became_shorter_is_written_as_empty(node: Simulator, tmp_path: Path) -> None:
    abandoned = hash_of(node, 40)
    node.ledger.fork(3, 1)
    for folder, emission, kind in (
        ("a", abandoned, "data"),
        ("b", f"orphaned:{abandoned}#3", "invalidation"),
    ):
        (tmp_path / folder).mkdir()
        task = ingest_task(node, tmp_path / folder, {"cursor": 40}, emission=emission, kind=kind)
        result = await ingest(task)
        assert {name: (table.num_rows, table.schema) for name, table in result.items()} == {
            name: (0, result[name].schema) for name in ALL_TABLES
        }


@pytest.mark.parametrize("number", [40, 41])
async def test_a_node_that_does_not_know_the_block_is_not_believed(
    number: int, node: Simulator, tmp_path: Path
) -> None:
    task = ingest_task(node, tmp_path, {"cursor": number}, emission="0x" + "ab" * 32)
    with pytest.raises(OperatorError) as refused:
        await ingest(task)
    assert refused.value.code == "chain.rpc_inconsistent"
    assert node.url in str(refused.value)
    assert not task.written


async def test_a_node_that_still_has_the_orphaned_block_is_not_believed(
    node: Simulator, tmp_path: Path
) -> None:
    orphaned = f"orphaned:{hash_of(node, 40)}"
    with pytest.raises(OperatorError, match="does not know"):
        await ingest(ingest_task(node, tmp_path, {"cursor": 40}, emission=orphaned, kind="invalidation"))


async def test_it_waits_for_a_node_that_will_soon_know_the_block(
    node: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_ingest, "_PAUSE_SECONDS", 0.01)
    async with serve(seed=3, blocks=41) as ahead:
        task = ingest_task(
            node, tmp_path, {"cursor": 41}, emission=hash_of(ahead, 41), config={"patience_seconds": 10}
        )
        working = asyncio.ensure_future(ingest(task))
        while not node.calls.get("eth_getBlockByHash"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        node.ledger.mine(1)
        assert hash_of(node, 41) == hash_of(ahead, 41)
        assert (await working)["blocks"]["block_number"].to_pylist() == [41]


async def test_a_backfill_beyond_the_head_fails_and_an_invalidated_range_ends_at_it(
    node: Simulator, tmp_path: Path
) -> None:
    scope = {"partition": {"name": "38-45", "start": 38, "end": 45}}
    with pytest.raises(OperatorError) as refused:
        await ingest(ingest_task(node, tmp_path, scope))
    assert refused.value.code == "chain.beyond_head"
    result = await ingest(ingest_task(node, tmp_path, scope, kind="invalidation", tables=("blocks",)))
    assert result["blocks"]["block_number"].to_pylist() == [38, 39, 40]


async def test_an_error_names_the_endpoint_and_no_credentials(tmp_path: Path, node: Simulator) -> None:
    config = {"endpoints": ["http://user:secret@127.0.0.1:9/v3/KEY"], **QUICK}
    with pytest.raises(OperatorError) as failed:
        await ingest(ingest_task(node, tmp_path, {"cursor": 1}, config=config))
    assert failed.value.code == "chain.rpc_unavailable"
    assert "http://127.0.0.1:9" in str(failed.value)
    assert "secret" not in str(failed.value)
    assert "KEY" not in str(failed.value)


# --- the check --------------------------------------------------------------------------------------


async def discrepancies(
    node: Simulator, folder: Path, tables: dict[str, pa.Table], first: int, last: int
) -> list[tuple[Any, ...]]:
    inputs = []
    for name, table in tables.items():
        parquet.write_table(table, folder / f"{name}.parquet")
        inputs.append(OperatorInput(name, (str(folder / f"{name}.parquet"),)))
    task = OperatorTask(
        task_id="t",
        attempt=1,
        payload=TaskPayload(
            partition=Partition("p", first, last),
            config={"endpoints": [node.url], "chunk_blocks": 3, **QUICK},
            inputs=tuple(inputs),
            outputs=(DeclaredOutput("found"),),
        ),
        output_folders={"found": str(folder)},
        temp_dir=str(folder),
    )
    await asyncio.to_thread(integrity_check.run, task)
    rows = parquet.read_table(folder / "part-00000.parquet")
    assert rows.schema.equals(integrity_check.DISCREPANCIES)
    return [
        (r["block_number"], r["table_name"], r["problem"], r["expected"], r["found"])
        for r in rows.to_pylist()
    ]


async def test_rows_equal_to_the_chain_have_no_discrepancies(node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 10, 19)
    assert await discrepancies(node, tmp_path, tables, 10, 19) == []


async def test_every_discrepancy_is_a_row(node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 34, 40, ("blocks", "logs"))
    old = hash_of(node, 40)
    logs_of_35 = tables["logs"]["block_number"].to_pylist().count(35)
    first_of_35 = tables["logs"]["block_number"].to_pylist().index(35)
    damaged = {
        "blocks": pa.concat_tables([tables["blocks"].slice(0, 2), tables["blocks"].slice(3)]),
        "logs": pa.concat_tables(
            [tables["logs"].slice(0, first_of_35), tables["logs"].slice(first_of_35 + 1)]
        ),
    }
    node.ledger.fork(1, 1)
    result = await discrepancies(node, tmp_path, {name: damaged[name] for name in ("blocks", "logs")}, 34, 40)
    assert (35, "logs", "wrong_count", str(logs_of_35), str(logs_of_35 - 1)) in result
    assert (36, "blocks", "wrong_count", "1", "0") in result
    assert (40, "blocks", "wrong_hash", hash_of(node, 40), old) in result
    assert {row[0] for row in result} == {35, 36, 40}
    result = await discrepancies(node, tmp_path, {"blocks": tables["blocks"]}, 34, 38)
    assert result == [(n, "blocks", "outside_scope", None, "1") for n in (39, 40)]


async def test_rows_that_the_chain_does_not_reach_are_discrepancies(node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 36, 40, ("blocks",))
    node.ledger.fork(3, 1)
    result = await discrepancies(node, tmp_path, tables, 36, 40)
    assert [row[:3] for row in result] == [
        (38, "blocks", "wrong_hash"),
        (39, "blocks", "beyond_head"),
        (40, "blocks", "beyond_head"),
    ]


# --- deploy -----------------------------------------------------------------------------------------

JOB = """
version: 1
dag: d
jobs:
- name: j
  runtime: python
"""
FOLLOWER = JOB + "  activation: source\n  source: {kind: always_on}\n  operator: block_follower\n"
INGEST = JOB + "  operator: range_ingest\n  inputs: [{from: {dataset: x}}]\n"
CHECK = JOB + "  operator: integrity_check\n  outputs: [{dataset: y}]\n"
NODE = "  config: {endpoints: [http://node.example]"


def refused() -> Iterator[tuple[str, str]]:
    one = "  outputs: [{dataset: y}]\n"
    yield FOLLOWER + one, "config.endpoints is missing"
    yield FOLLOWER + one + "  config: {endpoints: []}\n", "a list of at least 1"
    yield FOLLOWER + one + "  config: {endpoints: [ftp://x]}\n", "an http or https URL"
    yield FOLLOWER + one + NODE + ", start: -1}\n", "start"
    yield FOLLOWER + one + NODE + ", chain: dogechain}\n", "chain must be one of arbitrum, base"
    yield FOLLOWER + one + NODE + ", chain: ethereum, chain_id: 5}\n", "chain_id of ethereum must be 1"
    yield FOLLOWER + one + NODE + ", begin: 1}\n", "no field 'begin'"
    yield FOLLOWER + one + NODE + ", batch_size: many}\n", "batch_size"
    yield (
        FOLLOWER + "  outputs: [{dataset: y}, {dataset: z}]\n" + NODE + "}\n",
        "it needs 1 output, but the job has 2",
    )
    executed = FOLLOWER.replace("always_on", "pipeline")
    yield executed + one + NODE + "}\n", "always runs"
    yield INGEST + one + NODE + "}\n", "one of: blocks, transactions, receipts"
    yield INGEST + NODE + "}\n", "one of: blocks, transactions, receipts"
    yield (
        CHECK + "  inputs: [{from: {dataset: x}}]\n" + NODE + "}\n",
        "one of: blocks, transactions, receipts",
    )


@pytest.mark.parametrize(("text", "part"), [*refused()])
def test_an_invalid_job_is_rejected_at_deploy(text: str, part: str) -> None:
    dag = dag_file.parse(text, "f", known_runtimes=frozenset(DEFAULT_RUNTIMES))
    result = [*job_checks.operator_faults(dag.jobs[0], dag, DEFAULT_RUNTIMES)]
    assert {fault.code for fault in result} == {"deploy.config_invalid"}
    assert part in " ".join(f"{'.'.join(fault.at)} {fault.message} {fault.suggestion}" for fault in result)


def test_the_names_of_tables_and_operators_are_those_of_the_code() -> None:
    assert TABLES == ALL_TABLES
    for name, module in (
        ("block_follower", block_follower),
        ("range_ingest", range_ingest),
        ("integrity_check", integrity_check),
    ):
        operator = catalog.find(name)
        assert operator is not None
        assert operator.entrypoint == f"{module.__name__}:run"


def test_the_client_has_the_defaults_that_the_operators_document() -> None:
    assert ClientConfig(endpoints=("http://a",)).client() == RpcSettings(endpoints=("http://a",))
