"""Small files of a dataset are merged on Spark, in the order that its dataset names; queries see the same rows."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tests.platform import until
from tests.spark.conftest import SparkPlatform
from traceplane.client import Client
from traceplane.dispatcher.loops.file_compaction import FileCompaction
from traceplane.model.compaction import Policy
from traceplane.postgres.database import Database

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

DAG = """
version: 1
dag: merging
datasets:
  merging.entries:
    position: block
    cluster_by: [name, n]
    compaction: { min_files: 6 }
    columns:
    - { name: block, type: bigint }
    - { name: n, type: bigint }
    - { name: name, type: string }
    - { name: written, type: bigint }
jobs:
- name: blocks
  activation: source
  source: { kind: manual }
  outputs: [{ dataset: merging.blocks }]
- name: entries
  runtime: python
  operator: python
  inputs: [{ from: { job: blocks } }]
  outputs: [{ dataset: merging.entries }]
  config: { entrypoint: "spark_jobs:entries" }
"""


async def files(spark: SparkPlatform) -> list[list[dict[str, Any]]]:
    rows = await spark.platform.sql(
        "select f ->> 'path' as path from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
        " where d.dataset_id = 'merging.entries' and c.superseded_by is null"
    )
    root = spark.platform.folder / "objects"
    return [parquet.read_table(root / row["path"]).to_pylist() for row in rows]


async def queried(spark: SparkPlatform) -> list[dict[str, Any]]:
    client = Client(spark.platform.gateway_url, spark.platform.user_token)
    sql = "select block, n, name, written from merging.entries order by all"
    return (await asyncio.to_thread(client.query, sql)).to_pylist()


def by_name(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["name"], row["n"]) for row in rows]


async def test_small_files_become_one_sorted_file_and_a_correction_replaces_its_rows(
    spark: SparkPlatform,
) -> None:
    await spark.platform.deploy(DAG)
    await spark.platform.emit("merging.blocks", range(6))
    await spark.platform.settled(seconds=240)
    before, small = await queried(spark), await files(spark)
    assert len(small) == 6
    assert all(by_name(rows) == sorted(by_name(rows)) for rows in small), "sorted as they are written"

    database = await Database.connect(spark.platform.url, connections=1)
    try:
        policy = Policy(128 << 20, 1_000)  # other datasets of the platform that tests share stay as they are

        async def planned() -> int:  # as soon as a worker is there that could do it
            return (await FileCompaction(database, policy, age=timedelta(0)).run_once()).tasks

        assert await until(planned, seconds=60, what="a task that merges files") == 1
    finally:
        await database.close()
    await spark.platform.settled(seconds=240)
    [rows] = await files(spark)
    assert by_name(rows) == sorted(by_name(rows))
    assert await queried(spark) == before

    await spark.platform.emit("merging.blocks", [3], emission="again")
    await spark.platform.settled(seconds=240)
    after = await queried(spark)
    assert len(after) == len(before)
    assert [row for row in after if row["block"] != 3] == [row for row in before if row["block"] != 3]
    assert {row["written"] for row in after if row["block"] == 3}.isdisjoint(row["written"] for row in before)
