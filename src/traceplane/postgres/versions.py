"""Versions of DAGs, and replays of the past. `registry.cutover` decides; these functions only read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from traceplane.operators import catalog
from traceplane.postgres import coverage
from traceplane.postgres.coverage import Lacking
from traceplane.postgres.database import Transaction, statements

_SQL = statements("versions")

VersionState = Literal["building", "active", "retired", "aborted", "collected"]


@dataclass(frozen=True, slots=True)
class Versions:
    """The state of a DAG, locked for this transaction."""

    dag_id: UUID
    active: int | None
    building_id: UUID | None
    building: int | None

    @property
    def being_built(self) -> Version | None:
        if self.building_id is None or self.building is None:
            return None
        return Version(self.building_id, self.building, "building")


@dataclass(frozen=True, slots=True)
class Version:
    dag_version_id: UUID
    number: int
    state: VersionState


@dataclass(frozen=True, slots=True)
class Building:
    """A version that is being built."""

    org: str
    dag: str
    dag_version_id: UUID
    manual_cutover: bool


@dataclass(frozen=True, slots=True)
class ListedVersion:
    number: int
    state: VersionState
    manual_cutover: bool
    created_at: datetime
    activated_at: datetime | None
    dag_version_id: UUID


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Scopes of a dataset that is rebuilt: those that serve, and how many of them are built."""

    dataset_id: str
    built: int
    serving: int


@dataclass(frozen=True, slots=True)
class Replay:
    job_id: UUID
    generation_id: UUID
    everything: bool
    told_through: int | None
    routed: bool


@dataclass(frozen=True, slots=True)
class SourceBehind:
    """A source that has yet to emit what the serving one did, from this position on."""

    job: str
    dataset_id: str
    position: int


@dataclass(frozen=True, slots=True)
class Missing:
    """What a version that is being built still lacks, compared with what serves."""

    replays: int
    unfinished: int
    """Tasks, counted up to a thousand."""
    dead: int
    sources_behind: tuple[SourceBehind, ...]
    positions: tuple[Lacking, ...] = ()
    """The first positions that readers have and would lose."""

    @property
    def anything(self) -> bool:
        return bool(self.replays or self.unfinished or self.dead or self.sources_behind or self.positions)


async def lock(tx: Transaction, org: str, dag: str) -> Versions | None:
    return await tx.row_as(Versions, _SQL["lock"], org, dag)


async def by_number(tx: Transaction, dag_id: UUID, number: int | None) -> Version | None:
    """One version of a DAG; without a number, the one that served before the current one."""
    return await tx.row_as(Version, _SQL["by_number"], dag_id, number)


async def building(tx: Transaction) -> list[Building]:
    return await tx.rows_as(Building, _SQL["building"])


async def missing(tx: Transaction, version_id: UUID, *, drop: bool = False) -> Missing:
    """`drop`: ignore what readers would lose, dead tasks, and sources that are behind: these may never change."""
    row = await tx.row(_SQL["missing"], version_id)
    assert row is not None
    if drop:
        return Missing(row["replays"], row["unfinished"], dead=0, sources_behind=())
    behind = await tx.rows_as(SourceBehind, _SQL["sources_behind"], version_id)
    # A version that was deployed with `drop_missing` is not to serve before its sources have caught up.
    positions = () if row["drop_missing"] else await coverage.lacking(tx, version_id)
    return Missing(row["replays"], row["unfinished"], row["dead"], tuple(behind), positions)


async def replaces(tx: Transaction, version_id: UUID) -> bool:
    """Whether a serving dataset would get another generation."""
    return bool(await tx.value(_SQL["replaces"], version_id))


# The past ------------------------------------------------------------------------------------------


async def stop_the_stream(tx: Transaction) -> None:
    """Until this transaction ends, no events are accepted, and all accepted ones are visible: later events are routed
    to the jobs as they are then, and earlier ones can be replayed."""
    await tx.rows("lock table events in share row exclusive mode")


async def add_replays(
    tx: Transaction, pairs: Sequence[tuple[UUID, UUID]], *, everything: bool = False
) -> None:
    """`pairs`: jobs, and the generations whose past events they receive."""
    if pairs:
        await tx.rows(_SQL["add_replays"], [j for j, _ in pairs], [g for _, g in pairs], everything)


