"""What a `scopes` job or an aggregator knows: the positions that each of its inputs has told, and the scopes or batches
that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements

_SQL = statements("scopes")


@dataclass(frozen=True, slots=True)
class ToldBy:
    """What a task is about."""

    task_id: UUID
    generation_id: UUID
    brings: bool
    """Whether the positions of its scope have been written; an invalidation alone brings no data."""


@dataclass(frozen=True, slots=True)
class KnownScope:
    scope_key: str
    partition_key: str | None
    range_start: int
    range_end: int
    emitted: bool
    ranges: list[int]
    """The ranges that it overlaps, by their number."""

    @property
    def positions(self) -> Range:
        return self.range_start, self.range_end


@dataclass(frozen=True, slots=True)
class ToldExtent:
    all_of_it: bool
    some_of_it: bool


@dataclass(frozen=True, slots=True)
class NewScope:
    partition_key: str | None
    positions: Range


async def told_by(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, ToldBy]:
    return {row.task_id: row for row in await tx.rows_as(ToldBy, _SQL["told_by"], list(task_ids))}


async def add_positions(tx: Transaction, job_id: UUID, told: Sequence[tuple[int, Range]]) -> None:
    """Per input, positions that it has."""
    await tx.rows(
        _SQL["add_positions"], job_id, [i for i, _ in told], [r[0] for _, r in told], [r[1] for _, r in told]
    )


async def extents(tx: Transaction, job_id: UUID) -> dict[int, Range]:
    """The first and the last position of each input that has any."""
    return {r["input_index"]: (r["first"], r["last"]) for r in await tx.rows(_SQL["extents"], job_id)}


async def held(tx: Transaction, job_id: UUID, asked: Sequence[tuple[int, Range]]) -> list[ToldExtent]:
    """For each range of an input, how much of it has been told."""
    rows = await tx.rows(
        _SQL["held"], job_id, [i for i, _ in asked], [r[0] for _, r in asked], [r[1] for _, r in asked]
    )
    return [ToldExtent(r["all_of_it"], r["some_of_it"]) for r in rows]


async def add_scopes(tx: Transaction, job_id: UUID, scopes: Sequence[NewScope]) -> None:
    await tx.rows(
        _SQL["add_scopes"],
        job_id,
        [s.partition_key for s in scopes],
        [s.positions[0] for s in scopes],
        [s.positions[1] for s in scopes],
    )


async def widest(tx: Transaction, job_id: UUID) -> int:
    """The length of the longest scope that a job knows."""
    return int(await tx.value(_SQL["widest"], job_id))


async def overlapping(tx: Transaction, job_id: UUID, ranges: Sequence[Range]) -> list[KnownScope]:
    return await tx.rows_as(
        KnownScope,
        _SQL["overlapping"],
        job_id,
        [r[0] for r in ranges],
        [r[1] for r in ranges],
        await widest(tx, job_id),
    )


async def mark_emitted(tx: Transaction, job_id: UUID, scope_keys: Sequence[str]) -> None:
    await tx.rows(_SQL["mark_emitted"], job_id, list(scope_keys))
