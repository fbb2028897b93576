"""Compaction: which files are small, the tasks that merge them, and what their commits leave behind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from traceplane.model.compaction import ListedCommit, Run
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.json_object import JsonObject
from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements

_SQL = statements("compaction")

_WORKERS_SEEN = timedelta(seconds=30)

Key = tuple[int, int]
"""The first position of a commit, and its id."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generation whose files may be merged."""

    generation_id: UUID
    dataset_uuid: UUID
    dataset_id: str
    org: str
    policy: JsonObject
    """As its dataset declares it."""
    cluster_by: tuple[str, ...]
    position: str
    row_version: str
    """Changes with every commit."""
    columns: tuple[SchemaColumn, ...]


@dataclass(frozen=True, slots=True)
class RangeState:
    """What readers see of the range of a task that merges its files."""

    is_unchanged: bool
    """Since the task was made."""
    rows: int
    is_exact: bool
    """Whether that many rows are read; otherwise some of them are hidden."""
    committed_at: datetime | None
    holds_commit: int | None


async def candidates(tx: Transaction, runtime: str) -> list[Candidate]:
    return [
        Candidate(
            generation_id=r["generation_id"],
            dataset_uuid=r["dataset_uuid"],
            dataset_id=r["dataset_id"],
            org=r["org"],
            policy=r["compaction"] or {},
            cluster_by=tuple(r["cluster_by"]),
            position=r["position_column"],
            row_version=r["row_version"],
            columns=tuple(SchemaColumn(**column) for column in r["columns"] or ()),
        )
        for r in await tx.rows(_SQL["candidates"], runtime, _WORKERS_SEEN)
    ]


async def page(
    tx: Transaction, generation_id: UUID, after: Key, age: timedelta, limit: int
) -> tuple[list[ListedCommit], bool]:
    """And whether some of them are younger than the age, which are left as they are for now."""
    rows = await tx.rows(_SQL["page"], generation_id, *after, age, limit)
    return [
        ListedCommit(
            (r["range_start"], r["commit_id"]),
            (r["range_start"], r["range_end"]),
            r["files"],
            r["bytes"],
            r["stays"] or r["young"],
        )
        for r in rows
    ], any(r["young"] for r in rows)


async def covered(tx: Transaction, generation_id: UUID) -> list[Range]:
    return [(r["first"], r["last"]) for r in await tx.rows(_SQL["covered"], generation_id)]


async def job(tx: Transaction, generation_id: UUID) -> tuple[UUID, JsonObject] | None:
    """The job that compacts the generation, locked, and its config."""
    row = await tx.row(_SQL["job"], generation_id)
    return None if row is None else (row["job_id"], row["config"])


async def retire(tx: Transaction, dataset_uuid: UUID) -> None:
    await tx.rows(_SQL["retire"], dataset_uuid)


async def begin(tx: Transaction, job_id: UUID, generation_id: UUID) -> None:
    await tx.rows(_SQL["begin"], job_id, generation_id)


async def configure(tx: Transaction, job_id: UUID, config: JsonObject) -> None:
    await tx.rows(_SQL["configure"], job_id, config)


async def create(tx: Transaction, job_id: UUID, generation_id: UUID, runs: Sequence[Run]) -> None:
    await tx.rows(
        _SQL["create"], job_id, generation_id, [r.positions[0] for r in runs], [r.positions[1] for r in runs]
    )


async def states(tx: Transaction, task_ids: Collection[UUID]) -> dict[UUID, RangeState]:
    """What was to be compacted, as it is now; without tasks that are unknown."""
    rows: list[Any] = await tx.rows(_SQL["states"], list(task_ids))
    return {
        r["task_id"]: RangeState(
            r["is_unchanged"], r["rows"], r["is_exact"], r["committed_at"], r["holds_commit"]
        )
        for r in rows
    }


async def settle(tx: Transaction, merged: Sequence[tuple[UUID, RangeState]]) -> None:
    """The commits of these tasks take the place of those whose rows they hold."""
    await tx.rows(
        _SQL["settle"],
        [task_id for task_id, _ in merged],
        [state.committed_at for _, state in merged],
        [state.holds_commit for _, state in merged],
    )
