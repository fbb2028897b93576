"""The first operator of every sandbox: tries to break out, so that isolation is measured.

It runs once at start, confined like any other operator. If it can reach anything, the sandbox is too weak.
"""

from __future__ import annotations

from traceplane.sdk import OperatorError, OperatorTask


def look_around(task: OperatorTask) -> None:
    """Raises `sandbox.breached`, naming what could be read."""
    breached = [path for path in task.config["forbidden"] if _readable(path)]
    if breached:
        raise OperatorError("sandbox.breached", ", ".join(breached))


def _readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True
