"""The whole platform on an object store in S3: Python and Spark jobs, a worker killed after its upload, and gc."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from aiobotocore.session import get_session

from tests.aws import CREDENTIALS, REGION, aws_server
from tests.platform import Platform
from tests.process.effects import settle, watched
from traceplane.client import Client
from traceplane.model.counted import counted

BLOCKS = 3

DAG = """
version: 1
dag: stored
defaults: {{lease: 3s, retry: {{base: 50ms}}}}
jobs:
- {{name: ticks, activation: source, source: {{kind: manual}}, outputs: [{{dataset: in}}]}}
- name: numbers
  runtime: python
  operator: python
  inputs: [{{from: {{job: ticks}}}}]
  outputs: [{{name: numbers, dataset: numbers}}]
  config: {{entrypoint: "stored:numbers"}}
- name: sums
  runtime: spark
  operator: sql
  inputs: [{{name: numbers, from: {{job: numbers}}}}]
  outputs: [{{dataset: sums}}]
  config: {{query: "select :start as block, sum(n) as total from numbers"}}
- name: seen
  runtime: python
  operator: python
  update_strategy: append
  unique_key: [block]
  inputs: [{{from: {{job: sums}}}}]
  outputs: [{{dataset: seen}}]
  config: {{entrypoint: "stored:looks_around", secret: "{secret}"}}
"""


HOT = """
version: 1
dag: hot
defaults: {retry: {base: 50ms}}
datasets:
  hot.numbers:
    storage: postgres
    write_mode: direct
    position: block
    columns: [{name: block, type: bigint}, {name: n, type: bigint}]
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: hot.in}]}
- name: numbers
  runtime: python
  operator: python
  inputs: [{from: {job: ticks}}]
  outputs: [{dataset: hot.numbers}]
  config: {entrypoint: "stored:numbers"}
- name: sums
  runtime: python
  operator: python
  inputs: [{name: numbers, from: {job: numbers}}]
  outputs: [{dataset: hot.sums}]
  config: {entrypoint: "stored:sums"}
