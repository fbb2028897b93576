"""What receivers of OpenLineage events have been told of tasks, and what they have not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.model.partitions import Partitions
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("openlineage")


class TaskRun(msgspec.Struct, frozen=True):
    """A task of which there is something to tell; without a job: it was deleted with its history."""

    task_id: UUID
    ended_runs: int
    started: bool
    job_id: UUID | None
    state: Literal["queued", "dispatched", "running", "completed", "dead", "canceled"] | None = None
    attempt: int = 0
    kind: str | None = None
    partition_key: str | None = None
    range_start: int | None = None
    range_end: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: JsonObject | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    runs: list[TaskRun]
    lag_seconds: float
    """Since when the first of them would have been told."""
    next_after: UUID | None
    """Where the next page begins; None: this was the last one."""


class RunColumn(msgspec.Struct, frozen=True):
    name: str
    type: str


class RunDataset(msgspec.Struct, frozen=True):
    """A dataset as a job reads or writes it."""

    name: str
    dataset_id: str
    generation_id: UUID
    description: str
    columns: list[RunColumn]
    partitions: JsonObject | None

    @property
    def partitioning(self) -> Partitions:
        return partitions_of(self.partitions)


@dataclass(frozen=True, slots=True)
class RunJob:
    job_id: UUID
    revision: int
    org: str
    dag: str
    job: str
    operator: str
    source_kind: str | None
    config: JsonObject
    lineage: dict[str, list[str]] | None
    dag_version_id: UUID | None
    version: int | None
    description: str
    inputs: list[RunDataset]
    outputs: list[RunDataset]


@dataclass(frozen=True, slots=True)
class Written:
    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a receiver has been told of a run."""

    task_id: UUID
    started: bool
    ended_at: datetime | None = None
    """Of the run whose end was told."""


@dataclass(slots=True)
class ToldOf:
    runs: list[Told] = field(default_factory=list)
    over: list[UUID] = field(default_factory=list)
    """Tasks of which nothing more can be told."""


async def lease(tx: Transaction, holder: UUID, seconds: timedelta) -> bool | None:
    """Whether this is the first lease of all; None: another process has it."""
    is_new: bool | None = await tx.value(_SQL["lease"], holder, seconds, first_id(await _settled(tx)))
    return is_new


async def release(tx: Transaction, holder: UUID) -> None:
    await tx.run(_SQL["release"], holder)


async def follow_unfinished(tx: Transaction, orgs: Sequence[str] | None) -> None:
    await tx.run(_SQL["follow_unfinished"], orgs)


async def follow(tx: Transaction, holder: UUID, most: int, orgs: Sequence[str] | None) -> tuple[int, bool]:
    """How many tasks were added, and whether there are more. Not in one transaction with anything before it: a moment
    is settled only for what looks after it."""
    row = await tx.row(_SQL["follow"], holder, first_id(await _settled(tx)), most, orgs)
    assert row is not None
    return row["added"], row["more"]


async def changed(tx: Transaction, after: UUID, pages: int, most: int) -> Changed:
    row = await tx.row(_SQL["changed"], after, pages, most)
    assert row is not None
    runs = msgspec.convert(row["runs"], list[TaskRun], strict=False)
    return Changed(runs, max(0.0, row["lag_seconds"] or 0.0), row["next_after"])


async def jobs_of_tasks(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, RunJob]:
    rows = await tx.rows(_SQL["jobs_of_tasks"], list(job_ids))
    return {row["job_id"]: RunJob(**{**row, **_datasets(row)}) for row in rows}


def _datasets(row: Any) -> dict[str, list[RunDataset]]:
    return {side: msgspec.convert(row[side], list[RunDataset]) for side in ("inputs", "outputs")}


async def written(tx: Transaction, task_ids: Sequence[UUID]) -> dict[tuple[UUID, UUID], Written]:
    """By task and generation."""
    return {
        (row["task_id"], row["generation_id"]): Written(row["rows"], row["bytes"], row["files"])
        for row in await tx.rows(_SQL["written"], list(task_ids))
    }


async def executions(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The names of the pipelines whose executions these tasks are."""
    return {r["task_id"]: r["pipeline"] for r in await tx.rows(_SQL["executions"], list(task_ids))}


async def told(tx: Transaction, holder: UUID, seconds: timedelta, of: ToldOf) -> bool:
    """Whether this process still had the lease; if not, nothing was recorded."""
    held: bool = await tx.value(
        _SQL["told"],
        holder,
        seconds,
        [run.task_id for run in of.runs],
        [run.started for run in of.runs],
        [run.ended_at for run in of.runs],
        of.over,
    )
    return held


async def _settled(tx: Transaction) -> datetime:
    moment: datetime = await tx.value(_SQL["oldest_writer"])
    return moment


def first_id(moment: datetime) -> UUID:
    """No id of a task that is made at this moment or later is lower."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
