"""pgqueuer in the configuration its performance guide gives.

asyncpg on uvloop, one connection per worker process, a pool for the producer, `pgq autovac` applied,
all tables logged (durable, its default), tasks fetched and completed in large batches. Two workers
drain faster than one; one starts a single task sooner than two that race for it.
"""

from __future__ import annotations

import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers import measure

BATCH = 1000
WORKERS = {"drain": 2, "latency": 1}
ENQUEUE_BATCH = 1000


async def work(url: str) -> None:
    starts = measure.Starts.of_environment()
    queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(url))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        starts.mark(int(job.payload or b""))

    await queuer.run(batch_size=BATCH)


async def main(arguments: measure.Arguments) -> None:
    pool = await asyncpg.create_pool(arguments.url, min_size=4, max_size=4)
    queries = Queries.from_asyncpg_pool(pool)
    await queries.install()
    await queries.optimize_autovacuum()
    worker = [sys.executable, "-m", "bench.peers.pgqueuer_peer", "work", "--url", arguments.url]
    workers = [worker] * WORKERS[arguments.measurement]

    async def enqueue(tasks: int) -> None:
        for start in range(0, tasks, ENQUEUE_BATCH):
            numbers = range(start, min(start + ENQUEUE_BATCH, tasks))
            await queries.enqueue(
                ["noop"] * len(numbers), [b"%d" % number for number in numbers], [0] * len(numbers)
            )

    async def unfinished() -> bool:
        return bool(await pool.fetchval("SELECT EXISTS (SELECT FROM pgqueuer)"))

    async def send(number: int) -> None:
        await queries.enqueue("noop", b"%d" % number, 0)

    if arguments.measurement == "drain":
        result = await measure.drain(arguments, enqueue=enqueue, unfinished=unfinished, workers=workers)
    else:
        result = await measure.latency(arguments, send=send, workers=workers)
    measure.report(result)


if __name__ == "__main__":
    given = measure.parse_arguments()
    uvloop.run(work(given.url) if given.measurement == "work" else main(given))
