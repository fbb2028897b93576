"""Functions that Spark runs import the packages of their own job, beside those of other jobs on the same server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_code import command_line
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job

MODULE = """
import os

import tinylib
from pyspark.sql import functions as F


@F.udf("string")
def version(n):
    # In Spark's own process: by the name of the module, and with what the platform has.
    import tinylib as imported
    import pyarrow, pandas
    writes = os.access(imported.__file__, os.W_OK) or os.access(os.path.dirname(imported.__file__), os.W_OK)
    environments = os.path.dirname(imported.__file__).split("/packages/")[0].rpartition("/")[0]
    return f"{imported.greet('udf')} {writes} {len(os.listdir(environments))}"


def greeted(numbers):
    return numbers.withColumn("there", version("n")).withColumn("here", F.lit(tinylib.greet("task")))
"""

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.timeout(900)
async def test_two_jobs_of_one_server_run_functions_with_different_versions_of_a_library(
    spark: SparkPlatform, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "greetings.py").write_text(MODULE)
    config = '{entrypoint: "greetings:greeted"}'
    text = dag(
        "packs",
        *(
            job("packs", name, config, more=f"requirements: [tinylib=={version}]")
            for name, version in (("old", "1.0"), ("new", "2.0"))
        ),
    )
    (tmp_path / "dag.yaml").write_text(text)
    words = ("deploy", str(tmp_path / "dag.yaml"), "--code", str(code), "--code-on-workers")
    exit_code, printed = await command_line(spark.platform, *words)
    assert exit_code == 0, printed
    await spark.platform.emit("packs.in", [1])
    await spark.platform.emit("packs.in", [2])  # with processes that are there already
    await spark.platform.settled()
    ended = await spark.platform.sql(  # other tests of this platform leave dead tasks of theirs
        "select t.state::text, t.error from tasks t join jobs j using (job_id) join dags d using (dag_id)"
        " where d.name = 'packs'"
    )
    assert {task["state"] for task in ended} == {"completed"}, ended
    for name, version in (("old", "1.0"), ("new", "2.0")):
        rows = await spark.rows(f"packs.{name}")
        assert {row["here"] for row in rows} == {f"task {version}"}
        # The server may be shown both at once, but none that is not of a running task.
        assert {row["there"].rpartition(" ")[0] for row in rows} == {f"udf {version} False"}
        assert {row["there"].rpartition(" ")[2] for row in rows} <= {"1", "2"}
