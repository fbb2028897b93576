"""The life of a task in the database. Every function is set-based: one statement for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from traceplane.errors import ConcurrentChange
from traceplane.model.positions import Range
from traceplane.model.scope import Partition, Scope
from traceplane.model.task import TaskFacts, TaskState
from traceplane.postgres.database import Transaction, statements

_SQL = statements("tasks")


@dataclass(frozen=True, slots=True)
class Fence:
    """What proves that a caller holds the current attempt of a task."""

    task_id: UUID
    attempt: int
    lease_token: UUID


@dataclass(frozen=True, slots=True)
class Claimed:
    task_id: UUID
    job_id: UUID
    revision: int
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    traceparent: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LockedTask:
    """A task held by this transaction."""

    facts: TaskFacts
    job_id: UUID
    traceparent: str | None
    seconds: float | None
    """Since the attempt started."""
    replaces: bool
    """Whether what it commits takes the place of what was there, or is added to it."""
    backfill: bool


@dataclass(frozen=True, slots=True)
class Reaped:
    task_id: UUID
    job_id: UUID
    state: str
    attempt: int
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class WaitingJob:
    job_id: UUID
    runtime: str
    operator: str


_STAGES = {"queued": 0, "dispatched": 1, "running": 1, "completed": 2, "canceled": 2, "dead": 3}
_CLAIMED = tuple(Claimed.__dataclass_fields__)


async def claim(
    tx: Transaction, wanted: Sequence[tuple[UUID, int, str, str]], spent: Sequence[tuple[str, int]] = ()
) -> list[tuple[int, Claimed]]:
    """Leases for (task, claim, worker, runtime); each answer names the claim that it belongs to. The local
    wake-ups (queue, message) in `spent` are deleted."""
    columns = [*([w[n] for w in wanted] for n in range(4)), *([s[n] for s in spent] for n in range(2))]
    rows = await tx.rows(_SQL["claim"], *columns)
    return [(r["claim"], Claimed(*(r[name] for name in _CLAIMED))) for r in rows]


async def why_not_claimed(tx: Transaction, task_ids: Sequence[UUID], runtime: str) -> dict[UUID, str]:
    def reason(row: Any) -> str:
        if row["state"] is None:
            return "unknown"
        if row["runtime"] != runtime:
            return "wrong_runtime"
        return str(row["state"])

    return {r["task_id"]: reason(r) for r in await tx.rows(_SQL["why_not_claimed"], task_ids)}


async def fetch(tx: Transaction, fence: Fence) -> tuple[Claimed, str, bool] | None:
    """The task as its holder sees it, its state, and whether it is to stop; None for a stale holder."""
    row = await tx.row(_SQL["fetch"], fence.task_id, fence.attempt, fence.lease_token)
    if row is None:
        return None
    return Claimed(*(row[name] for name in _CLAIMED)), row["state"], row["cancel_requested"]


async def lock(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, LockedTask]:
    return {
        r["task_id"]: LockedTask(
            TaskFacts(
                state=TaskState(r["state"]),
                attempt=r["attempt"],
                lease_token=r["lease_token"],
                reported_attempt=r["reported_attempt"],
                cancel_requested=r["cancel_requested"],
                attempts_used_up=r["attempts_used_up"],
                endless=r["endless"],
            ),
            r["job_id"],
            r["traceparent"],
            r["seconds"],
            r["replaces"],
            r["backfill"],
        )
        for r in await tx.rows(_SQL["lock"], task_ids)
    }


async def lock_jobs(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["lock_jobs"], task_ids)


async def revivable(tx: Transaction, task_ids: Sequence[UUID]) -> set[UUID]:
    return {r["task_id"] for r in await tx.rows(_SQL["revivable"], task_ids)}


async def extend(
    tx: Transaction, task_ids: Sequence[UUID], progress: Sequence[dict[str, Any] | None]
) -> dict[UUID, datetime]:
    """The new ends of the leases."""
    rows = await tx.rows(_SQL["extend"], task_ids, progress)
    return {r["task_id"]: r["lease_expires_at"] for r in rows}


async def mark_completed(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["mark_completed"], task_ids)


async def mark_canceled(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["mark_canceled"], task_ids)


async def mark_failed(
    tx: Transaction, task_ids: Sequence[UUID], dead: Sequence[bool], errors: Sequence[dict[str, Any] | None]
) -> None:
    await tx.rows(_SQL["mark_failed"], task_ids, dead, errors)


async def mark_returned(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["mark_returned"], task_ids)


async def hold_fences(tx: Transaction, fences: Sequence[Fence]) -> dict[Fence, tuple[str, bool]]:
    """ok | canceled for each current and running attempt, and whether it is backfill; one that is missing is
    stale."""
    rows = await tx.rows(_SQL["hold_fences"], [f.task_id for f in fences])
    return {
        Fence(r["task_id"], r["attempt"], r["lease_token"]): (
            "canceled" if r["cancel_requested"] else "ok",
            r["backfill"],
        )
        for r in rows
    }


async def reap(tx: Transaction, limit: int) -> list[Reaped]:
    rows = await tx.rows(_SQL["reap"], limit)
    return [Reaped(r["task_id"], r["job_id"], r["state"], r["attempt"], r["worker_id"]) for r in rows]


async def resend(tx: Transaction, older_than: timedelta, limit: int) -> int:
    return int(await tx.value(_SQL["resend"], older_than, limit))


async def waiting_kinds(tx: Transaction) -> set[bool]:
    """Whether jobs wait that the dispatcher runs itself (True), and jobs that go out (False)."""
    return {r["in_process"] for r in await tx.rows(_SQL["waiting_kinds"])}


async def waiting_jobs(tx: Transaction, *, in_process: bool) -> list[WaitingJob]:
    rows = await tx.rows(_SQL["waiting_jobs"], in_process)
    return [WaitingJob(r["job_id"], r["runtime"], r["operator"]) for r in rows]


async def dispatch(tx: Transaction, job_ids: Sequence[UUID], limit_per_job: int) -> int:
    return int(await tx.value(_SQL["dispatch"], job_ids, limit_per_job))


async def take_in_process(tx: Transaction, job_id: UUID, limit: int) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["take_in_process"], job_id, limit)]


async def waiting_publishers(tx: Transaction) -> list[UUID]:
    return [r["job_id"] for r in await tx.rows(_SQL["waiting_publishers"])]


async def finish_in_process(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["finish_in_process"], task_ids)


async def keep_progress(tx: Transaction, progress: dict[UUID, dict[str, Any]]) -> None:
    await tx.rows(_SQL["keep_progress"], list(progress), list(progress.values()))


async def fail_in_process(tx: Transaction, task_ids: Sequence[UUID], error: dict[str, Any]) -> None:
    await tx.rows(_SQL["fail_in_process"], task_ids, error)


async def start_sources(tx: Transaction) -> tuple[int, int]:
    """Runs of always-on sources created, and runs that had ended and were started again."""
    row = await tx.row(_SQL["start_sources"])
    assert row is not None
    return row["started"], row["restarted"]


async def lock_routed_job(tx: Transaction, job_id: UUID) -> None:
    if await tx.row(_SQL["lock_routed_job"], job_id) is None:
        raise ConcurrentChange(
            "postgres.concurrent_change",
            "a deploy replaced the job at the same moment; nothing of this call was kept",
            next_step="repeat the call",
        )


async def backfill(
    tx: Transaction,
    job_id: UUID,
    generation_id: UUID,
    scopes: Sequence[Scope],
    *,
    wanted: str,
    create: bool,
    allow_gaps: bool,
) -> dict[str, int]:
    """How the scopes stood: `created` (or to be), `unfinished`, `missing`, `failed` and `left_out`."""
    row = await tx.row(
        _SQL["backfill"],
        job_id,
        generation_id,
        [s.name if isinstance(s, Partition) else None for s in scopes],
        [s.start for s in scopes],
        [s.end for s in scopes],
        wanted,
        create,
        allow_gaps,
    )
    assert row is not None
    return dict(row)


async def backfill_gaps(tx: Transaction, job_id: UUID, positions: Range, limit: int) -> list[dict[str, Any]]:
    """What inputs lack of the positions, by dataset."""
    return [dict(r) for r in await tx.rows(_SQL["backfill_gaps"], job_id, *positions, limit)]


async def create_for_everything(tx: Transaction, job_id: UUID) -> UUID:
    task_id: UUID = await tx.value(_SQL["create_for_everything"], job_id)
    return task_id


async def attempts_over(
    tx: Transaction, attempts: Sequence[tuple[UUID, int]], grace: timedelta, *, close: bool
) -> set[tuple[UUID, int]]:
    """Attempts that can no longer commit; those of dead tasks are closed for late reports if `close`."""
    rows = await tx.rows(
        _SQL["attempts_over"], [task_id for task_id, _ in attempts], [n for _, n in attempts], grace, close
    )
    return {(r["task_id"], r["attempt"]) for r in rows}


async def cancel(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    return {r["task_id"]: r["state"] for r in await tx.rows(_SQL["cancel"], task_ids, org)}


async def cancel_retired(tx: Transaction, limit: int) -> int:
    """Cancels unfinished tasks of jobs that receive no more events, so many at once; how many it found."""
    return len(await tx.rows(_SQL["cancel_retired"], limit))


async def retry(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[UUID]:
    return [r["task_id"] for r in await tx.rows(_SQL["retry"], task_ids, org)]


async def acknowledge(tx: Transaction, org: str, task_ids: Sequence[UUID], by: str) -> list[UUID]:
    return [r["task_id"] for r in await tx.rows(_SQL["acknowledge"], task_ids, org, by)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Tasks that are meant without their ids: of a DAG, of one of its jobs, of positions from `start` to `end`."""

    dag: str
    job: str | None = None
    start: int | None = None
    end: int | None = None


