"""Names of partitions, as people write them, become positions; and back."""

from __future__ import annotations

from traceplane.errors import InvalidInput
from traceplane.model.partitions import EXAMPLES, BadPartition, By, Partitions
from traceplane.model.positions import Range
from traceplane.model.scope import Partition
from traceplane.postgres import partition_names
from traceplane.postgres.database import Transaction

MAX_PARTITIONS = 100_000
"""Of one range; more would keep the dispatcher's queue busy for longer than anyone watches."""


async def with_names(tx: Transaction, org: str, partitions: Partitions, *asked: str | int) -> Partitions:
    """Partitions by name, with the positions of names that somebody wrote."""
    if partitions.by is not By.NAME:
        return partitions
    return partitions.with_names(await partition_names.find(tx, org, list(map(str, asked))))


def position(partitions: Partitions, text: str | int) -> int:
    """Of a partition as somebody wrote it."""
    try:
        return partitions.position(str(text))
    except BadPartition as error:
        raise InvalidInput(
            "scope.bad_partition",
            str(error),
            value=text,
            next_step=_instead(partitions, str(text)),
        ) from None


def _instead(partitions: Partitions, text: str) -> str:
    if partitions.by is By.POSITION and not text.lstrip("-").isdigit():
        return "write a number, or declare the partitions of the dataset: see docs/guides/scopes_and_dates.md"
    return f"write the {partitions.by}, for example {EXAMPLES[partitions.by]}"


def positions(partitions: Partitions, first: str | int, last: str | int) -> Range:
    if partitions.by is By.NAME and first != last:
        raise InvalidInput(
            "scope.bad_range",
            "names have no order, so there is nothing between two of them",
            value=f"{first}..{last}",
            next_step="give one name at a time",
        )
    found = position(partitions, first), position(partitions, last)
    if found[0] > found[1]:
        raise InvalidInput(
            "scope.bad_range",
            "the range ends before it starts",
            value=f"{first}..{last}",
            next_step=f"write the smaller one first: {last}..{first}",
        )
    return found


def one_each(partitions: Partitions, first: str, last: str) -> list[Partition]:
    """Each partition of a range."""
    start, end = positions(partitions, first, last)
    if end - start >= MAX_PARTITIONS:
        raise InvalidInput(
            "scope.range_too_wide",
            f"the range has more than {MAX_PARTITIONS:,} partitions",
            value=f"{first}..{last}",
            next_step="split the range",
        )
    return [Partition(partitions.name(p), p, p) for p in range(start, end + 1)]
