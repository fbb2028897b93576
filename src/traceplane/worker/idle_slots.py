"""The slots whose child waits for a task, and the tasks that wait for a slot.

A task gets, in this order: a used child of its own job, a fresh child, or a slot whose used child of
another job is ended for it, the longest idle one first. Those who wait are served in turn, so that a
busy job cannot keep its children from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from traceplane.worker.slot import Child, Slot

_AWAKE_SECONDS = 1.0
_LONGEST_IDLE_SECONDS = 60.0

_Turn = asyncio.Future[tuple[Slot, Child] | None]


class IdleSlots:
    def __init__(self, oldest_seconds: float) -> None:
        self._oldest_seconds = oldest_seconds
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Slot, float] = {}
        """Since when; the longest idle one comes first."""
        self._being_emptied: set[Slot] = set()
        self._waiting: dict[_Turn, Hashable] = {}

    async def take(self, job: Hashable) -> tuple[Slot, Child] | None:
        """A child for a task of this job (None: for a task by itself); None when woken by `wake_all`."""
        if not self._waiting and (found := self._choose(job)) is not None:
            return found
        turn: _Turn = self._loop.create_future()
        self._waiting[turn] = job
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and (found := turn.result()) is not None:
                slot, child = found
                slot.keep(child)
                slot.release()
            raise

    def add(self, slot: Slot) -> None:
        self._being_emptied.discard(slot)
        self._idle[slot] = self._loop.time()
        self._serve()

    def forget(self, slot: Slot) -> None:
        self._idle.pop(slot, None)
        self._being_emptied.discard(slot)

    def tend(self) -> None:
        """Stop used children that have to wait, and end those that waited long: others can use their memory."""
        now = self._loop.time()
        for slot, since in list(self._idle.items()):
            child = slot.waiting
            if child is None or child.job is None:
                continue
            if now - since > _LONGEST_IDLE_SECONDS:
                self._empty(slot)
            elif now - since > _AWAKE_SECONDS:
                child.freeze()

    def wake_all(self) -> None:
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()

    def _serve(self) -> None:
        promised = len(self._being_emptied)
        for turn, job in list(self._waiting.items()):
            if turn.done():
                continue
            if (found := self._choose(job)) is not None:
                del self._waiting[turn]
                turn.set_result(found)
            elif promised:
                promised -= 1
            elif self._idle:
                self._empty(next(iter(self._idle)))

    def _choose(self, job: Hashable) -> tuple[Slot, Child] | None:
        fresh: tuple[Slot, Child] | None = None
        for slot in reversed(list(self._idle)):  # the one used last has the warmest caches
            child = slot.waiting
            if child is None:
                del self._idle[slot]  # it died; the slot comes back with another
            elif child.job is None:
                fresh = slot, child
            elif child.job == job:
                if child.is_fit(self._oldest_seconds):
                    return self._hand_over(slot, child)
                self._empty(slot)
        return self._hand_over(*fresh) if fresh is not None else None

    def _hand_over(self, slot: Slot, child: Child) -> tuple[Slot, Child]:
        del self._idle[slot]
        slot.take()
        return slot, child

    def _empty(self, slot: Slot) -> None:
        """End its used child; the slot comes back with a fresh one."""
        del self._idle[slot]
        self._being_emptied.add(slot)
        slot.end_waiting()
