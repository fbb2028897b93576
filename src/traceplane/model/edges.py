"""What a task reads of an input, and which of a job's scopes a change of the input makes stale.

Both are pure functions of ranges of positions and belong together: a scope s is affected by a change c exactly when
what s reads overlaps c. Routing, readiness, invalidation and reading use these two functions and nothing else. Of an
input that is read by a column of time, they are those of `model.extents`, which need to know what was committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range

EVERYTHING: Range = (-(2**63), 2**63 - 1)
_MOMENT = timedelta(microseconds=1)


class What(StrEnum):
    """What of an input a task reads."""

    SCOPE = "scope"
    """The task's own scope, or a window around it."""
    ALL = "all"
    """The whole dataset."""
    LATEST = "latest"
    """The newest partition."""


class WaitFor(StrEnum):
    """How much of what a task reads must be there before it runs."""

    ALL = "all"
    """Every position, from the first one that the input has."""
    END = "end"
    """A position after the scope, so nothing more is expected for it."""
    ANY = "any"
    """One position of the scope."""
    NOTHING = "nothing"


class OnChange(StrEnum):
    RECOMPUTE = "recompute"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Read:
    """How a job reads an input; the defaults are those of an input that says nothing."""

    what: What = What.SCOPE
    before: int = 0
    """Positions or periods of the input before the scope."""
    after: int = 0
    wait_for: WaitFor = WaitFor.ALL
    on_change: OnChange = OnChange.RECOMPUTE
    time_column: str | None = None
    """Of an input by position: the column that says which period of the job a row is in."""

    @property
    def is_plain(self) -> bool:
        return self == Read()


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of a job."""

    read: Read
    input: Partitions
    job: Partitions
    """Those of the scopes of the job, and of its outputs."""

    def own(self, scope: Range) -> Range:
        """The positions of the input that belong to the scope itself, without a window."""
        return overlapping(scope, self.job, self.input)

    def reads(self, scope: Range) -> Range:
        if self.read.what is not What.SCOPE:
            return EVERYTHING
        first, last = self.own(scope)
        return _clipped(first - self.read.before, last + self.read.after)

    def affected(self, change: Range) -> Range | None:
        """The scopes that read some of the change."""
        if self.read.on_change is OnChange.IGNORE:
            return None
        return self.concerned(change)

    def concerned(self, change: Range) -> Range:
        """The same, including scopes that are not recomputed for it: they may have waited for it."""
        if self.read.what is not What.SCOPE:
            return EVERYTHING
        wide = _clipped(change[0] - self.read.after, change[1] + self.read.before)
        return overlapping(wide, self.input, self.job)


def can_map(source: Partitions, target: Partitions) -> bool:
    """Whether positions of one say which positions of the other are about the same data."""
    return source.by is target.by or (source.is_time and target.is_time)


def same_periods(one: Partitions, other: Partitions) -> bool:
    """Whether a position stands for the same data in both."""
    return one.by is other.by and (one.time_zone == other.time_zone or one.by is By.HOUR)


def overlapping(positions: Range, source: Partitions, target: Partitions) -> Range:
    """The partitions of `target` that have something in common with some of `source`."""
    if same_periods(source, target) or positions == EVERYTHING:  # such as the scope of a query
        return positions
    if not (source.is_time and target.is_time):
        raise ValueError(f"a {source.by} is in no {target.by}")
    begin, end = _moment(source, positions[0]), _moment(source, positions[1] + 1)
    first = target.of_time(begin) if begin is not None else EVERYTHING[0]
    last = target.of_time(end - _MOMENT) if end is not None else EVERYTHING[1]
    return first, last


def _moment(partitions: Partitions, position: int) -> datetime | None:
    """When a period begins; None if that is beyond the years that a datetime can have."""
    try:
        return partitions.starts_at(position)
    except (OverflowError, ValueError):
        return None


def _clipped(first: int, last: int) -> Range:
    return max(first, EVERYTHING[0]), min(last, EVERYTHING[1])
