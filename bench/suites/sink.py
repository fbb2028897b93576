"""Sinks: rows per second into a table of Postgres, by key, and what a buffer does for small tasks.

Rows: ours is the whole path. Workers hand over completed tasks, whose rows are staged as Parquet files, by HTTP to a
dispatcher process; its sink checks and converts the files and commits rows, cursor, events and the tasks' ends. Beside
it, a client that has the same rows as CSV in its memory, and only copies them to a temporary table and from there, with
ON CONFLICT DO UPDATE, to a table of the same columns and indexes. Same server, same rows in the same order,
transactions of about as many rows, in turns. First the keys are new, then all of them exist.

Small tasks: the same path, buffered against `write_mode: direct`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import uvloop

from bench import results, sent_messages
from bench.ours_control import Stand, stand
from bench.peers import measure
from bench.postgres_server import PostgresServer, running_postgres
from traceplane.errors import PlatformError
from traceplane.sdk import schema_hash
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
    ClaimedTask,
    ColumnSchema,
    Completion,
    JobPayload,
    OutputManifest,
    StagedFile,
    TakeRequest,
)
from traceplane.worker.dispatcher_client import DispatcherClient

SUITE = "sink"
ROUNDS = 3
TASKS, ROWS_OF_A_TASK = 200, 5_000
ROWS = TASKS * ROWS_OF_A_TASK
SMALL_TASKS, ROWS_OF_A_SMALL_TASK = 1_000, 100
TASKS_OF_A_CALL, CALLERS = 10, 4
"""How workers report: several at once, each with the tasks that it has just finished."""
BATCH_ROWS = 200_000
"""Of a transaction of the bare client: about as many as the sink writes in one."""
WARM_UP_BLOCK = 1_000_000
TIMEOUT = 120.0

DAG = """
version: 1
dag: {name}
datasets:
  {name}.rows:
    storage: postgres
    write_mode: {mode}
    position: block
    unique_key: [block, n]
    columns:
    - {{name: block, type: bigint, nullable: false}}
    - {{name: n, type: int, nullable: false}}
    - {{name: account, type: string}}
    - {{name: price, type: double}}
    - {{name: amount, type: "decimal(38, 0)"}}
    - {{name: settled, type: boolean}}
    - {{name: at, type: timestamp}}
jobs:
- name: source
  activation: source
  source: {{kind: manual}}
  outputs: [{{dataset: {name}.in}}]
- name: work
  runtime: python
  operator: python
  inputs: [{{from: {{job: source}}}}]
  outputs: [{{dataset: {name}.rows}}]
  update_strategy: append
  unique_key: [block, n]
  config: {{entrypoint: "bench.ours_operators:nothing"}}
"""
TABLE = """
create table rows (block bigint not null, n integer not null, account text, price double precision,
                   amount numeric(38, 0), settled boolean, at timestamptz);
create index on rows (block);
create unique index on rows (block, n)
"""
UPSERT = """
insert into rows select * from draft on conflict (block, n) do update set account = excluded.account,
  price = excluded.price, amount = excluded.amount, settled = excluded.settled, at = excluded.at
