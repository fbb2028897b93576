"""Partitions as Iceberg's, where the two mean the same: hours, days and months of UTC.

Weeks, names, periods of other time zones and ranges of positions have no transform there; files of such datasets are
found by the bounds of their columns. A file is in a partition if its statistics prove it, and otherwise in none: a
table has a spec without partitions (0) for such files, and one with them (1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from traceplane.iceberg.bounds import period_of
from traceplane.iceberg.column_types import IcebergColumns
from traceplane.model.committed_file import StoredBounds
from traceplane.model.partitions import By
from traceplane.model.pruning import bounds
from traceplane.postgres.pinned import PinnedDataset

_TRANSFORMS = {By.HOUR: "hour", By.DAY: "day", By.MONTH: "month"}
_FIELD_ID = 1000
_NAME = "period"


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Of a dataset, by the periods of its position column."""

    column: str
    arrow_type: str
    source_id: int
    transform: str

    def value(self, statistics: dict[str, StoredBounds], rows: int) -> int | None:
        """The partition of a file; None if it is not known to lie in one."""
        of_column = statistics.get(self.column)
        if of_column is None or of_column.get("null_count") != 0:
            return None
        return period_of(bounds(of_column, self.arrow_type, rows), self.transform)

    @property
    def field(self) -> dict[str, Any]:
        return {
            "source-id": self.source_id,
            "field-id": _FIELD_ID,
            "name": f"{self.column}_{self.transform}" if self.column != _NAME else _NAME,
            "transform": self.transform,
        }

    @property
    def avro_field(self) -> dict[str, Any]:
        type_: Any = {"type": "int", "logicalType": "date"} if self.transform == "day" else "int"
        return {"name": _NAME, "type": ["null", type_], "default": None, "field-id": _FIELD_ID}


def partitioning_of(dataset: PinnedDataset, columns: IcebergColumns) -> Partitioning | None:
    position, partitions = dataset.position_column, dataset.partitions
    if position is None or not position.is_time or position.misfit is not None:
        return None
    transform = _TRANSFORMS.get(partitions.by)
    known = columns.plain.get(position.name)
    if transform is None or known is None or partitions.time_zone != "UTC":
        return None
    return Partitioning(position.name, position.type, known[0], transform)
