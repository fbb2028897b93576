"""Sends executions with the target celery to Celery's workers as messages, at least once.

A message that is sent twice is harmless: a worker claims the execution over HTTP before running it, and the second
claim is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceplane import telemetry
from traceplane.errors import QueueUnavailable
from traceplane.postgres import executions
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome

if TYPE_CHECKING:
    from traceplane.adapters.celery_messages import CeleryMessages

_BATCH = 200


@dataclass(frozen=True, slots=True)
class MessagesRelayed(Outcome):
    sent: int = 0
    postponed: int = 0
    more: bool = False


class CeleryRelay:
    def __init__(self, database: Database, broker_url: str | None) -> None:
        self._database = database
        self._broker_url = broker_url
        self._celery: CeleryMessages | None = None
        self._warned = False

    async def run_once(self) -> MessagesRelayed:
        async with self._database.transaction() as tx:
            rows = await executions.take_messages(tx, _BATCH)
            pending = [m for m in rows if m.wanted]
            if not rows or self._not_configured(len(pending)):
                return MessagesRelayed()
            messages = [
                (str(m.execution_id), (str(m.pipeline_id), str(m.execution_id), m.signal)) for m in pending
            ]
            try:
                await asyncio.to_thread(self._send, messages)
            except QueueUnavailable as error:
                telemetry.emit(
                    "celery.broker_down",
                    "warning",
                    messages=len(pending),
                    code=error.code,
                    message=str(error),
                )
                await executions.postpone_messages(tx, [m.execution_id for m in rows])
                return MessagesRelayed(postponed=len(rows))
            await executions.messages_sent(tx, [m.execution_id for m in rows])
        telemetry.count("celery_messages_total", len(pending))
        return MessagesRelayed(len(pending), more=len(rows) == _BATCH)

    def _not_configured(self, waiting: int) -> bool:
        if self._broker_url is None and waiting and not self._warned:
            telemetry.emit("celery.not_configured", "warning", messages=waiting)
            self._warned = True
        return self._broker_url is None

    def _send(self, messages: Sequence[tuple[str, Sequence[object]]]) -> None:
        if self._celery is None:
            from traceplane.adapters.celery_messages import CeleryMessages  # an optional extra

            assert self._broker_url is not None
            self._celery = CeleryMessages(self._broker_url)
        self._celery.send(messages)
