"""The output of operators, stored in the transaction of the heartbeat or report that carried it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("task_logs")


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    attempt: int
    text: str
    written_at: datetime


async def keep(tx: Transaction, written: Sequence[tuple[UUID, int, str]]) -> None:
    """`written`: tasks, their attempts and the output of these."""
    await tx.rows(_SQL["keep"], *([w[n] for w in written] for n in range(3)))


async def of_task(tx: Transaction, org: str, task_id: UUID, *, attempts: int) -> list[AttemptOutput]:
    """The output of the last attempts that wrote something, newest first."""
    return await tx.rows_as(AttemptOutput, _SQL["of_task"], task_id, org, attempts)
