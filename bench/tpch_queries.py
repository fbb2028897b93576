"""TPC-H at scale factor 1: its 22 queries through the query service, the Iceberg catalog and Spark, beside DuckDB and
Spark alone.

Everybody reads the same files, those that the platform committed. Ours is the whole path each time: HTTP, gate,
pointers and file lists, a process or a task, and the rows back as Arrow. Beside it are a DuckDB connection and a Spark
session that are open already and know the names of the files. Every answer is compared with the published one.

    python -m bench.tpch_queries [SCALE] [ROUNDS]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench import ours_control, results
from bench.peers import measure
from bench.postgres_server import running_postgres
from tests import tpch
from tests.iceberg.engines import duckdb_catalog
from traceplane.client import Client
from traceplane.dataplane.session import session
from traceplane.sandbox import confinement
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer

SCALE = 1.0
ROUNDS = 3
SPARK_ROUNDS = 1
LOAD_SECONDS = 900
TIMES = results.OUT / "tpch.json"

SERVICE, BARE, ICEBERG = "query service", "bare DuckDB", "Iceberg, DuckDB"
ON_SPARK, BARE_SPARK = "engine spark", "bare Spark"
CONTENDERS = (SERVICE, BARE, ICEBERG, ON_SPARK, BARE_SPARK)
COMPARED = (
    ("through the query service", SERVICE, BARE, 1 / 1.3),
    ("through the Iceberg catalog", ICEBERG, BARE, None),
    ("on Spark", ON_SPARK, BARE_SPARK, None),
)

Ask = Callable[[str], tpch.Rows]
Progress = Callable[[str], None]


def run(url: str, progress: Progress, *, scale: float = SCALE, rounds: int = ROUNDS) -> list[results.Row]:
    # The setting's default is one connection's patience; a loaded machine is not what is measured here.
    patient = {"TRACEPLANE_QUERY_TIMEOUT_SECONDS": "600"}
    with tempfile.TemporaryDirectory(prefix="bench-tpch-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        incoming = Path(folder) / "incoming"
        incoming.mkdir()
        allowed = {"TRACEPLANE_FILE_SOURCE_ALLOW": str(incoming)}
        with ours_control.environment({**patient, **allowed}):
            times = asyncio.run(_measure(url, Path(folder), incoming, scale, rounds, progress))
    progress(f"seconds at scale factor {scale:g}\n{as_table(times)}")
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.write_text(json.dumps({"scale": scale, "seconds": times}, indent=1) + "\n")
    return [
        results.compare(
            suite="query",
            name=f"TPC-H, all {len(times)} queries, scale factor {scale:g}: {how}",
            unit="s",
            better="lower",
            ours=sum(seconds[ours] for seconds in times.values()),
            peer=theirs,
            theirs=sum(seconds[theirs] for seconds in times.values()),
            bar=bar,
        )
        for how, ours, theirs, bar in COMPARED
    ]


def as_table(times: dict[int, dict[str, float]]) -> str:
    total = {name: sum(seconds[name] for seconds in times.values()) for name in CONTENDERS}
    lines: list[tuple[str, ...]] = [("query", *CONTENDERS)]
    for label, seconds in [*((f"{n}", s) for n, s in times.items()), ("all", total)]:
        lines.append((label, *(f"{seconds[name]:.2f}" for name in CONTENDERS)))
    return "\n".join("  ".join(cell.rjust(15) for cell in line) for line in lines)


async def _measure(
    url: str, folder: Path, incoming: Path, scale: float, rounds: int, progress: Progress
) -> dict[int, dict[str, float]]:
    await asyncio.to_thread(tpch.write_tables, incoming, scale)
    progress("the tables are written")
    dag = tpch.dag_text(incoming).replace("{", "{{").replace("}", "}}")
    async with ours_control.stand(url, dag=dag) as made:
        commands = [made.command("dispatcher"), made.command("worker", "--runtime", "python")]
        commands.append(made.command("worker", "--runtime", "spark"))
        with measure.worker_processes(*commands):
            files = await _loaded(made, incoming)
            progress(f"{sum(map(len, files.values()))} files are datasets")
            async with _spark_server(folder, Path(made.environment["TRACEPLANE_HOME"])) as remote:
                compared = Compared(scale, rounds, progress)
                return await asyncio.to_thread(compared.run, made, files, remote)


async def _loaded(made: ours_control.Stand, incoming: Path) -> dict[str, list[Path]]:
    """The committed files of each table, once all that came in have been read."""
    objects = Path(made.environment["TRACEPLANE_HOME"]) / "objects"
    expected = {table: len(list((incoming / table).iterdir())) for table in tpch.TABLES}
    async with asyncio.timeout(LOAD_SECONDS):
        while True:
            found: dict[str, list[Path]] = {table: [] for table in tpch.TABLES}
            for row in await made.connection.fetch(
                "select d.dataset_id, c.files from datasets d join dataset_commits c"
                " on c.generation_id = d.current_generation_id"
                " where d.dataset_id = any($1) and c.superseded_by is null order by c.range_start",
                list(tpch.TABLES),
            ):
                found[row["dataset_id"]] += [objects / file["path"] for file in json.loads(row["files"])]
            if all(len(found[table]) >= count for table, count in expected.items()):
                return found
            await asyncio.sleep(0.5)


@asynccontextmanager
async def _spark_server(folder: Path, home: Path) -> AsyncIterator[str]:
    """As the platform starts its own, without the confinement: what a script would use."""
    settings = SparkSettings(
        folder=folder / "spark",
        object_store=home / "objects",
        allow_weak=True,
        disabled_layers=frozenset(confinement.OPTIONAL_LAYERS),
    )
    server = await SparkServer.start(settings)
    try:
        yield server.remote
    finally:
        await server.close()


class Compared:
    """Everybody answers each query in turn, so that what else the machine does is shared."""

    def __init__(self, scale: float, rounds: int, progress: Progress) -> None:
        self._rounds, self._progress = rounds, progress
        self._queries = tpch.queries()
        self._published = tpch.published_answers(scale)

    def run(
        self, made: ours_control.Stand, files: dict[str, list[Path]], remote: str
    ) -> dict[int, dict[str, float]]:
        with ExitStack() as opened:
            asks = {
                SERVICE: _service(made, "duckdb"),
                BARE: opened.enter_context(_bare(files)),
                ICEBERG: opened.enter_context(_iceberg(made)),
                ON_SPARK: _service(made, "spark"),
                BARE_SPARK: opened.enter_context(_bare_spark(remote, files)),
            }
            return {number: self._times(number, sql, asks) for number, sql in self._queries.items()}

    def _times(self, number: int, sql: str, asks: dict[str, Ask]) -> dict[str, float]:
        samples: dict[str, list[float]] = {name: [] for name in asks}
        for turn in range(self._rounds + 1):
            for name, ask in asks.items():
                if name in (ON_SPARK, BARE_SPARK) and turn > SPARK_ROUNDS:
                    continue
                began = time.perf_counter()
                rows = ask(sql)
                samples[name].append(time.perf_counter() - began)
                if different := self._difference(number, rows):
                    raise AssertionError(f"query {number}, {name}: {different}")
        times = {name: median(seconds[1:]) for name, seconds in samples.items()}  # the first one warms
        self._progress(f"query {number}: " + ", ".join(f"{name} {s:.2f} s" for name, s in times.items()))
        return times

    def _difference(self, number: int, rows: tpch.Rows) -> str | None:
        if number not in self._published:  # only some scales are
            return None
        return tpch.difference_from_published(rows, self._published[number])


def _service(made: ours_control.Stand, engine: Any) -> Ask:
    client = Client(f"http://127.0.0.1:{made.environment['TRACEPLANE_GATEWAY_PORT']}", made.token)
    return lambda sql: tpch.rows_of(client.query(sql, engine=engine))


@contextmanager
def _bare(files: dict[str, list[Path]]) -> Iterator[Ask]:
    with tpch.bare_duckdb(threads=os.cpu_count() or 1) as connection:
        tpch.read_files(connection, files)
        yield lambda sql: tpch.rows_of(connection.execute(sql).to_arrow_table())


@contextmanager
def _iceberg(made: ours_control.Stand) -> Iterator[Ask]:
    url = f"http://127.0.0.1:{made.environment['TRACEPLANE_GATEWAY_PORT']}"
    with duckdb_catalog(url, made.token) as connection:
        connection.execute(f"use ic.{tpch.DAG}")
        yield lambda sql: tpch.rows_of(connection.execute(sql).to_arrow_table())


@contextmanager
def _bare_spark(remote: str, files: dict[str, list[Path]]) -> Iterator[Ask]:
    spark = session(remote)
    try:
        for table, paths in files.items():
            spark.read.parquet(*map(str, paths)).createOrReplaceTempView(table)
        yield lambda sql: tpch.rows_of(spark.sql(sql).toArrow())
    finally:
        spark.stop()


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:3]]
    asked = {"scale": given[0] if given else SCALE, "rounds": int(given[1]) if len(given) > 1 else ROUNDS}
    started = time.monotonic()
    with running_postgres() as server:
        for one in run(
            server.fresh_database(),
            lambda line: print(f"[{time.monotonic() - started:5.0f} s] {line}", flush=True),
            **asked,  # type: ignore[arg-type]
        ):
            print(one)
