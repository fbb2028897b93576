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
from traceplane.postgres.embedded import EmbeddedPostgres, create_database, drop_database


@dataclass
class SparkPlatform:
    platform: Platform

    async def rows(self, dataset: str) -> list[dict]:
        """What a dataset holds, read from its committed files."""
        files = await self.platform.sql(
            "select f ->> 'path' as path from datasets d join dataset_commits c"
            " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f where d.dataset_id = $1",
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
        rows = await until(lambda: self.platform.sql(found, job), what=f"an error of {job}")
        return json.loads(rows[0]["error"])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spark(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SparkPlatform]:
    url = create_database(postgres_server, "spark", template=template_database)
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = {"TRACEPLANE_SPARK_MASTER": "local[2]", "TRACEPLANE_WORKER_CONCURRENCY": "4"}
    async with Platform.start(url, folder, environment=settings) as platform:
        process = platform.add("spark-1", "worker", "--runtime", "spark")
        await process.start()
        yield SparkPlatform(platform)
    drop_database(postgres_server, "spark")
