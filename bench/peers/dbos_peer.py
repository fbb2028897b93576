"""DBOS: a queued workflow without steps, coroutine workflows, one executor process.

Its queues are polled; the interval set here is far below the default of one second.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import psycopg
from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers import measure

QUEUE = "noop"
POLLING_SECONDS = 0.01
ENQUEUE_CONCURRENCY = 8
VERSION = "1"


@DBOS.workflow(name="noop")
async def noop(number: int) -> None:
    starts.mark(number)


def work(url: str) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "application_version": VERSION,
        "log_level": "ERROR",
        "sys_db_pool_size": 20,
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=POLLING_SECONDS)
    threading.Event().wait()


async def main(arguments: measure.Arguments) -> None:
    workers = [[sys.executable, "-m", "bench.peers.dbos_peer", "work", "--url", arguments.url]]
    DBOS(config={"name": "bench", "system_database_url": arguments.url, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.destroy()
    client = DBOSClient(system_database_url=arguments.url)
    connection = await psycopg.AsyncConnection.connect(arguments.url, autocommit=True)
    options = {"queue_name": QUEUE, "workflow_name": "noop", "app_version": VERSION}
    gate = asyncio.Semaphore(ENQUEUE_CONCURRENCY)

    async def send(number: int) -> None:
        async with gate:
            await client.enqueue_async(options, number)

    async def enqueue(tasks: int) -> None:
        await asyncio.gather(*(send(number) for number in range(tasks)))

    async def unfinished() -> bool:
        cursor = await connection.execute(
            "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"
        )
        row = await cursor.fetchone()
        return bool(row and row[0])

    try:
        if arguments.measurement == "drain":
            result = await measure.drain(arguments, enqueue=enqueue, unfinished=unfinished, workers=workers)
        else:
            result = await measure.latency(arguments, send=send, workers=workers)
    finally:
        client.destroy()
        await connection.close()
    measure.report(result)


if __name__ == "__main__":
    given = measure.parse_arguments()
    if given.measurement == "work":
        starts = measure.Starts.of_environment()
        work(given.url)
    else:
        asyncio.run(main(given))
