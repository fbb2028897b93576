"""One platform with one warm Spark worker for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import pytest_asyncio

from tests.platform import Platform, until
from tests.wheels import tiny_index
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres


@dataclass
class SparkPlatform:
    platform: Platform
    incoming: Path = Path("/nowhere")
    """Where file sources may read; not in a platform that allows no place."""

    async def rows(self, dataset: str) -> list[dict]:
        """What a dataset holds, read from its committed files."""
        files = await self.platform.sql(
            "select f ->> 'path' as path from datasets d join dataset_commits c"
            " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
            " where d.dataset_id = $1 and c.superseded_by is null",
            dataset,
        )
        root = self.platform.folder / "objects"
        tables = [parquet.read_table(root / row["path"]) for row in files]
        return pa.concat_tables(tables).to_pylist() if tables else []

    async def error(self, job: str) -> dict:
        """The last error of a job's task."""
        found = (
            "select t.error from tasks t join jobs j using (job_id) where j.name = $1 and t.error is not null"
        )
        rows = await until(lambda: self.platform.sql(found, job), seconds=240, what=f"an error of {job}")
        return json.loads(rows[0]["error"])

    async def running(self, job: str) -> str:
        """The id of a job's task, once it runs."""
        found = (
            "select task_id from tasks t join jobs j using (job_id) where j.name = $1 and t.state = 'running'"
        )
        rows = await until(lambda: self.platform.sql(found, job), seconds=240, what=f"{job} runs")
        return str(rows[0]["task_id"])

    async def attempts(self, job: str) -> int:
        return await self.platform.value(
            "select max(t.attempt) from tasks t join jobs j using (job_id) where j.name = $1", job
        )

    def server_pid(self) -> int:
        """Of the JVM that `spark-1` started last for users' code, below the launcher that it logs. Servers of operators
        that have the network are in no namespace of their own, unless nothing here is."""
        lines = self.platform.logs("spark-1").splitlines()
        started = [json.loads(line) for line in lines if "spark.ready" in line]
        apart = [one for one in started if "network_namespace" in one["isolation"]]
        launcher = int((apart or started)[-1]["pid"])
        (jvm,) = (pid for pid in descendants(launcher) if b"SparkConnectServer" in _command_line(pid))
        return jvm


def descendants(pid: int) -> list[int]:
    """The processes below one, the youngest first."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[:0:-1]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def spark(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SparkPlatform]:
    url = create_database(postgres_server, "spark", template=template_database)
    folder: Path = tmp_path_factory.mktemp("spark")
    incoming = tmp_path_factory.mktemp("incoming")
    settings = {
        "TRACEPLANE_SPARK_MASTER": "local[2]",
        "TRACEPLANE_SPARK_MEMORY_MB": "640",
        "TRACEPLANE_WORKER_CONCURRENCY": "4",
        "TRACEPLANE_OPERATOR_NETWORK_ALLOW": "127.0.0.1",  # where simulated chains are
        "TRACEPLANE_FILE_SOURCE_ALLOW": str(incoming),
        **tiny_index(tmp_path_factory.mktemp("packages")),
    }
    async with Platform.start(url, folder, environment=settings) as platform:
        process = platform.add("spark-1", "worker", "--runtime", "spark")
        await process.start()

        async def ready() -> bool:
            return "spark.ready" in platform.logs("spark-1")

        await until(ready, seconds=240, what="a Spark server")
        yield SparkPlatform(platform, incoming)
    drop_database(postgres_server, "spark")
