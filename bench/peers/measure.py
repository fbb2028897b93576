"""What every contender of a suite shares: the command line, the clock and the arithmetic.

A contender is a module run as `python -m <module> <measurement> --url URL --tasks N [...]`. It prints
one JSON line on standard output and may write anything to standard error.

    drain     N tasks are enqueued first, then the workers start. The clock runs from the start of the
              first task body to the moment every task is durably finished.
              {"per_second": …, "enqueue_per_second": …}
    latency   one task every 1/rate seconds to warm workers, from just before the enqueue call to the
              first line of the task's body. {"p50_ms": …, "p99_ms": …}

Task bodies run in other processes than the one that measures. They leave the time they started in a
shared file, so measuring costs a memory write and no message.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_UP_TASKS = 100
"""Sent at the measured rate before the samples that count: connections open, code paths are warm."""

STARTS_VARIABLE = "BENCH_STARTS"


class Starts:
    """The monotonic time each task's body first started, 0.0 while it has not; shared between processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self.times = memoryview(self._map).cast("d")

    @classmethod
    @contextlib.contextmanager
    def create(cls, tasks: int) -> Iterator[Starts]:
        """A new file, whose path worker processes find in their environment."""
        with tempfile.TemporaryDirectory(prefix="bench-starts-") as folder:
            path = Path(folder) / "starts"
            path.write_bytes(bytes(8 * tasks))
            os.environ[STARTS_VARIABLE] = str(path)
            yield cls(path)

    @classmethod
    def of_environment(cls) -> Starts:
        return cls(Path(os.environ[STARTS_VARIABLE]))

    def mark(self, index: int) -> None:
        """The whole body of a measured task."""
        if not self.times[index]:
            self.times[index] = time.monotonic()

    async def wait(self, upto: int, timeout: float, poll: float = 0.02) -> None:
        """Until the bodies of the first `upto` tasks have all started."""
        deadline = time.monotonic() + timeout
        index = 0
        while True:
            while index < upto and self.times[index]:
                index += 1
            if index == upto:
                return
            if time.monotonic() > deadline:
                started = sum(1 for moment in self.times[:upto] if moment)
                raise TimeoutError(f"{started} of {upto} tasks started within {timeout:.0f} s")
            await asyncio.sleep(poll)


@dataclass(frozen=True)
class Arguments:
    """The command line of a contender."""

    measurement: str
    url: str
    tasks: int
    rate: float
    waiting: int
    jobs: int
    timeout: float
    rows: int
    user: str


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    parser = argparse.ArgumentParser()
    parser.add_argument("measurement")
    parser.add_argument("--url", default="", help="of an empty Postgres database")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0, help="tasks per second, for latency")
    parser.add_argument("--waiting", type=int, default=0, help="tasks that wait, for seed")
    parser.add_argument("--jobs", type=int, default=0, help="unrelated jobs, for routing")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until all tasks must have run")
    parser.add_argument("--rows", type=int, default=0, help="rows that each task leaves, for worker")
    parser.add_argument("--user", default="", help="whom our processes run as, for worker")
    return Arguments(**vars(parser.parse_args(argv)))


def report(result: dict[str, object]) -> None:
    print(json.dumps(result), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


@contextlib.contextmanager
def worker_processes(*commands: Sequence[str]) -> Iterator[None]:
    """Run the commands beside us; stop and reap them on the way out. Their output goes to our stderr."""
    processes = [subprocess.Popen(command, stdout=sys.stderr) for command in commands]
    try:
        yield
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(
                    f"a worker process ended early with {process.returncode}: {process.args!r}"
                )
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def drain(
    arguments: Arguments,
    *,
    enqueue: Callable[[int], Awaitable[None]],
    unfinished: Callable[[], Awaitable[bool]],
    workers: Sequence[Sequence[str]],
) -> dict[str, object]:
    """Enqueue, start the workers, and time the tasks from the first start to the last durable finish."""
    with Starts.create(arguments.tasks) as starts:
        began = time.monotonic()
        await enqueue(arguments.tasks)
        enqueued = time.monotonic()
        with worker_processes(*workers):
            await starts.wait(arguments.tasks, arguments.timeout)
            async with asyncio.timeout(arguments.timeout):
                while await unfinished():  # noqa: ASYNC110 - the database tells nobody
                    await asyncio.sleep(0.005)
            finished = time.monotonic()
        return {
            "per_second": arguments.tasks / (finished - min(starts.times)),
            "enqueue_per_second": arguments.tasks / (enqueued - began),
        }


async def latency(
    arguments: Arguments, *, send: Callable[[int], Awaitable[None]], workers: Sequence[Sequence[str]]
) -> dict[str, object]:
    """Send at a steady rate, whatever became of the earlier sends, and compare with the starts."""
    total = arguments.tasks + WARM_UP_TASKS
    with Starts.create(total) as starts, worker_processes(*workers):
        await send(0)
        await starts.wait(1, timeout=30)
        sent = [0.0] * total
        sends = []
        first = time.monotonic() + 0.1

        async def send_now(index: int) -> None:
            sent[index] = time.monotonic()
            await send(index)

        for index in range(1, total):
            await asyncio.sleep(max(0.0, first + index / arguments.rate - time.monotonic()))
            sends.append(asyncio.create_task(send_now(index)))
        await asyncio.gather(*sends)
        await starts.wait(total, arguments.timeout)
        waits = [1000 * (starts.times[index] - sent[index]) for index in range(WARM_UP_TASKS, total)]
        return {"p50_ms": percentile(waits, 0.50), "p99_ms": percentile(waits, 0.99)}
