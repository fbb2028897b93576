"""File sources in the database: which are due, the files that were there, and the partitions that have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import msgspec

from traceplane.file_sources.config import FilesConfig
from traceplane.model.partitions import Partitions
from traceplane.postgres import commits, coverage, hot_tables
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("source_files")


@dataclass(frozen=True, slots=True)
class FileSource:
    """A source that this pass lists, and nobody else."""

    job_id: UUID
    org: str
    dag: str
    job: str
    """As its DAG file names it."""
    config: FilesConfig
    dataset_id: str
    generation_id: UUID
    partitions: Partitions
    voice: UUID
    """In whose name its events are emitted."""
    started_at: datetime
    """When this pass began, by the database's clock."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    path: str
    bytes: int
    version: str
    modified_at: datetime
    position: int | None
    refusal: str | None
    """Why it belongs to no partition."""


async def take(tx: Transaction, holder: UUID, held_for: timedelta, limit: int) -> list[FileSource]:
    return [
        FileSource(
            **{
                **row,
                "config": msgspec.convert(row["config"], FilesConfig),
                "partitions": partitions_of(row["partitions"]),
            }
        )
        for row in await tx.rows(_SQL["take"], holder, held_for, limit)
    ]


async def hold(tx: Transaction, job_id: UUID, holder: UUID, held_for: timedelta) -> bool:
    """False: another pass has the source now, or it is no longer deployed."""
    return bool(await tx.rows(_SQL["hold"], job_id, holder, held_for))


async def see(tx: Transaction, generation_id: UUID, files: Sequence[SeenFile]) -> int:
    """How many of them are new or have changed."""
    new: int = await tx.value(
        _SQL["see"],
        generation_id,
        [f.path for f in files],
        [f.bytes for f in files],
        [f.version for f in files],
        [f.modified_at for f in files],
        [f.position for f in files],
        [f.refusal for f in files],
    )
    return new


async def drop_unlisted(tx: Transaction, source: FileSource) -> None:
    """After a complete listing: what waits to be announced must have been in it."""
    await tx.rows(_SQL["drop_unlisted"], source.generation_id, source.started_at)


async def changed(tx: Transaction, source: FileSource, limit: int) -> list[int]:
    """Partitions to announce, in order. Where files take time to be written, a listing that began later must have
    found them as they were."""
    settle = source.config.settle_seconds
    before = source.started_at - timedelta(seconds=settle) if settle else await tx.value(_SQL["clock"])
    return [row["position"] for row in await tx.rows(_SQL["changed"], source.generation_id, before, limit)]


@dataclass(frozen=True, slots=True)
class Announced:
    position: int
    partition: str
    rewritten: bool
    """Whether readers saw other files of it before."""


async def announce(tx: Transaction, source: FileSource, names: Mapping[int, str]) -> list[Announced]:
    """Shows readers the files of these partitions as they are, in place of what they saw; by position, their names."""
    generation_id, positions = source.generation_id, sorted(names)
    # As commits of tasks do: the table first, then the cursors.
    await hot_tables.lock(tx, [generation_id])
    before = await hot_tables.states(tx, [(generation_id, p, p) for p in positions])
    await tx.rows(_SQL["announce"], generation_id, positions)
    await hot_tables.replace_files(tx, generation_id, positions, [names[p] for p in positions])
    sizes = {row["position"]: row for row in await tx.rows(_SQL["sizes"], generation_id, positions)}
    outputs = [
        OutputCommit(
            task_id=uuid4(),
            output_index=0,
            generation_id=generation_id,
            partition_key=names[position] if source.partitions.is_named else None,
            start=position,
            end=position,
            files=(),
            row_count=sizes[position]["files"],
            bytes=sizes[position]["bytes"],
            schema_hash="",
        )
        for position in positions
    ]
    await commits.record(tx, outputs)
    await coverage.add(tx, [], outputs)
    return [
        Announced(position, names[position], bool(state))
        for position, state in zip(positions, before, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class PassEnd:
    matched: int | None = None
    ignored: int | None = None
    problem: str | None = None


async def settle(tx: Transaction, source: FileSource, holder: UUID, end: PassEnd) -> None:
    await tx.rows(
        _SQL["settle"],
        source.job_id,
        holder,
        end.problem,
        source.generation_id,
        timedelta(seconds=source.config.every_seconds),
        timedelta(seconds=max(1.0, source.config.settle_seconds)),
        end.matched,
        end.ignored,
    )


async def forget(tx: Transaction, generation_id: UUID) -> None:
    await tx.rows(_SQL["forget"], generation_id)


@dataclass(frozen=True, slots=True)
class RefusedFiles:
    code: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class ServingFileSource:
    dag: str
    job: str
    dataset_id: str
    config: FilesConfig
    listed_at: datetime | None
    due_at: datetime | None
    problem: str | None
    matched: int
    ignored: int
    waiting: int
    """Files that have changed and are not announced yet."""
    refusals: list[RefusedFiles]


async def of_org(tx: Transaction, org: str) -> list[ServingFileSource]:
    return [msgspec.convert(dict(row), ServingFileSource) for row in await tx.rows(_SQL["of_org"], org)]
