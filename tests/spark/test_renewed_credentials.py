"""The worker renews the credentials of a task for S3, for those who have its token, as long as the attempt runs."""

from __future__ import annotations

import asyncio
import http.client
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from tests.aws import REGION
from tests.platform import Platform, until
from tests.ports import free_port
from tests.seaweedfs import SeaweedFS
from tests.spark.bucket import BUCKET, bucket_of, committed_files, committed_rows, environment, jars
from tests.spark.spark_dags import dag, job
from traceplane.adapters.object_store import BucketAccess, StoredFile
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.worker.renewals import Renewals

SESSION_SECONDS = 12
RUNTIME = """
[runtimes.far]
driver = "queue"
queue = "far"
capabilities = ["reactive", "spark"]
network = "always"
"""
"""Executors of this machine that have the network."""
OUT = '{entrypoint: "spark_jobs:outlives_its_credentials", sessions: 4}'
DAG = dag("long", job("long", "out", OUT).replace("runtime: spark", "runtime: far"))


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


@pytest.mark.timeout(900)
@pytest.mark.asyncio(loop_scope="session")
async def test_a_task_that_outlives_several_sessions_completes_and_leaves_nothing_of_use(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path
) -> None:
    """On a server whose sessions end after seconds: the task reads and writes through several of them."""
    jars()
    url = create_database(postgres_server, "renewed_credentials", template=template_database)
    server = SeaweedFS(tmp_path / "weed", session=f"{SESSION_SECONDS}s")
    (tmp_path / "traceplane.toml").write_text(RUNTIME)
    try:
        server.start()
        async with bucket_of(server.endpoint) as store:
            settings = {
                **environment(server.endpoint),
                "TRACEPLANE_CONFIG": str(tmp_path / "traceplane.toml"),
                "TRACEPLANE_SPARK_MASTER": "local[2]",
                "TRACEPLANE_SPARK_MEMORY_MB": "640",
                "TRACEPLANE_S3_RENEWAL_ADDRESS": f"127.0.0.1:{free_port()}",
            }
            async with Platform.start(url, tmp_path / "home", environment=settings) as platform:
                await platform.add("spark-1", "worker", "--runtime", "far").start()
                await platform.deploy(DAG)
                await platform.emit("long.in", [1])
                assert set(await platform.settled(seconds=600)) == {"completed"}
                rows = await committed_rows(platform, store, "long.out")
                job = "select max(attempt) from tasks join jobs using (job_id) where name = 'long-out'"
                assert await platform.value(job) == 1
                assert {row["numbers"] for row in rows} == {100}
                # They are renewed at half time, so it has read with the last ones after the first had ended.
                assert len({row["session"] for row in rows}) == 4
                last = max(rows, key=lambda row: row["turn"])
                status, _ = await asyncio.to_thread(ask, last["url"], last["token"])
                assert status == 401, "the token of an attempt ends with it"
                (file, *_) = await committed_files(platform, "long.numbers")
            given = BucketAccess(
                last["access"], last["secret"], last["session"], datetime.now(UTC), REGION, server.endpoint
            )
            await until(partial(is_refused, given, file), seconds=120, what="the last credentials end")
    finally:
        server.kill()
    drop_database(postgres_server, "renewed_credentials")


async def is_refused(given: BucketAccess, file: StoredFile) -> bool:
    async with get_session().create_client(
        "s3",
        region_name=given.region,
        endpoint_url=given.endpoint_url,
        aws_access_key_id=given.access_key,
        aws_secret_access_key=given.secret_key,
        aws_session_token=given.session_token,
    ) as s3:
        try:
            await s3.get_object(Bucket=BUCKET, Key=f"data/{file.path}")
        except ClientError:
            return True
    return False


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
