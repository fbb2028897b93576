"""How many tasks a worker holds beyond those that run."""

from __future__ import annotations

from traceplane.sandbox.assignment import RunResult
from traceplane.worker.pace import Pace


def ended(seconds: float, waited: float = 0.0) -> RunResult:
    """As a child tells that hides how long it ran."""
    whole = waited + seconds
    return RunResult(
        task_id="", attempt=1, status="ok", start_seconds=whole, run_seconds=whole, slot_seconds=seconds
    )


def test_a_worker_that_has_run_nothing_holds_nothing_ahead() -> None:
    assert Pace(8).tasks() == 0


def test_short_tasks_are_held_by_the_hundred_and_long_ones_not_at_all() -> None:
    pace = Pace(8)
    for _ in range(50):
        pace.note(ended(0.002, waited=3.0))
    assert pace.tasks() == 500
    for _ in range(50):
        pace.note(ended(30.0))
    assert pace.tasks() == 0


def test_a_few_long_tasks_among_short_ones_are_noticed_at_once() -> None:
    pace = Pace(8)
    for _ in range(50):
        pace.note(ended(0.002))
    for _ in range(3):
        pace.note(ended(10.0))
    assert pace.tasks() <= 2
