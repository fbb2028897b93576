"""A range is ingested and checked by parts on Spark, on a worker whose other Spark jobs have no network."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.chain.conftest import patient
from tests.platform import OPERATORS, until
from tests.spark.conftest import SparkPlatform, descendants
from traceplane.chain.extract import fetch_range
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.scalars import Scope

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

DAG = """
version: 1
dag: parts
defaults: {{retry: {{base: 50ms}}, max_attempts: 3}}
jobs:
- {{name: parts-ranges, activation: source, source: {{kind: manual}}, outputs: [{{dataset: parts.in}}]}}
- name: parts-ingest
  runtime: spark
  operator: range_ingest
  inputs: [{{from: {{dataset: parts.in}}}}]
  outputs: [{{name: blocks, dataset: parts.blocks}}, {{name: logs, dataset: parts.logs}}]
  config: {{endpoints: ["{url}"], chunk_blocks: 5, spark_parts: 2}}
- name: parts-check
  runtime: spark
  operator: integrity_check
  inputs:
  - {{name: blocks, from: {{dataset: parts.blocks}}}}
  - {{name: logs, from: {{dataset: parts.logs}}}}
  outputs: [{{name: found, dataset: parts.found}}]
  config: {{endpoints: ["{url}"], chunk_blocks: 5, spark_parts: 2}}
"""


def launchers(spark: SparkPlatform) -> list[int]:
    """Of the server for users' code and, if that has no network, of the one for operators that need it."""
    lines = [
        json.loads(line) for line in spark.platform.logs("spark-1").splitlines() if "spark.ready" in line
    ]
    apart = [line for line in lines if "network_namespace" in line["isolation"]]
    others = [line for line in lines if line not in apart]
    return [int(of_kind[-1]["pid"]) for of_kind in (apart, others) if of_kind]


def search_path(launcher: int) -> str:
    """Where Spark's processes look for modules first."""
    (jvm,) = (pid for pid in descendants(launcher) if b"SparkConnectServer" in _command_line(pid))
    variables = Path(f"/proc/{jvm}/environ").read_text().split("\0")
    return dict(variable.partition("=")[::2] for variable in variables)["PYTHONPATH"]


def python_processes(spark: SparkPlatform) -> list[int]:
    """Those that Spark has started for parts."""
    below = descendants(launchers(spark)[-1])
    daemons = [pid for pid in below if b"pyspark.daemon" in _command_line(pid)]
    return [pid for pid in daemons if os.path.exists(f"/proc/{pid}") and _parent(pid) in daemons]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def emit(spark: SparkPlatform, first: int, last: int) -> None:
    scope = Scope(partition_key=f"{first}-{last}", start=first, end=last)
    request = EmitRequest([ManualEvent("parts.in", scope)])
    await spark.platform.api.call("POST", "/api/v1/events", EmitResponse, request)


async def equal_to_the_chain(spark: SparkPlatform, node: Simulator, last: int) -> None:
    async with RpcClient(patient(node.url)) as client:
        chain = await fetch_range(client, 1, last, ("blocks", "logs"))
    for name, order in (("blocks", ("block_number",)), ("logs", ("block_number", "log_index"))):
        rows = await spark.rows(f"parts.{name}")
        assert sorted(rows, key=lambda row: [row[column] for column in order]) == chain[name].to_pylist()


async def test_ranges_are_read_in_parts_though_a_python_process_of_spark_is_killed(
    spark: SparkPlatform,
) -> None:
    async with serve(seed=4, blocks=60) as node:
        await spark.platform.deploy(DAG.format(url=node.url))
        await emit(spark, 1, 20)
        assert await spark.platform.settled(seconds=400) is not None
        await equal_to_the_chain(spark, node, 20)
        assert await spark.platform.states("parts-ingest") == {"completed": 1}
        assert await spark.platform.states("parts-check") == {"completed": 1}
        assert await spark.rows("parts.found") == []

        if len(servers := launchers(spark)) == 2:
            of_users, with_network = map(search_path, servers)
            assert str(OPERATORS) in of_users
            assert with_network == "", "none of the users' code where there is a network"

        node.faults.arm(Fault("stall", requests=None, seconds=600, methods=["eth_getLogs"]))
        await emit(spark, 21, 60)
        asked = node.calls.get("eth_getBlockByNumber", 0)

        async def in_the_middle() -> list[int]:
            return python_processes(spark) if node.calls["eth_getBlockByNumber"] > asked else []

        victims = await until(in_the_middle, seconds=240, what="parts that wait for the node")
        node.faults.arm(Fault("clear"))
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        await spark.platform.settled(seconds=400)
        await equal_to_the_chain(spark, node, 60)
        assert await spark.platform.states("parts-ingest") == {"completed": 2}
        assert await spark.attempts("parts-ingest") == 2
        assert await spark.rows("parts.found") == []
