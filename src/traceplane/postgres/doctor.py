"""Facts about pipelines that are not launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.postgres.database import Transaction, statements

_SQL = statements("doctor")


@dataclass(frozen=True, slots=True)
class PipelineCounts:
    """Of pipelines that wait for signals."""

    signal_pipelines: int
    active: int
    without_tickers: int
    by_celery: int
    celery_waiting: int
    """Messages."""


@dataclass(frozen=True, slots=True)
class PipelineWithoutJob:
    name: str
    dag: str
    job: str


@dataclass(frozen=True, slots=True)
class OldestRunning:
    running: int
    """How many executions are."""
    execution_id: UUID
    pipeline: str
    status: str
    target: str
    task_state: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Consumed:
    partition: int
    next_offset: int
    seconds: float
    """Seconds since something was last consumed."""


@dataclass(frozen=True, slots=True)
class WatchingPipeline:
    pipeline_id: UUID
    name: str
    tickers: list[str]
    subscriptions: list[JsonObject]
    rules: JsonObject


async def counts(tx: Transaction) -> PipelineCounts:
    counts = await tx.row_as(PipelineCounts, _SQL["counts"])
    assert counts is not None
    return counts


async def without_job(tx: Transaction, limit: int) -> list[PipelineWithoutJob]:
    return await tx.rows_as(PipelineWithoutJob, _SQL["without_job"], limit)


async def oldest_running(tx: Transaction) -> OldestRunning | None:
    return await tx.row_as(OldestRunning, _SQL["running"])


async def offsets(tx: Transaction, group: str, topic: str) -> list[Consumed]:
    return await tx.rows_as(Consumed, _SQL["offsets"], group, topic)


async def watching(tx: Transaction, tickers: Sequence[str], limit: int) -> list[WatchingPipeline]:
    """Pipelines that watch one of these tickers, given in capital letters."""
    return await tx.rows_as(WatchingPipeline, _SQL["watching"], list(tickers), limit)
