"""Operators for the tests of recovery: sums, sources that fall silent, tasks that take their worker with them."""

import os
import signal
import time

from traceplane.sdk import OperatorTask


def total(task: OperatorTask) -> list[dict]:
    """One row for a range of positions: how many there were, and their sum."""
    (name,) = task.inputs
    positions = [row["position"] for row in task.read(name).to_pylist()]
    return [{"position": task.scope.start, "count": len(positions), "sum": sum(positions)}]


def few_ticks(task: OperatorTask) -> None:
    """An always-on source that has little to say and then stays silent."""
    for position in range(task.config["ticks"]):
        task.emit(task.config["output"], scope=position)
    while True:
        time.sleep(60)


def fail_until(task: OperatorTask) -> list[dict]:
    """Succeeds from a given attempt on."""
    if task.attempt < task.config["attempt"]:
        raise RuntimeError(f"attempt {task.attempt} fails")
    return [{"position": task.scope.start}]


def poison(task: OperatorTask) -> list[dict]:
    """Kills its own process on one position, whatever the attempt."""
    if task.scope.start == task.config["position"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"position": task.scope.start}]


def long_first(task: OperatorTask) -> list[dict]:
    """Position 0 would take minutes, the others take no time."""
    if task.scope.start == 0:
        time.sleep(300)
    return [{"position": task.scope.start}]