async def replay_inputs(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Makes jobs receive the events that they missed from everything they read."""
    await tx.rows(_SQL["replay_inputs"], list(job_ids))


async def next_replay(tx: Transaction) -> Replay | None:
    return await tx.row_as(Replay, _SQL["replays"])


async def add_replayed_tasks(tx: Transaction, replay: Replay, limit: int) -> int:
    """Creates tasks for a page of a replay, and stores how far it is; returns the number of tasks."""
    has_commits = await tx.value(_SQL["has_commits"], replay.generation_id)
    page = await tx.row(
        _SQL["replay"],
        replay.job_id,
        replay.generation_id,
        replay.told_through,
        limit,
        has_commits,
        replay.everything,
    )
    assert page is not None
    done = page["starts"] < limit
    await tx.rows(_SQL["advance_replay"], replay.job_id, replay.generation_id, page["last"], done)
    return int(page["tasks"])


async def forget_replays(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["forget_replays"], list(job_ids))


# Moving pointers -----------------------------------------------------------------------------------


async def point(tx: Transaction, dag_id: UUID, version_id: UUID) -> None:
    await tx.rows(_SQL["point"], dag_id, version_id)
    await tx.rows(_SQL["activate"], version_id)


async def unroute(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[UUID]:
    return [r["job_id"] for r in await tx.rows(_SQL["unroute"], dag_id, version_id)]


async def route(tx: Transaction, version_id: UUID) -> list[UUID]:
    """Makes the version's jobs serve; returns those that have missed events."""
    return [r["job_id"] for r in await tx.rows(_SQL["route"], version_id)]


async def follow(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[tuple[UUID, UUID]]:
    """Readers in other DAGs, with the generations that they read from now on."""
    rows = await tx.rows(_SQL["follow"], dag_id, version_id, catalog.running_once())
    return [(r["job_id"], r["generation_id"]) for r in rows]


async def follow_external(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[tuple[UUID, UUID]]:
    rows = await tx.rows(_SQL["follow_external"], dag_id, version_id)
    return [(r["job_id"], r["generation_id"]) for r in rows]


async def abort(tx: Transaction, version_id: UUID) -> list[UUID]:
    """The jobs that were building."""
    await tx.rows(_SQL["abort"], version_id)
    return [r["job_id"] for r in await tx.rows(_SQL["stop_building"], version_id)]


async def delete(tx: Transaction, dag_id: UUID) -> list[UUID]:
    """Makes all versions of a DAG stop serving; returns the jobs that did."""
    return [r["job_id"] for r in await tx.rows(_SQL["delete"], dag_id)]


# Letting go ----------------------------------------------------------------------------------------


async def expire_results(tx: Transaction, age: timedelta) -> int:
    """Expires older query results; returns their number."""
    return len(await tx.rows(_SQL["expire_results"], age, catalog.running_once()))


async def old(tx: Transaction, grace: timedelta, keep: int) -> list[UUID]:
    """Versions that are no longer needed; `keep` of those that served are kept."""
    return [r["dag_version_id"] for r in await tx.rows(_SQL["old"], grace, keep)]


async def give_up(tx: Transaction, version_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["give_up"], list(version_ids))


async def forgotten_generations(tx: Transaction, version_ids: Sequence[UUID]) -> dict[UUID, bool]:
    """Generations that only these versions, and those given up before, use; and whether they are hot."""
    rows = await tx.rows(_SQL["forgotten_generations"], list(version_ids))
    return {r["generation_id"]: r["hot"] for r in rows}


# Looking -------------------------------------------------------------------------------------------


async def listing(tx: Transaction, org: str, dag: str, limit: int) -> list[ListedVersion]:
    return await tx.rows_as(ListedVersion, _SQL["list"], org, dag, limit)


async def progress(tx: Transaction, version_id: UUID) -> list[BuildProgress]:
    return await tx.rows_as(BuildProgress, _SQL["progress"], version_id)


@dataclass(frozen=True, slots=True)
class Weight:
    """What a dataset holds."""

    dataset_id: str
    scopes: int
    rows: int
    bytes: int
    events: int
    """Those that a source has emitted."""


async def weight(tx: Transaction, org: str, dataset_ids: Sequence[str]) -> list[Weight]:
    return await tx.rows_as(Weight, _SQL["weight"], org, list(dataset_ids))


async def left_out(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[str]:
    """The served datasets of a DAG that a version does not have."""
    return [r["dataset_id"] for r in await tx.rows(_SQL["left_out"], dag_id, version_id)]


@dataclass(frozen=True, slots=True)
class DatasetReader:
    """A job of another DAG that reads a dataset."""

    dataset_id: str
    dag: str
    job: str
    by_scope: bool
    """Whether the scopes of the dataset say which scopes the job has."""


async def readers_elsewhere(tx: Transaction, org: str, dataset_ids: Sequence[str]) -> list[DatasetReader]:
    return await tx.rows_as(
        DatasetReader, _SQL["readers_elsewhere"], org, list(dataset_ids), catalog.running_once()
    )
