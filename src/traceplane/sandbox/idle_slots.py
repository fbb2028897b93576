"""The slots whose child waits for a task, and the tasks that wait for a slot.

A task gets, in this order: a used child of its own job, a fresh child, or a slot whose used child of
another job is ended for it, the longest idle one first. Waiting tasks are served in turn, so that a
busy job cannot keep all children to itself. But a task whose job has a child running short tasks waits for that child
for a while; otherwise two busy jobs would only keep ending each other's children.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable

from traceplane.sandbox.slot import Child, Slot

_AWAKE_SECONDS = 1.0
_LONGEST_IDLE_SECONDS = 60.0
_SHORT_TASK_SECONDS = 0.25
_YIELD_SECONDS = 2.0

_Turn = asyncio.Future[tuple[Slot, Child] | None]


class IdleSlots:
    def __init__(self, oldest_seconds: float) -> None:
        self._oldest_seconds = oldest_seconds
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Slot, float] = {}
        """Since when they are idle; the longest idle one comes first."""
        self._being_emptied: set[Slot] = set()
        self._at_work: dict[Slot, tuple[Hashable, float]] = {}
        """The job whose task each other slot runs, and since when."""
        self._waiting: dict[_Turn, tuple[Hashable, float]] = {}
        """The jobs of waiting tasks, and since when they wait."""
        self._jobs_waiting: Counter[Hashable] = Counter()
        self._yielding: asyncio.TimerHandle | None = None

    async def take(self, job: Hashable) -> tuple[Slot, Child] | None:
        """A child for a task of this job (None: for a task that needs its own); None when woken by `wake_all`."""
        if not self._waiting and (pair := self._choose(job)) is not None:
            return pair
        turn: _Turn = self._loop.create_future()
        self._waiting[turn] = (job, self._loop.time())
        self._jobs_waiting[job] += 1
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            self._leave(turn)
            if turn.done() and not turn.cancelled() and (pair := turn.result()) is not None:
                slot, child = pair
                slot.keep(child)
                slot.release()
            raise

    def waits(self, job: Hashable) -> bool:
        """Whether a task of this job waits for a child."""
        return self._jobs_waiting[job] > 0

    def add(self, slot: Slot) -> None:
        self._being_emptied.discard(slot)
        self._at_work.pop(slot, None)
        self._idle[slot] = self._loop.time()
        self._serve(just_kept=slot)

    def forget(self, slot: Slot) -> None:
        self._idle.pop(slot, None)
        self._at_work.pop(slot, None)
        self._being_emptied.discard(slot)

    def tend(self) -> None:
        """Freeze used children while they wait, and end those that have waited long, to free their memory."""
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
        self._jobs_waiting.clear()

    def _leave(self, turn: _Turn) -> None:
        if (waited := self._waiting.pop(turn, None)) is not None:
            self._jobs_waiting[waited[0]] -= 1
            if not self._jobs_waiting[waited[0]]:
                del self._jobs_waiting[waited[0]]

    def _serve(self, just_kept: Slot | None = None) -> None:
        """Serve waiting tasks as long as there are children; `just_kept` has not been idle at all."""
        promised = len(self._being_emptied)
        served: list[_Turn] = []
        for turn, (job, since) in self._waiting.items():
            if not self._idle:
                break
            if turn.done():
                continue
            if (pair := self._choose(job, just_kept)) is not None:
                served.append(turn)
                turn.set_result(pair)
            elif promised:
                promised -= 1
            elif self._idle and not self._may_yield(job, since):
                self._empty(next(iter(self._idle)))
        for turn in served:
            self._leave(turn)

    def _may_yield(self, job: Hashable, since: float) -> bool:
        """Whether it can wait for a child of its own job instead of ending one of another."""
        now = self._loop.time()
        if job is None or now - since > _YIELD_SECONDS:
            return False
        if not any(of == job and now - begun < _SHORT_TASK_SECONDS for of, begun in self._at_work.values()):
            return False
        if self._yielding is None:
            self._yielding = self._loop.call_later(_SHORT_TASK_SECONDS, self._end_yielding)
        return True

    def _end_yielding(self) -> None:
        self._yielding = None
        self._serve()

    def _choose(self, job: Hashable, just_kept: Slot | None = None) -> tuple[Slot, Child] | None:
        fresh: tuple[Slot, Child] | None = None
        for slot in reversed(list(self._idle)):  # the one used last has the warmest caches
            child = slot.waiting
            if child is None:
                del self._idle[slot]  # it died; the slot will return with another
            elif child.job is None:
                fresh = slot, child
            elif child.job == job:
                if child.is_young(self._oldest_seconds) if slot is just_kept else self._is_fit(child):
                    return self._hand_over(slot, child, job)
                self._empty(slot)
        return self._hand_over(*fresh, job) if fresh is not None else None

    def _is_fit(self, child: Child) -> bool:
        return child.is_fit(self._oldest_seconds)

    def _hand_over(self, slot: Slot, child: Child, job: Hashable) -> tuple[Slot, Child]:
        del self._idle[slot]
        self._at_work[slot] = (job, self._loop.time())
        slot.take()
        return slot, child

    def _empty(self, slot: Slot) -> None:
        """End its used child; the slot will return with a fresh one."""
        del self._idle[slot]
        self._being_emptied.add(slot)
        slot.end_waiting()
