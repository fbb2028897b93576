"""When queued tasks are dispatched: what wakes the valve and the relay, and what a pass does.

Checking the queue costs a statement, and calls that free a slot come by the thousand. So a freed slot wakes the valve
only if, as far as this process knows, tasks are waiting. Any process that queues a task notifies every dispatcher.
"""

from __future__ import annotations

import asyncio

from traceplane.dispatcher.in_process.jobs import InProcess
from traceplane.dispatcher.loops.backpressure import Backpressure, Held
from traceplane.dispatcher.loops.valve import Metered, Valve
from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Activity


class Scheduler:
    """`work` is set when `meter` has something to do, `relay_work` when the outbox has."""

    def __init__(self, database: Database, activity: Activity) -> None:
        self.work = asyncio.Event()
        self.relay_work = asyncio.Event()
        self.in_process = InProcess(database, work_created=self.work_created)
        self.valve = Valve(database)
        self.backpressure = Backpressure(database)
        self._database = database
        self._activity = activity
        self._tasks_wait = True  # until a pass finds the queue empty

    def work_created(self) -> None:
        self._tasks_wait = True
        self.work.set()
        self.relay_work.set()
        self._activity.seen()

    def slot_freed(self) -> None:
        self._activity.seen()
        if self._tasks_wait:
            self.work.set()

    async def meter(self) -> Metered:
        """One pass over the queue: the dispatcher's own jobs, then the valve."""
        self._tasks_wait = False  # before the pass: tasks that arrive during it set it again
        async with self._database.autocommit() as tx:
            waiting = await tasks.waiting_kinds(tx)
        self._tasks_wait = self._tasks_wait or bool(waiting)
        if True in waiting and (await self.in_process.run_once()).more:
            self.work.set()
        metered = await self.valve.run_once() if False in waiting else Metered()
        if metered.dispatched:
            self.relay_work.set()
        return metered

    async def hold(self) -> Held:
        """Recomputes which producers are held."""
        held = await self.backpressure.run_once()
        if held.released or held.changed:
            self.work.set()
        return held
