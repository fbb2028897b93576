"""Side effects waiting to leave the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("outbox")


@dataclass(frozen=True, slots=True)
class OutboxRow:
    outbox_id: int
    runtime: str
    task_ids: tuple[UUID, ...]
    failures: int
    age_seconds: float


async def take(tx: Transaction, limit: int) -> list[OutboxRow]:
    rows = await tx.rows(_SQL["take"], limit)
    return [
        OutboxRow(r["outbox_id"], r["runtime"], tuple(r["task_ids"]), r["failures"], r["age_seconds"])
        for r in rows
    ]


async def done(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["done"], outbox_ids)


async def postpone(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["postpone"], outbox_ids)


async def lag_seconds(tx: Transaction) -> float:
    return float(await tx.value(_SQL["lag"]))
