"""What tasks produced: outputs become part of their generation, in the transaction that ends the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from traceplane.model.dataset_schema import Schema
from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements

_SQL = statements("commits")


@dataclass(frozen=True, slots=True)
class OutputCommit:
    task_id: UUID
    output_index: int
    generation_id: UUID
    partition_key: str | None
    start: int
    end: int
    files: list[dict[str, Any]]
    row_count: int
    bytes: int
    schema_hash: str
    schema: Schema | None = None
    replaces: bool = True
    """Whether it takes the place of what was committed within its scope, or is added to it."""


@dataclass(frozen=True, slots=True)
class Superseded:
    commit_id: int
    task_id: UUID
    paths: tuple[str, ...]
    at: datetime


async def record(tx: Transaction, outputs: Sequence[OutputCommit]) -> list[bool]:
    """Commits the outputs; for each, whether it took the place of an earlier commit."""
    if not outputs:
        return []
    row = await tx.row(
        _SQL["record"],
        [o.task_id for o in outputs],
        [o.output_index for o in outputs],
        [o.generation_id for o in outputs],
        [o.partition_key for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
        [msgspec.json.encode(o.files).decode() for o in outputs],  # a list in an array would add a dimension
        [o.row_count for o in outputs],
        [o.bytes for o in outputs],
        [o.schema_hash for o in outputs],
        [None if o.schema is None else msgspec.json.encode(o.schema).decode() for o in outputs],
    )
    assert row is not None
    drawn, kept = row["drawn"], set(row["kept"] or ())
    newer = [(i, o) for i, o in zip(drawn, outputs, strict=True) if i in kept and o.replaces]
    # A statement of its own: what others committed while this transaction waited for the cursors is seen only now.
    rows = await tx.rows(
        _SQL["supersede"],
        [commit_id for commit_id, _ in newer],
        [o.task_id for _, o in newer],
        [o.generation_id for _, o in newer],
        [o.start for _, o in newer],
        [o.end for _, o in newer],
    ) if newer else []  # fmt: skip
    placed = {r["superseded_by"] for r in rows}
    return [commit_id in placed for commit_id in drawn]


@dataclass(frozen=True, slots=True)
class LiveCommit:
    files: list[dict[str, Any]]
    positions: Range
    hidden: list[Range]
    """Positions that newer commits have taken over."""


async def input_commits(
    tx: Transaction, task_ids: Sequence[UUID], history: Sequence[int] | None = None
) -> dict[tuple[UUID, int], list[LiveCommit]]:
    """Per task and input, the live commits that overlap the task's scope, begun so many positions earlier."""
    found: dict[tuple[UUID, int], list[LiveCommit]] = {}
    for row in await tx.rows(_SQL["for_tasks"], task_ids, history or [0] * len(task_ids)):
        commit = LiveCommit(
            row["files"], (row["range_start"], row["range_end"]), [(a, b) for a, b in row["hidden"] or ()]
        )
        found.setdefault((row["task_id"], row["input_index"]), []).append(commit)
    return found


async def overlapping(tx: Transaction, outputs: Sequence[OutputCommit]) -> list[OutputCommit]:
    """Those of the outputs whose scope cuts through that of rows which are committed."""
    rows = await tx.rows(
        _SQL["overlapping"],
        [o.task_id for o in outputs],
        [o.generation_id for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
    )
    return [outputs[r["ord"] - 1] for r in rows]


async def output_files(
    tx: Transaction, task_ids: Sequence[UUID]
) -> tuple[dict[tuple[UUID, int], list[dict[str, Any]]], dict[UUID, int]]:
    """Per task and output, the live files that overlap the task's scope; per task, the newest commit of them."""
    files: dict[tuple[UUID, int], list[dict[str, Any]]] = {}
    newest = dict.fromkeys(task_ids, 0)
    for row in await tx.rows(_SQL["own_files"], task_ids):
        files.setdefault((row["task_id"], row["output_index"]), []).extend(row["files"])
        newest[row["task_id"]] = max(newest[row["task_id"]], row["commit_id"])
    return files, newest


async def added_since(tx: Transaction, additions: Sequence[tuple[OutputCommit, int]]) -> list[OutputCommit]:
    """Of outputs that are added to what is there, each with the commit that its task had seen: those whose scope has
    rows that the task had not seen. From here on nobody else adds to their generations."""
    generations = sorted({output.generation_id for output, _ in additions})
    await tx.rows(_SQL["lock_appends"], generations)
    rows = await tx.rows(
        _SQL["added_since"],
        [o.task_id for o, _ in additions],
        [o.generation_id for o, _ in additions],
        [o.start for o, _ in additions],
        [o.end for o, _ in additions],
        [seen for _, seen in additions],
    )
    return [additions[r["ord"] - 1][0] for r in rows]


async def superseded(
    tx: Transaction, grace: timedelta, after: Superseded | None, limit: int
) -> list[Superseded]:
    """Commits that gave way to others before the grace period, from the one that follows `after`."""
    at, commit_id = (after.at, after.commit_id) if after is not None else (None, 0)
    return [
        Superseded(r["commit_id"], r["task_id"], tuple(f["path"] for f in r["files"]), r["superseded_at"])
        for r in await tx.rows(_SQL["superseded"], grace, at, commit_id, limit)
    ]


async def paths(tx: Transaction, task_ids: Sequence[UUID], *, grace: timedelta | None = None) -> set[str]:
    """The files that commits of these tasks name; with `grace`, without those that gave way before it."""
    rows = await tx.rows(_SQL["files_of_tasks"], task_ids, grace)
    return {f["path"] for r in rows for f in r["files"]}


async def of_generations(
    tx: Transaction, generation_ids: Sequence[UUID], after: int, limit: int
) -> list[tuple[int, UUID, list[str]]]:
    """Id, task and files of commits of generations that nobody reads."""
    rows = await tx.rows(_SQL["of_generations"], list(generation_ids), after, limit)
    return [(r["commit_id"], r["task_id"], [f["path"] for f in r["files"]]) for r in rows]


async def paths_elsewhere(
    tx: Transaction, task_ids: Sequence[UUID], generation_ids: Sequence[UUID], grace: timedelta
) -> set[str]:
    rows = await tx.rows(_SQL["files_elsewhere"], task_ids, list(generation_ids), grace)
    return {f["path"] for r in rows for f in r["files"]}


async def forget_of_generations(tx: Transaction, commit_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["forget_of_generations"], commit_ids)


async def forget(tx: Transaction, commit_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["forget"], commit_ids)


async def summary(tx: Transaction, org: str) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["summary"], org)]
