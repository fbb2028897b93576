"""How a worker gets its tasks: from the dispatcher in one call, or woken by SQS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from traceplane.adapters.wake_queue import WakeQueue
from traceplane.crash_points import crash_point
from traceplane.errors import TraceplaneError
from traceplane.runtime.group_commit import GroupCommit
from traceplane.runtime.retrying import happens
from traceplane.wire.tasks import ClaimRequest, ClaimResponse, HelloRequest, Resources, TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

_LONG_POLL_SECONDS = 20.0
_VISIBILITY_SECONDS = 60.0
_HELLO_SECONDS = 10.0
_NO_QUEUE_SECONDS = 0.5
_TURN_SECONDS = 2.0
"""How long a worker waits for each of several queues."""


class Intake(Protocol):
    async def take(self, limit: int) -> ClaimResponse:
        """Leases on up to `limit` tasks, as soon as there is one; none after a long wait."""

    async def leave(self) -> None:
        """The worker is stopping: a pending `take` must return now, with what it has. May be called again."""

    async def settle(self, task_id: UUID) -> None:
        """The task has ended here, with any outcome."""

    async def run(self, stop: asyncio.Event) -> None:
        """Background work while tasks run."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the dispatcher knows of a worker."""

    worker_id: str
    runtime: str
    offers: Resources

    def hello(self) -> HelloRequest:
        return HelloRequest(self.worker_id, self.runtime, self.offers)


class LocalIntake:
    """The queue in the dispatcher's database: receiving, claiming and settling are one call."""

    def __init__(self, client: DispatcherClient, worker: Identity) -> None:
        self._client = client
        self._worker = worker

    async def take(self, limit: int) -> ClaimResponse:
        worker = self._worker
        request = TakeRequest(worker.worker_id, worker.runtime, limit, _LONG_POLL_SECONDS, worker.offers)
        return await self._client.take(request)

    async def leave(self) -> None:
        await self._client.leave(self._worker.worker_id)

    async def settle(self, task_id: UUID) -> None:
        pass

    async def run(self, stop: asyncio.Event) -> None:
        """Says every few seconds that the worker is there."""
        while not stop.is_set():
            with contextlib.suppress(TraceplaneError):  # `take` says that the dispatcher is away
                await self._client.hello(self._worker.hello())
            await happens(stop, within=_HELLO_SECONDS)
        with contextlib.suppress(TraceplaneError):
            await self.leave()


@dataclass(frozen=True, slots=True)
class _Receipt:
    queue: str
    receipt: str


class QueueIntake:
    """An external queue: a wake-up stays hidden while its task runs, and is deleted when it has ended.

    A worker may serve several queues: those of its organizations, and those of tasks that need what it offers. The
    dispatcher says which, and they are asked in turn.
    """

    def __init__(
        self, client: DispatcherClient, wake_queue: WakeQueue, worker: Identity, *, queue: str
    ) -> None:
        self._client = client
        self._wake_queue = wake_queue
        self._worker = worker
        self._own_queue = queue
        self._queues: list[str] = []
        self._receipts: dict[UUID, _Receipt] = {}
        self._left = asyncio.Event()
        self._settled: GroupCommit[_Receipt, None] = GroupCommit("worker.settle", self._delete)

    async def take(self, limit: int) -> ClaimResponse:
        receiving = asyncio.ensure_future(self._receive(limit))
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait((receiving, leaving), return_when=asyncio.FIRST_COMPLETED)
            received = receiving.result() if receiving.done() else {}
        finally:
            receiving.cancel()
            leaving.cancel()
        if not received:
            return ClaimResponse([], {}, [], [])
        crash_point("worker.after_receive")
        by_task = {task_id: receipt for receipt, task_id in received.items()}
        worker = self._worker
        answer = await self._client.claim(
            ClaimRequest(worker.worker_id, worker.runtime, list(by_task), worker.offers)
        )
        self._receipts |= {task.task_id: by_task[task.task_id] for task in answer.tasks}
        # A wake-up without a claim is used up: the worker that holds the task is responsible for it.
        claimed_receipts = set(self._receipts.values())
        if unused_receipts := [receipt for receipt in received if receipt not in claimed_receipts]:
            with contextlib.suppress(TraceplaneError):
                await self._settled.submit(unused_receipts)
        return answer

    async def _receive(self, limit: int) -> dict[_Receipt, UUID]:
        """From the first of its queues that has wake-ups."""
        queues = self._queues
        if not queues:
            await asyncio.sleep(_NO_QUEUE_SECONDS)
        wait = _LONG_POLL_SECONDS if len(queues) == 1 else _TURN_SECONDS
        for queue in queues:
            messages = await self._wake_queue.receive(
                queue, limit, wait_seconds=wait, visibility_seconds=_VISIBILITY_SECONDS
            )
            if messages:
                return {_Receipt(queue, m.receipt): m.task_id for m in messages}
        return {}

    async def leave(self) -> None:
        self._left.set()

    async def settle(self, task_id: UUID) -> None:
        if receipt := self._receipts.pop(task_id, None):
            await self._settled.submit([receipt])
            crash_point("worker.after_settle")

    async def run(self, stop: asyncio.Event) -> None:
        """Keeps the wake-ups of long tasks hidden, so that no worker is woken for a running task, and says every few
        seconds that the worker is there."""
        now = time.monotonic()
        due, hello_due = now + _VISIBILITY_SECONDS / 3, now
        while self._receipts or not stop.is_set():
            if not stop.is_set() and time.monotonic() >= hello_due:
                hello_due = time.monotonic() + _HELLO_SECONDS
                with contextlib.suppress(TraceplaneError):
                    answer = await self._client.hello(self._worker.hello())
                    self._queues = [f"{self._own_queue}{suffix}" for suffix in answer.queue_suffixes]
            await asyncio.sleep(0.5)
            if self._receipts and time.monotonic() >= due:
                due = time.monotonic() + _VISIBILITY_SECONDS / 3
                for queue, receipts in _by_queue(self._receipts.values()).items():
                    with contextlib.suppress(TraceplaneError):
                        await self._wake_queue.extend(queue, receipts, _VISIBILITY_SECONDS)

    async def _delete(self, receipts: Sequence[_Receipt]) -> list[None]:
        for queue, own in _by_queue(receipts).items():
            await self._wake_queue.delete(queue, own)
        return [None] * len(receipts)


def _by_queue(receipts: Iterable[_Receipt]) -> dict[str, list[str]]:
    queues: dict[str, list[str]] = {}
    for receipt in receipts:
        queues.setdefault(receipt.queue, []).append(receipt.receipt)
    return queues
