"""Jobs on a Spark cluster without a shared mount: a master and two workers, each as a user of its own with a folder
that nobody else can enter, and a real S3 server. An executor, a worker of the cluster, the driver and our worker are
killed while jobs run; every row is committed once.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyspark
import pytest
import pytest_asyncio

import traceplane
from tests.chain.conftest import patient
from tests.platform import OPERATORS, Platform, until
from tests.spark.bucket import bucket, committed_files, committed_rows, environment, jars
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.standalone import Cluster, standalone
from tests.spark.test_cluster import computing, executor_of
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.chain.extract import fetch_range
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.scalars import Scope

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of several users"),
]
PATIENCE = 420.0
USERS = ("bin", "daemon", "games")
"""Of the master and the workers: users that every Debian has: Java wants one with a name."""
SLOW = '{entrypoint: "spark_jobs:by_halves", seconds: 8}'
SUMS = '{query: "select block, cast(sum(n) as bigint) as total from numbers group by block"}'
MORE = "lease: 20s\n  max_attempts: 6"
CHECKS = """
datasets:
  far.out: {checks: [{unique: n}]}
  far.sums: {checks: [{not_null: total}]}
"""
"""Executors write what they check, however small it is."""
CHAIN = """
version: 1
dag: chain
defaults: {{retry: {{base: 50ms}}, max_attempts: 6, lease: 20s}}
jobs:
- {{name: chain-ranges, activation: source, source: {{kind: manual}}, outputs: [{{dataset: chain.in}}]}}
- name: chain-ingest
  runtime: spark
  operator: range_ingest
  inputs: [{{from: {{dataset: chain.in}}}}]
  outputs: [{{name: blocks, dataset: chain.blocks}}, {{name: logs, dataset: chain.logs}}]
  config: {{endpoints: ["{url}"], chunk_blocks: 5, spark_parts: 2}}
- name: chain-check
  runtime: spark
  operator: integrity_check
  inputs:
  - {{name: blocks, from: {{dataset: chain.blocks}}}}
  - {{name: logs, from: {{dataset: chain.logs}}}}
  outputs: [{{name: found, dataset: chain.found}}]
  config: {{endpoints: ["{url}"], chunk_blocks: 5, spark_parts: 2}}
"""
DAG = (
    dag("far", job("far", "out", SLOW, more=MORE), job("far", "sums", SUMS, operator="sql", more=MORE))
    + CHECKS
)


def python_for_everybody() -> str:
    """The tests' own Python may be below a home folder that other users cannot enter."""
    python = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    if not python.exists():
        pytest.skip(f"there is no {python}, which the users of the cluster could run")
    search = (OPERATORS, Path(traceplane.__file__).parents[1], Path(pyspark.__file__).parents[1])
    return ";".join(
        (
            f"spark.sql.execution.pyspark.python={python}",
            f"spark.executorEnv.PYTHONPATH={os.pathsep.join(map(str, search))}",
            # The executors of one machine would open each other's files, rather than ask for them.
            "spark.shuffle.readHostLocalDisk=false",
        )
    )


@dataclass
class Far:
    spark: SparkPlatform
    cluster: Cluster
    store: S3ObjectStore

    @property
    def platform(self) -> Platform:
        return self.spark.platform

    async def lose(self, victim: str) -> None:
        match victim:
            case "executor":
                pid = await until(partial(executor_of, self.cluster.workers[1]), what="its executor runs")
                os.kill(pid, signal.SIGKILL)
            case "worker":
                self.cluster.kill_worker(0)
                self.cluster.restart_worker(0)
            case "driver":
                os.kill(self.spark.server_pid(), signal.SIGKILL)
            case _:
                await self.platform["spark-1"].kill()
                await self.platform["spark-1"].start()


