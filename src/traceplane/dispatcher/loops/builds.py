"""Follow-up work of new versions: creates tasks of their jobs for past scopes, cancels tasks of retired jobs, and cuts
over to a version that lacks nothing any more.

A pass is a few bounded transactions; any dispatcher may run it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.errors import ConcurrentChange
from traceplane.postgres import alert_handovers, coverage, tasks, versions
from traceplane.postgres.database import Database
from traceplane.postgres.events import notify_dispatchers
from traceplane.postgres.versions import Building
from traceplane.runtime.process import Outcome

_STARTS_OF_A_PAGE = 2_000
_SCOPES_OF_A_PASS = 2_000
_CANCELED_AT_ONCE = 5_000
_HANDOVERS_OF_A_PASS = 500


@dataclass(frozen=True, slots=True)
class Built(Outcome):
    told: int = 0
    """Tasks created for past scopes."""
    canceled: int = 0
    cut_over: int = 0


class Builds:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Built:
        created = await self._replay()
        built = await self._built()
        created += await self._catch_up()
        created += await self._settle_handovers()
        async with self._database.transaction() as tx:
            canceled = await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)
        moved = 0
        if not built:
            return Built(told=created, canceled=canceled)
        # It imports an SQL parser, which is slow: done before a cutover holds locks, and not at every start.
        from traceplane.registry.cutover import Moved, cut_over

        for version in built:
            done = await cut_over(self._database, version.org, version.dag)
            if isinstance(done, Moved):
                moved += 1
                telemetry.emit("dag.cut_over", dag=done.dag, version=done.version, before=done.before)
        return Built(told=created, canceled=canceled, cut_over=moved)

    async def _built(self) -> list[Building]:
        """Versions that may be cut over, checked without locks: the answer is "none" on all passes but the last.

        Asked before the catch-up, which may find more to compute for a version whose tasks are all done.
        """
        async with self._database.autocommit() as tx:
            return [
                version
                for version in await versions.building(tx)
                if not version.manual_cutover
                and not (await versions.missing(tx, version.dag_version_id)).anything
            ]

    async def _replay(self) -> int:
        """Creates tasks for all pending replays, one page per transaction."""
        created = 0
        while True:
            async with self._database.transaction("replay") as tx:
                replay = await versions.next_replay(tx)
                if replay is None:
                    return created
                if not replay.routed:
                    await versions.forget_replays(tx, [replay.job_id])
                    continue
                created += await versions.add_replayed_tasks(tx, replay, _STARTS_OF_A_PAGE)
                await notify_dispatchers(tx)

    async def _catch_up(self) -> int:
        """Creates tasks for scopes that no event covers: those of manual backfills, served, unfinished or dead."""
        async with self._database.autocommit() as tx:
            catch_ups = await coverage.next_catch_ups(tx)
        created = 0
        for catch_up in catch_ups:
            with contextlib.suppress(ConcurrentChange):  # its version was given up meanwhile
                async with self._database.transaction("catch_up") as tx:
                    await tasks.lock_routed_job(tx, catch_up.job_id)
                    scopes = await coverage.catch_up(tx, catch_up, _SCOPES_OF_A_PASS)
                    if scopes:
                        await notify_dispatchers(tx)
                    created += scopes
        return created

    async def _settle_handovers(self) -> int:
        """Creates tasks for alerts that another version had not come to, when all of it has arrived."""
        async with self._database.autocommit() as tx:
            if not await alert_handovers.handed_over(tx):
                return 0
        async with self._database.transaction() as tx:
            created = await alert_handovers.settle(tx, _HANDOVERS_OF_A_PASS)
            if created:
                await notify_dispatchers(tx)
            return created
