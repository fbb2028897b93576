"""Spark: what the platform adds to the same Spark work written by hand; a chain's history; a range larger than memory.

Both sides use the same Spark Connect server, in turns, on files of the same content. The hand-written side
reads, filters and writes as a script would, without a scheduler, leases or commits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from bench import ours_control, results, spark_backfill, spark_memory, spark_on_s3
from bench.peers import measure
from bench.postgres_server import running_postgres
from bench.spark_operators import busy, small
from traceplane.dataplane import datasets
from traceplane.dataplane.session import session
from traceplane.model.task_payload import OperatorInput
from traceplane.sandbox import confinement
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer
from traceplane.wire.control import BackfillRequest, BackfillResponse

SUITE = "spark"
SEEDED = 80
SINGLE = 30
HEAVY_SECONDS = 10.0
THREADS = 4
ROUNDS = 3
ROUNDS_BUDGET = 260.0
"""Seconds; a busy machine gets two rounds, or one, so that the suite ends within ten minutes."""

DAG = """
version: 1
dag: {name}
jobs:
- {{name: source, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.in}}]}}
- {{name: go, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.go}}]}}
- name: seed
  runtime: python
  operator: python
  inputs: [{{from: {{job: source}}}}]
  outputs: [{{name: seeded, dataset: {name}.seeded}}]
  config: {{entrypoint: "bench.spark_operators:seed"}}
- name: small
  runtime: spark
  operator: pyspark
  inputs: [{{name: seeded, from: {{job: seed}}}}]
  outputs: [{{name: small, dataset: {name}.small}}]
  config: {{entrypoint: "bench.spark_operators:small"}}
- name: sums
  runtime: spark
  operator: sql
  inputs: [{{name: seeded, from: {{job: seed}}}}]
  outputs: [{{name: sums, dataset: {name}.sums}}]
  config: {{query: "{query}"}}
- name: seedgo
  runtime: python
  operator: python
  inputs: [{{from: {{job: go}}}}]
  outputs: [{{name: seeded, dataset: {name}.seedgo}}]
  config: {{entrypoint: "bench.spark_operators:seed"}}
- name: heavy
  runtime: spark
  operator: pyspark
  inputs: [{{name: seeded, from: {{job: seedgo}}}}]
  outputs: [{{name: heavy, dataset: {name}.heavy}}]
  config: {{entrypoint: "bench.spark_operators:heavy", rows: {rows}}}
