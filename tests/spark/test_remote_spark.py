"""A Spark Connect server that somebody else runs, behind TLS and with a token: a worker uses it, and does not start
without the right ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.certificates import Authority
from tests.platform import Platform
from tests.spark.bucket import bucket, committed_rows, environment, jars
from tests.spark.spark_dags import dag, job
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer

CHECKS = "\ndatasets:\n  remote.out: {checks: [{unique: n}]}\n"
"""Executors write what they check, however small it is."""


@contextlib.asynccontextmanager
async def behind_tls(port: int, authority: Authority) -> AsyncIterator[int]:
    """A relay that takes TLS off, as a load balancer in front of a Spark Connect server does."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed(reader, on), passed(back, writer))

    async def passed(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()
        with contextlib.suppress(OSError):
            await target.wait_closed()

    context = authority.server()
    context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.timeout(900)
async def test_a_worker_uses_a_server_behind_tls_with_its_token_and_no_other(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path
) -> None:
    loaded = jars()
    url = create_database(postgres_server, "remote_spark", template=template_database)
    authority = Authority(tmp_path)
    async with bucket(tmp_path / "weed") as (store, endpoint):
        server = await SparkServer.start(
            SparkSettings(
                folder=tmp_path / "spark",
                object_store=tmp_path / "objects",
                master="local[2]",
                memory_mb=640,
                quick=True,
                jars=loaded,
                allow_weak=True,
            )
        )
        parts = urlsplit(server.remote)
        token = unquote(server.remote.partition("authorization=")[2]).removeprefix("Bearer ")
        assert parts.port is not None
        try:
            async with behind_tls(parts.port, authority) as port:
                address = f"sc://127.0.0.1:{port}/;use_ssl=true;token="
                async with Platform.start(
                    url, tmp_path / "home", environment=environment(endpoint)
                ) as platform:
                    trusted = {"TRACEPLANE_SPARK_REMOTE_CA": os.fspath(authority.file)}
                    refused = {
                        "wrong-token": {"TRACEPLANE_SPARK_REMOTE": f"{address}another", **trusted},
                        "no-authority": {"TRACEPLANE_SPARK_REMOTE": f"{address}{token}"},
                    }
                    for name, settings in refused.items():
                        worker = platform.add(name, "worker", "--runtime", "spark", **settings)
                        await worker.start()
                        assert await worker.died() != 0
                        assert "spark.remote_unreachable" in platform.logs(name)
                        assert token not in platform.logs(name)
                    right = {"TRACEPLANE_SPARK_REMOTE": f"{address}{token}", **trusted}
                    await platform.add("spark-1", "worker", "--runtime", "spark", **right).start()
                    config = '{entrypoint: "spark_jobs:doubled"}'
                    await platform.deploy(dag("remote", job("remote", "out", config)) + CHECKS)
                    await platform.emit("remote.in", [1])
                    assert set(await platform.settled()) == {"completed"}
                    rows = await committed_rows(platform, store, "remote.out")
                    assert {row["n"]: row["twice"] for row in rows} == {n: 2 * n for n in range(100, 200)}
                    ready = [json.loads(line)["event"] for line in platform.logs("spark-1").splitlines()]
                    assert "spark.ready" not in ready, "it has started none of its own"
        finally:
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
            await server.close()
    drop_database(postgres_server, "remote_spark")
