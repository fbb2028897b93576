"""Buffered datasets: what attempts have published, completed attempts that wait for a sink, and dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.model.task import DeadStanding
from traceplane.postgres import tasks
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.tasks import LeaseFence, TaskFilter
from traceplane.wire.tasks import OutputManifest, TaskError

_SQL = statements("buffers")

CHANNEL = "traceplane_buffer"


@dataclass(frozen=True, slots=True)
class BufferedReport:
    """The completion of an attempt, which a sink is to commit."""

    fence: LeaseFence
    generation_id: UUID
    report: JsonObject
    tries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A completion whose rows can never be written as they are, with its task."""

    report_id: int
    task_id: UUID
    dag: str
    job: str
    dataset_id: str
    """Whose sink refused it."""
    partition_key: str | None
    range_start: int | None
    attempt: int
    tries: int
    created_at: datetime
    """When it was handed over."""
    failed_at: datetime
    error: JsonObject | None
    standing: DeadStanding | None
    """None only if its task has changed since the statement began."""
    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class LetterFile:
    dataset_id: str
    path: str
    rows: int
    bytes: int


async def publish(tx: Transaction, batches: Sequence[tuple[LeaseFence, int, OutputManifest]]) -> None:
    await tx.rows(
        _SQL["publish"],
        [fence.task_id for fence, _, _ in batches],
        [fence.attempt for fence, _, _ in batches],
        [batch for _, batch, _ in batches],
        [msgspec.to_builtins(output) for _, _, output in batches],
    )


async def published(tx: Transaction, fences: Sequence[LeaseFence]) -> dict[UUID, list[OutputManifest]]:
    found: dict[UUID, list[OutputManifest]] = {}
    for row in await tx.rows(_SQL["published"], [f.task_id for f in fences], [f.attempt for f in fences]):
        found.setdefault(row["task_id"], []).append(msgspec.convert(row["output"], OutputManifest))
    return found


async def handed_over(tx: Transaction, fences: Collection[LeaseFence]) -> set[UUID]:
    """The tasks of those of these attempts that have completed already."""
    rows = await tx.rows(_SQL["handed_over"], [f.task_id for f in fences], [f.attempt for f in fences])
    return {row["task_id"] for row in rows}


async def hand_over(tx: Transaction, reports: Sequence[BufferedReport]) -> None:
    await tx.rows(
        _SQL["hand_over"],
        [r.fence.task_id for r in reports],
        [r.fence.attempt for r in reports],
        [r.fence.lease_token for r in reports],
        [r.generation_id for r in reports],
        [r.report for r in reports],
    )


async def lease(tx: Transaction, holder: UUID, lasts: timedelta) -> list[UUID]:
    return [row["generation_id"] for row in await tx.rows(_SQL["lease"], holder, lasts)]


async def release(tx: Transaction, holder: UUID) -> None:
    await tx.run(_SQL["release"], holder)


async def waiting(
    tx: Transaction, generation_id: UUID, holder: UUID, most: int, in_hand: Collection[UUID] = ()
) -> list[BufferedReport]:
    return [
        BufferedReport(
            LeaseFence(row["task_id"], row["attempt"], row["lease_token"]),
            generation_id,
            row["report"],
            row["tries"],
        )
        for row in await tx.rows(_SQL["waiting"], generation_id, holder, most, list(in_hand))
    ]


async def settle(tx: Transaction, over: Sequence[LeaseFence], dead: Mapping[LeaseFence, TaskError]) -> None:
    await tx.rows(
        _SQL["settle"],
        [fence.task_id for fence in over],
        [fence.attempt for fence in over],
        [fence.task_id for fence in dead],
        [fence.attempt for fence in dead],
        _failures(dead.values()),
    )


async def postpone(tx: Transaction, failures: Mapping[UUID, TaskError]) -> None:
    await tx.rows(_SQL["postpone"], list(failures), _failures(failures.values()))


def _failures(errors: Iterable[TaskError]) -> list[JsonObject]:
    return [msgspec.to_builtins(error) for error in errors]


# Dead letters ----------------------------------------------------------------------------------------


async def letters(
    tx: Transaction,
    org: str,
    *,
    dag: str | None = None,
    job: str | None = None,
    dataset: str | None = None,
    task_id: UUID | None = None,
    after: int | None = None,
    without: Sequence[UUID] = (),
    limit: int = 100,
) -> list[DeadLetter]:
    """`without`: jobs whose letters are left out."""
    await tx.run("set local plan_cache_mode = force_custom_plan")
    filters = (org, dag, job, dataset, task_id, after, list(without), limit)
    return await tx.rows_as(DeadLetter, _SQL["letters"], *filters)


async def letter_files(tx: Transaction, task_id: UUID, limit: int) -> list[LetterFile]:
    return await tx.rows_as(LetterFile, _SQL["letter_files"], task_id, limit)


async def letter_counts(tx: Transaction, org: str) -> dict[str, int]:
    """By dataset; those without letters are left out."""
    return {row["dataset_id"]: row["letters"] for row in await tx.rows(_SQL["letter_counts"], org)}


async def choose_letters(
    tx: Transaction, org: str, chosen: TaskFilter, limit: int, *, after: UUID | None, to_replay: bool
) -> list[UUID]:
    """`to_replay`: only those of tasks that still need attention."""
    await tx.run("set local plan_cache_mode = force_custom_plan")
    filters = (org, chosen.dag, chosen.job, chosen.start, chosen.end, limit, after, to_replay)
    return [row["task_id"] for row in await tx.rows(_SQL["choose_letters"], *filters)]


async def why_not_replayed(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> dict[UUID, str | None]:
    """None for letters that can be replayed; nothing of unknown tasks."""
    rows = await tx.rows(_SQL["why_not_replayed"], list(task_ids), org)
    return {row["task_id"]: row["why"] for row in rows}


async def replay(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[UUID]:
    """Those of the letters that can be replayed wait for their sink again.

    The jobs are locked first, as the valve does: until the transaction ends, the valve dispatches none of their tasks
    and no deploy retires them. An event may still dispatch a task of the same scope; then one of the two transactions
    fails, by the index of tasks in flight, and is repeated. What cannot be replayed anyway is not locked, so that a
    call that changes nothing is no change for the audit log either.
    """
    candidates = await _replayable(tx, org, task_ids)
    if not candidates:
        return []
    await tasks.lock_jobs(tx, candidates)
    replayable = await _replayable(tx, org, await _lock(tx, org, candidates))
    return [row["task_id"] for row in await tx.rows(_SQL["replay"], replayable)]


async def drop(tx: Transaction, org: str, task_ids: Sequence[UUID], by: str) -> list[UUID]:
    return [row["task_id"] for row in await tx.rows(_SQL["drop"], await _lock(tx, org, task_ids), by)]


async def _replayable(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[UUID]:
    why = await why_not_replayed(tx, org, task_ids)
    return [task_id for task_id, reason in why.items() if reason is None]


async def _lock(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[UUID]:
    return [row["task_id"] for row in await tx.rows(_SQL["lock_letters"], list(task_ids), org)]
