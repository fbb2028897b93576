"""Backfill of a simulated chain: blocks, transactions and logs per second, ours, ethereum-etl's and cryo's.

All ask the same server, which has computed all of its blocks before, for the same range, in turns. Ours are tasks
of `range_ingest` in a real worker: from the call that asks for the range to the last commit of Parquet files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import contender, cryo, environments, ours_control, results
from bench.peers import measure
from bench.postgres_server import running_postgres
from traceplane.chain.extract import fetch_range
from traceplane.chain.rpc import RpcClient, RpcSettings
from traceplane.chain.simulated.server import serve_in_process_of_its_own
from traceplane.wire.control import BackfillRequest, BackfillResponse

BLOCKS = 6000
TRANSACTIONS_PER_BLOCK = 10
TASKS = 12
SLOTS = 3
"""One more than there are cores: what waits for the node or the disk leaves its core to another."""
ROUNDS = 3
ROUNDS_BUDGET = 120.0
"""Seconds; a busy machine gets fewer rounds."""
TABLES = ("blocks", "transactions", "logs")
PEER = "ethereum-etl"
SPARK_PARTS = (1, 2, 4)
TURN_SECONDS = 180.0

DAG = """
version: 1
dag: {name}
jobs:
- {{name: go, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.in}}]}}
- name: ingest
  runtime: {runtime}
  operator: range_ingest
  inputs: [{{from: {{job: go}}}}]
  outputs:
  - {{name: blocks, dataset: {name}.blocks}}
  - {{name: transactions, dataset: {name}.transactions}}
  - {{name: logs, dataset: {name}.logs}}
  config: {{endpoints: ["{node}"], chunk_blocks: 250, spark_parts: {parts}}}
"""

Progress = Callable[[str], None]


def run(database_url: str, progress: Progress) -> list[results.Row]:
    peers = [
        _Peer(
            f"{PEER} {environments.pinned_version(PEER)}",
            5.0,
            partial(environments.prepare, PEER),
            _ethereum_etl,
        ),
        _Peer(f"{cryo.NAME} {cryo.VERSION}", None, cryo.prepare, _cryo),
    ]
    for peer in peers:
        peer.make_ready(progress)
    blocks = {"blocks": BLOCKS, "transactions_per_block": TRANSACTIONS_PER_BLOCK, "cached_blocks": BLOCKS + 1}
    ours: list[float] = []
    with serve_in_process_of_its_own(**blocks) as node:
        asyncio.run(_compute_all_blocks(node))
        began = time.monotonic()
        for number in range(ROUNDS):
            if number and (time.monotonic() - began) * (number + 1) / number > ROUNDS_BUDGET:
                progress(f"the machine is busy: round {number + 1} of the backfill is left out")
                break
            counts, seconds = asyncio.run(_ours(database_url, node))
            ours.append(sum(counts.values()) / seconds)
            progress(f"backfill, round {number + 1}, Traceplane: {ours[-1]:,.0f} rows/s {counts}")
            for peer in peers:
                peer.take_turn(node, counts, progress)
        in_parts = {}
        for parts in SPARK_PARTS:
            counts, seconds = asyncio.run(_ours(database_url, node, parts))
            in_parts[parts] = sum(counts.values()) / seconds
            progress(f"backfill on Spark, parts: {parts}, Traceplane: {in_parts[parts]:,.0f} rows/s")
    name = "backfill of blocks, transactions and logs"
    rows = [peer.beside(name, median(ours)) for peer in peers]
    return rows + [
        peers[0].beside(f"the same on Spark, parts: {parts}", rate) for parts, rate in in_parts.items()
    ]


@dataclass
class _Peer:
    name: str
    bar: float | None
    prepare: Callable[[], Path]
    backfill: Callable[[Path, str], tuple[dict[str, int], float]]
    """Rows of each table, and seconds; with what `prepare` returned, and the node's address."""
    program: Path = Path()
    rates: list[float] = field(default_factory=list)
    note: str = ""
    """Why it is not measured."""

    def make_ready(self, progress: Progress) -> None:
        try:
            self.program = self.prepare()
        except environments.PeerUnavailableError as reason:
            self.note = f"{self.name} is skipped: {reason}"
            progress(self.note)

    def take_turn(self, node: str, counts: dict[str, int], progress: Progress) -> None:
        if self.note:
            return
        try:
            told, seconds = self.backfill(self.program, node)
        except contender.ContenderFailedError as reason:
            self.note = f"{self.name}: {reason}"
            progress(self.note)
            return
        if told != counts:
            self.note = f"{self.name} counted {told}, and we {counts}"
            progress(self.note)
            return
        self.rates.append(sum(counts.values()) / seconds)
        progress(f"backfill, {self.name}: {self.rates[-1]:,.0f} rows/s")

    def beside(self, name: str, rate: float) -> results.Row:
        return results.compare(
            suite="spark",
            name=name,
            unit="rows/s",
            better="higher",
            ours=rate,
            peer=self.name,
            theirs=median(self.rates) if self.rates and not self.note else None,
            bar=self.bar,
            note=self.note,
        )


