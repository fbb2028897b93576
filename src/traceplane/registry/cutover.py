"""Switches a DAG to another version, forwards or back, in one transaction.

All pointers of the DAG, its active version and the routing of its jobs move together. The follow-up work (replaying
events that jobs missed, canceling tasks that are no longer needed) is recorded in the same transaction and done by the
dispatcher. So the time of a move depends on the number of pointers, not on the amount of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.crash_points import crash_point
from traceplane.errors import Conflict, NotFound
from traceplane.model.near_names import nearest
from traceplane.operators.alerting import ROUTE
from traceplane.postgres import (
    aggregator,
    alert_handovers,
    coverage,
    cron_schedules,
    dataset_retention,
    registry,
    tasks,
    versions,
)
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import notify_dispatchers
from traceplane.postgres.versions import Missing, Version, Versions
from traceplane.registry import virtual_inputs
from traceplane.registry.consequences import amount, is_of_alert

_CANCELED_AT_ONCE = 500
_NAMED = 5
_WHY_NOT = {"active": "version.active", "collected": "version.collected"}


@dataclass(frozen=True, slots=True)
class Moved:
    dag: str
    version: int
    """The version that serves now."""
    before: int | None
    lacking: tuple[coverage.Lacking, ...] = ()
    """Of a rollback: the first scopes that readers had and this version does not hold yet."""
    given_up: int | None = None
    """Of a rollback: the version that was being built and was given up."""


async def move(tx: Transaction, dag_id: UUID, version_id: UUID) -> None:
    """Makes a version serve, in the caller's transaction."""
    await cron_schedules.lock(tx, dag_id)  # before anything that a tick waits for
    await dataset_retention.drop_again(tx, version_id)
    followers = await versions.follow(tx, dag_id, version_id)
    await versions.point(tx, dag_id, version_id)
    crash_point("cutover.after_pointers")
    retired_jobs = await versions.unroute(tx, dag_id, version_id)
    await aggregator.cut_anew(tx, version_id)
    missed_inputs = await versions.route(tx, version_id)
    await cron_schedules.follow(tx, dag_id, version_id)
    elsewhere = await versions.follow_external(tx, dag_id, version_id)
    elsewhere += await virtual_inputs.follow(tx, dag_id, version_id)
    if retired_jobs:
        await registry.clear_pressure(tx, retired_jobs)
        await versions.forget_replays(tx, retired_jobs)
        await coverage.forget_catch_ups(tx, retired_jobs)
    if missed_inputs:
        await versions.replay_inputs(tx, missed_inputs)
    await alert_handovers.release(tx, dag_id, ROUTE)
    await versions.add_replays(tx, [*followers, *elsewhere], everything=True)
    crash_point("cutover.after_jobs")
    if retired_jobs or missed_inputs or followers or elsewhere:
        await versions.stop_the_stream(tx)
    if retired_jobs:
        # Only now is everything visible that they had been given.
        await alert_handovers.hand_over(tx, retired_jobs, ROUTE)
        await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)
    await notify_dispatchers(tx)


async def cut_over(database: Database, org: str, dag: str, *, drop_missing: bool = False) -> Moved | Missing:
    """Makes the version that was built serve; if it is not ready, returns what is missing. Only with `drop_missing`,
    here or at its deploy, may it hold less data than the one it replaces."""

    async def once() -> Moved | Missing:
        async with database.transaction("cutover") as tx:
            locked = await lock(tx, org, dag)
            version_id, number = _building(locked, dag)
            await coverage.lock_serving(tx, version_id)
            missing = await versions.missing(tx, version_id, drop=drop_missing)
            if missing.anything:
                return missing
            await move(tx, locked.dag_id, version_id)
            await coverage.forget_catch_ups(tx, [], version_id)
            return Moved(dag, number, locked.active)

    return await retry_on_conflict(once)


