"""Small files are merged while the processes that merge them die by SIGKILL: a merge counts once or not at all, and
queries see the same rows before, during and after it.
"""

from __future__ import annotations

import asyncio
import random
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.platform import Platform, until
from tests.spark.conftest import SparkPlatform
from traceplane.client import Client
from traceplane.dispatcher.loops.file_compaction import FileCompaction
from traceplane.model.compaction import Policy
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3600)]

PATIENCE = 400.0
FILES = 6
DAG = """
version: 1
dag: {dag}
defaults: {{retry: {{base: 50ms, max: 500ms}}, max_attempts: 50, lease: 10s}}
datasets:
  {dag}.entries:
    position: block
    cluster_by: [name, n]
    columns:
    - {{ name: block, type: bigint }}
    - {{ name: n, type: bigint }}
    - {{ name: name, type: string }}
    - {{ name: written, type: bigint }}
jobs:
- name: {dag}-blocks
  activation: source
  source: {{ kind: manual }}
  outputs: [{{ dataset: {dag}.blocks }}]
- name: {dag}-entries
  runtime: python
  operator: python
  inputs: [{{ from: {{ job: {dag}-blocks }} }}]
  outputs: [{{ dataset: {dag}.entries }}]
  config: {{ entrypoint: "spark_jobs:entries" }}
"""


class Merging:
    """A dataset with small files on a platform."""

    def __init__(self, platform: Platform, dag: str) -> None:
        self.platform, self._dag = platform, dag

    async def deploy(self) -> None:
        await self.platform.deploy(DAG.format(dag=self._dag))

    async def write(self, positions: Any, emission: str = "") -> None:
        await self.platform.emit(f"{self._dag}.blocks", positions, emission=emission)

    async def written(self, tasks: int) -> bool:
        return await self.platform.states(f"{self._dag}-entries") == {"completed": tasks}

    async def plan(self, files: int = FILES) -> None:
        """Has all its files merged, as dispatchers do in the background."""
        database = await Database.connect(self.platform.url, connections=1)
        try:
            look = FileCompaction(database, Policy(128 << 20, files), age=timedelta(0))

            async def planned() -> int:  # as soon as a worker is there that could do it
                return (await look.run_once()).tasks

            assert await until(planned, seconds=PATIENCE, what="a task that merges files") == 1
        finally:
            await database.close()

    async def rows(self) -> list[dict[str, Any]]:
        client = Client(self.platform.gateway_url, self.platform.user_token)
        sql = f"select block, n, name, written from {self._dag}.entries order by all"
        return (await asyncio.to_thread(client.query, sql)).to_pylist()

    async def files(self) -> list[str]:
        """Of the commits that are read."""
        found = await self.platform.sql(
            "select f ->> 'path' as path from datasets d join dataset_commits c"
            " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
            " where d.dataset_id = $1 and c.superseded_by is null",
            f"{self._dag}.entries",
        )
        return [row["path"] for row in found]

    async def merges(self) -> list[dict[str, Any]]:
        return await self.platform.sql(
            "select t.state::text as state, t.attempt,"
            " (select count(*) from dataset_commits c where c.task_id = t.task_id) as commits"
            " from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            " where d.name = '~compaction' and j.name = $1 order by t.task_id",
            f"{self._dag}.entries",
        )

    async def event_count(self) -> int:
        return await self.platform.value(
            "select count(*) from events e join datasets d using (dataset_uuid) where d.dataset_id = $1",
            f"{self._dag}.entries",
        )


