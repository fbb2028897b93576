"""No duplicates and no gaps, whichever process dies, at each step from the claim of a task to its commit, where Spark's
executors write to S3 themselves.

Executor, worker of the cluster, driver, S3 server, our worker and dispatcher die by SIGKILL. The test holds an upload
on its way to the S3 server, so it knows what has been written when they die: one output is complete, and of the other
the server has nothing yet, or has all of it and nobody knows. All rows are compared with those that are expected. What
dead attempts left is in no commit, and garbage collection removes it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio

from tests.gated_s3 import Gate, Step, Upload, gated
from tests.platform import Platform, until
from tests.process.effects import settle, watched
from tests.seaweedfs import SeaweedFS
from tests.spark import spark_dags
from tests.spark.bucket import bucket_of, committed_files, committed_rows, environment, jars
from tests.spark.conftest import SparkPlatform
from tests.spark.standalone import Cluster, standalone
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.registry.garbage import Policy, collect

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.chaos,
    pytest.mark.timeout(3600),
]

PATIENCE = 900.0
DAG = spark_dags.dag(
    "far",
    """\
- name: far-pairs
  runtime: spark
  operator: pyspark
  inputs: [{name: numbers, from: {dataset: far.numbers}}]
  outputs: [{name: even, dataset: far.even}, {name: odd, dataset: far.odd}]
  config: {entrypoint: "spark_jobs:pairs"}
- name: far-sums
  runtime: spark
  operator: sql
  inputs: [{name: even, from: {dataset: far.even}}]
  outputs: [{dataset: far.sums}]
  config: {query: "select block, count(*) as numbers, cast(sum(n) as bigint) as total from even group by block"}
datasets:
  far.even: {checks: [{unique: n}]}
  far.odd: {checks: [{unique: n}]}
""",
    defaults="{retry: {base: 50ms, max: 500ms}, max_attempts: 30, lease: 20s}",
)
"""Executors write what they check, however small it is."""
QUICK = "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""There are many starts of executors, each for one small task."""


