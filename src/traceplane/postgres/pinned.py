"""What a query reads. The functions belong into one snapshot (`Database.snapshot`): together they see one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.positions import Range
from traceplane.postgres.database import Transaction, statements

_SQL = statements("pinned")


@dataclass(frozen=True, slots=True)
class PinnedDataset:
    dataset_id: str
    dag: str
    version: int | None
    """Of the DAG; None where none was active at the time that is asked for."""
    generation_id: UUID | None
    row_generation_id: UUID | None
    """Where the rows are: an aggregator's ranges are read from what it aggregates."""
    storage: str
    description: str
    columns: tuple[SchemaColumn, ...]
    """The merged schema of the files, or what is declared where there is none yet."""
    pii: frozenset[str]
    """Columns that any definition of these rows marks as personal data, in lower case."""
    position: str | None
    cursor: int | None
    row_version: str
    """Changes with every commit of the rows' generation."""
    forgotten_until: datetime | None
    sql: str | None = None
    """Of a virtual dataset, as the version has it that is read."""


CommitPaths = Any
"""A row of four: commit_id, first and last position, and the paths of its files."""


async def datasets(
    tx: Transaction,
    org: str,
    dataset_ids: Sequence[str] | None,
    *,
    versions: Mapping[str, int] | None = None,
    at: datetime | None = None,
) -> dict[str, PinnedDataset]:
    """Those of the datasets that exist, or all of them."""
    asked = versions or {}
    rows = await tx.rows(
        _SQL["datasets"],
        org,
        None if dataset_ids is None else list(dataset_ids),
        list(asked),
        list(asked.values()),
        at,
    )
    return {row["dataset_id"]: _dataset(row) for row in rows}


def _dataset(row: Any) -> PinnedDataset:
    definitions = [
        d for d in (row["definition"], row["versioned_definition"], row["owner_definition"]) if d is not None
    ]
    declared = [column for d in definitions for column in d["columns"]]
    shown = row["versioned_definition"] or row["definition"]
    known = row["columns"] or [
        {"name": c["name"], "type": c["type"], "nullable": c.get("nullable", True)}
        for c in row["definition"]["columns"]
    ]
    return PinnedDataset(
        dataset_id=row["dataset_id"],
        dag=row["dag"],
        version=row["version"],
        generation_id=row["generation_id"],
        row_generation_id=row["row_generation_id"],
        storage=shown["storage"],
        description=shown["description"],
        columns=tuple(SchemaColumn(**column) for column in known),
        pii=frozenset(column["name"].lower() for column in declared if column.get("pii")),
        position=row["position_column"],
        cursor=row["cursor"],
        row_version=row["row_version"] or "",
        forgotten_until=row["forgotten_until"],
        sql=shown.get("sql"),
    )


async def commits(
    tx: Transaction, generation_id: UUID, at: datetime | None = None
) -> tuple[list[int], dict[int, list[Range]]]:
    """The commits that readers see, now or at a time, in the order of their positions; and for some of them the
    positions that newer ones have taken over."""
    if at is None:
        ids: list[int] = await tx.value(_SQL["live_ids"], generation_id)
        return ids, await _hidden(tx, generation_id)
    rows = await tx.rows(_SQL["commits_at"], generation_id, at)
    return [row["commit_id"] for row in rows], _ranges(rows)


async def _hidden(tx: Transaction, generation_id: UUID) -> dict[int, list[Range]]:
    return _ranges(await tx.rows(_SQL["hidden"], generation_id))


def _ranges(rows: Sequence[Any]) -> dict[int, list[Range]]:
    return {row["commit_id"]: [(a, b) for a, b in row["hidden"]] for row in rows if row["hidden"]}


@dataclass(frozen=True, slots=True)
class LiveCommits:
    """Columns of equal length rather than rows, of which there may be a hundred thousand."""

    ids: list[int]
    firsts: list[int]
    lasts: list[int]
    paths: list[str | None]
    """None where a commit has several files, or none."""
    of_others: dict[int, list[str]]
    hidden: dict[int, list[Range]]


async def live(tx: Transaction, generation_id: UUID) -> LiveCommits:
    """All commits that readers see now, in the order of their positions, with their files."""
    row = await tx.row(_SQL["live"], generation_id)
    assert row is not None
    ids, single = row["ids"], row["paths"]
    several = [ids[n] for n, path in enumerate(single) if path is None]
    others = {r[0]: r[3] for r in await paths(tx, generation_id, several)} if several else {}
    hidden = await _hidden(tx, generation_id)
    return LiveCommits(ids, row["firsts"], row["lasts"], single, others, hidden)


async def paths(
    tx: Transaction, generation_id: UUID, commit_ids: Sequence[int] | None
) -> Sequence[CommitPaths]:
    """The files of these commits, or of all live ones of a generation."""
    if commit_ids is None:
        return await tx.rows(_SQL["live_paths"], generation_id)
    return await tx.rows(_SQL["paths"], list(commit_ids))


async def file_sizes(tx: Transaction, task_ids: Sequence[UUID]) -> dict[str, int]:
    """Of all files that these tasks committed, by their paths."""
    return {row["path"]: row["bytes"] for row in await tx.rows(_SQL["file_sizes"], list(task_ids))}


async def statistics(
    tx: Transaction, generation_id: UUID, commit_ids: Sequence[int] | None, column: str
) -> Sequence[tuple[int, list[tuple[int, dict[str, Any] | None]] | None]]:
    """By commit, for each of its files: its rows, and what is known of the column in it."""
    if commit_ids is None:
        return await tx.rows(_SQL["live_statistics"], generation_id, column)
    return await tx.rows(_SQL["statistics"], list(commit_ids), column)


async def sizes(tx: Transaction, generation_ids: Sequence[UUID]) -> dict[UUID, tuple[int, int, int]]:
    """Commits, rows and bytes of generations."""
    rows = await tx.rows(_SQL["sizes"], list(generation_ids))
    return {row["generation_id"]: (row["commits"], row["rows"], row["bytes"]) for row in rows}


async def neighbours(tx: Transaction, generation_ids: Sequence[UUID]) -> list[dict[str, Any]]:
    return [dict(row) for row in await tx.rows(_SQL["producers"], list(generation_ids))]


async def read_by(tx: Transaction, org: str, dataset_id: str) -> list[str]:
    """Jobs that read a virtual dataset, as dag/job."""
    return [f"{row['dag']}/{row['job']}" for row in await tx.rows(_SQL["read_by"], org, dataset_id)]


async def inputs_of(tx: Transaction, generation_id: UUID) -> list[dict[str, Any]]:
    return [dict(row) for row in await tx.rows(_SQL["inputs_of"], generation_id)]


async def deny(tx: Transaction, org: str, principal: str, role: str, reason: str, query_hash: str) -> None:
    await tx.run(_SQL["deny"], org, principal, role, reason, query_hash)
