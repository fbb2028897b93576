"""What the real worker runs in the control suite."""

from __future__ import annotations

import time

from traceplane.sdk import OperatorTask


def started(task: OperatorTask) -> None:
    """Says when its first line ran."""
    now = time.monotonic()
    assert task.scope is not None
    task.emit("started", scope=task.scope, emission=repr(now))


def nothing(task: OperatorTask) -> None:
    pass


def one_row(task: OperatorTask) -> list[dict[str, int]]:
    return [{"position": task.scope.position, "twice": 2 * task.scope.position}]  # type: ignore[union-attr]
