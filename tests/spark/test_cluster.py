"""The same jobs on a real Spark standalone cluster, a master and two workers: an executor, and then a worker with its
executor, are killed while a job computes. Spark computes again what they had, and every row is committed once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest

from tests.platform import Platform, until
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.standalone import standalone
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

PATIENCE = 240.0


def executors(worker: subprocess.Popen[bytes]) -> list[int]:
    told = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(worker.pid)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in told.stdout.split()]


async def executor_of(worker: subprocess.Popen[bytes]) -> int | None:
    return next(iter(executors(worker)), None)


async def computing(spark: SparkPlatform, name: str) -> bool:
    """Whether a Spark job of the job's task has begun."""
    found = (
        "select t.progress from tasks t join jobs j using (job_id) where j.name = $1 and t.state = 'running'"
    )
    return any(row["progress"] is not None for row in await spark.platform.sql(found, name))


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_jobs_survive_the_loss_of_an_executor_and_of_a_worker_of_the_cluster(
    postgres_server: EmbeddedPostgres, template_database: str
) -> None:
    url = create_database(postgres_server, "spark_cluster", template=template_database)
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with standalone(folder) as cluster:
            settings = {
                "TRACEPLANE_SPARK_MASTER": cluster.address,
                "TRACEPLANE_SPARK_EXECUTORS_TRUSTED": "true",
                "TRACEPLANE_WORKER_CONCURRENCY": "2",
            }
            async with Platform.start(url, folder / "home", environment=settings) as platform:
                await platform.add("spark-1", "worker", "--runtime", "spark").start()
                spark = SparkPlatform(platform)
                slow = '{entrypoint: "spark_jobs:by_halves", seconds: 8}'
                await platform.deploy(
                    dag("far", job("far", "out", slow, more="lease: 6s\n  max_attempts: 5"))
                )
                for position, victim in enumerate(("executor", "worker"), start=1):
                    await platform.emit("far.in", [position])
                    await until(lambda: computing(spark, "far-out"), seconds=PATIENCE, what="a job computes")
                    if victim == "executor":
                        # A job computes with the first executor; the other worker's may still start.
                        pid = await until(partial(executor_of, cluster.workers[1]), what="its executor runs")
                        os.kill(pid, signal.SIGKILL)
                    else:
                        cluster.kill_worker(0)
                    assert set(await platform.settled(seconds=PATIENCE)) == {"completed"}, victim
                assert sorted(row["n"] for row in await spark.rows("far.out")) == list(range(100, 300))
    drop_database(postgres_server, "spark_cluster")


async def error_of(platform: Platform, name: str) -> str:
    assert "dead" in await platform.settled(seconds=PATIENCE)
    (row,) = await platform.sql(
        "select t.error->>'code' as code, t.error->>'message' as message from tasks t join jobs j using (job_id)"
        " where j.name = $1",
        name,
    )
    assert row["code"] == "operator.output_not_stored", row["message"]
    return str(row["message"])


@pytest.mark.timeout(600)
async def test_executors_write_what_is_large_into_the_workers_folder_and_are_told_if_they_cannot(
    postgres_server: EmbeddedPostgres, template_database: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("executors of another user and with another folder: only root can start them")
    url = create_database(postgres_server, "spark_large", template=template_database)
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with standalone(folder, (None, None)) as cluster:
            settings = {
                "TRACEPLANE_SPARK_MASTER": cluster.address,
                "TRACEPLANE_SPARK_EXECUTORS_TRUSTED": "true",
            }
            async with Platform.start(url, folder / "home", environment=settings) as platform:
                await platform.add("spark-1", "worker", "--runtime", "spark").start()
                spark = SparkPlatform(platform)
                jobs = [
                    job(dag_, "out", f'{{entrypoint: "spark_jobs:{function}"}}', more="max_attempts: 1")
                    for dag_, function in (
                        ("same", "as_they_are"),
                        ("other", "as_they_are"),
                        ("apart", "beside_its_input"),
                    )
                ]
                for dag_, made in zip(("same", "other", "apart"), jobs, strict=True):
                    await platform.deploy(dag(dag_, made, entrypoint="spark_jobs:bulky"))
                await platform.emit("same.in", [1])
                assert set(await platform.settled(seconds=PATIENCE)) == {"completed"}
                assert len(await spark.rows("same.out")) == 100

                cluster.replace_worker(0, user="daemon")
                await platform.emit("other.in", [1])
                assert "it runs as another user than the worker" in await error_of(platform, "other-out")

                cluster.replace_worker(0, without=folder / "home" / "objects")
                await platform.emit("apart.in", [1])
                assert "100 rows of output 'out', and 0 of them are in" in await error_of(
                    platform, "apart-out"
                )
                assert await spark.rows("apart.out") == []
    drop_database(postgres_server, "spark_large")
