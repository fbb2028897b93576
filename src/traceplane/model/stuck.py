"""What keeps work from going on, as far as counts of tasks tell: a pure function, so that it can be tested as data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 30.0
"""How long a task may be due before that is worth a word."""


@dataclass(frozen=True, slots=True)
class Stuck:
    dag: str
    job: str
    reason: str
    sentence: str


def stuck(rows: Iterable[Mapping[str, Any]], runtimes_at_work: Collection[str]) -> list[Stuck]:
    """`rows`: unfinished tasks by job and state (`tasks.counts`)."""
    rows = list(rows)
    out = {(r["dag"], r["job"]) for r in rows if r["state"] in ("dispatched", "running")}
    found = []
    for row in rows:
        job = (row["dag"], row["job"])
        late = row["due_seconds"] > PATIENCE_SECONDS
        tasks, since = _tasks(row["tasks"]), _duration(row["due_seconds"])
        if row["state"] == "dispatched" and late and row["runtime"] not in runtimes_at_work:
            found.append(
                Stuck(
                    *job,
                    "no_worker",
                    f"{tasks} waiting for up to {since}, and no worker of the runtime {row['runtime']} takes any; "
                    f"start one with `traceplane worker --runtime {row['runtime']}`",
                )
            )
        elif row["state"] == "queued" and row["hold_level"]:
            what = "all its work" if row["hold_level"] == 2 else "its backfill"
            found.append(
                Stuck(
                    *job,
                    "held",
                    f"{tasks} waiting: backpressure holds {what}, since {row['hold_job']} is behind",
                )
            )
        elif row["state"] == "queued" and late and job not in out:
            found.append(
                Stuck(
                    *job,
                    "not_dispatched",
                    f"{tasks} due for up to {since}, and no dispatcher sends any; see whether one runs",
                )
            )
    return found


def _tasks(count: int) -> str:
    return f"{count} task is" if count == 1 else f"{count} tasks are"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
