"""What a `scopes` job or an aggregator knows: the positions that each of its inputs has told, and the scopes or batches
that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.edges import EVERYTHING, WaitFor
from traceplane.model.extents import Extents
from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements

_SQL = statements("scopes")


@dataclass(frozen=True, slots=True)
class ToldBy:
    """What a task is about."""

    task_id: UUID
    generation_id: UUID
    brings: bool
    """Whether the positions of its scope have been written; an invalidation alone brings no data."""


@dataclass(frozen=True, slots=True)
class KnownScope:
    scope_key: str
    partition_key: str | None
    range_start: int
    range_end: int
    emitted: bool
    ranges: list[int]
    """The ranges that it overlaps, by their number."""

    @property
    def positions(self) -> Range:
        return self.range_start, self.range_end


@dataclass(frozen=True, slots=True)
class ToldExtent:
    all_of_it: bool
    some_of_it: bool


@dataclass(frozen=True, slots=True)
class NewScope:
    partition_key: str | None
    positions: Range


async def told_by(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, ToldBy]:
    return {row.task_id: row for row in await tx.rows_as(ToldBy, _SQL["told_by"], list(task_ids))}


async def add_positions(tx: Transaction, job_id: UUID, told: Sequence[tuple[int, Range]]) -> None:
    """Per input, positions that it has."""
    await tx.rows(_SQL["add_positions"], job_id, *_ranges(told))


async def extents(tx: Transaction, job_id: UUID) -> dict[int, Range]:
    """The first and the last position of each input that has any."""
    return {r["input_index"]: (r["first"], r["last"]) for r in await tx.rows(_SQL["extents"], job_id)}


async def held(tx: Transaction, job_id: UUID, asked: Sequence[tuple[int, Range]]) -> list[ToldExtent]:
    """For each range of an input, how much of it has been told."""
    rows = await tx.rows(_SQL["held"], job_id, *_ranges(asked))
    return [ToldExtent(r["all_of_it"], r["some_of_it"]) for r in rows]


async def add_scopes(tx: Transaction, job_id: UUID, scopes: Sequence[NewScope]) -> None:
    await tx.rows(
        _SQL["add_scopes"],
        job_id,
        [s.partition_key for s in scopes],
        [s.positions[0] for s in scopes],
        [s.positions[1] for s in scopes],
    )


async def widest(tx: Transaction, job_id: UUID) -> int:
    """The length of the longest scope that a job knows."""
    return int(await tx.value(_SQL["widest"], job_id))


async def overlapping(
    tx: Transaction,
    job_id: UUID,
    ranges: Sequence[Range],
    *,
    start: int | None = None,
    most: int | None = None,
) -> tuple[list[KnownScope], int | None]:
    """The scopes that overlap ranges, in the order of their start. If there are more than `most`: the first of them,
    and the `start` of the others."""
    rows = await tx.rows_as(
        KnownScope,
        _SQL["overlapping"],
        job_id,
        [r[0] for r in ranges],
        [r[1] for r in ranges],
        await widest(tx, job_id),
        EVERYTHING[0] if start is None else start,
        None if most is None else most + 1,
    )
    if most is None or len(rows) <= most:
        return rows, None
    last = rows[-1].range_start
    return [scope for scope in rows if scope.range_start < last], last


async def mark_emitted(tx: Transaction, job_id: UUID, scope_keys: Sequence[str]) -> None:
    await tx.rows(_SQL["mark_emitted"], job_id, list(scope_keys))


# Inputs that are read by a column of time ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeriodBounds:
    """Where the rows of a period are among the positions of an input."""

    first: int | None
    last: int | None
    before: int | None
    """The last position with rows in an earlier period."""
    after: int | None
    """The first position with rows in a later period: the period is over."""

    @property
    def positions(self) -> Range | None:
        """From the first to the last one with rows in it."""
        return None if self.first is None or self.last is None else (self.first, self.last)

    def extent(self, begin: int | None) -> Range:
        """From the last position before the period to the first after it; `begin`: the first that there can be."""
        first = self.before if self.before is not None else begin
        known = [p for p in (first, self.first, self.last, self.after) if p is not None]
        return (min(known), max(known)) if known else (0, 0)

    def has(self, wait_for: WaitFor, *, whole: bool) -> bool:
        """Whether a task of the period has what it waits for; `whole`: all of the extent has been told. Rows may move
        to another period later, so this is no longer asked once the task has run."""
        match wait_for:
            case WaitFor.ALL:
                return whole and self.after is not None
            case WaitFor.END:
                return self.after is not None
            case WaitFor.ANY:
                return self.positions is not None
            case WaitFor.NOTHING:
                return True


async def set_periods(
    tx: Transaction,
    job_id: UUID,
    changed: Sequence[tuple[int, Range]],
    told: Sequence[tuple[int, int, Range]],
) -> None:
    """Per input: positions whose rows have changed, and the periods that rows of them are in."""
    await tx.rows(
        _SQL["set_periods"],
        job_id,
        *_ranges(changed),
        [i for i, _, _ in told],
        [period for _, period, _ in told],
        [r[0] for _, _, r in told],
        [r[1] for _, _, r in told],
    )


async def periods_of_positions(
    tx: Transaction, job_id: UUID, asked: Sequence[tuple[int, Range]]
) -> list[Extents]:
    """For positions of inputs, in which periods they have rows."""
    positions: list[dict[int, list[Range]]] = [{} for _ in asked]
    for r in await tx.rows(_SQL["periods_of_positions"], job_id, *_ranges(asked)):
        positions[r["ord"] - 1].setdefault(r["period"], []).append((r["first"], r["last"]))
    return [Extents(held) for held in positions]


async def around_positions(
    tx: Transaction, job_id: UUID, asked: Sequence[tuple[int, Range]]
) -> list[Range | None]:
    """For positions of inputs, the periods from the one before to the one after; None if there are none."""
    rows = await tx.rows(_SQL["around_positions"], job_id, *_ranges(asked))
    known = [[p for p in (r["before"], r["after"]) if p is not None] for r in rows]
    return [(min(periods), max(periods)) if periods else None for periods in known]


async def around_periods(
    tx: Transaction, job_id: UUID, asked: Sequence[tuple[int, int]]
) -> list[PeriodBounds]:
    rows = await tx.rows(_SQL["around_periods"], job_id, [i for i, _ in asked], [p for _, p in asked])
    return [PeriodBounds(r["first"], r["last"], r["before"], r["after"]) for r in rows]


async def newest_periods(tx: Transaction, job_id: UUID) -> dict[int, int]:
    return {r["input_index"]: r["period"] for r in await tx.rows(_SQL["newest_periods"], job_id)}


async def positions_in_periods(
    tx: Transaction, asked: Sequence[tuple[UUID, int, Range]]
) -> list[Range | None]:
    """For periods of inputs of jobs, from the first to the last position with rows in them; None if there is none."""
    rows = await tx.rows(
        _SQL["positions_in_periods"],
        [job_id for job_id, _, _ in asked],
        *_ranges([(i, r) for _, i, r in asked]),
    )
    extents = {r["ord"]: (r["first"], r["last"]) for r in rows}
    return [extents.get(number) for number in range(1, len(asked) + 1)]


async def periods_with_positions(
    tx: Transaction, job_id: UUID, positions: Sequence[tuple[int, Range]]
) -> list[int]:
    """Of a job: the periods in which some of these positions of its inputs have rows."""
    rows = await tx.rows(_SQL["periods_with_positions"], job_id, *_ranges(positions))
    return [r["period"] for r in rows]


def _ranges(asked: Sequence[tuple[int, Range]]) -> tuple[list[int], list[int], list[int]]:
    return [i for i, _ in asked], [r[0] for _, r in asked], [r[1] for _, r in asked]
