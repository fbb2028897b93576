"""A worker of the control suite: takes tasks and completes them over HTTP, and does nothing between.

It speaks the internal API as any worker does, in batches. The sandbox is left out, since every peer runs its
task bodies inside the worker process too; the latency measurement runs the real worker.
"""

from __future__ import annotations

import asyncio
import os
import signal

import uvloop

from bench.peers import measure
from traceplane.errors import PlatformError
from traceplane.wire.tasks import Completion, TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

LOOPS = 4
BATCH = 250


async def work(client: DispatcherClient, starts: measure.Starts, name: str) -> None:
    while True:
        try:
            answer = await client.take(TakeRequest(name, "python", limit=BATCH, wait_seconds=5))
            for task in answer.tasks:
                assert task.scope is not None
                assert task.scope.cursor is not None
                starts.mark(task.scope.cursor)
            done = [
                Completion(t.task_id, t.attempt, t.lease_token, t.token, status="completed")
                for t in answer.tasks
            ]
            if done:
                await client.complete(answer.tokens, done)
        except PlatformError:
            await asyncio.sleep(0.05)  # the dispatcher is still starting


async def main() -> None:
    client = DispatcherClient(os.environ["BENCH_DISPATCHER"], os.environ["BENCH_WORKER_TOKEN"])
    starts = measure.Starts.of_environment()
    loops = [asyncio.create_task(work(client, starts, f"bench-{n}")) for n in range(LOOPS)]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for loop in loops:
        loop.cancel()
    await client.close()


if __name__ == "__main__":
    uvloop.run(main())
