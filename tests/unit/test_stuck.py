"""Stuck work is recognized from counts of tasks, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceplane.model.resources import Resources, parsed
from traceplane.model.stuck import PATIENCE_SECONDS, SeenWorker, UnfinishedTasks, stuck

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


NEEDED = Resources(memory=8 << 30, gpu=1, labels=("eu",))


def needing(state: str = "dispatched") -> UnfinishedTasks:
    return replace(row(state, SOON), requires=NEEDED)


def worker(name: str, *offers: str, runtime: str = "spark") -> SeenWorker:
    return SeenWorker(name, runtime, parsed(offers))


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([], "none of the runtime spark is there, and the job requires memory=8g, gpu=1, label=eu"),
        ([worker("a", "memory=8g", "gpu=1", "label=eu", runtime="python")], "none of the runtime spark"),
        ([worker("a", "memory=16g", "label=eu")], "but a lacks gpu=1;"),
        (
            [worker("a", "gpu=1"), worker("b")],
            "a lacks memory=8g, label=eu, b lacks memory=8g, gpu=1, label=eu",
        ),
    ],
)
def test_a_job_that_no_worker_can_run_is_told_at_once(workers: list[SeenWorker], said: str) -> None:
    (report,) = stuck([needing()], {"spark"}, workers)
    assert report.reason == "no_able_worker"
    assert said in report.sentence
    assert "traceplane worker --runtime spark --offers memory=8g,gpu=1,label=eu" in report.sentence


def test_a_job_that_a_worker_can_run_is_not_stuck() -> None:
    able = worker("a", "memory=8g", "gpu=2", "label=us", "label=eu")
    assert stuck([needing()], {"spark"}, [worker("b"), able]) == []
