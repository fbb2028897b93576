"""A task that outlives its credentials for S3 goes on: Hadoop and executors' Python get new ones from the worker."""

from __future__ import annotations

import asyncio
import http.client
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.platform import Platform
from tests.seaweedfs import seaweedfs
from tests.spark.bucket import bucket_of, committed_rows, environment, jars
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.standalone import standalone
from traceplane.adapters.object_store import BucketAccess
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.worker.renewals import Renewals

SESSION_SECONDS = 20
CHECKS = """
datasets:
  late.out: {checks: [{unique: n}]}
"""
"""Executors write what they check, however small it is."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("renewed", [True, False])
async def test_a_task_reads_and_writes_after_its_credentials_have_expired(
    renewed: bool, postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path
) -> None:
    jars()
    name = f"late_{renewed}".lower()
    url = create_database(postgres_server, name, template=template_database)
    with (
        seaweedfs(tmp_path / "weed", session=f"{SESSION_SECONDS}s") as endpoint,
        standalone(tmp_path, (None, None)) as cluster,
    ):
        async with bucket_of(endpoint) as store:
            settings = {**environment(endpoint), "TRACEPLANE_SPARK_MASTER": cluster.address}
            if renewed:
                settings["TRACEPLANE_S3_RENEWAL_ADDRESS"] = "127.0.0.1:0"
            async with Platform.start(url, tmp_path / "home", environment=settings) as platform:
                await platform.add("spark-1", "worker", "--runtime", "spark").start()
                config = f'{{entrypoint: "spark_jobs:for_a_long_time", seconds: {2 * SESSION_SECONDS}}}'
                await platform.deploy(
                    dag("late", job("late", "out", config, more="max_attempts: 1")) + CHECKS
                )
                await platform.emit("late.in", [1])
                if renewed:
                    assert set(await platform.settled(seconds=600)) == {"completed"}
                    rows = await committed_rows(platform, store, "late.out")
                    assert sorted(row["n"] for row in rows) == list(range(100, 200))
                else:
                    error = await SparkPlatform(platform).error("late-out")
                    assert error["code"] == "spark.timeout_beyond_credentials"
    drop_database(postgres_server, name)


async def test_credentials_are_renewed_at_half_time_and_only_while_the_attempt_runs() -> None:
    made: list[BucketAccess] = []
    lasts = timedelta(seconds=3600)

    async def make() -> BucketAccess:
        expires = datetime.now(UTC) + lasts
        made.append(BucketAccess(f"key{len(made)}", "secret", "session", expires, "eu", None))
        return made[-1]

    renewals, stop = Renewals("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(renewals.serve(stop))
    async with renewals.renewing(make, await make()) as renewal:
        asked = [await asyncio.to_thread(ask, renewal.url, renewal.token) for _ in range(2)]
        assert [(status, lines[0]) for status, lines in asked] == [(200, "key0")] * 2
        assert 1700 < int(asked[0][1][3]) <= 1800
        assert (await asyncio.to_thread(ask, renewal.url, "another"))[0] == 401
        assert (await asyncio.to_thread(ask, renewal.url, None))[0] == 401
    lasts = timedelta(seconds=0)
    async with renewals.renewing(make, await make()) as later:
        assert (await asyncio.to_thread(ask, renewal.url, renewal.token))[0] == 401, "the attempt has ended"
        lasts = timedelta(seconds=3600)
        assert (await asyncio.to_thread(ask, later.url, later.token))[1][0] == "key2"
    stop.set()
    await serving


def ask(url: str, token: str | None) -> tuple[int, list[str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        connection.request("GET", parts.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().split("\n")
    finally:
        connection.close()