async def passes(merging: Merging, dispatcher_steps: tuple[str, ...]) -> None:
    """The dispatcher dies at each of these steps of the commit of one merge, and comes back."""
    dispatcher = merging.platform["dispatcher-1"]
    before, small, events = await merging.rows(), await merging.files(), await merging.event_count()
    await dispatcher.kill()
    await dispatcher.start(crash_at=f"complete.{dispatcher_steps[0]}")
    await merging.platform.ready("dispatcher-1")
    await merging.plan(len(small))
    for step, following in zip(dispatcher_steps, (*dispatcher_steps[1:], None), strict=True):
        assert await dispatcher.died(PATIENCE) == -signal.SIGKILL
        is_committed = step == "after_commit"
        assert [merge["commits"] for merge in await merging.merges()][-1] == is_committed, step
        assert len(await merging.files()) == (1 if is_committed else len(small)), step
        assert await merging.rows() == before, step
        await dispatcher.start(crash_at=f"complete.{following}" if following is not None else None)
    await merging.platform.ready("dispatcher-1")
    await merging.platform.settled(seconds=PATIENCE)
    assert await merging.rows() == before
    assert await merging.event_count() == events, "nothing downstream hears of it"


async def test_a_dispatcher_dies_at_each_step_of_the_commit_of_a_merge(spark: SparkPlatform) -> None:
    merging = Merging(spark.platform, "stepwise")
    await merging.deploy()
    await merging.write(range(FILES))
    await spark.platform.settled(seconds=PATIENCE)
    await passes(merging, ("before_commit", "after_fence", "after_outputs", "after_commit"))
    [merge] = await merging.merges()
    assert (merge["state"], merge["commits"]) == ("completed", 1)
    await merging.write([3], emission="again")
    await spark.platform.settled(seconds=PATIENCE)
    assert len(await merging.rows()) == 100 * FILES, "a correction replaces its rows in the merged file"


@pytest.mark.chaos
async def test_whoever_merges_dies_again_and_again(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path
) -> None:
    """First at each step of a worker, then at any time, while positions are written and corrected."""
    url = create_database(postgres_server, "compaction_kills", template=template_database)
    settings = {
        "TRACEPLANE_SPARK_MASTER": "local[2]",
        "TRACEPLANE_SPARK_MEMORY_MB": "640",
        "TRACEPLANE_COMPACTION_AFTER_SECONDS": "0",
        "TRACEPLANE_COMPACTION_MIN_FILES": "4",
    }
    async with Platform.start(url, tmp_path / "home", environment=settings) as platform:
        worker = platform.add("spark-1", "worker", "--runtime", "spark")
        merging = Merging(platform, "torn")
        await merging.deploy()
        for number, step in enumerate(("after_claim", "after_run", "after_stage", "after_complete"), start=1):
            await merging.write(range(FILES * (number - 1), FILES * number))
            await until(lambda: merging.written(FILES * number), seconds=PATIENCE, what="all is written")  # noqa: B023
            before = await merging.rows()
            await worker.start(crash_at=f"worker.{step}")  # it has no other tasks than merges
            assert await worker.died(PATIENCE) == -signal.SIGKILL
            assert await merging.rows() == before, step
            await worker.start()
            await platform.settled(seconds=PATIENCE)
            assert await merging.rows() == before, step
            await worker.kill()
        await worker.start()
        await at_any_time(merging, random.Random(5), kills=16)
    drop_database(postgres_server, "compaction_kills")


async def at_any_time(merging: Merging, draw: random.Random, *, kills: int) -> None:
    platform, highest = merging.platform, 60
    for number in range(kills):
        await merging.write(sorted(draw.sample(range(highest), 8)), emission=f"e{number}")
        await asyncio.sleep(draw.uniform(0, 6))
        victim = draw.choice(["spark-1", "dispatcher-1", "dispatcher-1"])
        await platform[victim].kill()
        await platform[victim].start()
        if victim == "dispatcher-1":
            await platform.ready(victim)
    await platform.settled(seconds=PATIENCE)
    rows = await merging.rows()
    numbers = [(row["block"], row["n"]) for row in rows]
    assert len(numbers) == len(set(numbers)), "a row twice"
    blocks = {block for block, _ in numbers}
    assert len(numbers) == 100 * len(blocks), "a row is missing"
    assert len({(row["block"], row["written"]) for row in rows}) == len(blocks), (
        "rows of two versions of a block"
    )
    done = [merge for merge in await merging.merges() if merge["state"] == "completed"]
    assert all(merge["commits"] <= 1 for merge in done)
    assert any(merge["commits"] for merge in done)
    assert len(await merging.files()) < len(blocks)
