"""What tasks produced: outputs become part of their generation, in the transaction that ends the task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from traceplane.model.committed_file import CommittedFile
from traceplane.model.dataset_schema import Schema
from traceplane.model.positions import Range
from traceplane.model.pruning import Asked
from traceplane.postgres.database import Transaction, statements
from traceplane.wire.tasks import FailedCheck, StagedFile

_SQL = statements("commits")

_AT_ONCE = 10_000
"""Commits that are read in one answer."""


@dataclass(frozen=True, slots=True)
class OutputCommit:
    task_id: UUID
    output_index: int
    generation_id: UUID
    partition_key: str | None
    start: int
    end: int
    files: Sequence[StagedFile]
    row_count: int
    bytes: int
    schema_hash: str
    schema: Schema | None = None
    compacts: bool = False
    """Whether it holds the rows that are there already, in fewer files."""
    replaces: bool = True
    """Whether it replaces what was committed within its scope, or is added to it."""
    failed_checks: Sequence[FailedCheck] = ()
    """Those that only warn."""

    def overlaps(self, other: OutputCommit) -> bool:
        """Whether it has positions of another task's commit."""
        return (
            self.task_id != other.task_id
            and self.generation_id == other.generation_id
            and self.start <= other.end
            and other.start <= self.end
        )


@dataclass(frozen=True, slots=True)
class Superseded:
    commit_id: int
    task_id: UUID
    paths: tuple[str, ...]
    at: datetime


async def record(tx: Transaction, outputs: Sequence[OutputCommit]) -> list[bool]:
    """Commits the outputs; returns for each whether it replaced an earlier commit."""
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
        [not o.compacts for o in outputs],
    )
    assert row is not None
    drawn, kept = row["drawn"], set(row["kept"] or ())
    newer = [(i, o) for i, o in zip(drawn, outputs, strict=True) if i in kept and o.replaces]
    # A separate statement: only now does it see what others committed while this transaction waited for the cursors.
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
    commit_id: int
    files: list[CommittedFile]
    positions: Range
    hidden: list[Range]
    """Positions that newer commits have replaced."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What somebody reads of a generation."""

    generation_id: UUID
    positions: Range | None
    """None: the newest position."""
    asked: Asked | None = None
    """Only files that can hold this."""


async def read_by_tasks(
    tx: Transaction, ranges: Sequence[ReadRange], *, most: int
) -> list[list[LiveCommit] | None]:
    """For each range, the live commits that overlap it, with the files that can hold what is asked; if something is
    asked, without commits that have none. None: there are more than `most`."""
    live: list[list[LiveCommit]] = [[] for _ in ranges]
    arguments = (*_arguments(ranges), [r.asked for r in ranges], False, most + 1)
    if most <= _AT_ONCE:
        for row in await tx.rows(_for_tasks(), *arguments):
            live[row["ord"] - 1].append(_live_commit(row))
    else:
        async for row in tx.stream(_for_tasks(), *arguments):
            live[row["ord"] - 1].append(_live_commit(row))
    return [None if len(found) > most else sorted(found, key=_by_id) for found in live]


def _for_tasks() -> str:
    """Read at once, or some rows at a time."""
    return _SQL["for_tasks"]


async def read_with_statistics(tx: Transaction, ranges: Sequence[ReadRange]) -> list[list[LiveCommit]]:
    """For each range, all live commits that overlap it, with the statistics of their files."""
    live: list[list[LiveCommit]] = [[] for _ in ranges]
    for row in await tx.rows(_for_tasks(), *_arguments(ranges), [None] * len(ranges), True, None):
        live[row["ord"] - 1].append(_live_commit(row))
    return [sorted(found, key=_by_id) for found in live]


async def streamed(tx: Transaction, read: ReadRange, at: datetime | None = None) -> AsyncIterator[LiveCommit]:
    """What `read_by_tasks` reads of one range, or of a whole generation as of a time: in no order, few at once."""
    if at is None:
        rows = tx.stream(_for_tasks(), *_arguments([read]), [read.asked], False, None)
    else:
        rows = tx.stream(_SQL["for_task_at"], read.generation_id, at, read.asked)
    async for row in rows:
        yield _live_commit(row)


async def read_at(tx: Transaction, read: ReadRange, at: datetime, *, most: int) -> list[LiveCommit] | None:
    """As `read_by_tasks`, of a whole generation as of a time."""
    live: list[LiveCommit] = []
    async for commit in streamed(tx, read, at):
        live.append(commit)
        if len(live) > most:
            return None
    return sorted(live, key=_by_id)


async def newest(tx: Transaction, ranges: Sequence[ReadRange]) -> list[int | None]:
    """For each range, the newest live commit that overlaps it, whether or not it can hold what is asked."""
    found: list[int | None] = [None] * len(ranges)
    for row in await tx.rows(_SQL["newest"], *_arguments(ranges)):
        found[row["ord"] - 1] = row["commit_id"]
    return found


def _arguments(ranges: Sequence[ReadRange]) -> tuple[list[UUID], list[int | None], list[int | None]]:
    return (
        [r.generation_id for r in ranges],
        [None if r.positions is None else r.positions[0] for r in ranges],
        [None if r.positions is None else r.positions[1] for r in ranges],
    )


async def forgotten_since(
    tx: Transaction, moments: Sequence[tuple[UUID, datetime]]
) -> dict[int, tuple[str, datetime]]:
    """By their place among the moments of generations: the dataset, and until when replaced rows were deleted."""
    rows = await tx.rows(_SQL["forgotten_since"], [g for g, _ in moments], [at for _, at in moments])
    return {row["ord"] - 1: (row["dataset_id"], row["forgotten_until"]) for row in rows}