"""

Progress = Callable[[str], None]


@dataclass
class Rates:
    """Per second, in each round."""

    new_keys: list[float] = field(default_factory=list)
    known_keys: list[float] = field(default_factory=list)
    small_finished: list[float] = field(default_factory=list)
    small_answered: list[float] = field(default_factory=list)


def run(progress: Progress) -> list[results.Row]:
    ours, bare, direct = Rates(), Rates(), Rates()
    with running_postgres() as server:
        for number in range(1, ROUNDS + 1):
            _bare(server, bare)
            _sunk(server, ours)
            new, known = _last(ours.new_keys, bare.new_keys), _last(ours.known_keys, bare.known_keys)
            progress(f"round {number}, rows/s, ours and bare: new keys {new}; known keys {known}")
            _small_tasks(server, "buffered", ours)
            _small_tasks(server, "direct", direct)
            finished = _last(ours.small_finished, direct.small_finished)
            answered = _last(ours.small_answered, direct.small_answered)
            progress(
                f"round {number}, small tasks/s, buffered and direct: finished {finished}; reported {answered}"
            )
        messages = sent_messages.measured(server, SUITE, ROUNDS, progress)
    bare_copy, small = "COPY + INSERT ON CONFLICT", f"tasks of {ROWS_OF_A_SMALL_TASK} rows"
    return [
        _row("upsert, new keys", "rows/s", ours.new_keys, bare_copy, bare.new_keys, 0.5),
        _row("upsert, new keys", "rows/s", ours.new_keys, "target", [50_000], 1.0),
        _row("upsert, known keys", "rows/s", ours.known_keys, bare_copy, bare.known_keys, 0.5),
        _row("upsert, known keys", "rows/s", ours.known_keys, "target", [50_000], 1.0),
        _row(f"{small}, finished", "tasks/s", ours.small_finished, "direct", direct.small_finished),
        _row(f"{small}, workers free again", "tasks/s", ours.small_answered, "direct", direct.small_answered),
        *messages,
    ]


def _row(
    name: str, unit: str, ours: Sequence[float], peer: str, theirs: Sequence[float], bar: float | None = None
) -> results.Row:
    return results.compare(
        suite=SUITE, name=name, unit=unit, better="higher", ours=median(ours), peer=peer, theirs=median(theirs), bar=bar
    )  # fmt: skip


def _last(*rates: Sequence[float]) -> str:
    return " and ".join(f"{kept[-1]:,.0f}" for kept in rates)


# Rows ---------------------------------------------------------------------------------------------------


def _rows(block: int, count: int, version: int) -> pa.Table:
    """The rows of one task; those of another version have the same keys and other values."""
    numbers = pa.array(range(count), pa.int32())
    wide = pc.add(pc.multiply(numbers.cast(pa.int64()), 7919), block * 1_000_003 + version)
    return pa.table(
        {
            "block": pa.array([block] * count, pa.int64()),
            "n": numbers,
            "account": pc.binary_join_element_wise("0x", pc.utf8_lpad(wide.cast(pa.string()), 40, "0"), ""),
            "price": pc.divide(wide.cast(pa.float64()), 1000.0),
            "amount": pc.multiply(wide.cast(pa.decimal128(19, 0)), pa.scalar(10**12, pa.decimal128(13, 0))).cast(
                pa.decimal128(38, 0)
            ),
            "settled": pc.equal(pc.bit_wise_and(wide, 1), 0),
            "at": pc.add(pa.scalar(1_790_000_000_000_000, pa.int64()), wide).cast(pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip


# The bare client ----------------------------------------------------------------------------------------


def _bare(server: PostgresServer, rates: Rates) -> None:
    url = server.fresh_database()
    for version, kept in enumerate((rates.new_keys, rates.known_keys)):
        kept.append(ROWS / uvloop.run(_copied(url, version)))
        server.checkpoint()
    server.drop(url)


async def _copied(url: str, version: int) -> float:
    """The seconds that all rows took."""
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    together = BATCH_ROWS // ROWS_OF_A_TASK
    batches = []
    for first in range(0, TASKS, together):
        encoded = io.BytesIO()
        tables = [
            _rows(block, ROWS_OF_A_TASK, version) for block in range(first, min(first + together, TASKS))
        ]
        csv.write_csv(pa.concat_tables(tables), encoded, options)
        batches.append(encoded.getvalue())
    connection = await asyncpg.connect(url)
    try:
        if version == 0:
            await connection.execute(TABLE)
        began = time.perf_counter()
        for batch in batches:
            async with connection.transaction():
                await connection.execute("create temporary table draft (like rows) on commit drop")
                await connection.copy_to_table("draft", source=io.BytesIO(batch), format="csv")
                await connection.execute(UPSERT, timeout=TIMEOUT)
        seconds = time.perf_counter() - began
        assert await connection.fetchval("select count(*) from rows") == ROWS
        return seconds
    finally:
        await connection.close()


# Ours ---------------------------------------------------------------------------------------------------


@dataclass
class Workers:
    """Workers whose tasks are done: what they staged is on disk, and they only have to report it."""

    made: Stand
    client: DispatcherClient

    @property
    def _objects(self) -> Path:
        return Path(self.made.environment["TRACEPLANE_HOME"], "objects")

    async def staged(
        self, blocks: range, rows: int, version: int
    ) -> list[tuple[list[str], list[Completion]]]:
        """The reports of new tasks, in calls."""
        dataset = f"{self.made.dag}.in"
        events = [ManualEvent(dataset, Scope(cursor=block), emission=str(version)) for block in blocks]
        for first in range(0, len(events), 500):
            some = EmitRequest(events[first : first + 500])
            await self.made.caller.call("POST", "/api/v1/events", EmitResponse, some)
        calls, found = [], 0
        async with asyncio.timeout(TIMEOUT):
            while found < len(blocks):
                try:
                    answer = await self.client.take(
                        TakeRequest("bench", "python", limit=TASKS_OF_A_CALL, wait_seconds=5)
                    )
                except PlatformError:
                    await asyncio.sleep(0.05)  # the dispatcher is still starting
                    continue
                if answer.tasks:
                    done = [
                        self._done(task, answer.jobs[str(task.job_id)], rows, version)
                        for task in answer.tasks
                    ]
                    calls.append((answer.tokens, done))
                    found += len(done)
        return calls

    def _done(self, task: ClaimedTask, job: JobPayload, rows: int, version: int) -> Completion:
        output, scope = job.outputs[0], task.scope
        assert scope is not None
        assert scope.cursor is not None
        table = _rows(scope.cursor, rows, version)
        path = f"{task.write_prefixes[0]}part-0.parquet"
        (self._objects / path).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, self._objects / path)
        size = (self._objects / path).stat().st_size
        manifest = OutputManifest(
            output.output_index,
            output.dataset_uuid,
            output.dataset_version,
            scope,
            files=[StagedFile(path, rows, size)],
            row_count=rows,
            bytes=size,
            schema_hash=schema_hash(table.schema),
            schema=[ColumnSchema(f.name, str(f.type), f.nullable) for f in table.schema],
        )
        return Completion(
            task.task_id, task.attempt, task.lease_token, task.token, status="completed", outputs=[manifest]
        )

    async def report(self, calls: Sequence[tuple[list[str], list[Completion]]]) -> tuple[float, float]:
        """Seconds until the last report was answered, and until the last task was finished."""
        waiting = iter(calls)

        async def send() -> None:
            for tokens, completions in waiting:
                await self.client.complete(tokens, completions)

        began = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(CALLERS)))
        answered = time.perf_counter()
        async with asyncio.timeout(TIMEOUT):
            while await self.made.unfinished():  # noqa: ASYNC110 - the database tells nobody
                await asyncio.sleep(0.005)
        return answered - began, time.perf_counter() - began

    async def check(self, tasks: int, rows: int, versions: int) -> None:
        """Every task has left its event, and every row is there, of the last version."""
        row = await self.made.connection.fetchrow(
            "select current_generation_id as generation, (select count(*) from events e"
            " where e.dataset_uuid = d.dataset_uuid and range_start < $2) as events"
            " from datasets d where dataset_id = $1",
            f"{self.made.dag}.rows",
            WARM_UP_BLOCK,
        )
        assert row["events"] == tasks * versions, row["events"]
        name = f"traceplane_hot.g_{row['generation'].hex}"
        assert (
            await self.made.connection.fetchval(f"select count(*) from {name} where block < {WARM_UP_BLOCK}")
            == tasks * rows
        )
        price = await self.made.connection.fetchval(f"select price from {name} where block = 0 and n = 0")
        assert price == (versions - 1) / 1000, price


@contextlib.asynccontextmanager
async def _workers(url: str, mode: str) -> AsyncIterator[Workers]:
    async with stand(url, dag=DAG, mode=mode) as made:
        with measure.worker_processes(made.command("dispatcher")):
            client = DispatcherClient(
                made.environment["BENCH_DISPATCHER"], made.environment["BENCH_WORKER_TOKEN"]
            )
            workers = Workers(made, client)
            try:
                # A dispatcher that has just started has no decoder yet.
                await workers.report(await workers.staged(range(WARM_UP_BLOCK, WARM_UP_BLOCK + 2), 100, 0))
                yield workers
            finally:
                await client.close()


def _sunk(server: PostgresServer, rates: Rates) -> None:
    url = server.fresh_database()

    async def rounds() -> None:
        async with _workers(url, "buffered") as workers:
            for version, kept in enumerate((rates.new_keys, rates.known_keys)):
                calls = await workers.staged(range(TASKS), ROWS_OF_A_TASK, version)
                await workers.made.connection.execute("checkpoint")
                _, seconds = await workers.report(calls)
                await workers.check(TASKS, ROWS_OF_A_TASK, version + 1)
                kept.append(ROWS / seconds)

    uvloop.run(rounds())
    server.drop(url)


def _small_tasks(server: PostgresServer, mode: str, rates: Rates) -> None:
    url = server.fresh_database()

    async def measured() -> None:
        async with _workers(url, mode) as workers:
            calls = await workers.staged(range(SMALL_TASKS), ROWS_OF_A_SMALL_TASK, 0)
            answered, seconds = await workers.report(calls)
            await workers.check(SMALL_TASKS, ROWS_OF_A_SMALL_TASK, 1)
            rates.small_answered.append(SMALL_TASKS / answered)
            rates.small_finished.append(SMALL_TASKS / seconds)

    uvloop.run(measured())
    server.drop(url)
