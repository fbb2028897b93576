"""The tables behind the local wake-up queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("wake_messages")

CHANNEL = "traceplane_wake"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    message_id: int
    task_id: UUID
    receives: int


async def send(tx: Transaction, queue: str, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["send"], queue, task_ids)


async def receive(
    tx: Transaction, queue: str, limit: int, visibility: timedelta, max_receives: int, after: int = 0
) -> list[StoredMessage]:
    rows = await tx.rows(_SQL["receive"], queue, limit, visibility, max_receives, after)
    return [StoredMessage(r["message_id"], r["task_id"], r["receives"]) for r in rows]


async def bury(tx: Transaction, queue: str, max_receives: int) -> int:
    return len(await tx.rows(_SQL["bury"], queue, max_receives))


async def delete(tx: Transaction, queue: str, message_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["delete"], queue, message_ids)


async def extend(tx: Transaction, queue: str, message_ids: Sequence[int], visibility: timedelta) -> list[int]:
    return [r["message_id"] for r in await tx.rows(_SQL["extend"], queue, message_ids, visibility)]


async def release(tx: Transaction, queue: str, message_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["release"], queue, message_ids)


async def depth(tx: Transaction, queue: str) -> tuple[int, int, int]:
    """Visible, hidden and dead messages."""
    row = await tx.row(_SQL["depth"], queue)
    assert row is not None
    return row["visible"], row["hidden"], row["dead"]
