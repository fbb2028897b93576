"""Hot datasets: the column types of their tables, and where the rows of a range are.

A hot generation has one table. Each of its rows has a position, in a column that the dataset names. A commit that
replaces its scope deletes the rows of these positions before it writes its own, so the table holds only the newest
rows of every position.

When a range is compacted, its rows leave the table, and a commit of the hot generation records which files they are
in now (they are *moved*). So a reader of a range gets the table's rows, and from each moved commit the positions that
no newer commit covers.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.committed_file import CommittedFile
from traceplane.model.partitions import Partitions
from traceplane.model.row_positions import PositionColumn

_TYPES = {
    "boolean": ("boolean", "bool"),
    "tinyint": ("smallint", "int8"),
    "smallint": ("smallint", "int16"),
    "int": ("integer", "int32"),
    "integer": ("integer", "int32"),
    "bigint": ("bigint", "int64"),
    "long": ("bigint", "int64"),
    "float": ("real", "float"),
    "double": ("double precision", "double"),
    "string": ("text", "string"),
    "binary": ("bytea", "binary"),
    "date": ("date", "date32[day]"),
    "timestamp": ("timestamptz", "timestamp[us, tz=UTC]"),
    "timestamp_ntz": ("timestamp", "timestamp[us]"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_LONGEST_NAME = 63

SUPPORTED_TYPES = (*sorted(_TYPES), "decimal(p, s)")


@dataclass(frozen=True, slots=True)
class HotColumn:
    name: str
    type: str
    """The Spark SQL type in the DAG file."""
    nullable: bool = True

    @property
    def postgres_type(self) -> str:
        types = stored_as(self.type)
        assert types is not None, "checked when the dataset was deployed"
        return types[0]

    @property
    def arrow_type(self) -> str:
        """The type's name, as in manifests."""
        types = stored_as(self.type)
        assert types is not None, "checked when the dataset was deployed"
        return types[1]


@dataclass(frozen=True, slots=True)
class HotTable:
    generation_id: UUID
    columns: tuple[HotColumn, ...]
    position: str
    unique_key: tuple[str, ...] = ()
    partitions: Partitions = Partitions()
    key: tuple[str, ...] = ()
    """Columns of which no two rows have the same values: rows that are added take the place of those that have them."""
    buffered: bool = False
    """Whether a sink writes its rows, rather than the commit of the task."""

    @property
    def position_column(self) -> PositionColumn:
        types = {column.name: column.arrow_type for column in self.columns}
        return PositionColumn(self.position, types[self.position], self.partitions)

    @property
    def replaces(self) -> bool:
        """Whether a commit replaces the rows of its scope; otherwise rows are added by `unique_key`."""
        return not self.unique_key

    @property
    def upserts(self) -> bool:
        """Whether every row that is added is there afterwards, in the place of one with the same key."""
        return bool(self.unique_key and self.key) and any(c.name not in self.key for c in self.columns)


@dataclass(frozen=True, slots=True)
class HeldCommit:
    """A live commit of a hot generation. One with files is moved; the rows of the others are in the table."""

    commit_id: int
    start: int
    end: int
    rows: int
    files: tuple[CommittedFile, ...] = ()


Interval = tuple[int, int]
"""Positions from the first to the last, both included."""


def stored_as(type_: str) -> tuple[str, str] | None:
    """The Postgres and the Arrow type of a Spark SQL type; None if a hot table cannot have such columns."""
    name = type_.strip().lower()
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2] or 0)
        if not 1 <= precision <= 38 or scale > precision:
            return None
        return f"numeric({precision}, {scale})", f"decimal128({precision}, {scale})"
    return _TYPES.get(name)


def can_be_column(name: str) -> bool:
    return len(name.encode()) <= _LONGEST_NAME and name not in _SYSTEM_COLUMNS


def state_of(held: Iterable[HeldCommit]) -> str:
    """A fingerprint of a range: the same live commits, the same rows. SQL computes the same value."""
    ids = sorted(commit.commit_id for commit in held)
    return hashlib.md5(",".join(map(str, ids)).encode(), usedforsecurity=False).hexdigest() if ids else ""


def moved_rows(
    held: Sequence[HeldCommit], start: int, end: int, *, replaces: bool
) -> list[tuple[HeldCommit, tuple[Interval, ...]]]:
    """The moved commits that hold rows of a range, and which of their positions to read.

    Commits are ordered from the oldest to the newest. Positions that a newer one covers, moved or not, are not read
    from an older one, unless commits only add rows.
    """
    moved: list[tuple[HeldCommit, tuple[Interval, ...]]] = []
    covered: list[Interval] = []
    for commit in reversed(held):
        if commit.files:
            overlap = (max(commit.start, start), min(commit.end, end))
            if kept := _without(overlap, covered if replaces else []):
                moved.append((commit, kept))
        covered = united(covered, (commit.start, commit.end))
    return moved[::-1]


def united(intervals: Sequence[Interval], new: Interval) -> list[Interval]:
    """The disjoint, ordered intervals with one more added; adjacent ones are merged."""
    low, high = new
    apart = []
    for first, last in intervals:
        if last < low - 1 or first > high + 1:
            apart.append((first, last))
        else:
            low, high = min(low, first), max(high, last)
    return sorted([*apart, (low, high)])


def _without(interval: Interval, covered: Sequence[Interval]) -> tuple[Interval, ...]:
    position, kept = interval[0], []
    for first, last in covered:
        if last < position or first > interval[1]:
            continue
        if first > position:
            kept.append((position, first - 1))
        position = last + 1
    if position <= interval[1]:
        kept.append((position, interval[1]))
    return tuple(kept)


def parts(held: Sequence[HeldCommit], start: int, end: int, *, rows_per_part: int) -> list[Interval]:
    """A range in pieces of about this many rows of the table, judged by the row counts of its commits."""
    cuts: set[int] = set()
    pending = 0
    for commit in sorted((c for c in held if not c.files and c.rows), key=lambda c: c.start):
        if pending + commit.rows > rows_per_part and pending:
            cuts.add(commit.start)
            pending = 0
        pending += commit.rows
        pieces = min(-(-commit.rows // rows_per_part), commit.end - commit.start + 1)
        width = commit.end - commit.start + 1
        cuts.update(commit.start + width * n // pieces for n in range(1, pieces))
    bounds = [start, *sorted(cut for cut in cuts if start < cut <= end), end + 1]
    return [(low, high - 1) for low, high in itertools.pairwise(bounds)]
