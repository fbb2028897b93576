"""A server that somebody else runs gets the packages of jobs once, however many sessions need them, or says why not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions
from pyspark.sql.connect.session import SparkSession

from traceplane.dataplane import sent_packages
from traceplane.dataplane import session as sessions
from traceplane.sdk import OperatorError
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer

ALLOWED = ("spark.sql.artifact.copyFromLocalToFs.allowDestLocal", "true")


@asynccontextmanager
async def server(folder: Path, *conf: tuple[str, str]) -> AsyncIterator[SparkServer]:
    settings = SparkSettings(
        folder=folder / "spark",
        object_store=folder / "objects",
        master="local[2]",
        memory_mb=640,
        quick=True,
        allow_weak=True,
        conf=conf,
    )
    started = await SparkServer.start(settings)
    try:
        yield started
    finally:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        await started.close()


def environment(folder: Path, version: str) -> Path:
    package = folder / f"environment-{version}" / "packages" / "tinylib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"VERSION = {version!r}\n")
    return package.parents[1]


def new_session(remote: str) -> Any:
    """As a process of its own would have it."""
    sessions._open.clear()
    SparkSession._default_session = None
    SparkSession._active_session.session = None
    return sessions.session(remote, shares_files=True)


def imported(spark: Any) -> str:
    version = functions.udf(lambda n: "{0.VERSION} {0.__file__}".format(__import__("tinylib")), "string")
    (row,) = spark.range(1).select(version("id")).collect()
    return str(row[0])


@pytest.mark.timeout(600)
async def test_sessions_share_what_one_has_sent(tmp_path: Path) -> None:
    async with server(tmp_path, ALLOWED) as remote:
        old, new = environment(tmp_path, "1.0"), environment(tmp_path, "2.0")
        files = []
        for folder in (old, new, old):
            spark = new_session(remote.remote)
            sent_packages.send(spark, folder, tmp_path)
            version, file = imported(spark).split()
            assert version == folder.name.removeprefix("environment-")
            assert not file.startswith(str(folder))
            files.append(file)
            spark.stop()  # what it has sent stays
        assert files[0] == files[2]
        assert len(list((tmp_path / "spark").rglob("sent-*/*.zip"))) == 2


@pytest.mark.timeout(600)
async def test_a_server_that_takes_no_files_is_named_with_what_to_do(tmp_path: Path) -> None:
    async with server(tmp_path) as remote:
        spark = new_session(remote.remote)
        with pytest.raises(OperatorError, match=ALLOWED[0]) as refused:
            sent_packages.send(spark, environment(tmp_path, "1.0"), tmp_path)
        spark.stop()
        assert refused.value.code == "operator.packages_not_sent"
