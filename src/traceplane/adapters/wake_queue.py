"""Wake-up queues: hints that a task is ready. They may lose, repeat and reorder; the tables are the truth.

Two implementations keep one contract (tests/contract/test_wake_queue.py): `wake_queue_postgres`, which a worker
reaches through the dispatcher, and `wake_queue_sqs`, which it reaches directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

MAX_RECEIVES = 3


@dataclass(frozen=True, slots=True)
class Message:
    """A received wake-up; it comes back unless it is deleted before its visibility ends."""

    receipt: str
    task_id: UUID
    receives: int


@dataclass(frozen=True, slots=True)
class Depth:
    visible: int
    hidden: int
    dead: int


class WakeQueue(Protocol):
    """An unknown or expired receipt is ignored. Raises QueueUnavailable if the queue is down; the call may be
    retried."""

    async def send(self, queue: str, task_ids: Sequence[UUID]) -> None: ...

    async def receive(
        self, queue: str, limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[Message]: ...

    async def delete(self, queue: str, receipts: Sequence[str]) -> None: ...

    async def extend(self, queue: str, receipts: Sequence[str], visibility_seconds: float) -> int: ...

    async def release(self, queue: str, receipts: Sequence[str]) -> None: ...

    async def depth(self, queue: str) -> Depth: ...
