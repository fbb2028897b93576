"""Names of partitions, as people write them, become positions; and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from traceplane.auth.rights import Access
from traceplane.errors import InvalidInput
from traceplane.gateway.refused_names import unknown_dag_or_job
from traceplane.model.partitions import EXAMPLES, NAMES_WRITTEN, BadPartition, By, Partitions
from traceplane.model.positions import Range
from traceplane.model.scope import Partition
from traceplane.postgres import partition_names, registry
from traceplane.postgres.database import Transaction

_NUMBER = re.compile(r"-?[0-9]+")

MAX_PARTITIONS = 100_000
"""Of one range; more would keep the dispatcher's queue busy for longer than anyone watches."""


async def with_names(tx: Transaction, org: str, partitions: Partitions, *asked: str | int) -> Partitions:
    """Partitions by name, with the positions of names that somebody wrote."""
    if partitions.by is not By.NAME:
        return partitions
    return partitions.with_names(await partition_names.find(tx, org, list(map(str, asked))))


async def written(tx: Transaction, org: str, partitions: Partitions, ranges: Sequence[Range]) -> list[str]:
    """Ranges of positions, as people write them."""
    if partitions.by is By.NAME:
        first_few = [p for first, last in ranges for p in range(first, min(last, first + NAMES_WRITTEN) + 1)]
        partitions = partitions.with_names(await partition_names.at(tx, org, first_few))
    return [partitions.written(positions) for positions in ranges]


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


async def ends(
    tx: Transaction,
    org: str,
    dag: str | None,
    job: str | None,
    first: str | int | None,
    last: str | int | None,
    access: Access,
) -> tuple[int | None, int | None]:
    """The positions from which and to which tasks are selected: numbers, or partitions of what their job computes."""
    given = [str(end) for end in (first, last) if end is not None]
    partitions = Partitions()
    if not all(_NUMBER.fullmatch(end) for end in given):
        partitions = await with_names(tx, org, await _of_jobs(tx, org, dag, job, given, access), *given)
    if first is not None and last is not None:
        return positions(partitions, first, last)
    start, end = (None if end is None else position(partitions, end) for end in (first, last))
    return start, end


async def _of_jobs(
    tx: Transaction, org: str, dag: str | None, job: str | None, given: Sequence[str], access: Access
) -> Partitions:
    written = await registry.partitions_written(tx, org, dag, job) if dag is not None else []
    # Where a dataset starts, and which names it lists, does not change which position a name has.
    kinds = {replace(partitions, start=None, names=()) for partitions in written}
    if dag is not None and not kinds and (refusal := await unknown_dag_or_job(tx, org, dag, job, access)):
        raise refusal
    if len(kinds) != 1:
        raise InvalidInput(
            "scope.needs_job",
            "partitions have a meaning only for one job, or for a DAG whose jobs all have the same ones",
            value="..".join(given),
            next_step="name the DAG and the job of the tasks",
        )
    return kinds.pop()


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
