"""Events as people look at them, and what they caused: tasks, their commits, and the events of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements

_SQL = statements("effects")


@dataclass(frozen=True, slots=True)
class StoredEvent:
    event_id: int
    dataset_id: str
    kind: str
    partition_key: str | None
    range_start: int
    emission: str
    backfill: bool
    created_at: datetime
    producer_id: UUID
    serving: bool


@dataclass(frozen=True, slots=True)
class FedTask:
    event_id: int | None
    """The event that fed it; None for a task that was asked for by its id."""
    job_id: UUID
    task_id: UUID
    dag: str
    job: str
    state: str
    kind: str
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    attempt: int
    max_attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    runtime: str


@dataclass(frozen=True, slots=True)
class TaskCommit:
    task_id: UUID
    commit_id: int
    dataset_id: str
    partition_key: str | None
    range_start: int
    row_count: int
    bytes: int
    committed_at: datetime


async def newest_id(tx: Transaction) -> int:
    row = await tx.row(_SQL["newest_id"])
    assert row is not None
    return int(row["newest"])


async def recent(
    tx: Transaction,
    org: str,
    first: int,
    last: int,
    *,
    dataset_id: str | None,
    kind: str | None,
    without: Sequence[str],
    limit: int,
) -> list[StoredEvent]:
    """Those with numbers from `first` to `last`, newest first. `without`: datasets that are left out."""
    await tx.run("set local plan_cache_mode = force_custom_plan")
    filters = (org, first, last, dataset_id, kind, list(without), limit)
    return await tx.rows_as(StoredEvent, _SQL["recent"], *filters)


async def of_positions(
    tx: Transaction, org: str, dataset_id: str, first: int, last: int, *, kind: str | None, limit: int
) -> list[StoredEvent]:
    return await tx.rows_as(StoredEvent, _SQL["of_positions"], org, dataset_id, first, last, kind, limit)


async def produced(
    tx: Transaction, org: str, task_ids: Sequence[UUID], *, limit: int, without: Sequence[str]
) -> list[StoredEvent]:
    """Of each task at most `limit`. `without`: datasets that are left out."""
    return await tx.rows_as(StoredEvent, _SQL["produced"], org, list(task_ids), limit, list(without))


async def produced_after(
    tx: Transaction, org: str, task_id: UUID, event_id: int, *, limit: int, without: Sequence[str]
) -> list[StoredEvent]:
    """Those of a task behind one of them."""
    return await tx.rows_as(StoredEvent, _SQL["produced_after"], org, task_id, limit, event_id, list(without))


async def inputs_fed(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, list[int]]:
    """Through which inputs of its job each task was fed."""
    inputs: dict[UUID, list[int]] = {}
    for row in await tx.rows(_SQL["inputs_fed"], list(task_ids)):
        inputs.setdefault(row["task_id"], []).append(row["input_index"])
    return inputs


async def announced(
    tx: Transaction,
    org: str,
    concerned: Sequence[tuple[UUID, Range]],
    *,
    looked_at: int,
    without: Sequence[str],
) -> list[tuple[UUID, StoredEvent]]:
    """Events that jobs of the dispatcher sent in their own name because of tasks, given the positions that each task
    concerns."""
    task_ids = [task_id for task_id, _ in concerned]
    firsts, lasts = [r[0] for _, r in concerned], [r[1] for _, r in concerned]
    rows = await tx.rows(_SQL["announced"], org, task_ids, firsts, lasts, looked_at, list(without))
    return [(row["task_id"], StoredEvent(**{k: v for k, v in row.items() if k != "task_id"})) for row in rows]


async def by_id(tx: Transaction, org: str, event_id: int) -> StoredEvent | None:
    return await tx.row_as(StoredEvent, _SQL["by_id"], org, event_id)


async def of_commit(tx: Transaction, org: str, commit_id: int, *, limit: int) -> list[StoredEvent]:
    return await tx.rows_as(StoredEvent, _SQL["of_commit"], org, commit_id, limit)


async def fed(
    tx: Transaction,
    org: str,
    event_ids: Sequence[int],
    *,
    limit: int,
    without: Sequence[UUID],
    after: UUID | None = None,
) -> list[FedTask]:
    """Of each event at most `limit`. `without`: jobs whose tasks are left out."""
    return await tx.rows_as(FedTask, _SQL["fed"], org, list(event_ids), limit, after, list(without))


async def task(tx: Transaction, org: str, task_id: UUID, without: Sequence[UUID]) -> FedTask | None:
    return await tx.row_as(FedTask, _SQL["task"], org, task_id, list(without))


async def commits(
    tx: Transaction, org: str, task_ids: Sequence[UUID], *, limit: int, without: Sequence[str]
) -> list[TaskCommit]:
    return await tx.rows_as(TaskCommit, _SQL["commits"], org, list(task_ids), limit, list(without))


async def count_fed(
    tx: Transaction, event_ids: Sequence[int], most: int, without: Sequence[UUID]
) -> dict[int, int]:
    rows = await tx.rows(_SQL["count_fed"], list(event_ids), most, list(without))
    return {row["event_id"]: row["number"] for row in rows}


async def count_produced(tx: Transaction, task_ids: Sequence[UUID], most: int) -> dict[UUID, int]:
    rows = await tx.rows(_SQL["count_produced"], list(task_ids), most)
    return {row["task_id"]: row["number"] for row in rows}


async def producers(
    tx: Transaction, org: str, ids: Sequence[UUID], without: Sequence[UUID]
) -> dict[UUID, tuple[str, str]]:
    """DAG and job of those that are tasks."""
    rows = await tx.rows(_SQL["producers"], org, list(ids), list(without))
    return {row["task_id"]: (row["dag"], row["job"]) for row in rows}
