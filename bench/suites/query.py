"""Queries: what the service adds to DuckDB on the same files, and what it spares by not reading some.

Ours is the whole path: HTTP, gate, pointers and file lists from Postgres, a process for the query, Arrow back over
HTTP. The other side is a DuckDB connection that is open already and is given the file names. Both run in turns, with
the same number of threads, on files that the system has in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID, uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as parquet

from bench import many_files, ours_control, results, tpch_queries
from bench.postgres_server import running_postgres
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.client import Client
from traceplane.columnar import parquet_facts
from traceplane.errors import UserError
from traceplane.postgres.database import Database
from traceplane.query.datasets import QueryCaller
from traceplane.query.engine_pool import EnginePool
from traceplane.query.service import Queries
from traceplane.query.wire import QueryLimits

SUITE = "query"
COPIES, ROWS = 16, 1_500_000
FILES, ROWS_OF_A_FILE = 10_000, 100
PARTITIONS = 100_000
ROUNDS = 5
KEY = 777_777

DAG = """
version: 1
dag: {name}
jobs:
- {{name: source, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.lineitem}}]}}
- {{name: many, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.many}}]}}
- {{name: files, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.files}}]}}
- {{name: partitions, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.partitions}}]}}
"""

LINEITEM = f"""
select i as l_orderkey, (i * 7919 % 200000)::bigint as l_partkey, (i * 31 % 50 + 1)::double as l_quantity,
  (i * 104729 % 9000000 / 100.0 + 900)::double as l_extendedprice, (i * 17 % 11 / 100.0)::double as l_discount,
  (i * 13 % 9 / 100.0)::double as l_tax, ['A', 'N', 'R'][(i * 7 % 3 + 1)::int] as l_returnflag,
  ['F', 'O'][(i * 11 % 2 + 1)::int] as l_linestatus, date '1992-01-01' + (i * 101 % 2500)::int as l_shipdate
from range({ROWS}) r(i)
"""
Q1 = """
select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
  sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
  sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty,
  avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
from {} where l_shipdate <= date '1998-09-02'
group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus
"""
Q6 = """
select sum(l_extendedprice * l_discount) as revenue from {}
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
  and l_discount between 0.05 and 0.07 and l_quantity < 24
