"""Jobs that somebody paused.

Events still create tasks of a paused job, and the valve keeps them queued. Its running tasks end as usual, except those
of always-on sources, which are canceled and start again when the job is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.postgres import versions
from traceplane.postgres.database import Transaction, statements

_SQL = statements("job_pauses")

MOST_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class JobPause:
    dag: str
    job: str
    paused_by: str
    reason: str
    since: datetime
    waiting: int
    """Its tasks that wait, counted up to `MOST_COUNTED`."""


@dataclass(frozen=True, slots=True)
class LockedJob:
    job_id: UUID
    relays_only: bool
    """It passes on events that others send, and has no tasks of its own."""
    generated_for: str | None


async def lock_jobs(tx: Transaction, org: str, dag: str, job: str) -> list[LockedJob]:
    """The deployed jobs of this name: the serving one, and one that is being built."""
    return await tx.rows_as(LockedJob, _SQL["lock_jobs"], org, dag, job)


async def pause(
    tx: Transaction, org: str, dag: str, job: str, *, jobs: Sequence[LockedJob], by: str, reason: str
) -> bool:
    """Of jobs that are locked; False if they are paused already. After this, none of their tasks starts."""
    if await tx.value(_SQL["pause"], org, dag, job, by, reason) is None:
        return False
    await tx.rows(_SQL["stop_sources"], [locked.job_id for locked in jobs])
    # Accepting an event may dispatch a task at once, without the lock on its job.
    await versions.stop_the_stream(tx)
    await tx.rows(_SQL["take_back"], [locked.job_id for locked in jobs])
    return True


async def resume(
    tx: Transaction, org: str, dag: str, job: str, *, jobs: Sequence[LockedJob]
) -> JobPause | None:
    """The pause that ended; None if there was none."""
    ended = await tx.row_as(JobPause, _SQL["resume"], org, dag, job)
    if ended is not None:
        await tx.rows(_SQL["start_sources"], [locked.job_id for locked in jobs])
    return ended


async def of_org(
    tx: Transaction, org: str, *, dag: str | None = None, job: str | None = None
) -> list[JobPause]:
    return await tx.rows_as(JobPause, _SQL["of_org"], org, dag, job, MOST_COUNTED)


async def forget(tx: Transaction, dag_id: UUID) -> None:
    await tx.rows(_SQL["forget"], dag_id)
