"""The operator of the latency measurement: says when its first line ran, and nothing else."""

from __future__ import annotations

import time

from traceplane.sdk import OperatorTask


def started(task: OperatorTask) -> None:
    now = time.monotonic()
    task.emit("started", scope=task.scope, emission=repr(now))
