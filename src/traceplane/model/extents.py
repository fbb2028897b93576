"""Of an input that is read by a column of time: which of its positions have rows in which periods of the job.

Blocks do not map to hours by arithmetic, so the two functions of such an edge (`model.edges`) use what commits have
told: the bounds of the column in their files. A file may have rows in every period between its bounds.

The column holds dates, times, or whole seconds since 1970. Times without a time zone are in that of the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from traceplane.model.committed_file import CommittedFile
from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range
from traceplane.model.row_positions import WHOLE_NUMBERS, PositionColumn, ValueRange


class UnknownTimes(ValueError):
    """A file does not say which times its rows have."""


@dataclass(frozen=True, slots=True)
class Extents:
    positions: Mapping[int, Sequence[Range]] = field(default_factory=dict)
    """By period, the positions that have rows in it."""

    def reads(self, scope: Range) -> list[Range]:
        """The positions that have rows in some of these periods."""
        return merged(
            positions
            for period, held in self.positions.items()
            if scope[0] <= period <= scope[1]
            for positions in held
        )

    def concerned(self, change: Range) -> list[Range]:
        """The periods in which some of these positions have rows."""
        return merged(
            (period, period)
            for period, held in self.positions.items()
            if any(first <= change[1] and change[0] <= last for first, last in held)
        )


def misfit(type_: str, partitions: Partitions) -> str | None:
    """Why values of an Arrow type do not say which period they are in; None if they do."""
    column = PositionColumn("", type_, partitions)
    if column.is_time:
        return column.misfit
    return None if type_ in WHOLE_NUMBERS else "it holds no times"


def values(type_: str, partitions: Partitions, periods: Range) -> ValueRange:
    """Those of the rows in these periods."""
    if type_ not in WHOLE_NUMBERS:
        return PositionColumn("", type_, partitions).values(periods)
    return _seconds(partitions, periods[0]), _seconds(partitions, periods[1] + 1)


def _seconds(partitions: Partitions, period: int) -> int | None:
    try:
        return int(partitions.starts_at(period).timestamp())
    except (OverflowError, ValueError):  # beyond the years 1 to 9999
        return None


def of_files(
    files: Iterable[tuple[Range, CommittedFile]], column: str, partitions: Partitions, most: int
) -> Extents:
    """What files tell, each with the positions of its rows. Raises `UnknownTimes`, also if a file has rows in more than
    so many periods."""
    positions: dict[int, list[Range]] = {}
    for held, file in files:
        if (periods := periods_of(file, column, partitions)) is None:
            continue
        if periods[1] - periods[0] >= most:
            raise UnknownTimes(f"the times in {column!r} are in more than {most} periods: {file['path']}")
        for period in range(periods[0], periods[1] + 1):
            positions.setdefault(period, []).append(held)
    return Extents({period: merged(ranges) for period, ranges in positions.items()})


def periods_of(file: CommittedFile, column: str, partitions: Partitions) -> Range | None:
    """The first and the last period in which a file has rows; None if it has none."""
    if not file["rows"]:
        return None
    bounds = (file.get("statistics") or {}).get(column) or {}
    if bounds.get("null_count") == file["rows"]:
        return None
    try:
        return _period(bounds.get("min"), partitions), _period(bounds.get("max"), partitions)
    except (OverflowError, OSError, TypeError, ValueError):
        raise UnknownTimes(f"no bounds of the times in {column!r} are known: {file['path']}") from None


def _period(value: object, partitions: Partitions) -> int:
    match value:
        case bool():
            raise TypeError(value)
        case int():
            moment = datetime.fromtimestamp(value, UTC)
        case str():
            moment = datetime.fromisoformat(value)
        case _:
            raise TypeError(value)
    if moment.tzinfo is not None:
        return partitions.of_time(moment)
    if partitions.by is By.HOUR:
        return partitions.of_time(moment.replace(tzinfo=UTC))
    return partitions.of_date(moment.date())


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same positions as few ranges, in order."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(result[-1][1], last)
        else:
            result.append((first, last))
    return result
