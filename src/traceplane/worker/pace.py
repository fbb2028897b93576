"""How many tasks a worker holds beyond those that run."""

from __future__ import annotations

from traceplane.sandbox.assignment import RunResult

_AHEAD_SECONDS = 1.0
_WEIGHT_OF_THE_LATEST = 0.2
_MOST_AHEAD = 500


class Pace:
    """How long tasks take once they have a slot: a worker claims a second's work ahead. One claim takes hundreds of
    short tasks, while a long one stays in the queue for a worker that is free."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._seconds: float | None = None
        """Average duration of a task; the latest count most."""

    def note(self, result: RunResult) -> None:
        before = result.slot_seconds if self._seconds is None else self._seconds
        self._seconds = before + (result.slot_seconds - before) * _WEIGHT_OF_THE_LATEST

    def tasks(self) -> int:
        """How many to hold beyond those that run."""
        if self._seconds is None:
            return 0
        return min(_MOST_AHEAD, int(self._slots * _AHEAD_SECONDS / max(self._seconds, 1e-4)))
