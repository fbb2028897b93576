"""Facts about pipelines that are not launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceplane.postgres.database import Transaction, statements

_SQL = statements("doctor")


async def counts(tx: Transaction) -> dict[str, int]:
    row = await tx.row(_SQL["counts"])
    assert row is not None
    return dict(row)


async def without_job(tx: Transaction, limit: int) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["without_job"], limit)]


async def oldest_running(tx: Transaction) -> dict[str, Any] | None:
    row = await tx.row(_SQL["running"])
    return dict(row) if row is not None else None


async def offsets(tx: Transaction, group: str, topic: str) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["offsets"], group, topic)]


async def watching(tx: Transaction, tickers: Sequence[str], limit: int) -> list[dict[str, Any]]:
    """Pipelines that watch one of these tickers, given in capital letters."""
    return [dict(r) for r in await tx.rows(_SQL["watching"], list(tickers), limit)]
