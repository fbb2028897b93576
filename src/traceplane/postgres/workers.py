"""Workers that ask for tasks, and what jobs need of them."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """What a worker is known by. Workers choose their ids, so only those that serve the same could be mixed up."""

    serves: frozenset[str] | None
    """Organizations; None: all."""
    worker_id: str

    @property
    def stored_serves(self) -> list[str] | None:
        """In one order, since arrays with another order differ."""
        return None if self.serves is None else sorted(self.serves)


async def see(tx: Transaction, worker: WorkerKey, runtime: str, offers: Resources) -> None:
    """Also forgets workers that have not been seen for long."""
    await tx.rows(_SQL["see"], worker.worker_id, runtime, asdict(offers), _FORGOTTEN, worker.stored_serves)


async def leave(tx: Transaction, worker: WorkerKey) -> None:
    await tx.rows(_SQL["leave"], worker.worker_id, worker.stored_serves)


async def there(tx: Transaction) -> list[SeenWorker]:
    rows = await tx.rows(_SQL["there"], _THERE)
    return [SeenWorker(r["worker_id"], r["runtime"], msgspec.convert(r["offers"], Resources)) for r in rows]


async def serve(tx: Transaction, runtime: str, org: str) -> bool:
    """Whether a worker of this runtime works for the organization."""
    return bool(await tx.value(_SQL["serve"], runtime, org, _THERE))


async def required_sets(tx: Transaction) -> list[RequiredSet]:
    rows = await tx.rows(_SQL["required_sets"])
    return [
        RequiredSet(r["runtime"], msgspec.convert(r["requires"], Resources), r["queue_suffix"], r["org"])
        for r in rows
    ]


async def org_queues(tx: Transaction) -> list[OrgQueue]:
    return await tx.rows_as(OrgQueue, _SQL["org_queues"])
