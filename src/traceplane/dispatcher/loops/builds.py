"""What moves of versions leave to be done: jobs get tasks for the past, unwanted tasks are canceled, and a version
that lacks nothing any more is made the one that serves.

Each pass is a few bounded transactions; any dispatcher may do it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.errors import ConcurrentChange
from traceplane.postgres import coverage, tasks, versions
from traceplane.postgres.database import Database
from traceplane.postgres.events import notify_dispatchers
from traceplane.runtime.process import Outcome

_STARTS_OF_A_PAGE = 2_000
_SCOPES_OF_A_PASS = 2_000
_CANCELED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Built(Outcome):
    told: int = 0
    """Tasks for scopes of the past."""
    canceled: int = 0
    cut_over: int = 0


class Builds:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Built:
        told = await self._tell() + await self._catch_up()
        async with self._database.transaction() as tx:
            canceled = await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)
        moved = 0
        async with self._database.glance() as tx:
            waiting = await versions.building(tx)
        if not waiting:
            return Built(told=told, canceled=canceled)
        # With a parser of SQL, which takes long to import: before a cutover holds locks, and not at every start.
        from traceplane.registry.cutover import Moved, cut_over

        for version in waiting:
            if version["manual_cutover"]:
                continue
            # A look without locks first: it is asked often, and answered "not yet" until the last time.
            async with self._database.glance() as tx:
                if (await versions.missing(tx, version["dag_version_id"])).anything:
                    continue
            done = await cut_over(self._database, version["org"], version["dag"])
            if isinstance(done, Moved):
                moved += 1
                telemetry.emit("dag.cut_over", dag=done.dag, version=done.version, before=done.before)
        return Built(told=told, canceled=canceled, cut_over=moved)

    async def _tell(self) -> int:
        """All that is to be told, a page per transaction."""
        told = 0
        while True:
            async with self._database.transaction("replay") as tx:
                replay = await versions.next_replay(tx)
                if replay is None:
                    return told
                if not replay.routed:
                    await versions.forget_replays(tx, [replay.job_id])
                    continue
                told += await versions.replay(tx, replay, _STARTS_OF_A_PAGE)
                await notify_dispatchers(tx)

    async def _catch_up(self) -> int:
        """What is served, and no event tells a new job of: work that was asked for by hand."""
        async with self._database.glance() as tx:
            waiting = await coverage.next_catch_ups(tx)
        made = 0
        for found in waiting:
            with contextlib.suppress(ConcurrentChange):  # it was given up meanwhile
                async with self._database.transaction("catch_up") as tx:
                    await tasks.lock_routed_job(tx, found.job_id)
                    scopes = await coverage.catch_up(tx, found, _SCOPES_OF_A_PASS)
                    if scopes:
                        await notify_dispatchers(tx)
                    made += scopes
        return made