async def choose_unfinished(tx: Transaction, org: str, chosen: Chosen, limit: int) -> list[UUID]:
    return await _choose(tx, _SQL["choose_unfinished"], org, chosen, limit)


async def choose_dead(tx: Transaction, org: str, chosen: Chosen, limit: int, *, to_retry: bool) -> list[UUID]:
    return await _choose(tx, _SQL["choose_dead"], org, chosen, limit, to_retry)


async def choose_canceled(
    tx: Transaction, org: str, chosen: Chosen, limit: int, *, after: UUID | None
) -> list[UUID]:
    return await _choose(tx, _SQL["choose_canceled"], org, chosen, limit, after)


async def _choose(
    tx: Transaction, statement: str, org: str, chosen: Chosen, limit: int, *more: object
) -> list[UUID]:
    await tx.run("set local plan_cache_mode = force_custom_plan")
    rows = await tx.rows(statement, org, chosen.dag, chosen.job, chosen.start, chosen.end, limit, *more)
    return [r["task_id"] for r in rows]


async def deaths(tx: Transaction, org: str, limit_per_job: int) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["deaths"], org, limit_per_job)]


async def runtimes_at_work(tx: Transaction) -> set[str]:
    return {r["runtime"] for r in await tx.rows(_SQL["runtimes_at_work"])}


