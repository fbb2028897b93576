"""Which schemas may follow each other in one generation of a dataset.

All files of a generation are read as one table, by its merged schema: every column that any file has. A column
that a file lacks reads as null, so a column may be added later or be missing, but then it must be nullable.

If the DAG file declares columns, files have these and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traceplane.model.column_types import arrow_type, is_nested


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column with its Arrow type."""

    name: str
    type: str
    nullable: bool = True

    def __str__(self) -> str:
        return self.type if self.nullable else f"{self.type} not null"


Schema = tuple[SchemaColumn, ...]


@dataclass(frozen=True, slots=True)
class Incompatible:
    """The first column that does not fit: its type in the dataset, and its type in the output."""

    column: str
    expected: str
    actual: str
    next_step: str | None = None
    """If there is a better one than to write or declare the column differently."""


def same_in_sql(committed: Schema | None, new: Sequence[SchemaColumn]) -> tuple[str, str] | None:
    """The first two names, of an output or of an output and the committed data, that mean the same column in SQL, which
    ignores case."""
    spelled = {column.name.lower(): column.name for column in committed or ()}
    written: set[str] = set()
    for name in (column.name for column in new):
        lower = name.lower()
        if lower in written or spelled.setdefault(lower, name) != name:
            return spelled[lower], name
        written.add(lower)
    return None


def merge(current: Schema | None, new: Sequence[SchemaColumn]) -> Schema | Incompatible:
    """The schema of a generation after a commit with the schema `new`, or the column that does not fit."""
    added = {column.name: column for column in new}
    if current is None:
        return tuple(new)
    merged = []
    for before in current:
        now = added.pop(before.name, None)
        if now is None:
            if not before.nullable:
                return Incompatible(before.name, str(before), "missing")
            merged.append(before)
            continue
        wider = _wider(before.type, now.type)
        if wider is None or (now.nullable and not before.nullable):
            return Incompatible(before.name, str(before), str(now))
        merged.append(SchemaColumn(before.name, wider, before.nullable))
    # Earlier files lack these columns, so they are nullable, whatever the new file promises.
    merged += (SchemaColumn(column.name, column.type) for column in added.values())
    return tuple(merged)


_WHOLE_NUMBERS = ("int8", "int16", "int32", "int64")
_ARROW_DECIMAL = re.compile(r"decimal(?:32|64|128|256)\((\d+), (\d+)\)")


def _wider(one: str, other: str) -> str | None:
    """The wider of two types, if one contains the other."""
    if _contains(one, other):
        return one
    return other if _contains(other, one) else None


def _contains(wide: str, narrow: str) -> bool:
    """Whether every value of one type is also a value of the other, so readers can use the other for both."""
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
    """Declared columns with Arrow types; None if there are none, or one has no Arrow type."""
    types = [arrow_type(column.type) for column in declared]
    if not types or None in types:
        return None
    return tuple(SchemaColumn(c.name, t, c.nullable) for c, t in zip(declared, types, strict=True) if t)


def as_read(committed: Schema | None, declared: Sequence[SchemaColumn]) -> Schema | None:
    """The columns that a reader gets: those of the files, and declared ones that no file has yet."""
    expected = as_arrow(declared)
    if committed is None or expected is None:
        return committed or expected
    names = {column.name for column in committed}
    return committed + tuple(SchemaColumn(c.name, c.type) for c in expected if c.name not in names)


def undeclared(
    declared: Sequence[SchemaColumn], actual: Sequence[SchemaColumn], nulls: Mapping[str, int]
) -> Incompatible | None:
    """The first column of an output that differs from its declaration, which has Spark SQL types."""
    columns = {column.name: column for column in actual}
    for expected in declared:
        column = columns.pop(expected.name, None)
        if column is None and not expected.nullable:
            return Incompatible(expected.name, str(expected), "missing")
        if column is not None and not _holds(expected.type, column.type):
            return Incompatible(expected.name, str(expected), *_misfit(expected.type, column.type))
        if not expected.nullable and nulls.get(expected.name):
            return Incompatible(expected.name, str(expected), f"{nulls[expected.name]} nulls")
    for column in columns.values():
        return Incompatible(column.name, "no such column", column.type)
    return None


def _misfit(declared: str, actual: str) -> tuple[str, str | None]:
    """The type in the output, and the next step if there is a better one than usual."""
    if actual.startswith("timestamp") and "tz=" not in actual and "tz=" in (arrow_type(declared) or ""):
        return f"{actual}, which has no time zone,", "use UTC datetimes, or declare `timestamp_ntz`"
    return actual, None


def _holds(declared: str, actual: str) -> bool:
    expected = arrow_type(declared)
    if expected is None or is_nested(expected) or actual in ("null", f"large_{expected}", f"{expected}_view"):
        return True
    return _contains(expected, actual) or (expected, actual) == ("date32[day]", "date64[ms]")
