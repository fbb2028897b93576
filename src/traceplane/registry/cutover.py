"""Making another version of a DAG the one that serves, forwards or back, in one transaction.

All pointers of the DAG, its active version and the routing of its jobs move together. What such a move leaves to be
done afterwards, telling jobs of what they have missed and canceling what is no longer wanted, is written down in
the same transaction and done by the dispatcher: the move takes as long as it has pointers, however much data there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from traceplane.crash_points import crash_point
from traceplane.errors import Conflict, NotFound
from traceplane.postgres import coverage, registry, tasks, versions
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import notify_dispatchers
from traceplane.postgres.versions import Missing, Versions
from traceplane.registry import virtual_inputs

_CANCELED_AT_ONCE = 500
_WHY_NOT = {"active": "version.active", "collected": "version.collected"}


@dataclass(frozen=True, slots=True)
class Moved:
    dag: str
    version: int
    """The one that serves now."""
    before: int | None
    lacking: tuple[coverage.Lacking, ...] = ()
    """Of a rollback: the first of what readers had, and it does not hold yet."""
    given_up: int | None = None
    """Of a rollback: the version that was being built."""


async def move(tx: Transaction, dag_id: UUID, version_id: UUID) -> None:
    """Lets a version serve, in the caller's transaction."""
    followers = await versions.follow(tx, dag_id, version_id)
    await versions.point(tx, dag_id, version_id)
    crash_point("cutover.after_pointers")
    gone = await versions.unroute(tx, dag_id, version_id)
    missed = await versions.route(tx, version_id)
    elsewhere = await versions.follow_external(tx, dag_id, version_id)
    elsewhere += await virtual_inputs.follow(tx, dag_id, version_id)
    if gone:
        await registry.clear_pressure(tx, gone)
        await versions.forget_replays(tx, gone)
        await coverage.forget_catch_ups(tx, gone)
        await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)
    if missed:
        await versions.replay_inputs(tx, missed)
    await versions.add_replays(tx, [*followers, *elsewhere], everything=True)
    crash_point("cutover.after_jobs")
    if gone or missed or followers or elsewhere:
        await versions.stop_the_stream(tx)
    await notify_dispatchers(tx)


async def cut_over(database: Database, org: str, dag: str, *, drop_missing: bool = False) -> Moved | Missing:
    """Lets the version that was built serve; if it is not ready, what it lacks. It serves less than what it replaces
    only with `drop_missing`, here or at its deploy."""

    async def once() -> Moved | Missing:
        async with database.transaction("cutover") as tx:
            found = await _locked(tx, org, dag)
            version_id, number = _building(found, dag)
            await coverage.lock_serving(tx, version_id)
            lacking = await versions.missing(tx, version_id, drop=drop_missing)
            if lacking.anything:
                return lacking
            await move(tx, found.dag_id, version_id)
            await coverage.forget_catch_ups(tx, [], version_id)
            return Moved(dag, number, found.active)

    return await retry_on_conflict(once)


async def roll_back(database: Database, org: str, dag: str, *, to: int | None) -> Moved:
    """Lets an earlier version serve again, and gives up one that is being built."""

    async def once() -> Moved:
        async with database.transaction("cutover") as tx:
            found = await _locked(tx, org, dag)
            target = await versions.by_number(tx, found.dag_id, to)
            if target is None:
                raise NotFound(
                    "version.unknown",
                    "there is no such version" if to is not None else "no earlier version has served",
                    value=to if to is not None else dag,
                    next_step="see `traceplane versions`",
                )
            if target.state != "retired":
                raise Conflict(
                    _WHY_NOT.get(target.state, "version.never_served"),
                    f"version {target.number} is {target.state}",
                    value=target.number,
                    next_step="choose one that was active before; see `traceplane versions`",
                )
            if found.building_id is not None:
                await _give_up(tx, found.building_id)
            lacking = await coverage.lacking(tx, target.dag_version_id)
            await coverage.add_catch_ups(tx, target.dag_version_id)
            await move(tx, found.dag_id, target.dag_version_id)
            return Moved(dag, target.number, found.active, lacking, found.building)

    return await retry_on_conflict(once)


async def abort(database: Database, org: str, dag: str) -> int:
    """Gives up the version that is being built; its number."""

    async def once() -> int:
        async with database.transaction("cutover") as tx:
            found = await _locked(tx, org, dag)
            version_id, number = _building(found, dag)
            await _give_up(tx, version_id)
            await notify_dispatchers(tx)
            return number

    return await retry_on_conflict(once)


def _building(found: Versions, dag: str) -> tuple[UUID, int]:
    """Id and number of the version that is being built."""
    if found.building_id is None or found.building is None:
        raise Conflict(
            "deploy.not_building",
            "no version of the DAG is being built",
            value=dag,
            next_step="deploy a change first",
        )
    return found.building_id, found.building


async def _give_up(tx: Transaction, version_id: UUID) -> None:
    gone = await versions.abort(tx, version_id)
    await registry.clear_pressure(tx, gone)
    await versions.forget_replays(tx, gone)
    await coverage.forget_catch_ups(tx, gone)
    await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)


async def _locked(tx: Transaction, org: str, dag: str) -> Versions:
    found = await versions.lock(tx, org, dag)
    if found is None or (found.active is None and found.building is None):
        raise NotFound("dag.unknown", "there is no such DAG", value=dag, next_step="see `traceplane dags`")
    return found