VICTIMS = ("executor", "worker", "driver", "ours")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def far(postgres_server: EmbeddedPostgres, template_database: str) -> AsyncIterator[Far]:
    jars()
    url = create_database(postgres_server, "cluster_on_s3", template=template_database)
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with bucket(folder / "weed") as (store, endpoint):
            with standalone(folder, USERS) as cluster:
                settings = {
                    "TRACEPLANE_SPARK_MASTER": cluster.address,
                    "TRACEPLANE_WORKER_CONCURRENCY": "2",
                    "TRACEPLANE_SPARK_CONF": python_for_everybody(),
                    "TRACEPLANE_OPERATOR_NETWORK_ALLOW": "127.0.0.1",  # where simulated chains are
                    **environment(endpoint),
                }
                async with Platform.start(url, folder / "home", environment=settings) as platform:
                    await platform.add("spark-1", "worker", "--runtime", "spark").start()
                    yield Far(SparkPlatform(platform), cluster, store)
    drop_database(postgres_server, "cluster_on_s3")


async def test_every_row_is_committed_once_whoever_dies(far: Far) -> None:
    await far.platform.deploy(DAG)
    for position, victim in enumerate(VICTIMS, start=1):
        await far.platform.emit("far.in", [position])
        await until(lambda: computing(far.spark, "far-out"), seconds=PATIENCE, what="a job computes")
        await far.lose(victim)
        assert set(await far.platform.settled(seconds=PATIENCE)) == {"completed"}, victim
    out = await committed_rows(far.platform, far.store, "far.out")
    assert sorted(row["n"] for row in out) == list(range(100, 500))
    sums = await committed_rows(far.platform, far.store, "far.sums")
    expected = {block: sum(range(100 * block, 100 * block + 100)) for block in range(1, 5)}
    assert {row["block"]: row["total"] for row in sums} == expected
    assert len(sums) == 4


async def test_a_chain_is_ingested_and_checked_by_executors(far: Far) -> None:
    """Though they, and whoever waits for them, die while they read it. None of its files was on our worker's disk."""
    platform = far.platform
    async with serve(seed=4, blocks=100) as node:
        await platform.deploy(CHAIN.format(url=node.url))
        await ingest(platform, 1, 20)
        await equal_to_the_chain(far, node, 20)
        for number, victim in enumerate(VICTIMS, start=1):
            node.faults.arm(Fault("stall", requests=None, seconds=600, methods=["eth_getLogs"]))
            asked = node.calls["eth_getBlockByNumber"]
            await emit(platform, 20 * number + 1, 20 * number + 20)
            await until(
                partial(is_more, node, asked), seconds=PATIENCE, what="an executor waits for the node"
            )
            await far.lose(victim)
            node.faults.arm(Fault("clear"))
            assert set(await platform.settled(seconds=PATIENCE)) == {"completed"}, victim
            await equal_to_the_chain(far, node, 20 * number + 20)
        assert await committed_rows(platform, far.store, "chain.found") == []
        stored = {
            name: {Path(file.path).name for file in await committed_files(platform, f"chain.{name}")}
            for name in ("blocks", "logs")
        }
        assert {name: len(files) for name, files in stored.items()} == {"blocks": 20, "logs": 20}, (
            "one per chunk"
        )
    # What the check found is small, and came back to be stored by the worker.
    on_disk = {path.name for path in platform.folder.rglob("*.parquet")}
    assert on_disk.isdisjoint(stored["blocks"] | stored["logs"])


async def is_more(node: Simulator, asked: int) -> bool:
    return node.calls["eth_getBlockByNumber"] > asked


async def ingest(platform: Platform, first: int, last: int) -> None:
    await emit(platform, first, last)
    assert set(await platform.settled(seconds=PATIENCE)) == {"completed"}


async def emit(platform: Platform, first: int, last: int) -> None:
    scope = Scope(partition_key=f"{first}-{last}", start=first, end=last)
    request = EmitRequest([ManualEvent("chain.in", scope)])
    await platform.api.call("POST", "/api/v1/events", EmitResponse, request)


async def equal_to_the_chain(far: Far, node: Simulator, last: int) -> None:
    async with RpcClient(patient(node.url)) as client:
        chain = await fetch_range(client, 1, last, ("blocks", "logs"))
    for name, order in (("blocks", ("block_number",)), ("logs", ("block_number", "log_index"))):
        rows = await committed_rows(far.platform, far.store, f"chain.{name}")
        assert sorted(rows, key=lambda row: [row[column] for column in order]) == chain[name].to_pylist()
