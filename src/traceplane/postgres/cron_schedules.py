"""Cron sources in the database: which are due, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from traceplane.model.dag import Source
from traceplane.model.partitions import Partitions
from traceplane.postgres.database import Transaction, statements

_SQL = statements("cron_schedules")


@dataclass(frozen=True, slots=True)
class TickOutput:
    """A dataset that a source emits events of."""

    dataset_id: str
    generation_id: UUID
    voice: UUID
    """The first source of the generation, in whose name its events are emitted."""
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class DueSource:
    job_id: UUID
    source: Source
    settled_through: datetime
    now: datetime
    org: str
    dag: str
    job: str
    outputs: list[TickOutput]


@dataclass(frozen=True, slots=True)
class Settled:
    """How far a source has come."""

    job_id: UUID
    settled_through: datetime
    next_tick: datetime | None
    due_at: datetime | None
    last_tick: datetime | None
    """The last one that fired now, if any did."""


async def lock(tx: Transaction, dag_id: UUID) -> None:
    """No tick of the DAG fires until the transaction ends."""
    await tx.rows(_SQL["lock"], dag_id)


async def follow(tx: Transaction, dag_id: UUID, version_id: UUID) -> None:
    """The schedules of a version that begins to serve replace those of the one before."""
    await tx.rows(_SQL["follow"], dag_id, version_id)


async def forget(tx: Transaction, dag_id: UUID) -> None:
    await tx.rows(_SQL["forget"], dag_id)


async def take(tx: Transaction, limit: int) -> list[DueSource]:
    """Sources that are due, locked for this transaction; those that another dispatcher holds are left out."""
    return [msgspec.convert(dict(row), DueSource) for row in await tx.rows(_SQL["take"], limit)]


async def settle(tx: Transaction, settled: Sequence[Settled]) -> None:
    await tx.rows(
        _SQL["settle"],
        [s.job_id for s in settled],
        [s.settled_through for s in settled],
        [s.next_tick for s in settled],
        [s.due_at for s in settled],
        [s.last_tick for s in settled],
    )


@dataclass(frozen=True, slots=True)
class ServingSource:
    dag: str
    job: str
    source: Source
    next_tick: datetime | None
    """None: there is none, or the source is paused."""
    last_tick: datetime | None
    paused: bool


async def of_org(tx: Transaction, org: str, dataset_id: str | None = None) -> list[ServingSource]:
    """Of all datasets, or of one."""
    rows = await tx.rows(_SQL["of_org"], org, dataset_id)
    return [msgspec.convert(dict(row), ServingSource) for row in rows]


async def clock(tx: Transaction) -> datetime:
    now: datetime = await tx.value(_SQL["clock"])
    return now
