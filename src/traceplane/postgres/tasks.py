"""The lifecycle of a task in the database. Every function is set-based: one statement for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from traceplane.errors import ConcurrentChange
from traceplane.model.json_object import JsonObject
from traceplane.model.partitions import NAMES_WRITTEN
from traceplane.model.positions import Range
from traceplane.model.scope import Partition, Scope
from traceplane.model.task import AttemptFacts, TaskFacts, TaskState
from traceplane.operators import catalog
from traceplane.postgres import task_attempts
from traceplane.postgres.database import Transaction, statements
from traceplane.wire.tasks import TaskError

_SQL = statements("tasks")


@dataclass(frozen=True, slots=True)
class LeaseFence:
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
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    traceparent: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task as its holder sees it."""

    claimed: Claimed
    state: str
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class HeldFence:
    """A running attempt, locked until the transaction ends."""

    cancel_requested: bool
    backfill: bool


@dataclass(frozen=True, slots=True)
class LockedTask:
    """A task held by this transaction."""

    facts: TaskFacts
    job_id: UUID
    traceparent: str | None
    seconds: float | None
    """Since the attempt started."""
    replaces: bool
    """Whether its commits replace existing rows, or are added to them."""
    compacts: bool
    """Whether it writes the rows that it reads back to where they are, in fewer files."""
    backfill: bool


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A running task whose lease expired, locked by this transaction."""

    task_id: UUID
    worker_id: str | None
    facts: AttemptFacts


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task that the dispatcher runs itself, held by this transaction."""

    task_id: UUID
    kind: str
    partition_key: str | None
    range_start: int
    range_end: int
    traceparent: str | None
    backfill: bool
    next_position: int | None
    """Where an earlier pass left off."""
    next_attempt: AttemptFacts
    """The attempt that this transaction makes."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    task_id: UUID
    attempt: int
    state: TaskState
    """What the task is now."""
    error: TaskError | None


@dataclass(frozen=True, slots=True)
class WaitingJob:
    job_id: UUID
    runtime: str
    operator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillCounts:
    """How scopes stood."""

    created: int
    """Tasks that were created, or would be."""
    unfinished: int
    missing: int
    failed: int
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGap:
    dataset_id: str
    first: int
    last: int
    names: dict[str, int] | None
    """Those of the first few positions, of partitions that have names."""


_CLAIMED = tuple(Claimed.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A task that a worker asks for."""

    task_id: UUID
    claim: int
    """The number of the claim that it is part of."""
    worker_id: str
    runtime: str
    queues: tuple[str, ...]
    """The suffixes of the wake queues that the worker can serve."""
    orgs: tuple[str, ...] | None
    """The organizations that it serves; None: all."""


async def claim(
    tx: Transaction, requests: Sequence[LeaseRequest], spent: Sequence[tuple[str, int]] = ()
) -> list[tuple[int, Claimed]]:
    """Leases, each with the number of the claim that it belongs to. The local wake-ups (queue, message) in `spent` are
    deleted."""
    rows = await tx.rows(
        _SQL["claim"],
        [r.task_id for r in requests],
        [r.claim for r in requests],
        [r.worker_id for r in requests],
        [r.runtime for r in requests],
        [queue for queue, _ in spent],
        [message for _, message in spent],
        [",".join(r.queues) for r in requests],
        [None if r.orgs is None else ",".join(r.orgs) for r in requests],
    )
    return [(r["claim"], Claimed(*(r[name] for name in _CLAIMED))) for r in rows]


async def why_not_claimed(
    tx: Transaction,
    task_ids: Sequence[UUID],
    runtime: str,
    queues: Sequence[str],
    orgs: Sequence[str] | None,
) -> dict[UUID, str]:
    def reason(row: Any) -> str:
        if row["state"] is None:
            return "unknown"
        if row["runtime"] != runtime:
            return "wrong_runtime"
        if row["requires"] and row["queue_suffix"] not in queues:
            return "requires_more"
        return str(row["state"])

    return {r["task_id"]: reason(r) for r in await tx.rows(_SQL["why_not_claimed"], task_ids, orgs)}


async def fetch(tx: Transaction, fence: LeaseFence) -> LeasedTask | None:
    """None for a stale holder."""
    row = await tx.row(_SQL["fetch"], fence.task_id, fence.attempt, fence.lease_token)
    if row is None:
        return None
    return LeasedTask(Claimed(*(row[name] for name in _CLAIMED)), row["state"], row["cancel_requested"])


async def lock(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, LockedTask]:
    return {
        r["task_id"]: LockedTask(
            TaskFacts(
                state=TaskState(r["state"]),
                attempt=r["attempt"],
                lease_token=r["lease_token"],
                reported_attempt=r["reported_attempt"],
                cancel_requested=r["cancel_requested"],
                max_attempts=r["max_attempts"],
                endless=r["endless"],
            ),
            r["job_id"],
            r["traceparent"],
            r["seconds"],
            r["replaces"],
            r["compacts"],
            r["backfill"],
        )
        for r in await tx.rows(_SQL["lock"], task_ids)
    }


