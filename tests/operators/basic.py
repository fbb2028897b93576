"""Operators that tests deploy; they run in the sandbox of a real worker."""

import time

from traceplane.sdk import OperatorTask


def copy(task: OperatorTask) -> list[dict]:
    """One row that names the scope."""
    return [{"position": task.scope.start}]


def add_one(task: OperatorTask) -> list[dict]:
    """Reads what came before it."""
    (name,) = task.inputs
    rows = task.read(name).to_pylist()
    return [{"position": row["position"], "plus_one": row["position"] + 1} for row in rows]


def nothing(task: OperatorTask) -> None:
    """No output, no effect."""


def slow(task: OperatorTask) -> list[dict]:
    time.sleep(task.config.get("seconds", 1.0))
    return [{"position": task.scope.start}]


def burn_cpu(task: OperatorTask) -> list[dict]:
    """Never gives the CPU back by itself."""
    end = time.monotonic() + task.config.get("seconds", 3.0)
    count = 0
    while time.monotonic() < end:
        count += 1
    return [{"position": task.scope.start, "count": count}]


def fail(task: OperatorTask) -> None:
    raise ValueError(f"cannot do {task.scope}")


def fail_once(task: OperatorTask) -> list[dict]:
    if task.attempt == 1:
        raise RuntimeError("the first attempt fails")
    return [{"position": task.scope.start}]


def ticker(task: OperatorTask) -> None:
    """An always-on source: emits a cursor every few milliseconds, for ever, always from zero."""
    position = 0
    while True:
        task.emit("ticks", scope=position)
        position += 1
        time.sleep(task.config.get("pause", 0.01))


def sum_range(task: OperatorTask) -> list[dict]:
    """Everything of a range of positions, added up."""
    (name,) = task.inputs
    rows = task.read(name).to_pylist()
    return [{"first": task.scope.start, "last": task.scope.end, "sum": sum(r["plus_one"] for r in rows)}]


def stamped(task: OperatorTask) -> list[dict]:
    """A row that says which version of the job wrote it."""
    return [{"position": task.scope.position, "version": task.config["version"]}]


def carried(task: OperatorTask) -> list[dict]:
    """The rows of the one input, as they are."""
    [name] = task.inputs
    return task.read(name).to_pylist()