async def roll_back(
    database: Database, org: str, dag: str, *, to: int | None, drop_missing: bool = False
) -> Moved:
    """Makes an earlier version serve again, and gives up one that is being built. Only with `drop_missing` may it hold
    less data than the one it replaces."""

    async def once() -> Moved:
        async with database.transaction("cutover") as tx:
            locked = await lock(tx, org, dag)
            target = await versions.by_number(tx, locked.dag_id, to)
            if target is None:
                raise NotFound(
                    "version.unknown",
                    "there is no such version" if to is not None else "no earlier version has served",
                    value=to if to is not None else dag,
                    next_step=f"see `traceplane versions {dag}`",
                )
            if target.state != "retired":
                raise Conflict(
                    _WHY_NOT.get(target.state, "version.never_served"),
                    f"version {target.number} is {target.state}",
                    value=target.number,
                    next_step=f"choose one that was active before; see `traceplane versions {dag}`",
                )
            if not drop_missing:
                await coverage.lock_serving(tx, target.dag_version_id)
            missing = await coverage.lacking(tx, target.dag_version_id)
            if not drop_missing:
                await _refuse_to_drop(tx, org, locked.dag_id, target, missing)
            if locked.building_id is not None:
                await give_up(tx, locked.building_id)
            await coverage.add_catch_ups(tx, target.dag_version_id)
            await move(tx, locked.dag_id, target.dag_version_id)
            return Moved(dag, target.number, locked.active, missing, locked.building)

    return await retry_on_conflict(once)


async def _refuse_to_drop(
    tx: Transaction, org: str, dag_id: UUID, target: Version, missing: Sequence[coverage.Lacking]
) -> None:
    """Raises Conflict if readers have data that the version lacks."""
    lost = [f"{p.dataset_id} {p.scope}" for p in missing]
    left_out = await versions.left_out(tx, dag_id, target.dag_version_id)
    weights = await versions.weight(tx, org, left_out) if left_out else []
    lost += [
        amount(weight)
        for weight in weights
        if (weight.scopes or weight.events) and not is_of_alert(weight.dataset_id)
    ]
    if lost:
        raise Conflict(
            "rollback.drops_data",
            f"version {target.number} lacks data that readers have: {'; '.join(lost[:_NAMED])}"
            + ("; …" if len(lost) > _NAMED else ""),
            value=target.number,
            next_step="roll back with --drop-missing to serve without it; its jobs compute what they can of it",
        )


async def abort(database: Database, org: str, dag: str) -> int:
    """Gives up the version that is being built, and returns its number."""

    async def once() -> int:
        async with database.transaction("cutover") as tx:
            locked = await lock(tx, org, dag)
            version_id, number = _building(locked, dag)
            await give_up(tx, version_id)
            await notify_dispatchers(tx)
            return number

    return await retry_on_conflict(once)


def _building(locked: Versions, dag: str) -> tuple[UUID, int]:
    """Id and number of the version that is being built."""
    if (building := locked.being_built) is None:
        raise Conflict(
            "deploy.not_building",
            "no version of the DAG is being built",
            value=dag,
            next_step="deploy a change first",
        )
    return building.dag_version_id, building.number


async def give_up(tx: Transaction, version_id: UUID) -> None:
    """Aborts a version that is being built, in the caller's transaction."""
    retired_jobs = await versions.abort(tx, version_id)
    await registry.clear_pressure(tx, retired_jobs)
    await versions.forget_replays(tx, retired_jobs)
    await coverage.forget_catch_ups(tx, retired_jobs)
    await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)


async def lock(tx: Transaction, org: str, dag: str) -> Versions:
    """The versions of a DAG that is deployed."""
    locked = await versions.lock(tx, org, dag)
    if locked is None or (locked.active is None and locked.building is None):
        others = [name for name in await registry.job_names(tx, org) if name != dag]
        step = nearest(dag, others) or "see `traceplane dags`"
        raise NotFound("dag.unknown", "there is no such DAG", value=dag, next_step=step)
    return locked
