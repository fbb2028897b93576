"""How attempts ended that did not complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("task_attempts")
_KEPT = 50
"""Attempts of one task."""

Ended = Literal["failed", "lost", "returned", "canceled"]
"""lost: its worker fell silent."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    attempt: int
    outcome: Ended
    started_at: datetime
    ended_at: datetime
    worker_id: str | None
    code: str | None


async def keep(tx: Transaction, ended: Sequence[tuple[UUID, int | None, Ended, str | None]]) -> None:
    """`ended`: tasks, their attempts (None: the current one), how they ended and the codes of their errors."""
    await tx.rows(_SQL["keep"], *([e[n] for e in ended] for n in range(4)), _KEPT)


async def of_task(tx: Transaction, org: str, task_id: UUID) -> list[EndedAttempt]:
    return await tx.rows_as(EndedAttempt, _SQL["of_task"], task_id, org)
