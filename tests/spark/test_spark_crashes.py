"""No duplicates and no gaps, whichever process dies, at each step of write, stage, complete and commit.

Worker, dispatcher, the JVM with its executor, the Python process of an executor and the task's own process die
by SIGKILL. What is committed afterwards is read from the catalog's list of files, and has every row once. An
executor in a process of its own is killed in `test_cluster.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.platform import Process, until
from tests.process.effects import settle, watched
from tests.spark import spark_dags
from tests.spark.conftest import SparkPlatform, descendants

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

ROWS = list(range(100, 200))
"""What position 1 stands for."""

LONG_LEASE, SHORT_LEASE = "120s", "2s"


def dag(name: str, *, source: str, function: str, lease: str, seconds: float = 0.0) -> str:
    defaults = f"{{retry: {{base: 50ms, max: 200ms}}, max_attempts: 20, lease: {lease}}}"
    out = f"""\
- name: {name}-out
  runtime: spark
  operator: pyspark
  inputs: [{{name: numbers, from: {{dataset: {name}.numbers}}}}]
  outputs: [{{name: out, dataset: {name}.out}}]
  config: {{entrypoint: "spark_jobs:{function}", seconds: {seconds}}}
"""
    return spark_dags.dag(name, out, entrypoint=f"spark_jobs:{source}", defaults=defaults)


@pytest.fixture
def worker(spark: SparkPlatform) -> Process:
    """Runs the jobs of this file, on a Spark server of its own that dies with it."""
    return spark.platform["spark-1"]


async def commits(spark: SparkPlatform, dataset: str) -> int:
    found = "select count(*) from dataset_commits join generations using (generation_id)"
    return await spark.platform.value(
        f"{found} join datasets using (dataset_uuid) where dataset_id = $1", dataset
    )


async def staged(spark: SparkPlatform, task: str, *, sealed: bool) -> list[Path]:
    """Parquet files of a task that are being written, or that are sealed and wait for their commit."""
    found = (spark.platform.folder / "objects").glob(f"o/*/*/*/staging/{task}/*/**/*.parquet")
    return [path for path in found if (_mode(path) == 0o444) == sealed]


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


async def writing(spark: SparkPlatform, job: str) -> str:
    """The id of a job's task, once Spark writes files for it."""
    task = await spark.running(job)
    await until(lambda: staged(spark, task, sealed=False), seconds=240, what=f"{job} writes")
    return task


async def assert_every_row_once(spark: SparkPlatform, name: str) -> None:
    await settle(spark.platform, seconds=240)
    assert sorted(row["n"] for row in await spark.rows(f"{name}.out")) == ROWS
    assert await commits(spark, f"{name}.out") == 1


@pytest.mark.chaos
async def test_worker_and_dispatcher_die_at_each_step_of_one_task(
    spark: SparkPlatform, worker: Process
) -> None:
    """One task passes every boundary between its claim and its commit, and at each one a process dies."""
    platform, dispatcher = spark.platform, spark.platform["dispatcher-1"]
    await platform.deploy(dag("steps", source="numbers", function="doubled", lease=SHORT_LEASE))
    async with watched(platform):
        await worker.kill()
        await platform.emit("steps.in", [1])
        for step in ("worker.after_claim", "worker.after_run", "worker.after_stage"):
            await worker.start(crash_at=step)
            assert await worker.died(240) == -signal.SIGKILL
            assert await commits(spark, "steps.out") == 0, step
        await dispatcher.kill()
        await worker.start(crash_at="worker.after_complete")
        for step in ("before_commit", "after_fence", "after_outputs", "after_commit"):
            await dispatcher.start(crash_at=f"complete.{step}")
            assert await dispatcher.died(240) == -signal.SIGKILL
            assert await commits(spark, "steps.out") == (step == "after_commit"), step
        await dispatcher.start()
        assert await worker.died(240) == -signal.SIGKILL
        await worker.start()
        await assert_every_row_once(spark, "steps")
    assert await spark.attempts("steps-out") >= 4


@pytest.mark.chaos
async def test_a_worker_and_a_dispatcher_die_while_spark_writes(
    spark: SparkPlatform, worker: Process
) -> None:
    """The worker's task starts again, the dispatcher's goes on."""
    platform = spark.platform
    for name, victim in (("workerless", worker), ("headless", platform["dispatcher-1"])):
        lease = SHORT_LEASE if victim is worker else LONG_LEASE
        await platform.deploy(dag(name, source="bulky", function="row_by_row", lease=lease, seconds=1.5))
    async with watched(platform):
        for name, victim in (("workerless", worker), ("headless", platform["dispatcher-1"])):
            await platform.emit(f"{name}.in", [1])
            await writing(spark, f"{name}-out")
            await victim.kill()
            await victim.start()
            await assert_every_row_once(spark, name)
    assert await spark.attempts("workerless-out") > 1
    assert await spark.attempts("headless-out") == 1


@pytest.mark.chaos
async def test_an_executors_python_and_the_tasks_own_process_die_while_spark_writes(
    spark: SparkPlatform, worker: Process
) -> None:
    platform = spark.platform
    names = ("pythonless", "childless")
    for name, function in zip(names, ("row_by_row", "kills_itself_once"), strict=True):
        await platform.deploy(dag(name, source="bulky", function=function, lease=LONG_LEASE, seconds=1.5))
    async with watched(platform):
        for name in names:
            await platform.emit(f"{name}.in", [1])
            await writing(spark, f"{name}-out")
            if name == "pythonless":
                await until(
                    lambda: python_killed(spark, "pythonless-out"), seconds=240, what="a failed attempt"
                )
            await assert_every_row_once(spark, name)
            assert await spark.attempts(f"{name}-out") > 1, name


async def python_killed(spark: SparkPlatform, job: str) -> bool:
    """Whether the job's first attempt has failed; if not, whatever Python the JVM runs just now is killed."""
    for pid in descendants(spark.server_pid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return await spark.attempts(job) > 1


@pytest.mark.chaos
async def test_the_jvm_dies_while_one_task_writes_and_another_waits_for_its_commit(
    spark: SparkPlatform, worker: Process
) -> None:
    """The first starts again on a new JVM. The second has all that it needs of Spark, and is committed."""
    platform, dispatcher = spark.platform, spark.platform["dispatcher-1"]
    await platform.deploy(dag("writes", source="bulky", function="row_by_row", lease=LONG_LEASE, seconds=5))
    await platform.deploy(
        dag("waits", source="numbers", function="takes_seconds", lease=LONG_LEASE, seconds=2)
    )
    async with watched(platform):
        await platform.emit("writes.in", [1])
        await writing(spark, "writes-out")
        await platform.emit("waits.in", [1])
        task = await spark.running("waits-out")
        dispatcher.send(signal.SIGSTOP)
        try:
            await until(lambda: staged(spark, task, sealed=True), seconds=240, what="a sealed file")
            os.kill(spark.server_pid(), signal.SIGKILL)
        finally:
            dispatcher.send(signal.SIGCONT)
        await assert_every_row_once(spark, "waits")
        await assert_every_row_once(spark, "writes")
    assert await spark.attempts("waits-out") == 1
    assert any(json.loads(line)["event"] == "spark.died" for line in platform.logs("spark-1").splitlines())
