"""What a dataset holds and what is under way in it, added up by stretches of positions."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from traceplane.model.partitions import Partitions
from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("coverage")


@dataclass(frozen=True, slots=True)
class StripDataset:
    generation_id: UUID
    partitions: Partitions
    held: Range | None
    """The first and last position that it holds."""


@dataclass(frozen=True, slots=True)
class StripTask:
    stage: int
    """0: waiting, 1: in flight, 3: dead."""
    first: int
    last: int


async def dataset(tx: Transaction, org: str, dataset_id: str) -> StripDataset | None:
    row = await tx.row(_SQL["strip_dataset"], org, dataset_id)
    if row is None:
        return None
    held = None if row["first"] is None else (row["first"], row["last"])
    return StripDataset(row["generation_id"], partitions_of(row["partitions"]), held)


async def tasks(tx: Transaction, generation_id: UUID, most: int) -> list[StripTask]:
    return await tx.rows_as(StripTask, _SQL["strip_tasks"], generation_id, most)


async def held(tx: Transaction, generation_id: UUID, positions: Range, per_cell: int) -> list[int]:
    """How many positions of each stretch it holds."""
    first, last = positions
    cells = [0] * ((last - first) // per_cell + 1)
    begins = [0] * (len(cells) + 1)
    for row in await tx.rows(_SQL["strip"], generation_id, first, last, per_cell):
        cells[row["cell"]] += row["part"]
        begins[row["cell"]] += row["begin"]
    covering = 0
    for n, begin in enumerate(begins[:-1]):
        covering += begin
        if covering:
            cells[n] += covering * per_cell
    return cells
