"""How a worker gets its tasks: from the dispatcher in one call, or woken by SQS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from traceplane.adapters.wake_queue import WakeQueue
from traceplane.crash_points import crash_point
from traceplane.errors import TraceplaneError
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.tasks import ClaimRequest, ClaimResponse, TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

_LONG_POLL_SECONDS = 20.0
_VISIBILITY_SECONDS = 60.0


class Intake(Protocol):
    async def take(self, limit: int) -> ClaimResponse:
        """Leases on up to `limit` tasks, as soon as there is one; none after a long wait."""

    async def leave(self) -> None:
        """The worker is stopping: a pending `take` must return now, with what it has. May be called again."""

    async def settle(self, task_id: UUID) -> None:
        """The task has ended here, with any outcome."""

    async def run(self, stop: asyncio.Event) -> None:
        """Background work while tasks run."""


class LocalIntake:
    """The queue in the dispatcher's database: receiving, claiming and settling are one call."""

    def __init__(self, client: DispatcherClient, *, worker_id: str, runtime: str) -> None:
        self._client = client
        self._worker_id = worker_id
        self._runtime = runtime

    async def take(self, limit: int) -> ClaimResponse:
        request = TakeRequest(self._worker_id, self._runtime, limit, _LONG_POLL_SECONDS)
        return await self._client.take(request)

    async def leave(self) -> None:
        await self._client.leave(self._worker_id)

    async def settle(self, task_id: UUID) -> None:
        pass

    async def run(self, stop: asyncio.Event) -> None:
        pass


class QueueIntake:
    """An external queue: a wake-up stays hidden while its task runs, and is deleted when it has ended."""

    def __init__(
        self, client: DispatcherClient, wake_queue: WakeQueue, *, queue: str, worker_id: str, runtime: str
    ) -> None:
        self._client = client
        self._wake_queue = wake_queue
        self._queue = queue
        self._worker_id = worker_id
        self._runtime = runtime
        self._receipts: dict[UUID, str] = {}
        self._left = asyncio.Event()
        self._settled: GroupCommit[str, None] = GroupCommit("worker.settle", self._delete)

    async def take(self, limit: int) -> ClaimResponse:
        receiving = asyncio.ensure_future(
            self._wake_queue.receive(
                self._queue, limit, wait_seconds=_LONG_POLL_SECONDS, visibility_seconds=_VISIBILITY_SECONDS
            )
        )
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait((receiving, leaving), return_when=asyncio.FIRST_COMPLETED)
            messages = receiving.result() if receiving.done() else []
        finally:
            receiving.cancel()
            leaving.cancel()
        if not messages:
            return ClaimResponse([], {}, [], [])
        crash_point("worker.after_receive")
        by_task = {m.task_id: m.receipt for m in messages}
        answer = await self._client.claim(ClaimRequest(self._worker_id, self._runtime, list(by_task)))
        self._receipts |= {task.task_id: by_task[task.task_id] for task in answer.tasks}
        # A wake-up without a claim is used up: the worker that holds the task is responsible for it.
        claimed_receipts = set(self._receipts.values())
        if unused_receipts := [m.receipt for m in messages if m.receipt not in claimed_receipts]:
            with contextlib.suppress(TraceplaneError):
                await self._settled.submit(unused_receipts)
        return answer

    async def leave(self) -> None:
        self._left.set()

    async def settle(self, task_id: UUID) -> None:
        if receipt := self._receipts.pop(task_id, None):
            await self._settled.submit([receipt])
            crash_point("worker.after_settle")

    async def run(self, stop: asyncio.Event) -> None:
        """Keeps the wake-ups of long tasks hidden, so that no worker is woken for a running task."""
        due = time.monotonic() + _VISIBILITY_SECONDS / 3
        while self._receipts or not stop.is_set():
            await asyncio.sleep(0.5)
            if self._receipts and time.monotonic() >= due:
                due = time.monotonic() + _VISIBILITY_SECONDS / 3
                with contextlib.suppress(TraceplaneError):
                    await self._wake_queue.extend(
                        self._queue, list(self._receipts.values()), _VISIBILITY_SECONDS
                    )

    async def _delete(self, receipts: Sequence[str]) -> list[None]:
        await self._wake_queue.delete(self._queue, receipts)
        return [None] * len(receipts)
