"""What keeps tasks from making progress, judged by task counts: a pure function, so that it can be tested as data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

PATIENCE_SECONDS = 30.0
"""How long a task may be due before it is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTasks:
    """The unfinished tasks of one job in one state, and what holds the job."""

    dag: str
    job: str
    runtime: str
    state: str
    tasks: int
    retrying: int
    """How many of them wait for a retry."""
    newest_retry: UUID | None
    due_seconds: float
    """How long the first of them has been due."""
    hold_level: int | None
    hold_job: str | None
    paused: bool = False
    """Somebody paused the job, so its queued tasks wait on purpose."""


@dataclass(frozen=True, slots=True)
class Stuck:
    dag: str
    job: str
    reason: str
    sentence: str


def stuck(rows: Sequence[UnfinishedTasks], runtimes_at_work: Collection[str]) -> list[Stuck]:
    in_flight = {(r.dag, r.job) for r in rows if r.state in ("dispatched", "running")}
    reports = []
    for row in rows:
        job = (row.dag, row.job)
        late = row.due_seconds > PATIENCE_SECONDS
        tasks, since = _tasks(row.tasks), _duration(row.due_seconds)
        if row.state == "dispatched" and late and row.runtime not in runtimes_at_work:
            reports.append(
                Stuck(
                    *job,
                    "no_worker",
                    f"{tasks} waiting for up to {since}, and no worker of the runtime {row.runtime} claims any; "
                    f"start one with `traceplane worker --runtime {row.runtime}`",
                )
            )
        elif row.state == "queued" and row.paused:
            continue
        elif row.state == "queued" and row.hold_level:
            what = "all its work" if row.hold_level == 2 else "its backfill"
            reports.append(
                Stuck(
                    *job,
                    "held",
                    f"{tasks} waiting: backpressure holds {what}, since {row.hold_job} is behind",
                )
            )
        elif row.state == "queued" and late and job not in in_flight:
            reports.append(
                Stuck(
                    *job,
                    "not_dispatched",
                    f"{tasks} due for up to {since}, and no dispatcher sends any; check that one is running",
                )
            )
    return reports


def _tasks(count: int) -> str:
    return f"{count} task is" if count == 1 else f"{count} tasks are"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
