"""A task that this worker holds the lease of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from traceplane import telemetry
from traceplane.model.json_object import JsonObject
from traceplane.operators.spec import OperatorSpec
from traceplane.sandbox.assignment import Reuse
from traceplane.spark.servers import Spark
from traceplane.wire.tasks import ClaimedTask, JobPayload
from traceplane.worker.hot_inputs import LocalInputs

Interruption = Literal["canceled", "stale", "returned"]
"""canceled, stale: a heartbeat said so. returned: the worker stops before the operator has ended."""


@dataclass(slots=True)
class HeldTask:
    task: ClaimedTask
    job: JobPayload
    token: str
    reuse: Reuse | None
    operator: OperatorSpec | None
    """None: this worker does not have it."""
    run: asyncio.Task[None] | None = None
    interruption: Interruption | None = None
    ended: bool = False
    """The operator has ended; nothing is left but the report, and no heartbeat interrupts that."""
    next_beat: float = 0.0
    progress: JsonObject | None = None
    local: LocalInputs = field(default_factory=LocalInputs)
    """Its hot inputs, as they were read."""
    spark: Spark | None = None
    """The server that it uses, or used last."""

    def interrupt(self, interruption: Interruption, *, why: str | None = None) -> None:
        """Ends the operator, unless it has ended or is being ended already."""
        if self.run is not None and self.interruption is None and not self.ended:
            self.interruption = interruption
            telemetry.emit("worker.stopping_task", task_id=str(self.task.task_id), why=why or interruption)
            self.run.cancel()
