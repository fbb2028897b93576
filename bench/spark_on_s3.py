"""A Spark job on S3, three ways that take turns: executors use the bucket with credentials of the task, a script does
the same with `s3a`, and files pass through the worker's disk.

Each side has one core: an application on a standalone cluster, but the way through the worker's disk, which needs no
cluster, a Spark of its own. The S3 server is a real one. The script reads the files of the first side and writes with
`DataFrame.write.parquet`, without scheduler, leases or commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import ours_control, results
from bench.peers import measure
from bench.spark_operators import hashed
from tests.seaweedfs import KEY, SECRET, SeaweedFS
from tests.spark.bucket import BUCKET, JARS, bucket_of, environment
from tests.spark.standalone import Cluster, standalone
from traceplane.dataplane.session import session
from traceplane.errors import TraceplaneError
from traceplane.sandbox import confinement
from traceplane.spark import s3_jars
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer
from traceplane.wire.control import BackfillRequest, BackfillResponse

ROWS = 500_000
ROUNDS = 3
CORE = "spark.cores.max=1"
PATIENCE = 600.0
BAR = 1 / 1.05

DAG = """
version: 1
dag: {name}
defaults: {{max_attempts: 2, timeout: 10m}}
jobs:
- {{name: go, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.in}}]}}
- name: fill
  runtime: python
  operator: python
  inputs: [{{from: {{job: go}}}}]
  outputs: [{{name: blobs, dataset: {name}.blobs}}]
  config: {{entrypoint: "bench.spark_operators:blobs", rows: {rows}}}
- name: hashed
  runtime: spark
  operator: pyspark
  inputs: [{{name: blobs, from: {{job: fill}}}}]
  outputs: [{{name: hashed, dataset: {name}.hashed}}]
  config: {{entrypoint: "bench.spark_operators:hashed"}}
"""

Progress = Callable[[str], None]


def run(fresh_database: Callable[[], str], progress: Progress) -> list[results.Row]:
    try:
        s3_jars.fetch(JARS)  # before a worker asks for them
    except TraceplaneError as error:
        progress(f"the job on S3 is skipped: {error}")
        return [_row("job on S3", "s", None, "script, s3a", None, BAR, note=f"no jars for S3: {error}")]
    return asyncio.run(_run(fresh_database(), fresh_database(), progress))


async def _run(url: str, other_url: str, progress: Progress) -> list[results.Row]:
    with tempfile.TemporaryDirectory(prefix="bench-s3-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = SeaweedFS(folder / "weed", volume_mb=1024)
        try:
            server.start()
            async with bucket_of(server.endpoint):
                with standalone(folder, (None, None, None, None)) as cluster:
                    async with (
                        _ours(url, cluster, server.endpoint, "executors") as executors,
                        _ours(other_url, cluster, server.endpoint, "wrapper") as wrapper,
                    ):
                        for side in (executors, wrapper):
                            await side.fill()
                        script = await Script.start(folder, cluster, server.endpoint, await executors.files())
                        try:
                            sides = {"executors": executors, "script": script, "wrapper": wrapper}
                            seconds = await _take_turns(sides, progress)
                        finally:
                            await script.close()
        finally:
            server.kill()
    size = f"{executors.input_bytes / 2**20:,.0f} MB"
    progress(f"S3, {size}: most on the worker's disk {executors.on_disk:,} and {wrapper.on_disk:,} bytes")
    return [
        _row(f"job on S3, {size}", "s", seconds["executors"], "script, s3a", seconds["script"], BAR),
        _row(f"job on S3, {size}", "s", seconds["executors"], "through the worker", seconds["wrapper"], None),
        _row(
            "job on S3, most on the worker's disk",
            "MB",
            executors.on_disk / 2**20,
            "through the worker",
            wrapper.on_disk / 2**20,
            None,
        ),
    ]


def _row(
    name: str,
    unit: str,
    ours: float | None,
    peer: str,
    theirs: float | None,
    bar: float | None,
    note: str = "",
) -> results.Row:
    return results.compare(
        suite="spark", name=name, unit=unit, better="lower", ours=ours, peer=peer, theirs=theirs, bar=bar,
        note=note,
    )  # fmt: skip


async def _take_turns(sides: dict[str, Any], progress: Progress) -> dict[str, float]:
    """The first round starts executors and warms them, and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS + 1):
        for name, side in sides.items():
            took = await side.once()
            if number:
                seconds[name].append(took)
                progress(f"S3, round {number}, {name}: {took:.2f} s")
    return {name: median(took) for name, took in seconds.items()}


