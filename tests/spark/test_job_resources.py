"""What a job needs of Spark: a server of its own where that takes one, and a refusal where there is no cluster."""

from __future__ import annotations

import pytest

from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

CONFIG = '{entrypoint: "spark_jobs:settings_of_spark"}'


async def test_a_job_has_what_it_asks_for_and_the_others_have_what_they_had(spark: SparkPlatform) -> None:
    text = dag(
        "sized",
        job("sized", "plain", CONFIG),
        job("sized", "parts", CONFIG, more="spark: {shuffle_partitions: 7}"),
        job("sized", "own", CONFIG, more="spark: {driver_memory: 600m, shuffle_partitions: 9}"),
    )
    await spark.platform.deploy(text)
    await spark.platform.emit("sized.in", [1])
    assert set(await spark.platform.settled()) == {"completed"}
    found = {name: (await spark.rows(f"sized.{name}"))[0] for name in ("plain", "parts", "own")}
    assert {name: row["partitions"] for name, row in found.items()} == {"plain": 4, "parts": 7, "own": 9}
    assert found["plain"]["server"] == found["parts"]["server"] != found["own"]["server"]

    changed = await spark.platform.deploy(text.replace("shuffle_partitions: 7", "shuffle_partitions: 8"))
    assert changed.changed
    assert not changed.building, "it changes in place"
    await spark.platform.emit("sized.in", [2])
    assert set(await spark.platform.settled()) == {"completed"}
    parts = {row["block"]: row["partitions"] for row in await spark.rows("sized.parts")}
    assert parts == {1: 7, 2: 8}


async def test_executors_without_a_cluster_are_refused_when_the_task_starts(spark: SparkPlatform) -> None:
    more = "spark: {executors: 2, executor_memory: 1g}\n  max_attempts: 1"
    await spark.platform.deploy(dag("sizeless", job("sizeless", "out", CONFIG, more=more)))
    await spark.platform.emit("sizeless.in", [1])
    error = await spark.error("sizeless-out")
    assert error["code"] == "spark.no_cluster"
