"""The raw floor: a task's life as three bare SQL statements in batches, with nothing around them.

Not a product, and no product could be faster on the same server with the same statements: it has no
events, routing, leases, heartbeats or retries. BATCH (environment) is 100 or 1000; one connection.
"""

from __future__ import annotations

import asyncio
import os
import sys

import asyncpg
import uvloop

from bench.peers import measure

SCHEMA = """
CREATE TABLE floor_task (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    number int NOT NULL,
    state text NOT NULL DEFAULT 'queued',
    lease_token uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz
);
CREATE INDEX ON floor_task (id) WHERE state = 'queued';
"""
INSERT = "INSERT INTO floor_task (number) SELECT unnest($1::int[])"
CLAIM = """
WITH picked AS (
    SELECT id FROM floor_task WHERE state = 'queued' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE floor_task SET state = 'running', started_at = now(), lease_token = gen_random_uuid()
FROM picked WHERE floor_task.id = picked.id
RETURNING floor_task.id, number, lease_token
"""
COMPLETE = """
UPDATE floor_task SET state = 'completed', finished_at = now(), lease_token = NULL
FROM unnest($1::bigint[], $2::uuid[]) AS done (id, lease_token)
WHERE floor_task.id = done.id AND floor_task.lease_token = done.lease_token
"""
UNFINISHED = "SELECT EXISTS (SELECT FROM floor_task WHERE state <> 'completed')"


async def work(url: str, batch: int) -> None:
    starts = measure.Starts.of_environment()
    connection = await asyncpg.connect(url)
    listener = await asyncpg.connect(url)
    woken = asyncio.Event()
    await listener.add_listener("floor_task", lambda *_: woken.set())
    while True:
        woken.clear()
        while tasks := await connection.fetch(CLAIM, batch):
            for task in tasks:
                starts.mark(task["number"])
            await connection.execute(
                COMPLETE, [task["id"] for task in tasks], [task["lease_token"] for task in tasks]
            )
        await woken.wait()


async def main(arguments: measure.Arguments, batch: int) -> None:
    pool = await asyncpg.create_pool(arguments.url, min_size=4, max_size=4)
    await pool.execute(SCHEMA)
    workers = [[sys.executable, "-m", "bench.peers.raw_peer", "work", "--url", arguments.url]]

    async def enqueue(tasks: int) -> None:
        for start in range(0, tasks, batch):
            await pool.execute(INSERT, list(range(start, min(start + batch, tasks))))

    async def unfinished() -> bool:
        return bool(await pool.fetchval(UNFINISHED))

    async def send(number: int) -> None:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, [number])
            await connection.execute("SELECT pg_notify('floor_task', '')")

    if arguments.measurement == "drain":
        result = await measure.drain(arguments, enqueue=enqueue, unfinished=unfinished, workers=workers)
    else:
        result = await measure.latency(arguments, send=send, workers=workers)
    measure.report(result)


if __name__ == "__main__":
    given = measure.parse_arguments()
    size = int(os.environ.get("BATCH", "1000"))
    uvloop.run(work(given.url, size) if given.measurement == "work" else main(given, size))
