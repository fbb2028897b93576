"""Datasets that keep their partitions for a time: which are older, and how they are dropped."""

from __future__ import annotations

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
        await hot_tables.lock(tx, generations)
        await tx.rows(_SQL["lock_generations"], generations)
    row = await tx.row(_SQL["expired"], dataset.dataset_uuid, dataset.retention, dataset.first_kept, limit)
    assert row is not None
    if row["commits"] and not dry_run:
        positions = [(first, last) for first, last in row["positions"]]
        await tx.rows(
            _SQL["drop"],
            dataset.dataset_uuid,
            generations,
            row["commit_ids"],
            [first for first, _ in positions],
            [last for _, last in positions],
        )
        for table in (await hot_tables.load(tx, generations)).values():
            for first, last in positions:
                await hot_tables.clear(tx, table, first, last)
    return int(row["commits"])


async def dropped_inputs(tx: Transaction, job_id: UUID) -> list[tuple[int, Range]]:
    """What the inputs of a job have dropped, by the index of the input."""
    rows = await tx.rows(_SQL["dropped_inputs"], job_id)
    return [(r["input_index"], (r["first"], r["last"])) for r in rows]


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
