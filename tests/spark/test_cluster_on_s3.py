"""Jobs on a Spark cluster without a shared mount: a master and two workers, each as a user of its own with a folder
that nobody else can enter, and a real S3 server. An executor, a worker of the cluster, the driver and our worker are
killed while jobs run; every row is committed once.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import pyspark
import pytest

import traceplane
from tests.platform import OPERATORS, Platform, until
from tests.spark.bucket import bucket, committed_rows, environment, jars
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.standalone import standalone
from tests.spark.test_cluster import computing, executor_of
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

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


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of several users")
async def test_a_cluster_without_a_shared_mount_commits_every_row_once(
    postgres_server: EmbeddedPostgres, template_database: str
) -> None:
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
                    **environment(endpoint),
                }
                async with Platform.start(url, folder / "home", environment=settings) as platform:
                    await platform.add("spark-1", "worker", "--runtime", "spark").start()
                    spark = SparkPlatform(platform)
                    await platform.deploy(DAG)
                    for position, victim in enumerate(("executor", "worker", "driver", "ours"), start=1):
                        await platform.emit("far.in", [position])
                        await until(
                            lambda: computing(spark, "far-out"), seconds=PATIENCE, what="a job computes"
                        )
                        if victim == "executor":
                            pid = await until(
                                partial(executor_of, cluster.workers[1]), what="its executor runs"
                            )
                            os.kill(pid, signal.SIGKILL)
                        elif victim == "worker":
                            cluster.kill_worker(0)
                        elif victim == "driver":
                            os.kill(spark.server_pid(), signal.SIGKILL)
                        else:
                            await platform["spark-1"].kill()
                            await platform["spark-1"].start()
                        assert set(await platform.settled(seconds=PATIENCE)) == {"completed"}, victim
                    out = await committed_rows(platform, store, "far.out")
                    assert sorted(row["n"] for row in out) == list(range(100, 500))
                    sums = await committed_rows(platform, store, "far.sums")
                    expected = {block: sum(range(100 * block, 100 * block + 100)) for block in range(1, 5)}
                    assert {row["block"]: row["total"] for row in sums} == expected
                    assert len(sums) == 4
        drop_database(postgres_server, "cluster_on_s3")
