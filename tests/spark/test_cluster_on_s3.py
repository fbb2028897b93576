"""Jobs on a Spark cluster without a shared mount: a master and two workers, each as a user of its own with a folder
that nobody else can enter, and a real S3 server. An executor, a worker of the cluster, the driver and our worker are
killed while jobs run; every row is committed once.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as parquet
import pyspark
import pytest
from aiobotocore.session import get_session

import traceplane
from tests.aws import REGION
from tests.platform import OPERATORS, Platform, die_with_parent, until
from tests.ports import free_port
from tests.seaweedfs import KEY, SECRET
from tests.spark.bucket import BUCKET, bucket, environment, jars
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.test_cluster import computing, executor_of
from traceplane.dataplane.java import find_java
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

PATIENCE = 420.0
MASTER, WORKERS = "bin", ("daemon", "games")
"""Users that every Debian has: Java wants one with a name."""
SLOW = '{entrypoint: "spark_jobs:by_halves", seconds: 8}'
SUMS = '{query: "select block, cast(sum(n) as bigint) as total from numbers group by block"}'
MORE = "lease: 20s\n  max_attempts: 6"
CHECKS = """
datasets:
  far.out: {checks: [{unique: n}]}
  far.sums: {checks: [{not_null: total}]}
"""
"""Executors write what they check, however small it is."""
DAG = (
    dag("far", job("far", "out", SLOW, more=MORE), job("far", "sums", SUMS, operator="sql", more=MORE))
    + CHECKS
)


def python_for_everybody() -> str:
    """The tests' own Python may be below a home folder that other users cannot enter."""
    python = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    if not python.exists():
        pytest.skip(f"there is no {python}, which the users of the cluster could run")
    search = (OPERATORS, Path(traceplane.__file__).parents[1], Path(pyspark.__file__).parents[1])
    return ";".join(
        (
            f"spark.sql.execution.pyspark.python={python}",
            f"spark.executorEnv.PYTHONPATH={os.pathsep.join(map(str, search))}",
            # The executors of one machine would open each other's files, rather than ask for them.
            "spark.shuffle.readHostLocalDisk=false",
        )
    )


@contextlib.contextmanager
def separate_cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Its address, and its two workers with one core each. Each process is another user, with a folder of mode 700."""
    home, java, port = Path(pyspark.__file__).parent, find_java(), free_port()
    quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    command = [str(java.executable), "-Xmx256m", *quick, *java.options, "-cp", f"{home / 'jars'}/*"]
    with contextlib.ExitStack() as stack:

        def start(user: str, role: str, *words: str) -> subprocess.Popen[bytes]:
            uid, own = pwd.getpwnam(user).pw_uid, folder / user
            own.mkdir(mode=0o700)
            os.chown(own, uid, uid)
            log = stack.enter_context(open(folder / f"{role}-{user}.log", "ab"))
            process = subprocess.Popen(
                [
                    *command,
                    f"org.apache.spark.deploy.{role}",
                    *("--host", "127.0.0.1", "--webui-port", "0", *words),
                ],
                env={
                    "PATH": os.environ["PATH"],
                    "JAVA_HOME": str(java.home),
                    "SPARK_HOME": str(home),
                    "SPARK_SCALA_VERSION": "2.13",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(own / "work"),
                    "SPARK_LOCAL_DIRS": str(own / "local"),
                    "HOME": str(own),
                },
                cwd=own,
                stdout=log,
                stderr=log,
                user=uid,
                group=uid,
                extra_groups=[],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            stack.callback(_stop, process)
            return process

        address = f"spark://127.0.0.1:{port}"
        start(MASTER, "master.Master", "--port", str(port))
        small = ("--cores", "1", "--memory", "1g", address)
        yield address, [start(user, "worker.Worker", *small) for user in WORKERS]


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def rows_in_bucket(platform: Platform, endpoint: str, dataset: str) -> list[dict]:
    """What a dataset holds, read from its committed files."""
    files = await platform.sql(
        "select f ->> 'path' as path from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
        " where d.dataset_id = $1 and c.superseded_by is null",
        dataset,
    )
    rows: list[dict] = []
    async with get_session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    ) as s3:
        for file in files:
            answer = await s3.get_object(Bucket=BUCKET, Key=f"data/{file['path']}")
            rows += parquet.read_table(BytesIO(await answer["Body"].read())).to_pylist()
    return rows


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of several users")
async def test_a_cluster_without_a_shared_mount_commits_every_row_once(
    postgres_server: EmbeddedPostgres, template_database: str
) -> None:
    jars()
    url = create_database(postgres_server, "cluster_on_s3", template=template_database)
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with bucket(folder / "weed") as (_, endpoint):
            with separate_cluster(folder) as (address, workers):
                settings = {
                    "TRACEPLANE_SPARK_MASTER": address,
                    "TRACEPLANE_WORKER_CONCURRENCY": "2",
                    "TRACEPLANE_SPARK_CONF": python_for_everybody(),
                    **environment(endpoint),
                }
                async with Platform.start(url, folder / "home", environment=settings) as platform:
                    await platform.add("spark-1", "worker", "--runtime", "spark").start()
                    spark = SparkPlatform(platform)
                    await platform.deploy(DAG)
                    for position, victim in enumerate(("executor", "worker", "driver", "ours"), start=1):
                        await platform.emit("far.in", [position])
                        await until(
                            lambda: computing(spark, "far-out"), seconds=PATIENCE, what="a job computes"
                        )
                        if victim == "executor":
                            pid = await until(partial(executor_of, workers[1]), what="its executor runs")
                            os.kill(pid, signal.SIGKILL)
                        elif victim == "worker":
                            os.killpg(workers[0].pid, signal.SIGKILL)
                        elif victim == "driver":
                            os.kill(spark.server_pid(), signal.SIGKILL)
                        else:
                            await platform["spark-1"].kill()
                            await platform["spark-1"].start()
                        assert set(await platform.settled(seconds=PATIENCE)) == {"completed"}, victim
                    out = await rows_in_bucket(platform, endpoint, "far.out")
                    assert sorted(row["n"] for row in out) == list(range(100, 500))
                    sums = await rows_in_bucket(platform, endpoint, "far.sums")
                    expected = {block: sum(range(100 * block, 100 * block + 100)) for block in range(1, 5)}
                    assert {row["block"]: row["total"] for row in sums} == expected
                    assert len(sums) == 4
        drop_database(postgres_server, "cluster_on_s3")
