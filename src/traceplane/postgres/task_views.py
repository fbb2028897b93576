"""What people see of tasks: lists, counts, failures, lineage, and why a task waits. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from traceplane.model.explain import ExplainFacts
from traceplane.model.json_object import JsonObject
from traceplane.model.resources import Resources
from traceplane.model.stuck import UnfinishedTasks
from traceplane.model.task import DeadStanding
from traceplane.postgres import workers
from traceplane.postgres.database import Transaction, statements

_SQL = statements("task_views")
_STAGES = {"queued": 0, "dispatched": 1, "running": 1, "completed": 2, "canceled": 2, "dead": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask:
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
    priority: int
    worker_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: JsonObject | None
    progress: JsonObject | None
    cancel_requested: bool
    standing: DeadStanding | None
    """Of a dead task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadTasks:
    """Dead tasks of one job with the same error and standing, and the newest of them."""

    dag: str
    job: str
    standing: DeadStanding
    code: str | None
    tasks: int
    task_id: UUID
    error: JsonObject | None
    partition_key: str | None
    range_start: int | None
    capped: bool
    """Whether the job has more dead tasks than were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """Unfinished tasks of one job in one state."""

    dag: str
    job: str
    state: str
    tasks: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedValues:
    """The values that the operators of some tasks received."""

    config: JsonObject
    parameters: JsonObject | None
    task_ids: Sequence[UUID]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageEvent:
    side: Literal["input", "output"]
    event_id: int
    dataset_id: str
    kind: str
    partition_key: str | None
    range_start: int
    range_end: int
    producer_id: UUID


async def deaths(tx: Transaction, org: str, limit_per_job: int, dag: str | None = None) -> list[DeadTasks]:
    return await tx.rows_as(DeadTasks, _SQL["deaths"], org, limit_per_job, dag)


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
    without: Sequence[UUID] = (),
) -> list[ListedTask]:
    """`without`: jobs whose tasks are left out."""
    await tx.run("set local plan_cache_mode = force_custom_plan")
    if standing is not None:
        state = "dead"
    stage = _STAGES[state] if state is not None else None
    filters = (dag, job, state, task_id, limit, before, stage, org, standing, start, end, list(without))
    return await tx.rows_as(ListedTask, _SQL["list"], *filters)


async def jobs_of(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
    """DAG and job of each task."""
    rows = await tx.rows(_SQL["jobs_of"], list(task_ids), org)
    return {row["task_id"]: (row["dag"], row["job"]) for row in rows}


async def counts(tx: Transaction, org: str, dag: str | None = None) -> list[UnfinishedTasks]:
    async with tx.planned_for_its_values():
        rows = await tx.rows(_SQL["counts"], org, dag)
    return [
        UnfinishedTasks(**{**row, "requires": msgspec.convert(row["requires"], Resources)}) for row in rows
    ]


async def depths(tx: Transaction) -> list[QueueDepth]:
    return await tx.rows_as(QueueDepth, _SQL["depths"])


async def explain_facts(tx: Transaction, org: str, task_id: UUID) -> ExplainFacts | None:
    row = await tx.row(_SQL["explain_facts"], task_id, org)
    if row is None:
        return None
    requires = msgspec.convert(row["requires"], Resources)
    return ExplainFacts(**{**row, "requires": requires, "workers": await workers.there(tx)})


async def handed_values(tx: Transaction, org: str, task_ids: Sequence[UUID]) -> list[HandedValues]:
    return await tx.rows_as(HandedValues, _SQL["handed_values"], list(task_ids), org)


@dataclass(frozen=True, slots=True)
class SeenDataset:
    dataset_id: str
    commit_id: int | None
    committed_at: datetime | None
    newer: int


async def whole_reads(tx: Transaction, org: str, task_id: UUID) -> list[SeenDataset]:
    return await tx.rows_as(SeenDataset, _SQL["whole_reads"], task_id, org)


async def lineage(tx: Transaction, org: str, task_id: UUID) -> list[LineageEvent]:
    return await tx.rows_as(LineageEvent, _SQL["lineage"], task_id, org)