"""


class Bucket:
    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.name = name

    async def keys(self) -> list[str]:
        answer = await self._client.list_objects_v2(Bucket=self.name)
        return sorted(entry["Key"].removeprefix("data/") for entry in answer.get("Contents", ()))

    async def rows(self, path: str) -> list[dict]:
        answer = await self._client.get_object(Bucket=self.name, Key=f"data/{path}")
        return parquet.read_table(io.BytesIO(await answer["Body"].read())).to_pylist()


@pytest.fixture
async def bucket(aws_endpoint: str) -> AsyncIterator[Bucket]:
    session = get_session()
    session.set_credentials(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    async with session.create_client("s3", region_name=REGION, endpoint_url=aws_endpoint) as client:
        location = {"LocationConstraint": REGION}
        await client.create_bucket(Bucket="platform", CreateBucketConfiguration=location)
        yield Bucket(client, "platform")


@pytest.fixture
def aws_endpoint() -> Any:
    with aws_server() as endpoint:
        yield endpoint


async def committed(platform: Platform, dataset: str | None = None) -> list[str]:
    rows = await platform.sql(
        "select f ->> 'path' from datasets d join dataset_commits c on c.generation_id = d.current_generation_id,"
        " jsonb_array_elements(c.files) f where d.dataset_id = coalesce($1, d.dataset_id)",
        dataset,
    )
    return sorted(row[0] for row in rows)


def settings_for(bucket: Bucket, endpoint: str) -> dict[str, str]:
    return {
        "TRACEPLANE_OBJECT_STORE": f"s3://{bucket.name}/data",
        "TRACEPLANE_S3_ENDPOINT_URL": endpoint,
        "TRACEPLANE_AWS_REGION": REGION,
        "TRACEPLANE_SPARK_MASTER": "local[2]",
        **CREDENTIALS,
    }


async def test_rows_staged_in_s3_reach_a_hot_table_and_come_back_as_inputs(
    database_url: str, tmp_path: Path, bucket: Bucket, aws_endpoint: str
) -> None:
    settings = settings_for(bucket, aws_endpoint)
    async with Platform.start(database_url, tmp_path, environment=settings) as platform:
        await platform.deploy(HOT)
        await platform.emit("hot.in", range(BLOCKS))
        assert set(await settle(platform, seconds=180)) == {"completed"}
        client = Client(platform.gateway_url, platform.user_token)
        counted = await asyncio.to_thread(
            client.query, "select block, count(*) as n from hot.numbers group by all order by 1"
        )
        assert counted.to_pydict() == {"block": list(range(BLOCKS)), "n": [100] * BLOCKS}
        sums = await asyncio.to_thread(client.query, "select block, total from hot.sums order by 1")
        totals = [sum(range(b * 100, b * 100 + 100)) for b in range(BLOCKS)]
        assert sums.to_pydict() == {"block": list(range(BLOCKS)), "total": totals}


async def test_jobs_run_on_s3_and_a_worker_killed_after_its_upload_leaves_nothing(
    database_url: str, tmp_path: Path, bucket: Bucket, aws_endpoint: str
) -> None:
    settings = settings_for(bucket, aws_endpoint)
    async with Platform.start(database_url, tmp_path, workers=0, environment=settings) as platform:
        # A cache of its own: as on another machine, all that Spark reads comes out of S3.
        spark_cache = str(tmp_path / "spark-cache")
        spark = platform.add("spark-1", "worker", "--runtime", "spark", TRACEPLANE_OBJECT_CACHE=spark_cache)
        worker = platform.add_worker(1)
        await asyncio.gather(spark.start(), worker.start(crash_at="worker.after_stage"))
        await platform.deploy(DAG.format(secret=tmp_path / "master.key"))
        async with watched(platform):
            await platform.emit("in", range(BLOCKS))
            assert await worker.died(120) == -signal.SIGKILL
            uploaded = await bucket.keys()
            assert uploaded
            assert await committed(platform) == []
            await worker.start()
            assert set(await settle(platform, seconds=180)) == {"completed"}

        totals = [sum(range(b * 100, b * 100 + 100)) for b in range(BLOCKS)]
        seen = [row for path in await committed(platform, "seen") for row in await bucket.rows(path)]
        assert sorted((r["block"], r["total"], r["credentials"]) for r in seen) == [
            (block, total, 0) for block, total in enumerate(totals)
        ]
        # Queries read the same files, through a cache of the gateway's: the engine has neither network nor keys.
        client = Client(platform.gateway_url, platform.user_token)
        sql = "select s.block, s.total, count(*) as n from sums s join numbers n using (block) group by all order by 1"
        for _ in range(2):  # fetched, and then found
            answer = await asyncio.to_thread(client.query, sql)
            assert answer.to_pydict() == {"block": list(range(BLOCKS)), "total": totals, "n": [100] * BLOCKS}
        assert (tmp_path / "master.key").exists()
        assert not (tmp_path / "objects").exists()

        orphans = set(await bucket.keys()) - set(await committed(platform))
        assert orphans >= set(uploaded)
        gc = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "traceplane.cli.main", "gc", "--grace", "0s"),
            env=platform["gateway"].environment,
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await gc.communicate()
        assert gc.returncode == 0
        assert told.decode().startswith(f"deleted {counted(len(orphans), 'file')}, ")
        assert await bucket.keys() == await committed(platform)

        # Neither the worker that was killed nor those that end leave anything but whole files.
        assert await worker.stop() == 0
        assert await platform["gateway"].stop() == 0
        assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["evicting", "files"]
        files = tmp_path / "cache/files"
        kept = {p.relative_to(files).as_posix() for p in files.rglob("*") if p.is_file()}
        assert kept >= set(await committed(platform, "numbers"))
        logs = [json.loads(line) for line in platform.logs("worker-1").splitlines() if line.startswith("{")]
        assert not [line for line in logs if line.get("event") == "worker.task_lost"]