@dataclass
class Ours:
    made: Any
    cache: Path
    on_disk: int = 0
    input_bytes: int = 0
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def fill(self) -> None:
        await self.made.send(0, 1)
        await self._done(1)
        self.input_bytes = await self.made.connection.fetchval(
            "select sum((f ->> 'bytes')::bigint)::bigint from dataset_commits c"
            " join generations using (generation_id) join datasets d using (dataset_uuid),"
            " jsonb_array_elements(c.files) f where d.dataset_id = $1 and c.superseded_by is null",
            f"{self.made.dag}.blobs",
        )

    async def files(self) -> list[str]:
        rows = await self.made.connection.fetch(
            "select f ->> 'path' as path from dataset_commits c join generations using (generation_id)"
            " join datasets d using (dataset_uuid), jsonb_array_elements(c.files) f"
            " where d.dataset_id = $1 and c.superseded_by is null",
            f"{self.made.dag}.blobs",
        )
        return [row["path"] for row in rows]

    async def once(self) -> float:
        """From the creation of the task to its commit."""
        number = next(self._numbers)
        request = BackfillRequest(f"{self.made.dag}.hashed", 0, 0, only="all")
        await self.made.caller.call("POST", "/api/v1/backfill", BackfillResponse, request)
        await self._done(1 + number)
        found = await self.made.connection.fetchval(
            "select extract(epoch from t.finished_at - t.created_at)::float8 from tasks t"
            " join jobs j using (job_id) join dags d using (dag_id)"
            " where d.name = $1 and j.name = 'hashed' order by t.created_at desc limit 1",
            self.made.dag,
        )
        return float(found)

    async def _done(self, tasks: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                rows = await self.made.connection.fetch(
                    "select t.state::text, t.error::text from tasks t join jobs j using (job_id)"
                    " join dags d using (dag_id) where d.name = $1 and j.name = 'hashed'",
                    self.made.dag,
                )
                if dead := [row["error"] for row in rows if row["state"] == "dead"]:
                    raise RuntimeError(f"the job failed: {dead[0]}")
                self.on_disk = max(self.on_disk, await asyncio.to_thread(_bytes_below, self.cache))
                if sum(row["state"] == "completed" for row in rows) >= tasks:
                    return
                await asyncio.sleep(0.05)


def _bytes_below(folder: Path) -> int:
    found = 0
    for inside, _, names in os.walk(folder):  # which goes on where a folder is gone meanwhile
        for name in names:
            if name.endswith(".parquet"):
                with contextlib.suppress(OSError):
                    found += Path(inside, name).stat().st_size
    return found


@asynccontextmanager
async def _ours(url: str, cluster: Cluster, endpoint: str, way: str) -> AsyncIterator[Ours]:
    """A platform of its own, with its own part of the bucket."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRACEPLANE_")}
    settings = environment(endpoint) | {"TRACEPLANE_OBJECT_STORE": f"s3://{BUCKET}/{way}"}
    if way == "wrapper":
        del settings["TRACEPLANE_S3_TASK_ROLE"]
    master = "local[1]" if way == "wrapper" else cluster.address
    changes = settings | {"TRACEPLANE_SPARK_MASTER": master, "TRACEPLANE_SPARK_CONF": CORE}
    with ours_control.environment({}):
        os.environ.clear()  # of what the other platform has set, which runs already
        os.environ.update(inherited | settings)
        async with ours_control.stand(url, dag=DAG, rows=ROWS) as made:
            cache = Path(made.environment["TRACEPLANE_HOME"]) / "cache-of-spark"
            changes["TRACEPLANE_OBJECT_CACHE"] = os.fspath(cache)
            others = [made.command("dispatcher"), made.command("worker", "--runtime", "python")]
            with (
                measure.worker_processes(*others),
                ours_control.environment(changes),
                measure.worker_processes(made.command("worker", "--runtime", "spark")),
            ):
                yield Ours(made, cache)


class Script:
    """The same as a script would do it."""

    def __init__(self, server: SparkServer, spark: Any, endpoint: str, files: list[str]) -> None:
        self._server, self._spark, self._files = server, spark, files
        self._numbers = itertools.count()
        self._options = {
            "fs.s3a.access.key": KEY,
            "fs.s3a.secret.key": SECRET,
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.endpoint.region": "eu-central-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.impl.disable.cache": "false",
        }

    @classmethod
    async def start(cls, folder: Path, cluster: Cluster, endpoint: str, files: list[str]) -> Script:
        settings = SparkSettings(
            folder=folder / "script",
            object_store=folder / "objects",
            master=cluster.address,
            jars=s3_jars.installed(JARS),
            code_paths=(Path(__file__).parent.parent,),
            conf=(("spark.cores.max", "1"),),
            allow_weak=True,
            disabled_layers=frozenset(confinement.OPTIONAL_LAYERS),
        )
        server = await SparkServer.start(settings)
        spark = await asyncio.to_thread(session, server.remote)
        return cls(server, spark, endpoint, [f"s3a://{BUCKET}/executors/{file}" for file in files])

    async def once(self) -> float:
        return await asyncio.to_thread(self._once)

    def _once(self) -> float:
        began = time.monotonic()
        rows = self._spark.read.options(**self._options).parquet(*self._files)
        target = f"s3a://{BUCKET}/script/{next(self._numbers)}"
        hashed(rows).write.options(**self._options).parquet(target)
        return time.monotonic() - began

    async def close(self) -> None:
        await asyncio.to_thread(self._spark.stop)
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        await self._server.close()


if __name__ == "__main__":
    from bench.postgres_server import running_postgres

    with running_postgres() as server:
        measured = run(server.fresh_database, lambda line: print(line, flush=True))
    print(results.table(measured))
    raise SystemExit(os.EX_OK)