def _by_id(commit: LiveCommit) -> int:
    return commit.commit_id


def _live_commit(row: Any) -> LiveCommit:
    hidden = [(a, b) for a, b in row["hidden"] or ()]
    positions = (row["range_start"], row["range_end"])
    return LiveCommit(row["commit_id"], _with_rows(row["files"]), positions, hidden)


@dataclass(frozen=True, slots=True)
class WholeRead:
    """What a task saw of an input that it reads as a whole."""

    task_id: UUID
    input_index: int
    generation_id: UUID
    commit_id: int | None
    """The newest; None: there was none."""


async def record_reads(tx: Transaction, reads: Sequence[WholeRead]) -> None:
    await tx.rows(
        _SQL["record_reads"],
        [r.task_id for r in reads],
        [r.input_index for r in reads],
        [r.generation_id for r in reads],
        [r.commit_id for r in reads],
    )


def _with_rows(files: list[CommittedFile]) -> list[CommittedFile]:
    """Without empty files, which may even lack columns: then no engine can open them."""
    return [file for file in files if file["rows"]]


async def overlapping(tx: Transaction, outputs: Sequence[OutputCommit]) -> list[OutputCommit]:
    """The outputs whose scope partly overlaps that of committed rows."""
    rows = await tx.rows(
        _SQL["overlapping"],
        [o.task_id for o in outputs],
        [o.generation_id for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
    )
    return [outputs[r["ord"] - 1] for r in rows]


async def wait_for_others(tx: Transaction, generation_ids: Iterable[UUID]) -> None:
    """Commits of these generations that others have begun are visible to the next statement; no others begin."""
    await tx.rows(_SQL["wait_for_others"], sorted(generation_ids))


async def overtaken(tx: Transaction, outputs: Sequence[OutputCommit]) -> set[UUID]:
    """The tasks of outputs for whose positions others have committed since their attempts began."""
    await wait_for_others(tx, {o.generation_id for o in outputs})
    rows = await tx.rows(
        _SQL["overtaken"],
        [o.task_id for o in outputs],
        [o.generation_id for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
    )
    return {row["task_id"] for row in rows}


async def output_files(
    tx: Transaction, task_ids: Sequence[UUID]
) -> tuple[dict[tuple[UUID, int], list[CommittedFile]], dict[UUID, int]]:
    """Per task and output, the live files that overlap the task's scope; per task, the newest commit of them."""
    files: dict[tuple[UUID, int], list[CommittedFile]] = {}
    newest = dict.fromkeys(task_ids, 0)
    for row in await tx.rows(_SQL["own_files"], task_ids):
        files.setdefault((row["task_id"], row["output_index"]), []).extend(_with_rows(row["files"]))
        newest[row["task_id"]] = max(newest[row["task_id"]], row["commit_id"])
    return files, newest


async def added_since(tx: Transaction, additions: Sequence[tuple[OutputCommit, int]]) -> list[OutputCommit]:
    """Of appended outputs, each with the newest commit that its task saw: those whose scope has rows that the task did
    not see. Until the transaction ends, nobody else appends to their generations."""
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
    """Commits that were superseded before the grace period, starting after `after`."""
    at, commit_id = (after.at, after.commit_id) if after is not None else (None, 0)
    return [
        Superseded(r["commit_id"], r["task_id"], tuple(f["path"] for f in r["files"]), r["superseded_at"])
        for r in await tx.rows(_SQL["superseded"], grace, at, commit_id, limit)
    ]


async def paths(tx: Transaction, task_ids: Sequence[UUID], *, grace: timedelta | None = None) -> set[str]:
    """The files of commits of these tasks; with `grace`, without those superseded before it."""
    rows = await tx.rows(_SQL["files_of_tasks"], task_ids, grace)
    return {f["path"] for r in rows for f in r["files"]}


@dataclass(frozen=True, slots=True)
class CommitPaths:
    commit_id: int
    task_id: UUID
    paths: Sequence[str]


async def of_generations(
    tx: Transaction, generation_ids: Sequence[UUID], after: int, limit: int
) -> list[CommitPaths]:
    """Commits of generations that nobody reads."""
    rows = await tx.rows(_SQL["of_generations"], list(generation_ids), after, limit)
    return [CommitPaths(r["commit_id"], r["task_id"], [f["path"] for f in r["files"]]) for r in rows]


async def paths_elsewhere(
    tx: Transaction, task_ids: Sequence[UUID], generation_ids: Sequence[UUID], grace: timedelta
) -> set[str]:
    rows = await tx.rows(_SQL["files_elsewhere"], task_ids, list(generation_ids), grace)
    return {f["path"] for r in rows for f in r["files"]}


async def forget_of_generations(tx: Transaction, commit_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["forget_of_generations"], commit_ids)


async def forget(tx: Transaction, commit_ids: Sequence[int]) -> None:
    await tx.rows(_SQL["forget"], commit_ids)


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What readers see of a dataset."""

    dataset_id: str
    generation_id: UUID
    storage: str
    commits: int
    rows: int
    bytes: int
    cursor: int | None
    at_most: bool
    """Whether newer commits have replaced some of the counted rows."""


async def summary(tx: Transaction, org: str, names: list[str] | None = None) -> list[DatasetSummary]:
    async with tx.planned_for_its_values():
        return await tx.rows_as(DatasetSummary, _SQL["summary"], org, names)
