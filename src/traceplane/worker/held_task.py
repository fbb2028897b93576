"""A task whose lease this worker holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from traceplane import telemetry
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.json_object import JsonObject
from traceplane.operators.spec import OperatorSpec
from traceplane.sandbox.assignment import Reuse
from traceplane.sandbox.child_log import TaskLog
from traceplane.spark.servers import Spark
from traceplane.wire.tasks import LONGEST_LOG, ClaimedTask, JobPayload
from traceplane.worker.hot_inputs import LocalInputs

Interruption = Literal["canceled", "stale", "returned"]
"""canceled, stale: according to a heartbeat. returned: the worker stops before the operator has ended."""


@dataclass(slots=True)
class LiveLog:
    """What the operator has written so far, for those who look at the task while it runs."""

    log: TaskLog
    hidden: HiddenValues
    lines_sent: int = 0
    sent_at: float = 0.0

    @property
    def is_news(self) -> bool:
        return self.log.lines != self.lines_sent

    def end(self) -> str:
        return str(self.hidden.without(self.log.tail))[-LONGEST_LOG:]


@dataclass(slots=True)
class HeldTask:
    task: ClaimedTask
    job: JobPayload
    token: str
    reuse: Reuse | None
    operator: OperatorSpec | None
    """None: not installed on this worker."""
    run: asyncio.Task[None] | None = None
    interruption: Interruption | None = None
    ended: bool = False
    """The operator has ended; only the report is left, and heartbeats no longer interrupt the task."""
    next_beat: float = 0.0
    progress: JsonObject | None = None
    log: LiveLog | None = None
    local: LocalInputs = field(default_factory=LocalInputs)
    """Its hot inputs, as local files."""
    spark: Spark | None = None
    """The Spark server that it uses, or used last."""

    def interrupt(self, interruption: Interruption, *, why: str | None = None) -> None:
        """Ends the operator, unless it has already ended or is being ended."""
        if self.run is not None and self.interruption is None and not self.ended:
            self.interruption = interruption
            telemetry.emit("worker.stopping_task", task_id=str(self.task.task_id), why=why or interruption)
            self.run.cancel()
