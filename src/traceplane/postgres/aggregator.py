"""The batches of an aggregator: what has arrived, what it has closed, and what is to be closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from traceplane.model.partitions import Partitions
from traceplane.model.positions import Range
from traceplane.operators import catalog
from traceplane.postgres import scopes
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("aggregator")

ClosedBy = Literal["full", "every", "all", "max_wait", "hand", "deploy"]
_EVERYWHERE: Range = (-(2**63), 2**63 - 1)
_WIDEST = 2**62
"""More than any batch has."""
BY_HAND = -(2**63)
"""The slot that stands for everything that has arrived."""
CUT_ANEW = BY_HAND + 1
"""The slot that stands for everything that has arrived and is to be cut by another rule."""


@dataclass(frozen=True, slots=True)
class OpenPiece:
    """Positions of an aligned range that are in no batch, and of which some have arrived."""

    slot: int
    first: int
    last: int
    is_full: bool
    arrived: int
    """The last position that has arrived."""


@dataclass(frozen=True, slots=True)
class Unbatched:
    """Positions in no batch, and which of them have arrived."""

    first: int
    last: int
    arrived: list[Range]


@dataclass(frozen=True, slots=True)
class ClosedBatch:
    first: int
    last: int
    closed_by: ClosedBy
    partition_key: str


@dataclass(frozen=True, slots=True)
class DueSlot:
    slot: int
    backfill: bool
    """Whether only backfills filled it."""


@dataclass(frozen=True, slots=True)
class AggregatorOfJob:
    job_id: UUID
    name: str
    size: int | None
    """Of its ranges, if they have one."""
    dataset_id: str
    """What it reads."""
    partitions: Partitions
    """Of that dataset."""


@dataclass(frozen=True, slots=True)
class BatchManifest:
    dataset_id: str
    """What it is a batch of."""
    partitions: Partitions
    """Of that dataset."""
    partition_key: str
    closed_by: ClosedBy
    closed_at: datetime
    held: list[Range]
    """The positions that had arrived when it was last emitted."""


async def open_pieces(
    tx: Transaction, job_id: UUID, partitions: Partitions, slots: Sequence[int], size: int, widest: int
) -> list[OpenPiece]:
    return await tx.rows_as(
        OpenPiece, _SQL["open_pieces"], job_id, list(slots), size, widest, partitions.start
    )


async def unbatched(tx: Transaction, job_id: UUID) -> list[Unbatched]:
    rows = await tx.rows(_SQL["unbatched"], job_id)
    return [Unbatched(r["first"], r["last"], [(a, b) for a, b in r["arrived"]]) for r in rows]


async def slots_with_positions(tx: Transaction, job_id: UUID, within: Range, size: int) -> set[int]:
    """The starts of aligned ranges that lie within these positions and have something in no batch."""
    first, last = within
    return {
        slot
        for piece in await unbatched(tx, job_id)
        for a, b in piece.arrived
        for slot in range(max(a, first) // size * size, min(b, last) + 1, size)
    }


async def closable(tx: Transaction, job_id: UUID, partitions: Partitions, size: int | None) -> list[Range]:
    """The batches that result if all that has arrived is closed now."""
    if size is None:
        return [(piece.first, piece.last) for piece in await unbatched(tx, job_id)]
    slots = await slots_with_positions(tx, job_id, _EVERYWHERE, size)
    pieces = await open_pieces(tx, job_id, partitions, sorted(slots), size, await scopes.widest(tx, job_id))
    return [(piece.first, piece.arrived) for piece in pieces]


async def close(tx: Transaction, job_id: UUID, batches: Sequence[ClosedBatch]) -> None:
    await tx.rows(
        _SQL["close"],
        job_id,
        [b.partition_key for b in batches],
        [b.first for b in batches],
        [b.last for b in batches],
        [b.closed_by for b in batches],
    )


async def passed(tx: Transaction, job_id: UUID, ranges: Sequence[Range]) -> list[list[Range]]:
    """For each range, the parts of it that were passed on as they came."""
    parts: list[list[Range]] = [[] for _ in ranges]
    if ranges and await tx.value(_SQL["any_passed"], job_id):
        for r in await tx.rows(_SQL["passed"], job_id, [r[0] for r in ranges], [r[1] for r in ranges]):
            parts[r["ord"] - 1].append((r["first"], r["last"]))
    return parts


async def add_passed(tx: Transaction, job_id: UUID, ranges: Sequence[Range]) -> None:
    await tx.rows(_SQL["add_passed"], job_id, [r[0] for r in ranges], [r[1] for r in ranges])


async def note_changes(tx: Transaction, job_id: UUID, scope_keys: Sequence[str]) -> None:
    await tx.rows(_SQL["note_changes"], job_id, list(scope_keys))


async def open_batches(
    tx: Transaction, job_id: UUID, slots: Sequence[tuple[int, bool]], closes_after: timedelta | None
) -> None:
    """`slots`: each with whether only backfills have filled it. Without a time, they close when the jobs that they feed
    have nothing left to do."""
    await tx.rows(
        _SQL["open"], job_id, [s for s, _ in slots], closes_after, [backfill for _, backfill in slots]
    )


@dataclass(frozen=True, slots=True)
class FillingBatch:
    """A batch that is not closed yet."""

    arrived: tuple[Range, ...]
    waits_for: tuple[Range, ...]
    """Positions of its range; empty if it has no size, or is full."""
    closes_at: datetime | None
    """If a time closes it."""


async def filling(
    tx: Transaction, job_id: UUID, partitions: Partitions, position: int, size: int | None
) -> FillingBatch | None:
    """The batch that a position will be in, if some of it has arrived. `size`: of its range, if it has one."""
    slot = 0 if size is None else position // size * size
    unbatched_pieces = await unbatched(tx, job_id)
    if size is None:
        arrived = [r for piece in unbatched_pieces for r in piece.arrived if position <= piece.last]
        waits_for: list[Range] = []
    else:
        pieces = await open_pieces(tx, job_id, partitions, [slot], size, _WIDEST)
        bounds = next(((p.first, p.last) for p in pieces if p.first <= position <= p.last), None)
        if bounds is None:
            return None
        known = [r for piece in unbatched_pieces for r in piece.arrived]
        arrived = [(max(a, bounds[0]), min(b, bounds[1])) for a, b in known]
        arrived = [(a, b) for a, b in arrived if a <= b]
        waits_for = _between(arrived, bounds)
    if not arrived:
        return None
    times = await tx.rows(_SQL["closing_times"], job_id, [slot])
    return FillingBatch(tuple(arrived), tuple(waits_for), times[0]["due_at"] if times else None)


def _between(arrived: Sequence[Range], bounds: Range) -> list[Range]:
    """What of a range is not among some of its parts, which are in order."""
    missing, next_ = [], bounds[0]
    for first, last in arrived:
        if next_ < first:
            missing.append((next_, first - 1))
        next_ = last + 1
    return [*missing, (next_, bounds[1])] if next_ <= bounds[1] else missing


async def forget_open(tx: Transaction, job_id: UUID, slots: Sequence[int]) -> None:
    await tx.rows(_SQL["forget_open"], job_id, list(slots))


async def any_open(tx: Transaction) -> bool:
    return bool(await tx.value(_SQL["any_open"]))


async def due(tx: Transaction) -> list[UUID]:
    return [r["job_id"] for r in await tx.rows(_SQL["due"])]


async def due_slots(tx: Transaction, job_id: UUID) -> list[DueSlot]:
    return await tx.rows_as(DueSlot, _SQL["due_slots"], job_id)


async def of_job(tx: Transaction, org: str, dag: str, job: str) -> list[AggregatorOfJob]:
    rows = await tx.rows(_SQL["of_job"], org, dag, job, catalog.batching())
    return [AggregatorOfJob(**{**row, "partitions": partitions_of(row["partitions"])}) for row in rows]


async def close_by_hand(tx: Transaction, job_id: UUID) -> None:
    await tx.rows(_SQL["close_by_hand"], job_id)


async def batch_of_task(tx: Transaction, org: str, task_id: UUID) -> BatchManifest | None:
    row = await tx.row(_SQL["batch_of_task"], task_id, org)
    if row is None:
        return None
    held = [(a, b) for a, b in row["held"]]
    return BatchManifest(**{**row, "held": held, "partitions": partitions_of(row["partitions"])})


# Batches of jobs that keep their data ----------------------------------------------------------------


async def is_unready(tx: Transaction, job_id: UUID) -> bool:
    """Whether a job has yet to receive some of the past."""
    return bool(await tx.value(_SQL["unready"], job_id))


async def put_in_front(tx: Transaction, aggregator_id: UUID, job_id: UUID) -> None:
    """Makes a job read the batches of a new aggregator; the stream is stopped."""
    await tx.rows(_SQL["put_in_front"], aggregator_id, job_id)


async def keep_in_front(tx: Transaction, version_id: UUID) -> None:
    """Aggregators of this version stay in front of their jobs in every version that has these jobs."""
    await tx.rows(_SQL["keep_in_front"], version_id, catalog.batching())


async def cut_anew(tx: Transaction, version_id: UUID) -> None:
    """What fills is cut as this version says, which is about to serve."""
    if anew := await tx.rows(_SQL["configured_anew"], version_id, catalog.batching()):
        await tx.rows(_SQL["cut_anew"], [row["job_id"] for row in anew])
