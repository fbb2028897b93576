"""Executions of pipelines in the database. A pipeline runs once at a time: an index says so, not this code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

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
    fields = Scheduled.__dataclass_fields__
    return [Scheduled(*(r[name] for name in fields)) for r in await tx.rows(_SQL["scheduled"])]


async def launch_scheduled(tx: Transaction, due: Sequence[tuple[UUID, datetime]]) -> tuple[int, int]:
    """How many were launched, and how many have no job to run."""
    row = await tx.row(_SQL["launch_scheduled"], [p for p, _ in due], [at for _, at in due])
    assert row is not None
    return row["launched"], row["without_job"]


async def of_tasks(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """What operators are told, by task."""
    found = {}
    for row in await tx.rows(_SQL["of_tasks"], list(task_ids)):
        run = dict(row)
        if (at := run["scheduled_for"]) is not None:
            run["scheduled_for"] = at.isoformat()
        found[run.pop("execution_id")] = run
    return found


async def follow_tasks(tx: Transaction, limit: int) -> Counter[str]:
    """How many executions came to each status."""
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
    error: dict[str, Any] | None,
) -> bool:
    """Whether the execution was in one of the states that the step starts from."""
    return await tx.value(_SQL["move"], execution_id, to, list(start), error, org) is not None


@dataclass(frozen=True, slots=True)
class CeleryMessage:
    execution_id: UUID
    pipeline_id: UUID
    signal: dict[str, Any] | None
    wanted: bool
    """Whether the execution still waits for somebody to run it."""


async def take_messages(tx: Transaction, limit: int) -> list[CeleryMessage]:
    fields = CeleryMessage.__dataclass_fields__
    rows = await tx.rows(_SQL["take_messages"], limit)
    return [CeleryMessage(*(r[name] for name in fields)) for r in rows]


async def messages_sent(tx: Transaction, execution_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["messages_sent"], list(execution_ids))


async def postpone_messages(tx: Transaction, execution_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["postpone_messages"], list(execution_ids))


async def listing(
    tx: Transaction,
    org: str,
    *,
    execution_id: UUID | None = None,
    pipeline_id: UUID | None = None,
    status: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    await tx.run("set local plan_cache_mode = force_custom_plan")
    rows = await tx.rows(_SQL["list"], org, execution_id, pipeline_id, status, before, limit)
    return [dict(r) for r in rows]
