"""A worker of the control suite: takes wake-ups, claims and completes over HTTP, and does nothing between.

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
from traceplane.task_api import (
    ClaimRequest,
    Completion,
    DispatcherClient,
    WakeReceiveRequest,
    WakeSettleRequest,
)

LOOPS = 4
BATCH = 250


async def work(client: DispatcherClient, starts: measure.Starts, name: str) -> None:
    while True:
        try:
            messages = await client.wake_receive(WakeReceiveRequest("python", limit=BATCH, wait_seconds=5))
            if not messages:
                continue
            answer = await client.claim(ClaimRequest(name, "python", [m.task_id for m in messages]))
            for task in answer.tasks:
                starts.mark(task.scope.cursor)
            done = [
                Completion(t.task_id, t.attempt, t.lease_token, t.token, status="completed")
                for t in answer.tasks
            ]
            settle = WakeSettleRequest("python", delete=[m.receipt for m in messages])
            if done:
                await asyncio.gather(client.complete(answer.tokens, done), client.wake_settle(settle))
            else:
                await client.wake_settle(settle)
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
