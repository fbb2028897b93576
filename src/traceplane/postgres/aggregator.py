"""Positions an aggregator has seen."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("aggregator")


async def add_positions(tx: Transaction, job_id: UUID, ranges: Sequence[tuple[int, int]]) -> None:
    await tx.rows(_SQL["add_positions"], job_id, [r[0] for r in ranges], [r[1] for r in ranges])


async def full_ranges(tx: Transaction, job_id: UUID, starts: Sequence[int], size: int) -> list[int]:
    return [r["range_start"] for r in await tx.rows(_SQL["full_ranges"], job_id, starts, size)]


async def told_of_commits(tx: Transaction, task_ids: Sequence[UUID]) -> set[UUID]:
    return {r["task_id"] for r in await tx.rows(_SQL["told_of_commits"], task_ids)}
