"""Packages of jobs reach executors that share no folder with the worker: those of a cluster whose users cannot enter
it, and those of a server that somebody else runs.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.test_code import command_line
from tests.platform import Platform
from tests.spark.bucket import bucket, committed_rows, environment, jars
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.standalone import Cluster, standalone
from tests.spark.test_cluster import executors
from tests.spark.test_cluster_on_s3 import PATIENCE, USERS, python_for_everybody
from tests.wheels import tiny_index
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of several users"),
]
MODULE = """
import os

import tinylib
from pyspark.sql import functions as F


@F.udf("string")
def version(n):
    import tinylib as imported
    import pyarrow, pandas
    return imported.greet("udf")


@F.udf("string")
def imported_from(n):
    return tinylib.__file__


def greeted(numbers):
    there = numbers.repartition(4).withColumn("there", version("n")).withColumn("file", imported_from("n"))
    return there.withColumn("here", F.lit(tinylib.greet("task")))
"""


@dataclass
class Far:
    platform: Platform
    cluster: Cluster
    store: S3ObjectStore
    folder: Path

    async def deploy(self, name: str, **versions: str) -> None:
        """A DAG with a job for each version of `tinylib`."""
        code = self.folder / "code"
        code.mkdir(exist_ok=True)
        (code / "greetings.py").write_text(MODULE)
        config = '{entrypoint: "greetings:greeted"}'
        jobs = [
            job(name, own, config, more=f"max_attempts: 1\n  requirements: [tinylib=={version}]")
            for own, version in versions.items()
        ]
        checks = "".join(f"  {name}.{own}: {{checks: [{{unique: n}}]}}\n" for own in versions)
        text = f"{dag(name, *jobs)}\ndatasets:\n{checks}"  # executors write what they check
        (self.folder / "dag.yaml").write_text(text)
        words = ("deploy", str(self.folder / "dag.yaml"), "--code", str(code), "--code-on-workers")
        exit_code, printed = await command_line(self.platform, *words)
        assert exit_code == 0, printed

    async def run(self, name: str, position: int) -> None:
        await self.platform.emit(f"{name}.in", [position])
        ended = await self.platform.settled(seconds=PATIENCE)
        errors = await self.platform.sql("select error from tasks where error is not null")
        assert set(ended) == {"completed"}, errors

    async def rows(self, dataset: str) -> list[dict]:
        return await committed_rows(self.platform, self.store, dataset)

    def sent(self) -> list[Path]:
        """What the worker's Spark server has been sent."""
        return sorted((self.folder / "home" / "spark").rglob("sent-*/*.zip"))

    def unpacked(self) -> dict[Path, int]:
        """The folders of all executors with packages, and which ones they are."""
        places = [
            place for user in USERS for place in (self.folder / user).glob("work/app-*/*/*/packages/tinylib")
        ]
        return {place: place.stat().st_ino for place in places}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def far(postgres_server: EmbeddedPostgres, template_database: str) -> AsyncIterator[Far]:
    jars()
    url = create_database(postgres_server, "packages_far", template=template_database)
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with bucket(folder / "weed") as (store, endpoint):
            with standalone(folder, USERS) as cluster:
                settings = {
                    "TRACEPLANE_SPARK_MASTER": cluster.address,
                    "TRACEPLANE_WORKER_CONCURRENCY": "2",
                    "TRACEPLANE_SPARK_CONF": python_for_everybody(),
                    **environment(endpoint),
                    **tiny_index(folder),
                }
                async with Platform.start(url, folder / "home", environment=settings) as platform:
                    await platform.add("spark-1", "worker", "--runtime", "spark").start()
                    yield Far(platform, cluster, store, folder)
    drop_database(postgres_server, "packages_far")


async def test_executors_have_the_packages_of_each_job_and_get_them_once(far: Far) -> None:
    await far.deploy("packs", old="1.0", new="2.0")
    await far.run("packs", 1)
    for name, version in (("old", "1.0"), ("new", "2.0")):
        rows = await far.rows(f"packs.{name}")
        assert {row["there"] for row in rows} == {f"udf {version}"}
        assert {row["here"] for row in rows} == {f"task {version}"}
        users = {Path(row["file"]).relative_to(far.folder).parts[0] for row in rows}
        assert users <= set(USERS[1:]), "from a folder of the executor itself"
    sent, unpacked = far.sent(), far.unpacked()
    assert len(sent) == 2

    await far.deploy("more", again="1.0")  # another job, which needs the same
    await far.run("more", 1)
    await far.run("packs", 2)
    assert {row["there"] for row in await far.rows("more.again")} == {"udf 1.0"}
    assert len(await far.rows("packs.new")) == 200
    assert far.sent() == sent, "nothing is sent twice"
    assert far.unpacked().items() >= unpacked.items(), "nor unpacked twice"


async def test_a_new_executor_has_them_too(far: Far) -> None:
    """Though no task that sent them runs any more."""
    await far.deploy("later", old="1.0", new="2.0")
    await far.run("later", 1)
    sent, unpacked = far.sent(), far.unpacked()
    for worker in far.cluster.workers:
        for pid in executors(worker):
            os.kill(pid, signal.SIGKILL)
    await far.run("later", 2)
    for name, version in (("old", "1.0"), ("new", "2.0")):
        rows = await far.rows(f"later.{name}")
        assert {row["there"] for row in rows} == {f"udf {version}"}
        files = {Path(row["file"]).parent for row in rows if row["block"] == 2}
        assert files, "there are rows of the second position"
        assert files.isdisjoint(unpacked), "from the folder of a new executor"
    assert far.sent() == sent


async def test_a_python_that_cannot_import_them_is_named_with_what_to_do(far: Far) -> None:
    await far.platform["spark-1"].stop()
    other = far.folder / "other-python"
    other.write_text("#!/bin/sh\necho cpython-39-s390x-linux-gnu\n")
    other.chmod(0o755)
    _, *conf = python_for_everybody().split(";")
    settings = {"TRACEPLANE_SPARK_CONF": ";".join([f"spark.sql.execution.pyspark.python={other}", *conf])}
    await far.platform.add("spark-other", "worker", "--runtime", "spark", **settings).start()
    await far.deploy("other", old="1.0")
    await far.platform.emit("other.in", [1])
    error = await SparkPlatform(far.platform).error("other-old")
    assert error["code"] == "operator.executors_other_python"
    assert "cpython-39-s390x-linux-gnu" in error["message"]
    assert str(other) in error["message"]
