"""Sends outbox rows to the wake queue of their runtime, or to its invoker, at least once.

The rows stay locked while they are sent and are deleted in the same transaction, so if a relay dies after
sending, another one sends them again; claims make the duplicates harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from traceplane import telemetry
from traceplane.adapters.wake_queue import WakeQueue
from traceplane.adapters.wake_queue_postgres import PostgresWakeQueue
from traceplane.crash_points import crash_point
from traceplane.errors import TraceplaneError
from traceplane.model.runtimes import Driver, Runtime
from traceplane.postgres import outbox
from traceplane.postgres.database import Database
from traceplane.postgres.outbox import OutboxRow
from traceplane.runtime.process import Outcome

_ROWS = 200


@dataclass(frozen=True, slots=True)
class Relayed(Outcome):
    sent: int = 0
    postponed: int = 0
    more: bool = False


class OutboxRelay:
    """With `local`, wake-ups of queue runtimes move within the database; the rest are sent from here. `invoke` takes
    over tasks of `invoke` runtimes."""

    def __init__(
        self,
        database: Database,
        wake_queue: WakeQueue,
        runtimes: Mapping[str, Runtime],
        invoke: Callable[[Runtime, tuple[UUID, ...]], None],
        *,
        local: PostgresWakeQueue | None = None,
    ) -> None:
        self._database = database
        self._wake_queue = wake_queue
        self._runtimes = runtimes
        self._invoke = invoke
        self._local = local
        self._local_queues = {
            name: runtime.queue
            for name, runtime in runtimes.items()
            if local is not None and runtime.driver is Driver.QUEUE and runtime.queue is not None
        }
        self._all_local = all(
            name in self._local_queues or runtime.driver is Driver.IN_PROCESS
            for name, runtime in runtimes.items()
        )

    async def run_once(self) -> Relayed:
        if self._local is not None and self._all_local:
            return Relayed(await self._local.take_over(self._local_queues, _ROWS))
        async with self._database.autocommit() as tx:
            due = await outbox.due_runtimes(tx)
        moved = 0
        if self._local is not None and not due.isdisjoint(self._local_queues):
            moved = await self._local.take_over(self._local_queues, _ROWS)
        if due <= self._local_queues.keys():
            return Relayed(moved)
        relayed = await self._relay()
        return Relayed(moved + relayed.sent, relayed.postponed, relayed.more)

    async def _relay(self) -> Relayed:
        async with self._database.transaction("relay") as tx:
            rows = await outbox.take(tx, _ROWS, other_than=self._local_queues)
            if not rows:
                return Relayed()
            by_queue: defaultdict[tuple[str, str], list[OutboxRow]] = defaultdict(list)
            for row in rows:
                by_queue[row.runtime, row.queue_suffix].append(row)
            done: list[int] = []
            postponed: list[int] = []
            for (name, suffix), group in by_queue.items():
                sent = await self._send(name, suffix, tuple(t for row in group for t in row.task_ids))
                (done if sent else postponed).extend(row.outbox_id for row in group)
            crash_point("relay.after_send")
            await outbox.done(tx, done)
            if postponed:
                await outbox.postpone(tx, postponed)
        return Relayed(len(done), len(postponed), more=len(rows) == _ROWS)

    async def _send(self, name: str, suffix: str, task_ids: tuple[UUID, ...]) -> bool:
        runtime = self._runtimes.get(name)
        if runtime is None:
            telemetry.emit("relay.unknown_runtime", "error", runtime=name, tasks=len(task_ids))
            return False
        if runtime.driver is Driver.INVOKE:
            self._invoke(runtime, task_ids)
            return True
        queue = f"{runtime.queue}{suffix}"
        try:
            await self._wake_queue.send(queue, task_ids)
        except TraceplaneError as error:
            telemetry.emit("relay.queue_down", "warning", queue=queue, code=error.code, message=error.message)
            return False
        telemetry.count("wakeups_sent_total", len(task_ids), queue=runtime.queue or "")
        return True
