"""Which schemas may follow each other in one generation of a dataset.

All files of a generation are read as one table, by its merged schema: every column that any file has. A file
without a column reads as null there, so a column may come later or be left out, but only as one that may be null.

Where the DAG file declares columns, a file has these and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceplane.model.column_types import arrow_type, is_nested


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


def written_twice(columns: Sequence[SchemaColumn]) -> str | None:
    """The first name that two columns of an output have."""
    names: set[str] = set()
    for column in columns:
        if column.name in names:
            return column.name
        names.add(column.name)
    return None


def merge(known: Schema | None, new: Sequence[SchemaColumn]) -> Schema | Incompatible:
    """The schema of a generation after a commit with the schema `new`, or why there can be none."""
    found = {column.name: column for column in new}
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


_WHOLE_NUMBERS = ("int8", "int16", "int32", "int64")
_ARROW_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (\d+)\)")


def _wider(one: str, other: str) -> str | None:
    """The type that holds both, if one of them does."""
    if _contains(one, other):
        return one
    return other if _contains(other, one) else None


def _contains(wide: str, narrow: str) -> bool:
    """Whether every value of a type is one of another, which readers take it for."""
    if wide == narrow:
        return True
    if wide in _WHOLE_NUMBERS and narrow in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(narrow) < _WHOLE_NUMBERS.index(wide)
    if wide.startswith("timestamp") and narrow.startswith("timestamp"):
        return ("tz=" in wide) == ("tz=" in narrow)
    one, other = _ARROW_DECIMAL.fullmatch(wide), _ARROW_DECIMAL.fullmatch(narrow)
    if one and other:
        return one[2] == other[2] and int(other[1]) <= int(one[1])
    return (wide, narrow) == ("double", "float")


# Declared columns --------------------------------------------------------------------------------------


def as_arrow(declared: Sequence[SchemaColumn]) -> Schema | None:
    """Declared columns as files will have them; None where there are none, or one that Arrow has no type for."""
    types = [arrow_type(column.type) for column in declared]
    if not types or None in types:
        return None
    return tuple(SchemaColumn(c.name, t, c.nullable) for c, t in zip(declared, types, strict=True) if t)


def as_read(known: Schema | None, declared: Sequence[SchemaColumn]) -> Schema | None:
    """The columns that a reader gets: those of the files, and declared ones that no file has yet."""
    expected = as_arrow(declared)
    if known is None or expected is None:
        return known or expected
    names = {column.name for column in known}
    return known + tuple(SchemaColumn(c.name, c.type) for c in expected if c.name not in names)


def undeclared(
    declared: Sequence[SchemaColumn], found: Sequence[SchemaColumn], nulls: Mapping[str, int]
) -> Incompatible | None:
    """The first column of an output that is not as declared, with types as Spark SQL spells them."""
    columns = {column.name: column for column in found}
    for wanted in declared:
        column = columns.pop(wanted.name, None)
        if column is None and not wanted.nullable:
            return Incompatible(wanted.name, str(wanted), "missing")
        if column is not None and not _holds(wanted.type, column.type):
            return Incompatible(wanted.name, str(wanted), column.type)
        if not wanted.nullable and nulls.get(wanted.name):
            return Incompatible(wanted.name, str(wanted), f"{nulls[wanted.name]} nulls")
    for column in columns.values():
        return Incompatible(column.name, "no such column", column.type)
    return None


def _holds(declared: str, found: str) -> bool:
    wanted = arrow_type(declared)
    if wanted is None or is_nested(wanted) or found in ("null", f"large_{wanted}", f"{wanted}_view"):
        return True
    return _contains(wanted, found) or (wanted, found) == ("date32[day]", "date64[ms]")