async def lock_jobs(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["lock_jobs"], task_ids)


async def revivable(tx: Transaction, task_ids: Sequence[UUID]) -> set[UUID]:
    return {r["task_id"] for r in await tx.rows(_SQL["revivable"], task_ids)}


async def extend(
    tx: Transaction, task_ids: Sequence[UUID], progress: Sequence[JsonObject | None]
) -> dict[UUID, datetime]:
    """The new ends of the leases."""
    rows = await tx.rows(_SQL["extend"], task_ids, progress)
    return {r["task_id"]: r["lease_expires_at"] for r in rows}


async def mark_completed(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["mark_completed"], task_ids)


async def mark_canceled(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await task_attempts.keep(tx, [(task_id, None, "canceled", None) for task_id in task_ids])
    await tx.rows(_SQL["mark_canceled"], task_ids)


async def mark_not_computable(tx: Transaction, errors: Mapping[UUID, TaskError]) -> None:
    await tx.rows(_SQL["mark_not_computable"], list(errors), list(errors.values()))


async def mark_failed(tx: Transaction, failed: Sequence[FailedAttempt], *, reported: bool) -> None:
    """`reported` closes the attempts for late reports."""
    outcome: task_attempts.Ended = "failed" if reported else "lost"
    await task_attempts.keep(
        tx, [(f.task_id, f.attempt, outcome, f.error.code if f.error else None) for f in failed]
    )
    await tx.rows(
        _SQL["mark_failed"],
        [f.task_id for f in failed],
        [f.attempt for f in failed],
        [f.state for f in failed],
        [f.error for f in failed],
        reported,
    )


async def mark_returned(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await task_attempts.keep(tx, [(task_id, None, "returned", None) for task_id in task_ids])
    await tx.rows(_SQL["mark_returned"], task_ids)


async def hold_fences(tx: Transaction, fences: Sequence[LeaseFence]) -> dict[LeaseFence, HeldFence]:
    """For each current and running attempt; a missing one is stale."""
    rows = await tx.rows(_SQL["hold_fences"], [f.task_id for f in fences])
    return {
        LeaseFence(r["task_id"], r["attempt"], r["lease_token"]): HeldFence(
            r["cancel_requested"], r["backfill"]
        )
        for r in rows
    }


async def lock_expired(tx: Transaction, limit: int) -> list[ExpiredLease]:
    return [
        ExpiredLease(
            r["task_id"],
            r["worker_id"],
            AttemptFacts(
                attempt=r["attempt"],
                max_attempts=r["max_attempts"],
                cancel_requested=r["cancel_requested"],
                endless=r["endless"],
            ),
        )
        for r in await tx.rows(_SQL["lock_expired"], limit)
    ]


async def resend(tx: Transaction, older_than: timedelta, limit: int) -> int:
    return int(await tx.value(_SQL["resend"], older_than, limit))


async def waiting_kinds(tx: Transaction) -> set[bool]:
    """Which kinds of job have queued tasks: those that the dispatcher runs itself (True), and others (False)."""
    return {r["in_process"] for r in await tx.rows(_SQL["waiting_kinds"])}


async def waiting_jobs(tx: Transaction, *, in_process: bool) -> list[WaitingJob]:
    rows = await tx.rows(_SQL["waiting_jobs"], in_process)
    return [WaitingJob(r["job_id"], r["runtime"], r["operator"]) for r in rows]


async def dispatch(tx: Transaction, job_ids: Sequence[UUID], limit_per_job: int) -> int:
    return int(await tx.value(_SQL["dispatch"], job_ids, limit_per_job))


async def take_in_process(tx: Transaction, job_id: UUID, limit: int) -> list[QueuedTask]:
    return [
        QueuedTask(
            task_id=r["task_id"],
            kind=r["kind"],
            partition_key=r["partition_key"],
            range_start=r["range_start"],
            range_end=r["range_end"],
            traceparent=r["traceparent"],
            backfill=r["backfill"],
            next_position=(r["progress"] or {}).get("next_position"),
            next_attempt=AttemptFacts(
                attempt=r["attempt"] + 1,
                max_attempts=r["max_attempts"],
                cancel_requested=r["cancel_requested"],
                endless=r["endless"],
            ),
        )
        for r in await tx.rows(_SQL["take_in_process"], job_id, limit)
    ]


async def waiting_publishers(tx: Transaction) -> list[UUID]:
    return [r["job_id"] for r in await tx.rows(_SQL["waiting_publishers"], catalog.publishing_signals())]


async def finish_in_process(tx: Transaction, task_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["finish_in_process"], task_ids)


async def keep_next_positions(tx: Transaction, positions: Mapping[UUID, int]) -> None:
    await tx.rows(_SQL["keep_progress"], list(positions), [{"next_position": n} for n in positions.values()])


async def start_sources(tx: Transaction) -> tuple[int, int]:
    """Runs of always-on sources that were created, and ended runs that were restarted."""
    row = await tx.row(_SQL["start_sources"])
    assert row is not None
    return row["started"], row["restarted"]


async def lock_routed_job(tx: Transaction, job_id: UUID) -> None:
    if await tx.row(_SQL["lock_routed_job"], job_id) is None:
        raise ConcurrentChange(
            "postgres.concurrent_change",
            "a deploy replaced the job at the same time; nothing of this call was kept",
            next_step="repeat the call",
        )


@dataclass(frozen=True, slots=True)
class Need:
    """Positions of a generation that a scope reads."""

    scope: int
    """Its number among those of the call."""
    generation_id: UUID
    first: int
    own: int
    """Where the scope itself begins, without a window before it."""
    last: int


async def backfill(
    tx: Transaction,
    job_id: UUID,
    generation_id: UUID,
    scopes: Sequence[Scope],
    *,
    wanted: str,
    create: bool,
    allow_gaps: bool,
    needs: Sequence[Need],
) -> BackfillCounts:
    """`needs`: what each scope reads of the job's inputs."""
    counts = await tx.row_as(
        BackfillCounts,
        _SQL["backfill"],
        job_id,
        generation_id,
        [s.name if isinstance(s, Partition) else None for s in scopes],
        [s.start for s in scopes],
        [s.end for s in scopes],
        wanted,
        create,
        allow_gaps,
        [n.scope + 1 for n in needs],
        [n.generation_id for n in needs],
        [n.first for n in needs],
        [n.own for n in needs],
        [n.last for n in needs],
    )
    assert counts is not None
    return counts


async def backfill_gaps(tx: Transaction, ranges: Sequence[tuple[UUID, Range]], limit: int) -> list[InputGap]:
    """The positions that generations lack of ranges, by dataset."""
    return await tx.rows_as(
        InputGap,
        _SQL["backfill_gaps"],
        [generation_id for generation_id, _ in ranges],
        [positions[0] for _, positions in ranges],
        [positions[1] for _, positions in ranges],
        limit,
        NAMES_WRITTEN,
    )


async def create_for_everything(tx: Transaction, job_id: UUID) -> UUID:
    task_id: UUID = await tx.value(_SQL["create_for_everything"], job_id)
    return task_id


async def attempts_over(
    tx: Transaction, attempts: Sequence[tuple[UUID, int, UUID]], grace: timedelta, *, close: bool
) -> set[tuple[UUID, int]]:
    """Attempts that can no longer commit; those of dead tasks are closed for late reports if `close`.

    `attempts`: tasks, their attempts, and a generation that these may write.
    """
    rows = await tx.rows(
        _SQL["attempts_over"],
        [task_id for task_id, _, _ in attempts],
        [number for _, number, _ in attempts],
        grace,
        close,
        [generation_id for _, _, generation_id in attempts],
    )
    return {(r["task_id"], r["attempt"]) for r in rows}


async def cancel(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    return {r["task_id"]: r["state"] for r in await tx.rows(_SQL["cancel"], task_ids, org)}


async def cancel_retired(tx: Transaction, limit: int) -> int:
    """Cancels a batch of unfinished tasks of jobs that receive no more events; returns how many it found."""
    return len(await tx.rows(_SQL["cancel_retired"], limit))


async def retry(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[UUID]:
    return [r["task_id"] for r in await tx.rows(_SQL["retry"], task_ids, org)]


async def why_unchanged(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The state of each task, or `retired` or `pipeline` if its job is the reason; nothing of unknown ones."""
    return {r["task_id"]: r["why"] for r in await tx.rows(_SQL["why_unchanged"], task_ids, org)}


async def acknowledge(tx: Transaction, org: str, task_ids: Sequence[UUID], by: str) -> list[UUID]:
    return [r["task_id"] for r in await tx.rows(_SQL["acknowledge"], task_ids, org, by)]


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Selects tasks without their ids: of a DAG, of one of its jobs, of positions from `start` to `end`."""

    dag: str
    job: str | None = None
    start: int | None = None
    end: int | None = None


async def choose_unfinished(tx: Transaction, org: str, task_filter: TaskFilter, limit: int) -> list[UUID]:
    return await _choose(tx, _SQL["choose_unfinished"], org, task_filter, limit)


async def choose_dead(
    tx: Transaction, org: str, task_filter: TaskFilter, limit: int, *, to_retry: bool
) -> list[UUID]:
    return await _choose(tx, _SQL["choose_dead"], org, task_filter, limit, to_retry)


async def choose_canceled(
    tx: Transaction, org: str, task_filter: TaskFilter, limit: int, *, after: UUID | None
) -> list[UUID]:
    return await _choose(tx, _SQL["choose_canceled"], org, task_filter, limit, after)


async def _choose(
    tx: Transaction, statement: str, org: str, task_filter: TaskFilter, limit: int, *more: object
) -> list[UUID]:
    await tx.run("set local plan_cache_mode = force_custom_plan")
    f = task_filter
    rows = await tx.rows(statement, org, f.dag, f.job, f.start, f.end, limit, *more)
    return [r["task_id"] for r in rows]
