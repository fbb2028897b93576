"""The merged schemas of generations. `model.dataset_schema` decides; these functions only read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from traceplane.errors import ConcurrentChange
from traceplane.model.dataset_schema import Schema, SchemaColumn
from traceplane.model.partitions import Partitions
from traceplane.model.row_positions import PositionColumn
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("generation_schemas")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    dataset_id: str
    schema: Schema | None
    revision: int
    position: str | None
    """The column that holds a row's position."""
    widest: int
    """By how much the ends of its widest commit differ."""
    declared: Schema = ()
    """What the DAG file says of its columns, with types as Spark SQL spells them; empty: nothing."""
    partitions: Partitions = Partitions()
    drops: bool = False
    """Whether the dataset has ever dropped partitions because of their age."""

    def position_column(self, columns: Schema) -> PositionColumn | None:
        """The column that holds a row's position, with its type among these columns."""
        if self.position is None:
            return None
        types = {column.name: column.type for column in columns}
        return PositionColumn(self.position, types.get(self.position, "int64"), self.partitions)


async def load(tx: Transaction, generation_ids: Sequence[UUID]) -> dict[UUID, StoredSchema]:
    return {
        r["generation_id"]: StoredSchema(
            r["dataset_id"],
            None if r["columns"] is None else tuple(SchemaColumn(**column) for column in r["columns"]),
            r["revision"] or 0,
            r["position_column"],
            r["widest"],
            tuple(SchemaColumn(c["name"], c["type"], c["nullable"]) for c in r["declared"] or ()),
            partitions_of(r["partitions"]),
            r["drops"],
        )
        for r in await tx.rows(_SQL["load"], list(generation_ids))
    }


async def save(tx: Transaction, changed: Mapping[UUID, tuple[Schema, int]]) -> None:
    """Schemas with the revisions they were made from."""
    saved = await tx.rows(
        _SQL["save"],
        list(changed),
        [msgspec.json.encode(schema).decode() for schema, _ in changed.values()],
        [revision + 1 for _, revision in changed.values()],
    )
    if len(saved) < len(changed):
        raise ConcurrentChange(
            "postgres.concurrent_change",
            "another commit extended the dataset's schema at the same moment; nothing of this call was kept",
            next_step="repeat the call",
        )