def _ethereum_etl(python: Path, node: str) -> tuple[dict[str, int], float]:
    options = {"url": node, "tasks": BLOCKS}
    told = contender.measure(
        python, "bench.peers.ethereum_etl_peer", "backfill", options, timeout=TURN_SECONDS
    )
    return {name: told[name] for name in TABLES}, told["seconds"]


def _cryo(binary: Path, node: str) -> tuple[dict[str, int], float]:
    return cryo.backfill(binary, node, BLOCKS, TURN_SECONDS)


async def _compute_all_blocks(node: str) -> None:
    async with RpcClient(RpcSettings(endpoints=(node,))) as client:
        for first in range(0, BLOCKS, 500):
            await fetch_range(client, first, min(first + 500, BLOCKS) - 1, TABLES)


async def _ours(url: str, node: str, parts: int | None = None) -> tuple[dict[str, int], float]:
    """Rows that are committed for the range, and the seconds from the call to the last commit. With `parts`, on Spark,
    as one task; otherwise in several tasks at a time."""
    runtime, tasks = ("python", TASKS) if parts is None else ("spark", 1)
    async with ours_control.stand(url, dag=DAG, node=node, runtime=runtime, parts=parts or 1) as made:
        commands = (made.command("dispatcher"), made.command("worker", "--runtime", runtime))
        changes = {
            "TRACEPLANE_WORKER_CONCURRENCY": str(SLOTS),
            "TRACEPLANE_SPARK_MASTER": f"local[{parts or 1}]",
            "TRACEPLANE_OPERATOR_NETWORK_ALLOW": "127.0.0.1",
        }
        with (
            ours_control.environment(changes),
            measure.worker_processes(*commands),
        ):
            warm = BLOCKS // TASKS if parts is None else BLOCKS
            await _backfill(made, warm // 4, last=warm // 4 * (1 if parts else 4) - 1)  # everything is warm
            began = time.monotonic()
            await _backfill(made, BLOCKS // tasks, last=BLOCKS - 1)
            seconds = time.monotonic() - began
            return await _committed(made), seconds


async def _backfill(made: Any, partition_size: int, *, last: int) -> None:
    request = BackfillRequest(f"{made.dag}.blocks", 0, last, only="all", partition_size=partition_size)
    await made.caller.call("POST", "/api/v1/backfill", BackfillResponse, request)
    async with asyncio.timeout(180):
        while await made.connection.fetchval(  # noqa: ASYNC110 - the database tells nobody
            "select exists (select 1 from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            " where d.name = $1 and t.state <> 'completed')",
            made.dag,
        ):
            await asyncio.sleep(0.02)


async def _committed(made: Any) -> dict[str, int]:
    found = await made.connection.fetch(
        "select d.dataset_id, sum(c.row_count)::bigint as rows from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id where c.superseded_by is null and d.dataset_id like $1"
        " group by 1",
        f"{made.dag}.%",
    )
    rows = {row["dataset_id"].rpartition(".")[2]: row["rows"] for row in found}
    return {name: rows[name] for name in TABLES}


if __name__ == "__main__":
    with running_postgres() as server:
        print(results.table(run(server.fresh_database(), lambda text: print(text, flush=True))))
