"""What keeps tasks from making progress, judged by task counts: a pure function, so that it can be tested as data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.resources import Resources

_WORKERS_TOLD = 5
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
    requires: Resources = Resources()
    """What the job needs of the worker that runs its tasks."""


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """A worker that was there lately."""

    worker_id: str
    runtime: str
    offers: Resources


@dataclass(frozen=True, slots=True)
class Stuck:
    dag: str
    job: str
    reason: str
    sentence: str


def stuck(
    rows: Sequence[UnfinishedTasks],
    runtimes_at_work: Collection[str],
    workers: Sequence[SeenWorker] = (),
) -> list[Stuck]:
    in_flight = {(r.dag, r.job) for r in rows if r.state in ("dispatched", "running")}
    reports = []
    for row in rows:
        job = (row.dag, row.job)
        late = row.due_seconds > PATIENCE_SECONDS
        tasks, since = _tasks(row.tasks), _duration(row.due_seconds)
        lacking = missing_worker(row.requires, row.runtime, workers)
        if row.state == "dispatched" and lacking is not None:
            reports.append(Stuck(*job, "no_able_worker", f"{tasks} waiting for a worker: {lacking}"))
        elif row.state == "dispatched" and late and row.runtime not in runtimes_at_work:
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


def missing_worker(requires: Resources, runtime: str, workers: Sequence[SeenWorker]) -> str | None:
    """What is missing if no worker that is there has what a job requires; None: one has it, or it requires nothing."""
    own = [worker for worker in workers if worker.runtime == runtime]
    if not requires or any(not worker.offers.lacks(requires) for worker in own):
        return None
    needed = requires.in_words()
    start = f"start one with `traceplane worker --runtime {runtime} --offers {needed.replace(', ', ',')}`"
    if not own:
        return f"none of the runtime {runtime} is there, and the job requires {needed}; {start}"
    lacks = [f"{w.worker_id} lacks {w.offers.lacks(requires).in_words()}" for w in own[:_WORKERS_TOLD]]
    more = [f"{len(own) - _WORKERS_TOLD} more lack it too"] if len(own) > _WORKERS_TOLD else []
    return f"the job requires {needed}, but {', '.join([*lacks, *more])}; {start}"


def _tasks(count: int) -> str:
    return f"{count} task is" if count == 1 else f"{count} tasks are"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
