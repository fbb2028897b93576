"""Workers that ask for tasks, and what jobs need of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import msgspec

from traceplane.model.resources import Resources
from traceplane.model.stuck import SeenWorker
from traceplane.postgres.database import Transaction, statements

_SQL = statements("workers")

_THERE = timedelta(seconds=30)
"""How long a worker counts as there after it was seen: three times as long as it is silent."""
_FORGOTTEN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class RequiredSet:
    """What some jobs of a runtime need, and what their wake queue is called after the runtime's."""

    runtime: str
    requires: Resources
    queue_suffix: str
    org: str


@dataclass(frozen=True, slots=True)
class OrgQueue:
    slug: str
    queue_suffix: str
    in_use: bool


async def see(
    tx: Transaction, worker_id: str, runtime: str, offers: Resources, serves: Sequence[str] | None
) -> None:
    """Also forgets workers that have not been seen for long. `serves`: organizations; None: all."""
    await tx.rows(_SQL["see"], worker_id, runtime, asdict(offers), _FORGOTTEN, serves, _THERE)


async def leave(tx: Transaction, worker_id: str, serves: Sequence[str] | None) -> None:
    await tx.rows(_SQL["leave"], worker_id, serves)


async def there(tx: Transaction) -> list[SeenWorker]:
    rows = await tx.rows(_SQL["there"], _THERE)
    return [SeenWorker(r["worker_id"], r["runtime"], msgspec.convert(r["offers"], Resources)) for r in rows]


async def required_sets(tx: Transaction) -> list[RequiredSet]:
    rows = await tx.rows(_SQL["required_sets"])
    return [
        RequiredSet(r["runtime"], msgspec.convert(r["requires"], Resources), r["queue_suffix"], r["org"])
        for r in rows
    ]


async def org_queues(tx: Transaction) -> list[OrgQueue]:
    return await tx.rows_as(OrgQueue, _SQL["org_queues"])