async def listing(
    tx: Transaction,
    org: str,
    *,
    dag: str | None = None,
    job: str | None = None,
    state: str | None = None,
    task_id: UUID | None = None,
    before: UUID | None = None,
    standing: str | None = None,
    start: int | None = None,
    end: int | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    await tx.run("set local plan_cache_mode = force_custom_plan")
    if standing is not None:
        state = "dead"
    stage = _STAGES[state] if state is not None else None
    filters = (dag, job, state, task_id, limit, before, stage, org, standing, start, end)
    rows = await tx.rows(_SQL["list"], *filters)
    return [dict(r) for r in rows]


async def counts(tx: Transaction, org: str) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["counts"], org)]


async def depths(tx: Transaction) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["depths"])]


async def explain_facts(tx: Transaction, org: str, task_id: UUID) -> dict[str, Any] | None:
    row = await tx.row(_SQL["explain_facts"], task_id, org)
    return dict(row) if row is not None else None


async def handed_values(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[dict[str, Any]]:
    """`config` and `parameters` that operators were handed, with the `task_ids` that they belong to."""
    return [dict(r) for r in await tx.rows(_SQL["handed_values"], list(task_ids), org)]


async def lineage(tx: Transaction, org: str, task_id: UUID) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["lineage"], task_id, org)]
