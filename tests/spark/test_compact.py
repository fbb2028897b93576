"""Hot rows become Parquet on Spark, and a reorganization reaches them there: the example of the docs, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tests.spark.conftest import SparkPlatform
from tests.unit.test_docs import blocks

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = Path(__file__).parents[2] / "docs" / "operators" / "compact.md"
MORE = """
- name: small
  runtime: python
  operator: python
  inputs: [{ from: { job: blocks } }]
  outputs: [{ dataset: ledger.small }]
  config: { entrypoint: "spark_jobs:numbers" }
- name: large
  runtime: spark
  operator: compact
  inputs: [{ from: { job: small }, columns: [n] }]
  outputs: [{ dataset: ledger.large }]
  execution_strategy: Bulk
  batch: { size: 7 }
- name: totals
  runtime: spark
  operator: sql
  inputs: [{ name: entries, from: { job: entries }, columns: [n], where: { name: n3 } }]
  outputs: [{ dataset: ledger.totals }]
  config: { query: "select :start as block, sum(n) as total, count(*) as rows from entries" }
"""


async def live(spark: SparkPlatform, dataset: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each live file, by its path."""
    files = await spark.platform.sql(
        "select f ->> 'path' as path from datasets d join dataset_commits c on c.generation_id = d.current_generation_id,"
        " jsonb_array_elements(c.files) f where d.dataset_id = $1 and c.superseded_by is null",
        dataset,
    )
    root = spark.platform.folder / "objects"
    return {row["path"]: parquet.read_table(root / row["path"]).to_pylist() for row in files}


async def hot(spark: SparkPlatform, dataset: str) -> list[dict[str, Any]]:
    generation = await spark.platform.value(
        "select current_generation_id from datasets where dataset_id = $1", dataset
    )
    return [dict(row) for row in await spark.platform.sql(f"select * from traceplane_hot.g_{generation.hex}")]


async def runs(spark: SparkPlatform, job: str) -> list[str]:
    rows = await spark.platform.sql(
        "select t.scope_key from tasks t join jobs j using (job_id) where j.name = $1 and state = 'completed'"
        " order by t.task_id",
        job,
    )
    return [row["scope_key"] for row in rows]


async def test_the_documented_example_compacts_and_follows_a_reorganization(spark: SparkPlatform) -> None:
    [text] = blocks(PAGE.read_text(), "yaml")
    await spark.platform.deploy(text.replace("operators:entries", "spark_jobs:entries") + MORE)
    await spark.platform.emit("ledger.blocks", range(7))
    assert set(await spark.platform.settled(seconds=180)) == {"completed"}

    [(first, rows)] = (await live(spark, "ledger.history")).items()
    assert sorted({row["block"] for row in rows}) == [0, 1, 2, 3, 4]
    assert len(rows) == 500
    assert [(row["name"], row["n"]) for row in rows] == sorted((row["name"], row["n"]) for row in rows)
    assert {row["block"] for row in await hot(spark, "ledger.entries")} == {5, 6}
    [(_, large)] = (await live(spark, "ledger.large")).items()
    assert sorted(row["n"] for row in large) == list(range(700))
    assert set(large[0]) == {"n"}
    assert parquet.ParquetFile(
        spark.platform.folder / "objects" / next(iter(await live(spark, "ledger.large")))
    ).num_row_groups == 1  # fmt: skip
    threes = [n for n in range(100) if n % 7 == 3]
    totals = [row for rows in (await live(spark, "ledger.totals")).values() for row in rows]
    assert sorted((r["block"], r["total"], r["rows"]) for r in totals) == [
        (block, sum(threes), len(threes)) for block in range(7)
    ]

    before = {row["block"]: row["written"] for row in rows}
    await spark.platform.emit("ledger.blocks", [3], emission="fork")
    assert set(await spark.platform.settled(seconds=180)) == {"completed"}
    assert await runs(spark, "history") == ["p:0-4", "p:0-4"]
    assert (await runs(spark, "totals")).count("c:3") == 2
    assert len(await runs(spark, "totals")) == 8
    [(second, rows)] = (await live(spark, "ledger.history")).items()
    assert second != first
    assert len(rows) == 500
    after = {row["block"]: row["written"] for row in rows}
    assert {block for block in after if after[block] != before[block]} == {3}
    assert {row["block"] for row in await hot(spark, "ledger.entries")} == {5, 6}
    left = [p for p in (spark.platform.folder / "objects").rglob("*.csv")]
    assert left == []
