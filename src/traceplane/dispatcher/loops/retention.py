"""Ends history in the background: deletes files that nobody can read any more, and rows that are older than the policy.

The work is divided into rounds (`registry.garbage`). A round is due after an interval by the database's clock, and one
dispatcher runs it, a batch at a time. It rests after each batch for as long as keeps it to a small share of the time,
so that a year of history can go while the platform is busy. The share grows while a round takes longer than its
interval, so that history goes as fast as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta

from traceplane.adapters.object_store import ObjectStore
from traceplane.errors import TraceplaneError
from traceplane.postgres import history
from traceplane.postgres.database import Database
from traceplane.registry.garbage import Collected, Policy, Round, batches

_SHARE = 0.02
"""Of the time; the rest of it, this loop rests."""
_LARGEST_SHARE = 0.5
_PASS_SECONDS = 2.0
"""A pass ends after this time, so that the process can stop."""
_LONGEST_REST = 5.0
_RETRY_AFTER = timedelta(minutes=5)
_TAKEN_OVER_AFTER = timedelta(minutes=2)
"""If the dispatcher that runs a round dies, the round is due again after this time."""


@dataclass(frozen=True, slots=True)
class RetentionPass(Collected):
    more: bool = False

    @classmethod
    def of(cls, collected: Collected, *, more: bool = False) -> RetentionPass:
        return cls(**collected.counts(), more=more)


@dataclass(frozen=True, slots=True)
class _Running:
    round: Round
    batches: AsyncIterator[Collected]
    since: float


class Retention:
    def __init__(
        self,
        database: Database,
        object_store: Callable[[], ObjectStore],
        policy: Policy,
        *,
        share: float = _SHARE,
    ) -> None:
        self._database = database
        self._object_store = object_store
        self._policy = policy
        self._share = share
        self._running: _Running | None = None
        self._store: ObjectStore | None = None

    async def run_once(self) -> RetentionPass:
        began, total = time.monotonic(), Collected()
        store = self._store = self._store or self._object_store()
        if self._running is None and (due := await self._next_due()) is not None:
            self._running = _Running(due, batches(due, self._database, store, self._policy), began)
        elif self._running is not None:
            await self._due_after(self._running.round, _TAKEN_OVER_AFTER)
        while (running := self._running) is not None:
            batch_began = time.monotonic()
            batch = await self._batch(running)
            if batch is None:
                await self._due_after(running.round, self._interval(running.round))
                self._running = None
                return RetentionPass.of(total, more=True)  # another round may be due
            total += batch
            now = time.monotonic()
            share = self.share_after(now - running.since, self._interval(running.round))
            await asyncio.sleep(min((now - batch_began) * (1 / share - 1), _LONGEST_REST))
            if time.monotonic() - began > _PASS_SECONDS:
                return RetentionPass.of(total, more=True)
        return RetentionPass.of(total)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    async def _next_due(self) -> Round | None:
        for round_ in Round:
            async with self._database.autocommit() as tx:
                if await history.claim_round(tx, round_, _TAKEN_OVER_AFTER):
                    return round_
        return None

    def share_after(self, seconds: float, interval: timedelta) -> float:
        """Of a round that has taken so long. After each interval, the first share is added."""
        return max(self._share, min(self._share * (1 + seconds // interval.total_seconds()), _LARGEST_SHARE))

    def _interval(self, round_: Round) -> timedelta:
        match round_:
            case Round.FILES | Round.DATASETS:
                return timedelta(hours=1)
            case Round.LEFTOVERS:  # lists the whole store
                return timedelta(hours=24)
            case Round.HISTORY:
                age = self._policy.history or timedelta(days=30)
                return min(timedelta(hours=6), max(age / 10, timedelta(minutes=1)))

    async def _batch(self, running: _Running) -> Collected | None:
        """The next batch of a round; None if that is over."""
        try:
            return await anext(running.batches, None)
        except Exception:
            # Whatever failed, the round is broken off: its generator has ended, which the next pass would take for a
            # round that is complete.
            self._running = None
            with contextlib.suppress(TraceplaneError):
                await self._due_after(running.round, _RETRY_AFTER)
            raise

    async def _due_after(self, round_: Round, pause: timedelta) -> None:
        async with self._database.autocommit() as tx:
            await history.postpone_round(tx, round_, pause)
