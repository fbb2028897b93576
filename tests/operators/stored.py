"""Operators for a platform whose object store is away: what they read, and what they see of the way there."""

import os

from traceplane.sdk import OperatorTask


def numbers(task: OperatorTask) -> list[dict]:
    first = task.scope.position * 100
    return [{"block": task.scope.position, "n": n} for n in range(first, first + 100)]


def looks_around(task: OperatorTask) -> list[dict]:
    """What came before it, with the number of credentials in its reach: variables, and the platform's key."""
    (name,) = task.inputs
    seen = [key for key in os.environ if key.startswith(("AWS_", "TRACEPLANE_"))]
    seen += [task.config["secret"]] if os.path.exists(task.config["secret"]) else []
    return [{**row, "credentials": len(seen)} for row in task.read(name).to_pylist()]


def sums(task: OperatorTask) -> list[dict]:
    rows = task.read("numbers").to_pylist()
    return [{"block": task.scope.position, "total": sum(row["n"] for row in rows)}]
