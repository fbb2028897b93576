"""Concurrent calls share one transaction: calls that arrive during a commit go together in the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from traceplane import telemetry
from traceplane.errors import PlatformError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class GroupCommit(Generic[Item, Answer]):
    """Gathers submissions into groups. There is no timer, so a lone call never waits for others.

    If a group fails and the database is not down, its submissions are retried one by one, so that one caller's
    failure does not affect the others.
    """

    def __init__(
        self,
        name: str,
        commit: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        max_items: int = 1000,
        concurrency: int = 2,
    ) -> None:
        self._name = name
        self._commit = commit
        self._max_items = max_items
        self._concurrency = concurrency
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = []
        self._draining = 0
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references

    async def submit(self, items: Sequence[Item]) -> Sequence[Answer]:
        answer: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answer))
        self._start()
        return await answer

    def _start(self) -> None:
        if self._draining < self._concurrency and self._waiting:
            self._draining += 1
            # Not in the context of this call, whose request id the events of all others would carry.
            task = asyncio.create_task(self._drain(), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        try:
            # One turn of the event loop lets calls that arrived at the same moment join the group.
            await asyncio.sleep(0)
            await self._commit_waiting()
        finally:
            # Not in the task's done callback, which runs a turn later: a call that arrives in between would
            # count on this drain, and nothing would ever commit it.
            self._draining -= 1

    async def _commit_waiting(self) -> None:
        while self._waiting:
            group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = []
            size = 0
            while self._waiting and (not group or size + len(self._waiting[0][0]) <= self._max_items):
                group.append(self._waiting.pop(0))
                size += len(group[-1][0])
            await self._commit_group(group, size)

    async def _commit_group(
        self, group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]], size: int
    ) -> None:
        started = time.perf_counter()
        try:
            answers = await self._commit([item for items, _ in group for item in items])
        except Exception as error:
            if len(group) > 1 and not isinstance(error, PlatformError):
                for one in group:
                    await self._commit_group([one], len(one[0]))
                return
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        telemetry.observe("group_commit_seconds", time.perf_counter() - started, call=self._name)
        telemetry.observe("group_commit_size", size, call=self._name)
        position = 0
        for items, future in group:
            if not future.done():
                future.set_result(answers[position : position + len(items)])
            position += len(items)
