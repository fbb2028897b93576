"""What operators wrote, kept in the transaction of the report that brought it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("task_logs")


async def keep(tx: Transaction, written: Sequence[tuple[UUID, int, str]]) -> None:
    """`written`: tasks, their attempts and what these wrote."""
    await tx.rows(_SQL["keep"], *([w[n] for w in written] for n in range(3)))


async def of_task(tx: Transaction, org: str, task_id: UUID, *, attempts: int) -> list[dict[str, Any]]:
    """`attempt`, `text` and `written_at` of the last attempts that wrote something, the newest first."""
    return [dict(r) for r in await tx.rows(_SQL["of_task"], task_id, org, attempts)]
