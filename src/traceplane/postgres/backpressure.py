"""The figures that the valve decides by, and its decisions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from traceplane.model.backpressure import Hold, JobFigures, Pressure
from traceplane.postgres.database import Transaction, statements

_SQL = statements("backpressure")


async def one_at_a_time(tx: Transaction) -> bool:
    return bool(await tx.value(_SQL["one_at_a_time"]))


async def idle(tx: Transaction) -> bool:
    return bool(await tx.value(_SQL["idle"]))


async def figures(tx: Transaction) -> list[JobFigures]:
    return [
        JobFigures(
            job_id=r["job_id"],
            depth=r["depth"],
            age_seconds=r["age_seconds"],
            max_depth=r["max_queue_depth"],
            max_age_seconds=r["max_queue_age_seconds"],
            level=r["level"],
        )
        for r in await tx.rows(_SQL["figures"])
    ]


async def edges(tx: Transaction) -> list[tuple[UUID, UUID]]:
    return [(r["producer"], r["consumer"]) for r in await tx.rows(_SQL["edges"])]


async def names(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, str]:
    return {r["job_id"]: r["name"] for r in await tx.rows(_SQL["names"], job_ids)}


async def store(
    tx: Transaction, pressures: Sequence[Pressure], holds: Sequence[Hold], paths: Sequence[str]
) -> tuple[int, int]:
    """Replaces both tables; returns how many jobs were released and how many holds changed."""
    await tx.rows(
        _SQL["store_pressure"],
        [p.job_id for p in pressures],
        [p.level for p in pressures],
        [p.metric for p in pressures],
        [p.figure for p in pressures],
        [p.threshold for p in pressures],
    )
    row = await tx.row(
        _SQL["store_holds"],
        [h.job_id for h in holds],
        [h.level for h in holds],
        [h.path[-1] for h in holds],
        list(paths),
    )
    assert row is not None
    return row["released"], row["changed"]
