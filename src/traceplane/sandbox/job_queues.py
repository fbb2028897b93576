"""Queues by job, for tasks that may share a child with others of their job; several are taken at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from traceplane.sandbox.assignment import Assignment, RunResult
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.task_run import OnProgress


@dataclass(slots=True, eq=False)
class Waiting:
    """A task that waits for a child, or is in one."""

    assignment: Assignment
    log: TaskLog
    on_progress: OnProgress | None
    timeout: float | None
    began_ns: int
    result: asyncio.Future[RunResult]
    tries: int = 0
    canceled: bool = False
    running: asyncio.Task[Any] | None = None
    """The asyncio task that follows only this task."""

    def settle(self, result: RunResult) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def fail(self, error: BaseException) -> None:
        if self.result.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.result.cancel()
        else:
            self.result.set_exception(error)

    def cancel(self) -> None:
        """Its result no longer matters; it is over when `result` is done."""
        self.canceled = True
        if self.running is not None:
            self.running.cancel()


class JobQueues:
    """`serve` gets a child for a job and runs the tasks that it takes from here. As many calls run at once as there are
    slots, repeated while tasks are waiting."""

    def __init__(self, at_once: int, serve: Callable[[Hashable], Awaitable[None]]) -> None:
        self._at_once = at_once
        self._serve = serve
        self._waiting: dict[Hashable, deque[Waiting]] = {}
        self._serving: Counter[Hashable] = Counter()
        self._without_a_child: Counter[Hashable] = Counter()
        """How many `serve` calls are about to take tasks."""
        self._servers: set[asyncio.Task[None]] = set()

    async def run(self, job: Hashable, waiting: Waiting) -> RunResult:
        self._waiting.setdefault(job, deque()).append(waiting)
        self._start(job)
        try:
            return await asyncio.shield(waiting.result)
        except asyncio.CancelledError:
            if waiting in (queue := self._waiting.get(job, ())):
                queue.remove(waiting)  # type: ignore[union-attr]
                raise
            waiting.cancel()
            while not waiting.result.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((waiting.result,))
            raise

    def waits(self, job: Hashable) -> bool:
        return bool(self._waiting.get(job))

    def share(self, job: Hashable) -> int:
        """How many tasks there are for each `serve` call of the job."""
        return math.ceil(len(self._waiting.get(job, ())) / max(1, self._serving[job]))

    def take(self, job: Hashable, most: int) -> list[Waiting]:
        """Called once by each `serve`, when it has a child."""
        self._without_a_child[job] -= 1
        queue = self._waiting.get(job, deque())
        return [queue.popleft() for _ in range(min(most, len(queue)))]

    def wait_again(self, job: Hashable, tasks: Sequence[Waiting]) -> None:
        """Put tasks back that were taken and not started, before all others."""
        for waiting in tasks:
            if waiting.canceled:
                waiting.fail(asyncio.CancelledError())
        left = [waiting for waiting in tasks if not waiting.canceled]
        if left:
            self._waiting.setdefault(job, deque()).extendleft(reversed(left))
            self._start(job)

    def fail(self, job: Hashable, error: BaseException) -> None:
        for waiting in self._waiting.pop(job, ()):
            waiting.fail(error)

    async def close(self) -> None:
        while self._servers:
            await asyncio.wait(self._servers)

    def _start(self, job: Hashable) -> None:
        tasks = len(self._waiting.get(job, ()))
        while self._serving[job] < self._at_once and self._without_a_child[job] < tasks:
            self._serving[job] += 1
            self._without_a_child[job] += 1
            server = asyncio.create_task(self._serve_until_empty(job))
            self._servers.add(server)
            server.add_done_callback(self._servers.discard)

    async def _serve_until_empty(self, job: Hashable) -> None:
        try:
            await self._serve(job)
            while self.waits(job):
                self._without_a_child[job] += 1
                await self._serve(job)
        except Exception as error:  # no children are available any more
            self._without_a_child[job] -= 1
            self.fail(job, error)
        finally:
            self._serving[job] -= 1
            if not self._serving[job]:
                del self._serving[job], self._without_a_child[job]
                if not self._waiting.get(job):
                    self._waiting.pop(job, None)
