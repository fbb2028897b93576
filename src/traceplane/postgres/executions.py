"""Executions of pipelines in the database. An index, not this code, ensures that a pipeline runs once at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.postgres.database import Transaction, statements
from traceplane.wire.tasks import PipelineRun, TaskError

_SQL = statements("executions")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """An active periodic pipeline."""

    pipeline_id: UUID
    schedule: str
    active_since: datetime
    now: datetime
    launched_for: datetime | None


async def scheduled(tx: Transaction) -> list[Scheduled]:
    return await tx.rows_as(Scheduled, _SQL["scheduled"])


async def launch_scheduled(tx: Transaction, due: Sequence[tuple[UUID, datetime]]) -> tuple[int, int]:
    """How many were launched, and how many have no job to run."""
    row = await tx.row(_SQL["launch_scheduled"], [p for p, _ in due], [at for _, at in due])
    assert row is not None
    return row["launched"], row["without_job"]


async def of_tasks(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, PipelineRun]:
    """What operators receive, by task."""
    return {
        r["execution_id"]: PipelineRun(
            pipeline_id=r["pipeline_id"],
            pipeline=r["pipeline"],
            user_id=r["user_id"],
            parameters=r["parameters"],
            signal=r["signal"],
            scheduled_for=None if r["scheduled_for"] is None else r["scheduled_for"].isoformat(),
        )
        for r in await tx.rows(_SQL["of_tasks"], list(task_ids))
    }


async def follow_tasks(tx: Transaction, limit: int) -> Counter[str]:
    """How many executions reached each status."""
    return Counter(r["status"] for r in await tx.rows(_SQL["follow_tasks"], limit))


async def fail_overdue(tx: Transaction, limit: int) -> int:
    return len(await tx.rows(_SQL["overdue"], limit))


async def move(
    tx: Transaction,
    org: str,
    execution_id: UUID,
    to: str,
    *,
    start: Sequence[str],
    error: TaskError | None,
) -> bool:
    """Whether the execution was in one of the states that the step starts from."""
    return await tx.value(_SQL["move"], execution_id, to, list(start), error, org) is not None


@dataclass(frozen=True, slots=True)
class CeleryMessage:
    execution_id: UUID
    pipeline_id: UUID
    signal: JsonObject | None
    wanted: bool
    """Whether the execution is still pending."""


async def take_messages(tx: Transaction, limit: int) -> list[CeleryMessage]:
    return await tx.rows_as(CeleryMessage, _SQL["take_messages"], limit)


async def messages_sent(tx: Transaction, execution_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["messages_sent"], list(execution_ids))


async def postpone_messages(tx: Transaction, execution_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["postpone_messages"], list(execution_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedExecution:
    execution_id: UUID
    pipeline_id: UUID
    pipeline: str
    user_id: str
    target: str
    status: Literal["PENDING", "RUNNING", "COMPLETED", "FAILED"]
    signal_id: str | None
    signal: JsonObject | None
    scheduled_for: datetime | None
    error: JsonObject | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    parameters: JsonObject
    dag: str | None
    """What the pipeline runs now."""
    job: str | None


async def listing(
    tx: Transaction,
    org: str,
    *,
    execution_id: UUID | None = None,
    pipeline_id: UUID | None = None,
    status: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
    hidden: Collection[tuple[str, str]] = (),
) -> list[ListedExecution]:
    """`hidden` are DAGs and jobs, whose executions are left out."""
    dags, jobs = [dag for dag, _ in hidden], [job for _, job in hidden]
    await tx.run("set local plan_cache_mode = force_custom_plan")
    filters = (execution_id, pipeline_id, status, before)
    return await tx.rows_as(ListedExecution, _SQL["list"], org, *filters, limit, dags, jobs)
