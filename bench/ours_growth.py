"""A year of history: how it gets into the tables, how it ends, and how much room it takes.

Run like `bench.ours_control`, in a process of its own.

    seed    finished tasks of a year, with their events and lineage, evenly spread over it. The scopes of a week come
            again every week, so all but the last event of each has been replaced.
    end     everything that retention would delete in the background, at once: `traceplane gc`.
    due     makes all rounds of retention due, as if the last ones were hours ago.
    sizes   rows and bytes of the tables, with their indexes.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import asyncpg

from bench.bulk_load import bulk_load
from bench.ours_control import stand
from bench.peers import measure
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.postgres.database import SCHEMA, Database
from traceplane.registry.garbage import Policy, collect

TABLES = ("tasks", "events", "task_inputs")
BATCH = 1_000_000
HISTORY = timedelta(days=30)


async def seed(arguments: measure.Arguments) -> dict[str, object]:
    async with stand(arguments.url) as made:
        connection = made.connection
        job = await connection.fetchrow(
            "select j.job_id, i.generation_id, i.dataset_uuid from jobs j join dags d using (dag_id)"
            " join job_inputs i using (job_id) where d.name = $1",
            made.dag,
        )
        # As the platform leaves its pages: new tasks fill each until there is no room for another. Rows written in
        # their final size would leave room for one in each page, and each new task would go to a page of its own.
        async with bulk_load(connection, TABLES):
            await connection.execute("alter table tasks set (fillfactor = 75)")
            for first in range(0, arguments.tasks, BATCH):
                last = min(first + BATCH, arguments.tasks)
                await connection.execute(_SEED, *job, first, last, arguments.tasks, timeout=300)
            await connection.execute("alter table tasks set (fillfactor = 70)")
        return await _sizes(connection)


_SEED = """
with numbers as materialized (
  select n, uuid7() as task_id, nextval('events_event_id_seq') as event_id,
         -1 - n % greatest($6::bigint / 52, 1) as position,
         now() - interval '365 days' * (1 - n / $6::float8) as at
  from generate_series($4::bigint, $5::bigint - 1) n
), made as (
  insert into events (event_id, producer_id, dataset_uuid, generation_id, kind, range_start, range_end, emission,
                      created_at)
  overriding system value
  select event_id, $1, $3, $2, 'data', position, position, n::text, at from numbers order by n
), lineage as (
  insert into task_inputs (event_id, job_id, task_id) select event_id, $1, task_id from numbers order by n
)
insert into tasks (task_id, job_id, state, priority, kind, range_start, range_end, attempt, reported_attempt,
                   lease_token, lease_expires_at, worker_id, created_at, ready_at, dispatched_at, started_at,
                   finished_at)
select task_id, $1, 'completed', 0, 'data', position, position, 1, 1, gen_random_uuid(), at, 'seed', at, at, at, at, at
from numbers order by n
"""


async def end(arguments: measure.Arguments) -> dict[str, object]:
    database = await Database.connect(arguments.url, connections=1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            ended = await collect(
                database, FolderObjectStore(Path(folder)), Policy(timedelta(hours=24), HISTORY)
            )
            seconds = time.monotonic() - began
    finally:
        await database.close()
    connection = await asyncpg.connect(arguments.url, server_settings={"search_path": SCHEMA})
    try:
        for table in TABLES:
            await connection.execute(f"vacuum (analyze) {table}", timeout=300)
        rows = ended.tasks + ended.events
        return {**await _sizes(connection), "ended": rows, "per_second": rows / seconds}
    finally:
        await connection.close()


async def due(arguments: measure.Arguments) -> dict[str, object]:
    connection = await asyncpg.connect(arguments.url, server_settings={"search_path": SCHEMA})
    try:
        await connection.execute("truncate retention_rounds")
        return {}
    finally:
        await connection.close()


async def sizes(arguments: measure.Arguments) -> dict[str, object]:
    connection = await asyncpg.connect(arguments.url, server_settings={"search_path": SCHEMA})
    try:
        return await _sizes(connection)
    finally:
        await connection.close()


async def _sizes(connection: asyncpg.Connection) -> dict[str, object]:
    found: dict[str, object] = {}
    for table in TABLES:
        found[table] = await connection.fetchval(f"select count(*) from {table}", timeout=120)
    found["megabytes"] = await connection.fetchval(
        "select sum(pg_total_relation_size(t::regclass)) / 1e6::float8 from unnest($1::text[]) t",
        list(TABLES),
    )
    return found


MEASUREMENTS = {"seed": seed, "end": end, "due": due, "sizes": sizes}

if __name__ == "__main__":
    given = measure.parse_arguments()
    measure.report(asyncio.run(MEASUREMENTS[given.measurement](given)))
