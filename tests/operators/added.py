"""Operators whose rows are added to what is there."""

import time

from traceplane.sdk import OperatorTask


def days(task: OperatorTask) -> list[dict]:
    """One row for each position of the scope, after a while in which others run."""
    time.sleep(task.config.get("seconds", 0.3))
    return [{"day": day} for day in range(task.scope.start, task.scope.end + 1)]