@dataclass
class OnS3:
    platform: Platform
    server: SeaweedFS
    gate: Gate
    cluster: Cluster
    store: S3ObjectStore
    position: int = 0

    @property
    def spark(self) -> SparkPlatform:
        return SparkPlatform(self.platform)

    async def emit(self) -> None:
        self.position += 1
        await self.platform.emit("far.in", [self.position])

    async def writing(self, step: Step) -> Upload:
        """The upload of a task's second output, held at that step. The first output is in the store."""
        self.gate.stop(step, after=1)
        await self.emit()
        return await self.gate.stopped(PATIENCE)

    async def lose(self, victim: str, upload: Upload) -> None:
        match victim:
            case "executor":
                os.kill(executor_above(upload.pid), signal.SIGKILL)
            case "cluster worker":
                own = parent(executor_above(upload.pid))
                number = [process.pid for process in self.cluster.workers].index(own)
                self.cluster.kill_worker(number)
                self.cluster.restart_worker(number)
            case "driver":
                os.kill(self.spark.server_pid(), signal.SIGKILL)
            case "store":
                self.server.kill()
                self.gate.go_on()
                await until(self.gate.was_refused, what="somebody sees that the store is away")
                self.server.start()
            case process:
                await self.platform[process].kill()
                await self.platform[process].start()
        self.gate.go_on()

    async def assert_every_row_once(self, what: str) -> None:
        states = await settle(self.platform, seconds=PATIENCE)
        assert set(states) == {"completed"}, what
        numbers: list[dict[str, Any]] = [
            {"block": n // 100, "n": n, "name": f"n{n}"} for n in range(100, 100 * (self.position + 1))
        ]
        for dataset, rest in (("far.even", 0), ("far.odd", 1)):
            rows = await committed_rows(self.platform, self.store, dataset)
            expected = [row for row in numbers if row["n"] % 2 == rest]
            assert sorted(rows, key=lambda row: row["n"]) == expected, (what, dataset)
        sums = await committed_rows(self.platform, self.store, "far.sums")
        assert sorted(sums, key=lambda row: row["block"]) == [
            {"block": block, "numbers": 50, "total": sum(range(100 * block, 100 * block + 100, 2))}
            for block in range(1, self.position + 1)
        ], what

    async def commits(self) -> int:
        """Of the position that was emitted last."""
        return await self.platform.value(
            "select count(*) from dataset_commits join generations using (generation_id)"
            " join datasets using (dataset_uuid) where dataset_id = 'far.odd' and range_start = $1",
            self.position,
        )

    async def attempts(self) -> int:
        return await self.platform.value(
            "select max(t.attempt) from tasks t join jobs j using (job_id)"
            " where j.name = 'far-pairs' and t.range_start = $1",
            self.position,
        )


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_above(pid: int) -> int:
    """The JVM whose Python this is."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent(pid)
    return pid


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def on_s3(postgres_server: EmbeddedPostgres, template_database: str) -> AsyncIterator[OnS3]:
    jars()
    url = create_database(postgres_server, "crashes_on_s3", template=template_database)
    with TemporaryDirectory(prefix="crashes-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = SeaweedFS(folder / "weed")
        try:
            server.start()
            async with bucket_of(server.endpoint) as store, gated(server) as gate:
                with standalone(folder, (None, None)) as cluster:
                    settings = {
                        "TRACEPLANE_SPARK_MASTER": cluster.address,
                        "TRACEPLANE_WORKER_CONCURRENCY": "2",
                        "TRACEPLANE_SPARK_CONF": QUICK,
                        **environment(gate.endpoint),
                    }
                    async with Platform.start(url, folder / "home", environment=settings) as platform:
                        await platform.add("spark-1", "worker", "--runtime", "spark").start()
                        await platform.deploy(DAG)
                        yield OnS3(platform, server, gate, cluster, store)
        finally:
            server.kill()
    drop_database(postgres_server, "crashes_on_s3")


async def test_whoever_dies_while_executors_write(on_s3: OnS3) -> None:
    steps: tuple[Step, ...] = ("asked", "stored")
    async with watched(on_s3.platform):
        for victim in ("executor", "cluster worker", "driver", "store", "spark-1", "dispatcher-1"):
            for step in steps:
                await on_s3.lose(victim, await on_s3.writing(step))
                await on_s3.assert_every_row_once(f"{victim} died at {step}")
                if victim in ("driver", "spark-1"):
                    assert await on_s3.attempts() > 1, (victim, step)


async def test_worker_and_dispatcher_die_at_each_step_of_one_task(on_s3: OnS3) -> None:
    """One task passes every boundary between its claim and its commit, and at each one a process dies."""
    platform = on_s3.platform
    worker, dispatcher = platform["spark-1"], platform["dispatcher-1"]
    async with watched(platform):
        await worker.kill()
        await on_s3.emit()
        for step in ("worker.after_claim", "worker.after_run", "worker.after_stage"):
            await worker.start(crash_at=step)
            assert await worker.died(PATIENCE) == -signal.SIGKILL
            assert await on_s3.commits() == 0, step
        await dispatcher.kill()
        await worker.start(crash_at="worker.after_complete")
        for step in ("before_commit", "after_fence", "after_outputs", "after_commit"):
            await dispatcher.start(crash_at=f"complete.{step}")
            assert await dispatcher.died(PATIENCE) == -signal.SIGKILL
            assert await on_s3.commits() == (step == "after_commit"), step
        await dispatcher.start()
        assert await worker.died(PATIENCE) == -signal.SIGKILL
        await worker.start()
        await on_s3.assert_every_row_once("each step of one task")
    assert await on_s3.attempts() >= 4


async def test_what_is_stored_and_reported_needs_nobody_any_more(on_s3: OnS3) -> None:
    """Driver, executors, their workers and the dispatcher die between the report and the commit."""
    platform = on_s3.platform
    dispatcher = platform["dispatcher-1"]
    await on_s3.writing("stored")
    await dispatcher.kill()
    await dispatcher.start(crash_at="complete.before_commit")
    on_s3.gate.go_on()
    assert await dispatcher.died(PATIENCE) == -signal.SIGKILL
    assert await on_s3.commits() == 0
    os.kill(on_s3.spark.server_pid(), signal.SIGKILL)
    for number in range(len(on_s3.cluster.workers)):
        on_s3.cluster.kill_worker(number)
    on_s3.server.kill()
    await dispatcher.start()
    await until(on_s3.commits, seconds=PATIENCE, what="it is committed")
    assert await on_s3.attempts() == 1
    on_s3.server.start()
    for number in range(len(on_s3.cluster.workers)):
        on_s3.cluster.restart_worker(number)
    await on_s3.assert_every_row_once("all but our worker died after the report")


async def test_what_dead_attempts_left_is_in_no_commit_and_goes(on_s3: OnS3) -> None:
    """Runs last: what the tests above left is what it looks at."""
    platform, store = on_s3.platform, on_s3.store
    if not on_s3.position:  # it runs alone
        await on_s3.lose("spark-1", await on_s3.writing("stored"))
    await on_s3.assert_every_row_once("before anything is collected")
    datasets = ("far.numbers", "far.even", "far.odd", "far.sums")
    committed = {file.path: file.bytes for name in datasets for file in await committed_files(platform, name)}
    ended = await platform.sql("select task_id::text, attempt from tasks where state = 'completed'")
    by = {f"/staging/{task}/{attempt}/" for task, attempt in ended}
    assert all(any(own in path for own in by) for path in committed), "a file of an attempt that did not end"

    async def stored() -> dict[str, int]:
        return {file.path: file.bytes async for page in store.below("o/") for file in page}

    left = (await stored()).keys() - committed.keys()
    assert any("/part-" in path for path in left), "executors have left files behind"
    database = await Database.connect(platform.url, connections=1)
    try:
        collected = await collect(database, store, Policy(timedelta(0)))
    finally:
        await database.close()
    assert collected.files == len(left)
    assert await stored() == committed
    await on_s3.assert_every_row_once("after the leftovers went")
