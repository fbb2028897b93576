"""Which schemas may follow each other in one generation of a dataset.

All files of a generation are read as one table, by its merged schema: every column that any file has. A file
without a column reads as null there, so a column may come later or stay away, but only as one that may be null.

Where the DAG file declares columns, a file has these and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


# Declared columns --------------------------------------------------------------------------------------

_ARROW_NAMES = {
    "boolean": "bool",
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date32[day]",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ltz": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(\d+))?\))?")
_ARROW_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (\d+)\)")
_TEXT = re.compile(r"(?:varchar|char)\(\d+\)")
_WHOLE_NUMBERS = ("int8", "int16", "int32", "int64")


def arrow_type(declared: str) -> str | None:
    """Arrow's name of a Spark SQL type; None for a nested one, which is not checked."""
    name = "".join(declared.lower().split())
    if match := _DECIMAL.fullmatch(name):
        return f"decimal128({match[1] or 10}, {match[2] or 0})"
    return "string" if _TEXT.fullmatch(name) else _ARROW_NAMES.get(name)


def as_arrow(declared: Sequence[SchemaColumn]) -> Schema | None:
    """Declared columns as files will have them; None where there are none, or one that is nested."""
    types = [arrow_type(column.type) for column in declared]
    if not types or None in types:
        return None
    return tuple(SchemaColumn(c.name, t, c.nullable) for c, t in zip(declared, types, strict=True) if t)


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
    if wanted is None or found in (wanted, "null", f"large_{wanted}", f"{wanted}_view"):
        return True
    if wanted in _WHOLE_NUMBERS and found in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(found) < _WHOLE_NUMBERS.index(wanted)
    if wanted.startswith("timestamp") and found.startswith("timestamp"):
        return ("tz=" in wanted) == ("tz=" in found)
    one, other = _ARROW_DECIMAL.fullmatch(wanted), _ARROW_DECIMAL.fullmatch(found)
    if one and other:
        return one[2] == other[2] and int(other[1]) <= int(one[1])
    return (wanted, found) in (("double", "float"), ("date32[day]", "date64[ms]"))
