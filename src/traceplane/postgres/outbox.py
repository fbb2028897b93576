"""Side effects waiting to leave the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("outbox")


@dataclass(frozen=True, slots=True)
class OutboxRow:
    outbox_id: int
    runtime: str
    queue_suffix: str
    task_ids: tuple[UUID, ...]
    failures: int
    age_seconds: float


async def move_to_local_queue(tx: Transaction, queues: Mapping[str, str], limit: int) -> dict[str, int]:
    """Rows of these runtimes become messages of their queues; returns how many each queue got."""
    rows = await tx.rows(_SQL["move_to_local_queue"], list(queues), list(queues.values()), limit)
    return {r["queue"]: r["messages"] for r in rows}


async def due_runtimes(tx: Transaction) -> set[str]:
    return {r["runtime"] for r in await tx.rows(_SQL["due_runtimes"])}


async def take(tx: Transaction, limit: int, *, other_than: Collection[str] = ()) -> list[OutboxRow]:
    """Due rows of all runtimes but these."""
    rows = await tx.rows(_SQL["take"], limit, list(other_than))
    return [
        OutboxRow(
            r["outbox_id"],
            r["runtime"],
            r["queue_suffix"],
            tuple(r["task_ids"]),
            r["failures"],
            r["age_seconds"],
        )
        for r in rows
    ]


async def done(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["done"], outbox_ids)


async def postpone(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["postpone"], outbox_ids)


async def lag_seconds(tx: Transaction) -> float:
    return float(await tx.value(_SQL["lag"]))


async def lag_seconds_of(tx: Transaction, org: str) -> float:
    return float(await tx.value(_SQL["lag_of_org"], org))
