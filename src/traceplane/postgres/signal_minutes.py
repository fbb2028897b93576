"""What organizations' pipelines made of the signals of the last hour, by the minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("signal_minutes")

_MINUTES = 60


@dataclass(frozen=True, slots=True)
class SignalMinute:
    at: datetime
    seconds: float
    """How many of its seconds are over."""
    has_trigger: bool
    signals: int | None
    matches: int | None
    lag_seconds: float | None


async def add(
    tx: Transaction,
    org_ids: Sequence[UUID],
    signals: Sequence[int],
    matches: Sequence[int],
    lag_seconds: float | None,
) -> None:
    await tx.run(_SQL["add"], org_ids, signals, matches, lag_seconds, _MINUTES)


async def latest(tx: Transaction, org: str) -> list[SignalMinute]:
    return await tx.rows_as(SignalMinute, _SQL["latest"], org, _MINUTES)
