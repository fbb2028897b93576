"""Which positions generations hold: kept in the commit's own transaction, and asked before one replaces another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from traceplane.model.positions import Range
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction, statements

_SQL = statements("coverage")
_RANGES_TOLD = 20


@dataclass(frozen=True, slots=True)
class Lacking:
    """Positions of a dataset that readers have, and would not have after a cutover."""

    dataset_id: str
    positions: Range


@dataclass(frozen=True, slots=True)
class CatchUp:
    job_id: UUID
    generation_id: UUID
    building: bool
    routed: bool


async def add(tx: Transaction, task_ids: Sequence[UUID], outputs: Sequence[OutputCommit]) -> None:
    """What these tasks have done, and what they committed."""
    await tx.rows(
        _SQL["add"],
        list(task_ids),
        [o.generation_id for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
    )


async def lock_serving(tx: Transaction, version_id: UUID) -> None:
    await tx.rows(_SQL["lock_serving"], version_id)


async def lacking(tx: Transaction, version_id: UUID) -> tuple[Lacking, ...]:
    """The first of what readers would lose if the version served."""
    rows = await tx.rows(_SQL["lacking"], version_id, _RANGES_TOLD)
    return tuple(Lacking(r["dataset_id"], (r["first"], r["last"])) for r in rows)


# Catching up ---------------------------------------------------------------------------------------


async def add_catch_ups(tx: Transaction, version_id: UUID) -> None:
    """The version's jobs are to make all that serves now; before its pointers are moved."""
    await tx.rows(_SQL["add_catch_ups"], version_id)


async def forget_catch_ups(tx: Transaction, job_ids: Sequence[UUID], version_id: UUID | None = None) -> None:
    await tx.rows(_SQL["forget_catch_ups"], list(job_ids), version_id)


async def next_catch_ups(tx: Transaction) -> list[CatchUp]:
    return [CatchUp(**dict(r)) for r in await tx.rows(_SQL["next_catch_ups"])]


async def catch_up(tx: Transaction, found: CatchUp, limit: int) -> int:
    """Makes tasks for what a job lacks of a generation; how many."""
    row = await tx.row(_SQL["catch_up"], found.job_id, found.generation_id, limit)
    assert row is not None
    if not row["lacks"] and not found.building:
        await tx.rows(_SQL["end_catch_up"], found.job_id, found.generation_id)
    return int(row["made"])


# Looking -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coverage:
    first: int | None
    last: int | None
    gap_count: int
    gaps: tuple[Range, ...]
    """The first of them."""
    dead: int
    """Scopes whose task died, and that nothing else covers."""


async def of_datasets(tx: Transaction, org: str, dataset_id: str | None = None) -> dict[str, Coverage]:
    rows = await tx.rows(_SQL["of_datasets"], org, dataset_id, _RANGES_TOLD)
    return {
        r["dataset_id"]: Coverage(
            r["first"],
            r["last"] if r["first"] is not None else None,
            r["gap_count"],
            tuple((a, b) for a, b in r["gaps"]),
            r["dead"],
        )
        for r in rows
    }


async def asked(tx: Transaction, org: str, dataset_id: str, positions: Range) -> dict[str, Any] | None:
    """The dataset, its job, and which of the positions it does not hold."""
    row = await tx.row(_SQL["asked"], org, dataset_id, *positions)
    return dict(row) if row is not None else None


async def unfinished(tx: Transaction, job_id: UUID, positions: Range, limit: int) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["unfinished"], job_id, *positions, limit)]


async def canceled(tx: Transaction, job_id: UUID, positions: Range, limit: int) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["canceled"], job_id, *positions, limit)]


async def forget(tx: Transaction, generation_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["forget"], list(generation_ids))
