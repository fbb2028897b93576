"""Where a worker's wake-ups come from: the dispatcher (local queue) or SQS directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from traceplane.adapters.wake_queue import Message
from traceplane.task_api import DispatcherClient, WakeReceiveRequest, WakeSettleRequest


class WakeSource(Protocol):
    """The receiving half of a wake queue."""

    async def receive(
        self, queue: str, limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[Message]: ...

    async def delete(self, queue: str, receipts: Sequence[str]) -> None: ...

    async def extend(self, queue: str, receipts: Sequence[str], visibility_seconds: float) -> int: ...

    async def release(self, queue: str, receipts: Sequence[str]) -> None: ...


class DispatcherWakeSource:
    """The local queue, through the dispatcher: a worker has no database credentials."""

    def __init__(self, client: DispatcherClient) -> None:
        self._client = client

    async def receive(
        self, queue: str, limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[Message]:
        request = WakeReceiveRequest(queue, limit, wait_seconds, visibility_seconds)
        return [Message(m.receipt, m.task_id, m.receives) for m in await self._client.wake_receive(request)]

    async def delete(self, queue: str, receipts: Sequence[str]) -> None:
        await self._client.wake_settle(WakeSettleRequest(queue, delete=list(receipts)))

    async def extend(self, queue: str, receipts: Sequence[str], visibility_seconds: float) -> int:
        request = WakeSettleRequest(queue, extend=list(receipts), visibility_seconds=visibility_seconds)
        return (await self._client.wake_settle(request)).extended

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        await self._client.wake_settle(WakeSettleRequest(queue, release=list(receipts)))
