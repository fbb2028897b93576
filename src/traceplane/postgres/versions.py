"""Versions of DAGs, and replays of the past. `registry.cutover` decides; these functions only read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from traceplane.postgres import coverage
from traceplane.postgres.coverage import Lacking
from traceplane.postgres.database import Transaction, statements

_SQL = statements("versions")


@dataclass(frozen=True, slots=True)
class Versions:
    """Where a DAG stands, locked for this transaction."""

    dag_id: UUID
    active_id: UUID | None
    active: int | None
    building_id: UUID | None
    building: int | None


@dataclass(frozen=True, slots=True)
class Replay:
    job_id: UUID
    generation_id: UUID
    everything: bool
    told_through: int | None
    routed: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """What a version that is being built lacks of what serves."""

    replays: int
    unfinished: int
    """Tasks, counted up to a thousand."""
    dead: int
    sources_behind: int
    positions: tuple[Lacking, ...] = ()
    """The first of what readers have and would lose."""

    @property
    def anything(self) -> bool:
        return bool(self.replays or self.unfinished or self.dead or self.sources_behind or self.positions)


async def lock(tx: Transaction, org: str, dag: str) -> Versions | None:
    row = await tx.row(_SQL["lock"], org, dag)
    if row is None:
        return None
    return Versions(
        row["dag_id"], row["active_version_id"], row["active"], row["building_id"], row["building"]
    )


async def by_number(tx: Transaction, dag_id: UUID, number: int | None) -> dict[str, Any] | None:
    row = await tx.row(_SQL["by_number"], dag_id, number)
    return dict(row) if row is not None else None


async def building(tx: Transaction) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["building"])]


async def missing(tx: Transaction, version_id: UUID, *, drop: bool = False) -> Missing:
    """`drop`: what readers would lose does not count."""
    row = await tx.row(_SQL["missing"], version_id)
    assert row is not None
    positions = () if drop or row["drop_missing"] else await coverage.lacking(tx, version_id)
    return Missing(row["replays"], row["unfinished"], row["dead"], row["sources_behind"], positions)


async def replaces(tx: Transaction, version_id: UUID) -> bool:
    """Whether a dataset that serves would get another generation."""
    return bool(await tx.value(_SQL["replaces"], version_id))


# The past ------------------------------------------------------------------------------------------


async def stop_the_stream(tx: Transaction) -> None:
    """Until this transaction ends nobody accepts events, and all that were accepted are visible: what comes after
    it finds the jobs as they are then, and what came before can be replayed."""
    await tx.rows("lock table events in share row exclusive mode")


async def add_replays(
    tx: Transaction, wanted: Iterable[tuple[UUID, UUID]], *, everything: bool = False
) -> None:
    """`wanted`: jobs and the generations whose past they are to be told."""
    pairs = list(wanted)
    if pairs:
        await tx.rows(_SQL["add_replays"], [j for j, _ in pairs], [g for _, g in pairs], everything)


async def replay_inputs(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Jobs are to be told what they have missed of all that they read."""
    await tx.rows(_SQL["replay_inputs"], list(job_ids))


async def next_replay(tx: Transaction) -> Replay | None:
    row = await tx.row(_SQL["replays"])
    return Replay(**dict(row)) if row is not None else None


async def replay(tx: Transaction, told: Replay, limit: int) -> int:
    """Makes tasks for a page of a replay, and remembers how far it is; the number of tasks."""
    has_commits = await tx.value(_SQL["has_commits"], told.generation_id)
    page = await tx.row(
        _SQL["replay"],
        told.job_id,
        told.generation_id,
        told.told_through,
        limit,
        has_commits,
        told.everything,
    )
    assert page is not None
    done = page["starts"] < limit
    await tx.rows(_SQL["advance_replay"], told.job_id, told.generation_id, page["last"], done)
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
    """Lets the version's jobs serve; those that have missed events."""
    return [r["job_id"] for r in await tx.rows(_SQL["route"], version_id)]


async def follow(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[tuple[UUID, UUID]]:
    """Readers in other DAGs, with the generations that they read from now on."""
    rows = await tx.rows(_SQL["follow"], dag_id, version_id)
    return [(r["job_id"], r["generation_id"]) for r in rows]


async def follow_external(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[tuple[UUID, UUID]]:
    rows = await tx.rows(_SQL["follow_external"], dag_id, version_id)
    return [(r["job_id"], r["generation_id"]) for r in rows]


async def abort(tx: Transaction, version_id: UUID) -> list[UUID]:
    """The jobs that were building."""
    await tx.rows(_SQL["abort"], version_id)
    return [r["job_id"] for r in await tx.rows(_SQL["stop_building"], version_id)]


async def delete(tx: Transaction, dag_id: UUID) -> list[UUID]:
    """Lets no version of a DAG serve any more; the jobs that did."""
    return [r["job_id"] for r in await tx.rows(_SQL["delete"], dag_id)]


# Letting go ----------------------------------------------------------------------------------------


async def expire_results(tx: Transaction, age: timedelta) -> int:
    """Lets go of results of queries that are older; how many."""
    return len(await tx.rows(_SQL["expire_results"], age))


async def old(tx: Transaction, grace: timedelta, keep: int) -> list[dict[str, Any]]:
    """Versions that nobody can want any more; `keep` of those that served stay."""
    return [dict(r) for r in await tx.rows(_SQL["old"], grace, keep)]


async def give_up(tx: Transaction, version_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["give_up"], list(version_ids))


async def forgotten_generations(tx: Transaction, version_ids: Sequence[UUID]) -> dict[UUID, bool]:
    """Generations that only these versions, and those given up before, have; and whether they are hot."""
    rows = await tx.rows(_SQL["forgotten_generations"], list(version_ids))
    return {r["generation_id"]: r["hot"] for r in rows}


# Looking -------------------------------------------------------------------------------------------


async def listing(tx: Transaction, org: str, dag: str, limit: int) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["list"], org, dag, limit)]


async def progress(tx: Transaction, version_id: UUID) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["progress"], version_id)]


async def weight(tx: Transaction, org: str, dataset_ids: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["weight"], org, list(dataset_ids))]


async def readers_elsewhere(tx: Transaction, org: str, dataset_ids: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["readers_elsewhere"], org, list(dataset_ids))]