"""

QUERY = "select block, count(*) as numbers, sum(n) as total from seeded group by block"
DAG = DAG.replace("{query}", QUERY)
Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        with running_postgres() as server:
            by_hand, ours = asyncio.run(_measure(server.fresh_database(), Path(folder), progress))
            others = spark_backfill.run(server.fresh_database(), progress)
            others += spark_memory.run(server.fresh_database(), progress)
            others += spark_on_s3.run(server.fresh_database, progress)
    lower = [
        ("10 s Spark job, event to commit", "s", ours["heavy"], "script", by_hand["heavy"], 1 / 1.05),
        ("small task, beyond the script's", "ms", max(0.1, ours["single"] - by_hand["single"]), "target", 30.0, 1.0),
    ]  # fmt: skip
    listed = [
        results.compare(
            suite=SUITE, name=name, unit=unit, better="lower", ours=o, peer=peer, theirs=t, bar=bar
        )
        for name, unit, o, peer, t, bar in lower
    ]
    listed.append(
        results.compare(
            suite=SUITE,
            name="small tasks",
            unit="tasks/s",
            better="higher",
            ours=ours["rate"],
            peer=f"script, {THREADS} threads",
            theirs=by_hand["rate"],
            bar=0.8,
        )
    )
    listed += [
        results.compare(
            suite=SUITE,
            name="small SQL tasks",
            unit="tasks/s",
            better="higher",
            ours=ours["sql_rate"],
            peer=peer,
            theirs=theirs,
            bar=bar,
        )
        for peer, theirs, bar in (
            ("target", 25.0, 1.0),
            (f"script, {THREADS} threads", by_hand["sql_rate"], None),
        )
    ]
    return listed + others


async def _measure(url: str, folder: Path, progress: Progress) -> tuple[dict[str, float], dict[str, float]]:
    """Script and platform take turns, each on a Spark server of its own with the same settings: the platform's is
    confined, and open to its tasks only."""
    async with ours_control.stand(url, dag=DAG, rows=0) as made:
        objects = Path(made.environment["TRACEPLANE_HOME"]) / "objects"
        unconfined = frozenset(confinement.OPTIONAL_LAYERS)
        settings = SparkSettings(
            folder=folder / "spark", object_store=objects, allow_weak=True, disabled_layers=unconfined
        )
        spark = await SparkServer.start(settings)
        commands = [made.command("dispatcher"), made.command("worker", "--runtime", "python")]
        commands.append(made.command("worker", "--runtime", "spark"))
        changes = {"TRACEPLANE_WORKER_CONCURRENCY": str(THREADS)}
        try:
            with ours_control.environment(changes), measure.worker_processes(*commands):
                await made.send(0, SEEDED)
                await _done(made, "small", SEEDED, 240)
                await _done(made, "sums", SEEDED, 240)
                script = await asyncio.to_thread(Script, spark.remote, objects)
                rows = await asyncio.to_thread(script.rows_for, HEAVY_SECONDS)
                await _redeploy(made, rows)
                await made.send(0, 1, "go")
                await _done(made, "heavy", 1, 120)
                measured = await _take_turns(made, script, rows, progress)
                await asyncio.to_thread(script.close)
                return measured
        finally:
            await spark.close()


async def _take_turns(
    made: Any, script: Script, rows: int, progress: Progress
) -> tuple[dict[str, float], dict[str, float]]:
    samples: dict[str, dict[str, list[float]]] = {"script": {}, "platform": {}}
    began = time.monotonic()
    for number in range(ROUNDS):
        if number and (time.monotonic() - began) * (number + 1) / number > ROUNDS_BUDGET:
            progress(f"the machine is busy: round {number + 1} is left out")
            break
        # The long job has the narrowest bar: it is measured twice a round, each side's right after the other's.
        for measurement in ("single", "rate", "sql_rate", "heavy", "heavy"):
            for name, side in (("script", script), ("platform", Ours(made))):
                value = await getattr(side, measurement)(rows if measurement == "heavy" else number)
                samples[name].setdefault(measurement, []).append(value)
                progress(f"round {number + 1}, {name}: {measurement} {value:.2f}")
    by_hand, ours = ({m: median(v) for m, v in samples[side].items()} for side in ("script", "platform"))
    return by_hand, ours


class Script:
    """The same Spark work as a script would do it."""

    def __init__(self, remote: str, objects: Path) -> None:
        self._spark = session(remote)
        self._out = objects / "script"
        self._numbers = itertools.count()
        self._files = [_seed_file(objects, n) for n in range(SEEDED)]
        for number in range(40):
            self._once(number)

    def close(self) -> None:
        """Before its server is: a client that is left open asks a server that is gone for minutes."""
        self._spark.stop()

    def _once(self, number: int) -> float:
        began = time.monotonic()
        source = OperatorInput("seeded", (str(self._files[number]),))
        small(datasets.read(self._spark, source)).write.parquet(self._target())
        return time.monotonic() - began

    def _query(self, number: int) -> None:
        view = f"seeded_{number}"
        self._spark.read.parquet(str(self._files[number])).createOrReplaceTempView(view)
        self._spark.sql(QUERY.replace("seeded", view)).write.parquet(self._target())

    def _target(self) -> str:
        """A new folder each time, as the platform has for each attempt: there is nothing to overwrite."""
        return str(self._out / str(next(self._numbers)))

    def rows_for(self, seconds: float) -> int:
        """As Java compiles it, the same work takes less and less."""
        rows = 200_000
        for _ in range(8):
            began = time.monotonic()
            busy(self._spark, rows).collect()
            rows = int(rows * min(20.0, seconds / max(0.05, time.monotonic() - began)))
        return rows

    async def single(self, _: int) -> float:
        def each() -> float:
            return 1000 * median(self._once(n) for n in range(SINGLE))

        return await asyncio.to_thread(each)

    async def rate(self, _: int) -> float:
        return await asyncio.to_thread(self._all_at_once, self._once)

    async def sql_rate(self, _: int) -> float:
        return await asyncio.to_thread(self._all_at_once, self._query)

    def _all_at_once(self, once: Callable[[int], object]) -> float:
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(once, range(SEEDED)))
        return SEEDED / (time.monotonic() - began)

    async def heavy(self, rows: int) -> float:
        def once() -> float:
            began = time.monotonic()
            busy(self._spark, rows).write.parquet(self._target())
            return time.monotonic() - began

        return await asyncio.to_thread(once)


class Ours:
    """The same work as tasks."""

    def __init__(self, made: Any) -> None:
        self._made = made

    async def single(self, _: int) -> float:
        for number in range(SINGLE):
            await self._again("small", number, number, 30)
        return 1000 * median(await _durations(self._made, "small", SINGLE))

    async def rate(self, _: int) -> float:
        return await self._all_of("small")

    async def sql_rate(self, _: int) -> float:
        return await self._all_of("sums")

    async def _all_of(self, job: str) -> float:
        began = time.monotonic()
        await self._again(job, 0, SEEDED - 1, 240)
        return SEEDED / (time.monotonic() - began)

    async def heavy(self, _: int) -> float:
        await self._again("heavy", 0, 0, 120)
        return (await _durations(self._made, "heavy", 1))[0]

    async def _again(self, job: str, first: int, last: int, seconds: float) -> None:
        done = await _count(self._made, job)
        request = BackfillRequest(f"{self._made.dag}.{job}", first, last, only="all")
        await self._made.caller.call("POST", "/api/v1/backfill", BackfillResponse, request)
        await _done(self._made, job, done + last - first + 1, seconds)


def _seed_file(folder: Path, number: int) -> Path:
    path = folder / f"seed-{number}.parquet"
    rows = [{"block": number, "n": n, "name": f"n{n}"} for n in range(number * 100, number * 100 + 100)]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


async def _redeploy(made: Any, rows: int) -> None:
    await made.connection.execute(
        "update jobs set definition = jsonb_set(definition, '{config,rows}', to_jsonb($2::bigint)),"
        " revision = revision + 1 from dags d where d.dag_id = jobs.dag_id and d.name = $1 and jobs.name = 'heavy'",
        made.dag,
        rows,
    )


_OF_JOB = (
    "from tasks t join jobs j using (job_id) join dags d using (dag_id) where d.name = $1 and j.name = $2"
)


async def _count(made: Any, job: str) -> int:
    counted = f"select count(*) {_OF_JOB} and t.state = 'completed'"
    return int(await made.connection.fetchval(counted, made.dag, job))


async def _done(made: Any, job: str, tasks: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while await _count(made, job) < tasks:  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.01)


async def _durations(made: Any, job: str, newest: int) -> list[float]:
    found = await made.connection.fetch(
        f"select extract(epoch from t.finished_at - t.created_at)::float8 as s {_OF_JOB}"
        " order by t.created_at desc limit $3",
        made.dag, job, newest,
    )  # fmt: skip
    return [row["s"] for row in found]


if __name__ == "__main__":
    for row in run(lambda line: print(line, flush=True)):
        print(row)
    sys.exit(0)
