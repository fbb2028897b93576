"""Events in, tasks out: the one statement that starts everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from traceplane.operators import catalog
from traceplane.postgres import audit
from traceplane.postgres.audit import Act
from traceplane.postgres.database import Transaction, statements

_SQL = statements("events")


class NewEvent(msgspec.Struct, frozen=True):
    """An event as it is accepted; a cursor has no partition key and start equal to end."""

    producer_id: UUID
    generation_id: UUID
    kind: str
    partition_key: str | None
    start: int
    end: int
    emission: str = ""
    backfill: bool = False
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class AcceptedEvents:
    """`event_ids[i]` is None if event i is a duplicate of one accepted before."""

    event_ids: tuple[int | None, ...] = ()
    tasks_created: int = 0
    tasks_dispatched: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """The events of a generation, counted up to `MOST_COUNTED`."""

    events: int
    last: int
    """The last position of these events."""


MOST_COUNTED = 10_000


async def accept(
    tx: Transaction, events: Sequence[NewEvent], *, notify_dispatchers: bool = False, acts: Sequence[Act] = ()
) -> AcceptedEvents:
    """`acts` go to the audit log if any event is new."""
    if not events:
        return AcceptedEvents()
    row = await tx.row(
        _SQL["accept"],
        [e.producer_id for e in events],
        [e.generation_id for e in events],
        [e.kind for e in events],
        [e.partition_key for e in events],
        [e.start for e in events],
        [e.end for e in events],
        [e.emission for e in events],
        [e.backfill for e in events],
        [e.traceparent for e in events],
        notify_dispatchers,
        catalog.running_once(),
        *audit.columns(acts),
    )
    assert row is not None
    inserted = set(row["inserted"] or ())
    return AcceptedEvents(
        event_ids=tuple(event_id if event_id in inserted else None for event_id in row["drawn"]),
        tasks_created=row["tasks_created"],
        tasks_dispatched=row["tasks_dispatched"],
    )


async def notify_dispatchers(tx: Transaction) -> None:
    await tx.rows(_SQL["notify_dispatchers"])


async def latest_by_cursor(tx: Transaction, generation_id: UUID, limit: int) -> list[tuple[int, str, str]]:
    """(cursor, emission, kind), the highest cursor first."""
    rows = await tx.rows(_SQL["latest_by_cursor"], generation_id, limit)
    return [(r["range_start"], r["emission"], r["kind"]) for r in rows]


async def emissions_of_tasks(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The emission that identifies the event of each task; a task without an event has none."""
    return {r["task_id"]: r["emission"] for r in await tx.rows(_SQL["emissions_of_tasks"], task_ids)}


async def tally(tx: Transaction, generation_ids: Sequence[UUID]) -> dict[UUID, Tally]:
    """Of those generations that have events."""
    rows = await tx.rows(_SQL["tally"], list(generation_ids), MOST_COUNTED) if generation_ids else []
    return {row["generation_id"]: Tally(row["events"], row["last"]) for row in rows}
