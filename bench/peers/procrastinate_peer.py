"""procrastinate with its psycopg pool connector, woken by LISTEN/NOTIFY, jobs run concurrently.

It fetches and finishes one job per statement; concurrency and more workers are what its documentation
offers for speed.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import procrastinate

from bench.peers import measure

CONCURRENCY = 10
WORKERS = 2
ENQUEUE_BATCH = 1000


def application(url: str, connections: int) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=connections, max_size=connections)
    return procrastinate.App(connector=connector)


async def work(url: str) -> None:
    starts = measure.Starts.of_environment()
    app = application(url, connections=CONCURRENCY + 2)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        starts.mark(number)

    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


async def main(arguments: measure.Arguments) -> None:
    app = application(arguments.url, connections=4)
    noop = app.configure_task("noop")
    workers = [
        [sys.executable, "-m", "bench.peers.procrastinate_peer", "work", "--url", arguments.url]
    ] * WORKERS
    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        async def enqueue(tasks: int) -> None:
            for start in range(0, tasks, ENQUEUE_BATCH):
                numbers = range(start, min(start + ENQUEUE_BATCH, tasks))
                await noop.batch_defer_async(*({"number": number} for number in numbers))

        async def unfinished() -> bool:
            row = await app.connector.execute_query_one_async(
                "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing')) AS any"
            )
            return bool(row["any"])

        async def send(number: int) -> None:
            await noop.defer_async(number=number)

        if arguments.measurement == "drain":
            result = await measure.drain(arguments, enqueue=enqueue, unfinished=unfinished, workers=workers)
        else:
            result = await measure.latency(arguments, send=send, workers=workers)
    measure.report(result)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    given = measure.parse_arguments()
    asyncio.run(work(given.url) if given.measurement == "work" else main(given))
