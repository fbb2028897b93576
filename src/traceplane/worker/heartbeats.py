"""Heartbeats: every lease is extended after a third of its duration, in one call for all that are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from traceplane import telemetry
from traceplane.errors import TraceplaneError
from traceplane.wire.tasks import Heartbeat, HeartbeatOutcome
from traceplane.worker.dispatcher_client import DispatcherClient
from traceplane.worker.held_task import HeldTask

_LOOK_EVERY_SECONDS = 0.2
_RETRY_SECONDS = 0.5


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
            if due := [held for held in self._held.values() if held.next_beat <= now]:
                self.schedule(due)
                await self._beat(due)

    def schedule(self, held: Collection[HeldTask]) -> None:
        now = time.monotonic()
        for task in held:
            task.next_beat = now + min(self._longest_interval_seconds, task.job.lease_seconds / 3)

    async def _beat(self, due: Sequence[HeldTask]) -> None:
        tokens = list(dict.fromkeys(held.token for held in due))
        position = {token: i for i, token in enumerate(tokens)}
        beats = [
            Heartbeat(
                h.task.task_id, h.task.attempt, h.task.lease_token, position[h.token], progress=h.progress
            )
            for h in due
        ]
        try:
            outcomes = await self._client.heartbeat(tokens, beats)
        except TraceplaneError as error:
            telemetry.emit("worker.heartbeat_failed", "warning", code=error.code, message=error.message)
            for held in due:
                held.next_beat = time.monotonic() + _RETRY_SECONDS
            return
        for held, outcome in zip(due, outcomes, strict=True):
            _apply(held, outcome)


def _apply(held: HeldTask, outcome: HeartbeatOutcome) -> None:
    if outcome.token is not None:
        held.token = outcome.token
    if outcome.outcome != "ok":
        held.interrupt("canceled" if outcome.outcome == "canceled" else "stale", why=outcome.outcome)
