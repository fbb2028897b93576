"""What a manifest says about the columns of a Parquet file: the bounds of their values, and how many are null."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet as parquet

_MOST_COLUMNS = 64
_LONGEST_TEXT = 200
_LARGEST = 2**63 - 1


Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    min: Scalar | None
    max: Scalar | None
    """Both None: unknown, or there are only nulls."""
    null_count: int


def statistics(metadata: parquet.FileMetaData) -> dict[str, ColumnFacts]:
    """Bounds and null counts of plain columns over all row groups, without columns that have neither."""
    facts: dict[str, ColumnFacts] = {}
    row_groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    with_rows = [group for group in row_groups if group.num_rows]
    for index in range(min(metadata.num_columns, _MOST_COLUMNS)):
        groups = [group.column(index) for group in with_rows]
        chunks = [group.statistics for group in groups]
        if not groups or "." in groups[0].path_in_schema:
            continue  # no rows, or part of a nested column
        if any(s is None for s in chunks):
            continue
        nulls = sum(s.null_count or 0 for s in chunks)
        low, high = _bounds(chunks)
        if low is not None or nulls:
            facts[groups[0].path_in_schema] = ColumnFacts(low, high, nulls)
    return facts


def _bounds(chunks: list[parquet.Statistics]) -> tuple[Scalar, Scalar] | tuple[None, None]:
    """A chunk that has only nulls has no bounds, and needs none."""
    bounded = [s for s in chunks if s.has_min_max]
    if not bounded or any(s.num_values for s in chunks if not s.has_min_max):
        return None, None
    low, high = _scalar(min(s.min for s in bounded)), _scalar(max(s.max for s in bounded))
    return (None, None) if low is None or high is None else (low, high)


def _scalar(value: Any) -> Scalar | None:
    match value:
        case bool():
            return value
        case int():
            return value if abs(value) <= _LARGEST else None
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value if len(value) <= _LONGEST_TEXT and "\0" not in value else None
        case datetime() | date():
            return value.isoformat()
        case _:
            return None
