"""Datasets that keep their partitions for a time: which are older, and how they are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from traceplane.model.edges import What
from traceplane.model.partitions import Partitions
from traceplane.model.positions import Range
from traceplane.postgres import hot_tables, scopes
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import job_payloads, partitions_of

_SQL = statements("dataset_retention")


@dataclass(frozen=True, slots=True)
class KeptForATime:
    dataset_uuid: UUID
    retention: timedelta
    partitions: Partitions
    now: datetime
    generation_ids: tuple[UUID, ...]

    @property
    def first_kept(self) -> int | None:
        """Of partitions by time: the first period that has not ended longer ago than the retention."""
        return self.partitions.of_time(self.now - self.retention) if self.partitions.is_time else None


async def kept_for_a_time(tx: Transaction) -> list[KeptForATime]:
    return [
        KeptForATime(
            r["dataset_uuid"],
            r["retention"],
            partitions_of(r["partitions"]),
            r["now"],
            tuple(r["generation_ids"] or ()),
        )
        for r in await tx.rows(_SQL["kept_for_a_time"])
    ]


async def drop_expired(tx: Transaction, dataset: KeptForATime, limit: int, *, dry_run: bool) -> int:
    """Drops the oldest partitions; returns how many commits of the serving generation that were."""
    generations = list(dataset.generation_ids)
    if not dry_run:
        await _lock(tx, generations)
    row = await tx.row(_SQL["expired"], dataset.dataset_uuid, dataset.retention, dataset.first_kept, limit)
    assert row is not None
    if row["commits"] and not dry_run:
        positions = [(first, last) for first, last in row["positions"]]
        await _drop(tx, dataset.dataset_uuid, generations, positions, row["commit_ids"])
    return int(row["commits"])


async def _lock(tx: Transaction, generations: Sequence[UUID]) -> None:
    await hot_tables.lock(tx, generations)
    await tx.rows(_SQL["lock_generations"], list(generations))


async def _drop(
    tx: Transaction,
    dataset_uuid: UUID,
    generations: Sequence[UUID],
    positions: Sequence[Range],
    commit_ids: Sequence[int] = (),
) -> None:
    """Drops positions of locked generations, and these commits."""
    await tx.rows(
        _SQL["drop"],
        dataset_uuid,
        list(generations),
        list(commit_ids),
        [first for first, _ in positions],
        [last for _, last in positions],
    )
    for table in (await hot_tables.load(tx, generations)).values():
        for first, last in positions:
            await hot_tables.clear(tx, table, first, last)


async def drop_again(tx: Transaction, version_id: UUID) -> None:
    """Before a version serves: drops what it holds although its datasets have dropped it. A task that was queued when
    they did may have computed it after that. Of a dataset that gets other periods, the old ones are forgotten; the next
    round drops those of the new ones that are as old."""
    await tx.rows(_SQL["forget_other_periods"], version_id)
    if not (held := await _held_again(tx, version_id)):
        return
    await _lock(tx, [generation_id for _, generation_id, _ in held])
    for dataset_uuid, generation_id, positions in await _held_again(tx, version_id):
        await _drop(tx, dataset_uuid, [generation_id], positions)


async def _held_again(tx: Transaction, version_id: UUID) -> list[tuple[UUID, UUID, list[Range]]]:
    """Datasets, their generations of the version, and what these hold that was dropped."""
    return [
        (r["dataset_uuid"], r["generation_id"], [(first, last) for first, last in r["ranges"]])
        for r in await tx.rows(_SQL["held_again"], version_id)
    ]


async def dropped_inputs(tx: Transaction, job_id: UUID) -> list[tuple[int, Range]]:
    """What the inputs of a job have dropped, by the index of the input."""
    rows = await tx.rows(_SQL["dropped_inputs"], job_id)
    return [(r["input_index"], (r["first"], r["last"])) for r in rows]


@dataclass(frozen=True, slots=True)
class DroppedRead:
    """A range that a task reads, of which something was dropped."""

    dataset_id: str
    scope: str
    """From the first to the last dropped partition of the range, as people write it."""


async def dropped_reads(tx: Transaction, ranges: Sequence[tuple[UUID, Range]]) -> dict[int, DroppedRead]:
    """By their place among the ranges of generations that are given."""
    rows = await tx.rows(
        _SQL["dropped_reads"],
        [generation_id for generation_id, _ in ranges],
        [first for _, (first, _) in ranges],
        [last for _, (_, last) in ranges],
    )
    return {
        row["ord"] - 1: DroppedRead(
            row["dataset_id"],
            partitions_of(row["partitions"], row["names"]).written((row["first"], row["last"])),
        )
        for row in rows
    }


async def not_computable(tx: Transaction, job_id: UUID) -> list[Range]:
    """Scopes of a job that read something that an input has dropped."""
    dropped = await dropped_inputs(tx, job_id)
    if not dropped:
        return []
    (row,) = await job_payloads(tx, [job_id])
    edges = {i.input_index: edge for i, edge in row.edges() if edge.read.what is What.SCOPE}
    by_time = [one for one in dropped if one[0] in edges and edges[one[0]].read.time_column is not None]
    periods = await scopes.periods_with_positions(tx, job_id, by_time) if by_time else []
    return [(period, period) for period in periods] + [
        edges[index].concerned(positions)
        for index, positions in dropped
        if index in edges and edges[index].read.time_column is None
    ]
