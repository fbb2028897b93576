"""How a dataset grew, and how fresh it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("dataset_history")


@dataclass(frozen=True, slots=True)
class Growth:
    """What was committed in a span of time, and is still there."""

    at: datetime
    lasts: timedelta
    commits: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fresh:
    updated_at: datetime
    filled_at: datetime | None
    """Unset: no rows were committed."""


async def growth(tx: Transaction, generation_id: UUID, most_commits: int, spans: int) -> list[Growth]:
    return await tx.rows_as(Growth, _SQL["growth"], generation_id, most_commits, spans)


async def fresh(tx: Transaction, generation_id: UUID) -> Fresh | None:
    return await tx.row_as(Fresh, _SQL["fresh"], generation_id)
