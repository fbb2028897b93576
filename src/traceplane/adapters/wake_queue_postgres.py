"""The local wake-up queue: a Postgres table, long-polled over LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from traceplane.adapters.wake_queue import MAX_RECEIVES, Depth, Message
from traceplane.errors import DatabaseUnavailable, QueueUnavailable
from traceplane.postgres import outbox, wake_messages
from traceplane.postgres.database import Database, Transaction


class PostgresWakeQueue:
    """Long-polls over LISTEN/NOTIFY. A message received `MAX_RECEIVES` times and not deleted is buried."""

    # A safety net for lost notifications; it also notices messages that become visible again.
    _POLL_SECONDS = 1.0
    # Receivers continue from where they were, with some overlap for messages whose sender committed late. Only
    # once per poll do they look through everything hidden or dead before that.
    _OVERLAP = 500

    def __init__(self, database: Database) -> None:
        self._database = database
        self._arrivals: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._looked_back_at: defaultdict[str, float] = defaultdict(float)
        self._seen: defaultdict[str, int] = defaultdict(int)
        self._stopping = False

    async def listen(self, stop: asyncio.Event) -> None:
        """Listens for messages of other processes; runs beside the receivers, and releases them at `stop`."""
        await self._database.listen([wake_messages.CHANNEL], lambda _, queue: self._arrived(queue), stop)
        self._stopping = True
        self._arrived("")

    def _arrived(self, queue: str) -> None:
        for name in [queue] if queue else list(self._arrivals):
            self._arrivals[name].set()

    async def send(self, queue: str, task_ids: Sequence[UUID]) -> None:
        async with self._transaction() as tx:
            await wake_messages.send(tx, queue, task_ids)
        self._arrived(queue)

    async def take_over(self, queues: Mapping[str, str], limit: int) -> int:
        """Moves wake-ups directly from the outbox (runtime -> queue) into this queue; returns how many."""
        async with self._transaction("relay", single=True) as tx:
            moved = await outbox.move_to_local_queue(tx, queues, limit)
        for queue in moved:
            self._arrived(queue)
        return sum(moved.values())

    async def receive(
        self, queue: str, limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[Message]:
        received = await self.receive_from(
            (queue,), limit, wait_seconds=wait_seconds, visibility_seconds=visibility_seconds
        )
        return [message for _, message in received]

    async def receive_from(
        self, queues: Sequence[str], limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[tuple[str, Message]]:
        """Messages of several queues, with their queue; the first queues come first."""
        deadline = time.monotonic() + wait_seconds
        while True:
            received: list[tuple[str, Message]] = []
            for queue in queues:
                if len(received) == limit:
                    break
                if len(queues) > 1 and not self._may_have_messages(queue):
                    continue
                self._arrivals[queue].clear()
                stored = await self._take(queue, limit - len(received), visibility_seconds)
                received += [(queue, Message(str(m.message_id), m.task_id, m.receives)) for m in stored]
                if len(received) == limit:
                    self._arrivals[queue].set()  # there may be more for the next receiver
            remaining = deadline - time.monotonic()
            if received or remaining <= 0 or self._stopping:
                return received
            await _first_of([self._arrivals[queue] for queue in queues], min(remaining, self._POLL_SECONDS))

    def _may_have_messages(self, queue: str) -> bool:
        """Saves a statement for each of many queues that were empty a moment ago."""
        return self._arrivals[queue].is_set() or self._is_to_look_back(queue)

    def _is_to_look_back(self, queue: str) -> bool:
        return time.monotonic() - self._looked_back_at[queue] > self._POLL_SECONDS

    async def _take(
        self, queue: str, limit: int, visibility_seconds: float
    ) -> list[wake_messages.StoredMessage]:
        visibility = timedelta(seconds=visibility_seconds)
        look_back = self._is_to_look_back(queue)
        if look_back:
            async with self._transaction() as tx:
                await wake_messages.bury(tx, queue, MAX_RECEIVES)
        async with self._transaction("wake_receive", single=True) as tx:
            after = 0 if look_back else max(0, self._seen[queue] - self._OVERLAP)
            messages = await wake_messages.receive(tx, queue, limit, visibility, MAX_RECEIVES, after)
        if look_back and len(messages) < limit:
            self._looked_back_at[queue] = time.monotonic()
        self._seen[queue] = max((self._seen[queue], *(m.message_id for m in messages)))
        return messages

    async def delete(self, queue: str, receipts: Sequence[str]) -> None:
        async with self._transaction() as tx:
            await wake_messages.delete(tx, queue, _message_ids(receipts))

    async def extend(self, queue: str, receipts: Sequence[str], visibility_seconds: float) -> int:
        async with self._transaction() as tx:
            ids = _message_ids(receipts)
            return len(await wake_messages.extend(tx, queue, ids, timedelta(seconds=visibility_seconds)))

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        async with self._transaction() as tx:
            await wake_messages.release(tx, queue, _message_ids(receipts))
        self._looked_back_at[queue] = 0.0
        self._arrived(queue)

    async def depth(self, queue: str) -> Depth:
        async with self._transaction() as tx:
            return Depth(*await wake_messages.depth(tx, queue))

    @contextlib.asynccontextmanager
    async def _transaction(self, label: str = "", *, single: bool = False) -> AsyncIterator[Transaction]:
        open_one = self._database.statement if single else self._database.transaction
        try:
            async with open_one(label) as tx:
                yield tx
        except DatabaseUnavailable as error:
            raise QueueUnavailable(
                "queue.unavailable",
                "the wake queue's Postgres did not answer",
                value=error.value,
                next_step="retry the call",
            ) from error


async def _first_of(arrivals: Sequence[asyncio.Event], seconds: float) -> None:
    """Waits until one of the events happens, or the time is over."""
    if len(arrivals) == 1:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await arrivals[0].wait()
        return
    waits = [asyncio.ensure_future(arrival.wait()) for arrival in arrivals]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _message_ids(receipts: Sequence[str]) -> list[int]:
    """Drops receipts that were never ours: not a number, or too long for a bigint."""
    return [int(r) for r in receipts if r.isascii() and r.isdigit() and len(r) < 19]
