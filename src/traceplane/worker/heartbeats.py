"""Heartbeats: every lease is extended after a third of its duration, in one call for all that are due. They carry what
operators write, and are sent more often for those that do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from traceplane import telemetry
from traceplane.errors import TraceplaneError
from traceplane.wire.tasks import Heartbeat, HeartbeatOutcome
from traceplane.worker.dispatcher_client import DispatcherClient
from traceplane.worker.held_task import HeldTask, LiveLog

_LOOK_EVERY_SECONDS = 0.2
_RETRY_SECONDS = 0.5
_LOG_SECONDS = 2.0
"""How long news of a log may wait."""
_LOGS_PER_CALL = 32
"""So that no call is too large; the others have their turn in the next one."""


class HeartbeatSender:
    def __init__(
        self, client: DispatcherClient, held: Mapping[UUID, HeldTask], *, longest_interval_seconds: float
    ) -> None:
        self._client = client
        self._held = held
        self._longest_interval_seconds = longest_interval_seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until no task is held after `stop`."""
        while not (stop.is_set() and not self._held):
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            now = time.monotonic()
            writing = _with_news(self._held.values(), now)
            if due := [h for h in self._held.values() if h.next_beat <= now or h.task.task_id in writing]:
                self.schedule(due)
                await self._beat(due, writing)

    def schedule(self, held: Collection[HeldTask]) -> None:
        now = time.monotonic()
        for task in held:
            task.next_beat = now + min(self._longest_interval_seconds, task.job.lease_seconds / 3)

    async def _beat(self, due: Sequence[HeldTask], writing: Mapping[UUID, LiveLog]) -> None:
        tokens = list(dict.fromkeys(held.token for held in due))
        position = {token: i for i, token in enumerate(tokens)}
        lines = {task_id: live.log.lines for task_id, live in writing.items()}
        beats = [
            Heartbeat(
                h.task.task_id,
                h.task.attempt,
                h.task.lease_token,
                position[h.token],
                progress=h.progress,
                log=writing[h.task.task_id].end() if h.task.task_id in writing else None,
            )
            for h in due
        ]
        for live in writing.values():
            live.sent_at = time.monotonic()
        try:
            outcomes = await self._client.heartbeat(tokens, beats)
        except TraceplaneError as error:
            telemetry.emit("worker.heartbeat_failed", "warning", code=error.code, message=error.message)
            for held in due:
                held.next_beat = time.monotonic() + _RETRY_SECONDS
            return
        for task_id, live in writing.items():
            live.lines_sent = lines[task_id]
        for held, outcome in zip(due, outcomes, strict=True):
            _apply(held, outcome)


def _with_news(held: Collection[HeldTask], now: float) -> dict[UUID, LiveLog]:
    """The logs to send now: those that have waited longest for it."""
    waiting = [
        (h.log.sent_at, h.task.task_id, h.log)
        for h in held
        if h.log is not None and not h.ended and h.log.is_news and h.log.sent_at + _LOG_SECONDS <= now
    ]
    waiting.sort(key=lambda one: one[0])
    return {task_id: log for _, task_id, log in waiting[:_LOGS_PER_CALL]}


def _apply(held: HeldTask, outcome: HeartbeatOutcome) -> None:
    if outcome.token is not None:
        held.token = outcome.token
    if outcome.outcome != "ok":
        held.interrupt("canceled" if outcome.outcome == "canceled" else "stale", why=outcome.outcome)
