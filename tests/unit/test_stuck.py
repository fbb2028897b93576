"""Stuck work is recognized from counts of tasks, and nothing else is."""

from __future__ import annotations

import pytest

from traceplane.model.stuck import PATIENCE_SECONDS, UnfinishedTasks, stuck

LATE, SOON = PATIENCE_SECONDS + 1, PATIENCE_SECONDS - 1


def row(
    state: str,
    due: float,
    *,
    tasks: int = 3,
    hold_level: int | None = None,
    hold_job: str | None = None,
    paused: bool = False,
) -> UnfinishedTasks:
    return UnfinishedTasks(
        dag="shop",
        job="load",
        runtime="spark",
        state=state,
        tasks=tasks,
        retrying=0,
        newest_retry=None,
        due_seconds=due,
        hold_level=hold_level,
        hold_job=hold_job,
        paused=paused,
    )


@pytest.mark.parametrize(
    ("rows", "at_work", "reason", "said"),
    [
        ([row("dispatched", LATE)], (), "no_worker", "no worker of the runtime spark"),
        ([row("queued", LATE)], (), "not_dispatched", "3 tasks are due for up to 31 s"),
        ([row("queued", LATE, tasks=1)], (), "not_dispatched", "1 task is due"),
        (
            [row("queued", SOON, hold_level=2, hold_job="join")],
            (),
            "held",
            "all its work, since join is behind",
        ),
        ([row("queued", SOON, hold_level=1, hold_job="join")], (), "held", "its backfill"),
        ([row("queued", 7300.0)], (), "not_dispatched", "2 h"),
    ],
)
def test_a_stuck_job_is_named(
    rows: list[UnfinishedTasks], at_work: tuple[str, ...], reason: str, said: str
) -> None:
    (found,) = stuck(rows, at_work)
    assert (found.dag, found.job, found.reason) == ("shop", "load", reason)
    assert said in found.sentence


@pytest.mark.parametrize(
    ("rows", "at_work"),
    [
        ([row("dispatched", SOON)], ()),
        ([row("dispatched", LATE)], ("spark",)),
        ([row("queued", SOON)], ()),
        ([row("queued", LATE), row("running", LATE)], ("spark",)),
        ([row("running", LATE)], ("spark",)),
    ],
    ids=["just sent", "workers are busy", "just made", "behind others", "running"],
)
def test_slow_work_is_not_stuck(rows: list[UnfinishedTasks], at_work: tuple[str, ...]) -> None:
    assert stuck(rows, at_work) == []


def test_a_paused_job_is_not_stuck() -> None:
    assert stuck([row("queued", LATE, paused=True)], ()) == []