"""
TOP = "select l_partkey, sum(l_extendedprice) as total from {} group by 1 order by 2 desc limit 100"

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    with running_postgres() as server:
        rows = asyncio.run(_measure(server.fresh_database(), progress))
        return rows + tpch_queries.run(server.fresh_database(), progress)


async def _measure(url: str, progress: Progress) -> list[results.Row]:
    # The setting's default is one connection's patience; a loaded machine is not what is measured here.
    os.environ["TRACEPLANE_QUERY_TIMEOUT_SECONDS"] = "600"
    try:
        async with ours_control.stand(url, dag=DAG) as made:
            bench = await Bench.prepare(url, made, progress)
            try:
                return [
                    *await bench.scans(),
                    *await bench.point_query(),
                    *await bench.metadata(),
                    *await bench.planning(url),
                ]
            finally:
                await bench.database.close()
    finally:
        del os.environ["TRACEPLANE_QUERY_TIMEOUT_SECONDS"]


class Bench:
    def __init__(
        self, database: Database, made: ours_control.Stand, client: Client, progress: Progress
    ) -> None:
        self.database, self.made, self.client, self.progress = database, made, client, progress
        self.objects = Path(made.environment["TRACEPLANE_HOME"]) / "objects"
        self.bare = duckdb.connect(config={"threads": os.cpu_count() or 1})

    @classmethod
    async def prepare(cls, url: str, made: ours_control.Stand, progress: Progress) -> Bench:
        database = await Database.connect(url, connections=2)
        async with database.transaction() as tx:
            token = await issue_token(tx, Principal.USER, org="default", name="query", role=Role.ADMIN)
        client = Client(f"http://127.0.0.1:{made.environment['TRACEPLANE_GATEWAY_PORT']}", token)
        while True:
            try:
                await asyncio.to_thread(client.query, "select 1")
                return cls(database, made, client, progress)
            except UserError:  # the gateway reads new tokens every two seconds
                await asyncio.sleep(0.2)

    # Scans -----------------------------------------------------------------------------------------

    async def scans(self) -> list[results.Row]:
        folder = await self._folder("lineitem")
        first = folder / "0.parquet"
        self.bare.execute(f"copy ({LINEITEM}) to '{first}' (format parquet, compression zstd)")
        for number in range(1, COPIES):
            shutil.copy(first, folder / f"{number}.parquet")

        def bare_table(sql: str) -> object:
            return self.bare.execute(sql).to_arrow_table()

        paths = [str(folder / f"{n}.parquet") for n in range(COPIES)]
        await self._commit("lineitem", [(n, n, Path(p), ROWS) for n, p in enumerate(paths)], first)
        self.progress(f"{COPIES * ROWS:,} rows in {COPIES} files")
        rows = []
        for name, sql in (
            ("scan and aggregate (Q1)", Q1),
            ("selective scan (Q6)", Q6),
            ("group and top 100", TOP),
        ):
            ours, theirs = [], []
            for number in range(2 * ROUNDS + 1):
                theirs.append(_timed(partial(bare_table, sql.format(f"read_parquet({paths})"))))
                ours.append(_timed(partial(self.client.query, sql.format(f"{self.made.dag}.lineitem"))))
                self.progress(f"{name}, round {number}: ours {ours[-1]:.3f} s, bare {theirs[-1]:.3f} s")
            # One right after the other, a pair has the machine alike; over a minute it changes by more than the bar.
            usual = median(theirs[1:])
            beside = median(o / t for o, t in zip(ours[1:], theirs[1:], strict=True))
            rows.append(
                results.compare(
                    suite=SUITE,
                    name=f"{name}, {COPIES * ROWS // 10**6} M rows",
                    unit="s",
                    better="lower",
                    ours=usual * beside,
                    peer="bare DuckDB",
                    theirs=usual,
                    bar=1 / 1.10,
                )
            )
        return rows

    # A point query ---------------------------------------------------------------------------------

    async def point_query(self) -> list[results.Row]:
        folder = await self._folder("many")
        files = []
        for number in range(FILES):
            path, start = folder / f"{number}.parquet", number * ROWS_OF_A_FILE
            keys = range(start, start + ROWS_OF_A_FILE)
            parquet.write_table(pa.table({"k": pa.array(keys), "v": [f"value {k}" for k in keys]}), path)
            files.append((start, start + ROWS_OF_A_FILE - 1, path, ROWS_OF_A_FILE))
        await self._commit("many", files, files[0][2], key="k")
        self.progress(f"{FILES:,} files")
        sql = f"select * from {self.made.dag}.many where k = {KEY}"
        everything = f"select * from read_parquet({[str(f[2]) for f in files]}) where k = {KEY}"
        ours = [_timed(lambda: self.client.query(sql)) for _ in range(2 * ROUNDS + 1)][1:]
        assert self.client.query(sql).to_pylist() == [{"k": KEY, "v": f"value {KEY}"}]
        theirs = [_timed(lambda: self.bare.execute(everything).to_arrow_table()) for _ in range(3)][1:]
        self.progress(
            f"point query: ours {median(ours) * 1000:.0f} ms, all files {median(theirs) * 1000:.0f} ms"
        )
        return [
            results.compare(
                suite=SUITE,
                name=f"point query, {FILES:,} files",
                unit="ms",
                better="lower",
                ours=median(ours) * 1000,
                peer="reading all files",
                theirs=median(theirs) * 1000,
                bar=20.0,
            )
        ]

    # Metadata --------------------------------------------------------------------------------------

    async def metadata(self) -> list[results.Row]:
        rows = []
        for partitions in (PARTITIONS // 10, PARTITIONS):
            await self._add_partitions(partitions)
            for name, seconds in (await self._metadata()).items():
                self.progress(f"{partitions:,} partitions, {name}: {seconds * 1000:.0f} ms")
                rows.append(
                    results.compare(
                        suite=SUITE,
                        name=f"metadata, {partitions:,} partitions: {name}",
                        unit="ms",
                        better="lower",
                        ours=seconds * 1000,
                        peer="target",
                        theirs=1000.0,
                        bar=1.0 if partitions == PARTITIONS else None,
                    )
                )
        return rows

    async def planning(self, url: str) -> list[results.Row]:
        """What a claim reads of a dataset of a million files, in a process of its own."""
        _, generation = await self._dataset("files")
        connection = self.made.connection
        for first in range(0, many_files.FILES, 100_000):
            await connection.execute(many_files.FILL, generation, first, first + 99_999)
        await self._describe(generation, [("n", "int64"), ("v", "string"), ("w", "double")], 0)
        await connection.execute("vacuum analyze traceplane.dataset_commits")
        files = f"of {many_files.FILES:,} files"
        rows = []
        for what, name, bars in (
            ("some_files", f"planning a task over 100 {files}", (200.0, None)),
            ("selected_files", f"planning a task that needs 1 {files}, by a column's values", (None, 256.0)),
            ("all_files", f"sending a worker the files of a task over all {files}", (None, 256.0)),
            ("query_by_position", f"planning a query that needs 1 {files}, by position", (1000.0, 256.0)),
            ("query_by_value", f"planning a query that needs 1 {files}, by a column's values", (None, 256.0)),
            ("iceberg_table", f"an Iceberg table {files}, from nothing", (None, 512.0)),
        ):
            measured = [
                await _measured(url, generation, what) for _ in range(5 if what == "some_files" else 1)
            ]
            found = {key: median(one[key] for one in measured) for key in measured[0]}
            self.progress(
                f"{name}: {found['ms']:,.0f} ms, peak {found['peak_mb']:.0f} MB, {found['files']:,.0f} files"
            )
            for unit, ours, most in (("ms", found["ms"], bars[0]), ("MB", found["peak_mb"], bars[1])):
                rows.append(
                    results.compare(
                        suite=SUITE,
                        name=name if unit == "ms" else f"{name}: peak memory",
                        unit=unit,
                        better="lower",
                        ours=ours,
                        peer="target",
                        theirs=most or 10_000.0,
                        bar=1.0 if most is not None else None,
                    )
                )
        return rows

    async def _add_partitions(self, wanted: int) -> None:
        _, generation = await self._dataset("partitions")
        await self.made.connection.execute(
            "insert into dataset_commits (task_id, output_index, generation_id, partition_key, range_start, range_end,"
            " files, row_count, bytes, schema_hash, committed_at)"
            " select gen_random_uuid(), 0, $1::uuid, n::text, n * 100, n * 100 + 99,"
            " jsonb_build_array(jsonb_build_object("
            " 'path', $1::uuid || '/' || $1::uuid || '/staging/' || md5(n::text)::uuid || '/1/part-0.parquet',"
            " 'rows', 100, 'bytes', 12345, 'statistics', jsonb_build_object("
            "   'k', jsonb_build_object('min', n * 100, 'max', n * 100 + 99, 'null_count', 0),"
            "   'v', jsonb_build_object('min', 'value ' || n * 100, 'max', 'value ' || n * 100 + 99, 'null_count', 0),"
            "   'w', jsonb_build_object('min', n * 0.5, 'max', n * 0.5 + 100, 'null_count', 3)))),"
            " 100, 12345, 'h', now() from generate_series($2::bigint, $3::bigint) n",
            generation,
            await self.made.connection.fetchval(
                "select count(*) from dataset_commits where generation_id = $1", generation
            ),
            wanted - 1,
        )
        await self._describe(generation, [("k", "int64"), ("v", "string"), ("w", "double")], wanted * 100)
        await self.made.connection.execute("analyze")

    async def _metadata(self) -> dict[str, float]:
        """Gate, pointers, file list and choice of files, as the gateway does it before it starts the engine."""
        limits = QueryLimits(60, 1, 1, 1, 1, 1)
        service = Queries(
            EnginePool(spill_root=self.objects, concurrency=1),
            object_root=self.objects,
            limits=limits,
        )
        caller = QueryCaller("default", "bench", "admin", sees_pii=True)
        name = f"{self.made.dag}.partitions"
        _, generation = await self._dataset("partitions")

        async def timed(sql: str) -> float:
            started = time.perf_counter()
            await service.prepare(self.database, caller, sql)
            return time.perf_counter() - started

        found = {"first query": await timed(f"select count(*) from {name}")}
        found["all files"] = median([await timed(f"select count(*) from {name}") for _ in range(ROUNDS)])
        found["one file"] = median(
            [await timed(f"select * from {name} where k = {n}") for n in range(ROUNDS)]
        )
        after = []
        for _ in range(ROUNDS):
            await self.made.connection.execute(
                "update generation_cursors set updated_at = now() where generation_id = $1", generation
            )
            after.append(await timed(f"select * from {name} where k = 5"))
        found["one file, after a commit"] = median(after)
        started = time.perf_counter()
        assert (await asyncio.to_thread(self.client.datasets.get, name)).dataset.commits > 0
        found["schema and size over HTTP"] = time.perf_counter() - started
        return found

    # What is published -----------------------------------------------------------------------------

    async def _dataset(self, name: str) -> tuple[UUID, UUID]:
        row = await self.made.connection.fetchrow(
            "select dataset_uuid, current_generation_id from datasets where dataset_id = $1",
            f"{self.made.dag}.{name}",
        )
        assert row is not None
        return row[0], row[1]

    async def _folder(self, name: str) -> Path:
        dataset, generation = await self._dataset(name)
        folder = self.objects / str(dataset) / str(generation) / "staging" / str(uuid4()) / "1"
        folder.mkdir(parents=True)
        return folder

    async def _commit(
        self, name: str, files: list[tuple[int, int, Path, int]], sample: Path, *, key: str | None = None
    ) -> None:
        _, generation = await self._dataset(name)
        statistics = parquet_facts.statistics(parquet.read_metadata(sample))
        rows = []
        for first, last, path, count in files:
            known = {**statistics, key: {"min": first, "max": last, "null_count": 0}} if key else statistics
            file = {
                "path": path.relative_to(self.objects).as_posix(),
                "rows": count,
                "bytes": path.stat().st_size,
                "statistics": known,
            }
            rows.append(
                (uuid4(), generation, str(first), first, last, json.dumps([file]), count, file["bytes"])
            )
        await self.made.connection.executemany(
            "insert into dataset_commits (task_id, output_index, generation_id, partition_key, range_start, range_end,"
            " files, row_count, bytes, schema_hash, committed_at)"
            " values ($1, 0, $2, $3, $4, $5, $6::jsonb, $7, $8, 'h', now())",
            rows,
        )
        schema = parquet.read_schema(sample)
        await self._describe(generation, [(f.name, str(f.type)) for f in schema], files[-1][1])

    async def _describe(self, generation: UUID, columns: list[tuple[str, str]], position: int) -> None:
        described = json.dumps([{"name": n, "type": t, "nullable": True} for n, t in columns])
        await self.made.connection.execute(
            "insert into generation_schemas values ($1, $2::jsonb, 1, now()) on conflict do nothing",
            generation,
            described,
        )
        await self.made.connection.execute(
            "insert into generation_cursors (generation_id, position, widest, updated_at) values ($1, $2, 0, now())"
            " on conflict (generation_id) do update set position = excluded.position",
            generation,
            position,
        )


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def _measured(url: str, generation: Any, what: str) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.many_files", url, str(generation), what),
        stdout=asyncio.subprocess.PIPE,
    )
    written, _ = await process.communicate()
    found: dict[str, float] = json.loads(written)
    return found
