"""Positions an aggregator has received."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("aggregator")


async def add_positions(tx: Transaction, job_id: UUID, ranges: Sequence[tuple[int, int]]) -> None:
    await tx.rows(_SQL["add_positions"], job_id, [r[0] for r in ranges], [r[1] for r in ranges])


async def full_ranges(tx: Transaction, job_id: UUID, starts: Sequence[int], size: int) -> list[int]:
    return [r["range_start"] for r in await tx.rows(_SQL["full_ranges"], job_id, starts, size)]


async def head(tx: Transaction, job_id: UUID) -> int | None:
    position: int | None = await tx.value(_SQL["head"], job_id)
    return position


async def ranges_between(tx: Transaction, job_id: UUID, low: int, high: int, size: int) -> list[int]:
    """The starts of ranges that contain received positions and end between `low` and `high`."""
    return [r["range_start"] for r in await tx.rows(_SQL["ranges_between"], job_id, low, high, size)]


async def told_of_commits(tx: Transaction, task_ids: Sequence[UUID]) -> set[UUID]:
    return {r["task_id"] for r in await tx.rows(_SQL["told_of_commits"], task_ids)}
