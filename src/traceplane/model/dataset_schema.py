"""Which schemas may follow each other in one generation of a dataset.

All files of a generation are read as one table, by its merged schema: every column that any file has. A file
without a column reads as null there, so a column may come later or stay away, but only as one that may be null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WIDENINGS = {("int32", "int64"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column with its type as Arrow spells it."""

    name: str
    type: str
    nullable: bool = True

    def __str__(self) -> str:
        return self.type if self.nullable else f"{self.type} not null"


Schema = tuple[SchemaColumn, ...]


@dataclass(frozen=True, slots=True)
class Incompatible:
    """The first column that does not fit, as it is so far and as it would be."""

    column: str
    known: str
    found: str


def merge(known: Schema | None, new: Sequence[SchemaColumn]) -> Schema | Incompatible:
    """The schema of a generation after a commit with the schema `new`, or why there can be none."""
    found: dict[str, SchemaColumn] = {}
    for column in new:
        if column.name in found:
            return Incompatible(column.name, str(found[column.name]), f"{column} once more")
        found[column.name] = column
    if known is None:
        return tuple(new)
    merged = []
    for before in known:
        now = found.pop(before.name, None)
        if now is None:
            if not before.nullable:
                return Incompatible(before.name, str(before), "missing")
            merged.append(before)
            continue
        wider = _wider(before.type, now.type)
        if wider is None or (now.nullable and not before.nullable):
            return Incompatible(before.name, str(before), str(now))
        merged.append(SchemaColumn(before.name, wider, before.nullable))
    # Files committed before have no such column: whatever this one promises, it may be null.
    merged += (SchemaColumn(column.name, column.type) for column in found.values())
    return tuple(merged)


def _wider(one: str, other: str) -> str | None:
    """The type that holds both, if one of them does."""
    if one == other or (other, one) in _WIDENINGS:
        return one
    return other if (one, other) in _WIDENINGS else None
