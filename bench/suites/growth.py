"""Growth: what a year of history costs, and that it ends.

Ten million finished tasks, with their events and lineage, are in the tables. The dispatcher deletes what has ended in
the background while it works, so each measurement with full tables has retention running beside it. Empty and full
take turns; each figure is the median. At the end, the rest of the history goes at once.

The two sides differ in their tables alone. They share one server and its settings, each drain starts its processes
anew, deploys a DAG of its own and begins after a checkpoint. The full side first writes a page image of each old page
that it touches, and reads it from the disk or the system's cache: 256 MB of shared buffers hold a thirtieth of the
history.
"""

from __future__ import annotations

import os
import time
from functools import partial

from bench import results
from bench.postgres_server import running_postgres
from bench.suites.control import DRAIN_TASKS, OURS, Contender, Measurements, Progress

SUITE = "growth"
TASKS = int(os.environ.get("GROWTH_TASKS", "10_000_000"))
KEPT = 30 / 365
"""Of the year's tasks."""
ROUNDS = 3
BUDGET = 420.0
"""Seconds until the last drain may begin, so that the suite ends within ten minutes."""
HISTORY = Contender("Traceplane", "bench.ours_growth", TASKS)
EMPTY, FULL, AFTER = "drain, empty tables", "drain, full tables", "drain, history ended"


def run(progress: Progress) -> list[results.Row]:
    began = time.monotonic()
    with running_postgres({"max_wal_size": "8GB"}) as server:
        measurements = Measurements(server, progress)
        measurements.prepare(OURS)
        full = server.fresh_database()
        measurements.take(HISTORY, "seed", "seed", url=full, tasks=TASKS)
        if "seed" not in measurements.problems[HISTORY.key]:
            for number in range(ROUNDS):
                if number and time.monotonic() - began > BUDGET:
                    progress(f"no time for round {number + 1}: the machine is busy")
                    break
                measurements.take(OURS, "drain", EMPTY, tasks=DRAIN_TASKS)
                measurements.take(HISTORY, "due", "due", url=full)
                server.checkpoint()
                measurements.take(OURS, "drain", FULL, url=full, tasks=DRAIN_TASKS)
            measurements.take(HISTORY, "sizes", "sizes", url=full)
            measurements.take(HISTORY, "end", "end", url=full)
            server.checkpoint()
            measurements.take(OURS, "drain", AFTER, url=full, tasks=DRAIN_TASKS)
            measurements.take(HISTORY, "sizes", "afterwards", url=full)
        server.drop(full)
    return rows(measurements)


def rows(measurements: Measurements) -> list[results.Row]:
    figure, note = measurements.median, measurements.note
    higher = partial(results.compare, suite=SUITE, better="higher")
    lower = partial(results.compare, suite=SUITE, better="lower")
    empty = figure(OURS, EMPTY, "per_second")
    return [
        higher(
            name=f"throughput, {TASKS:,} finished, retention running",
            unit="tasks/s",
            ours=figure(OURS, FULL, "per_second"),
            peer="ours, empty tables",
            theirs=empty,
            bar=0.9,
            note=note(OURS, "seed", FULL, EMPTY),
        ),
        higher(
            name="throughput, history ended",
            unit="tasks/s",
            ours=figure(OURS, AFTER, "per_second"),
            peer="ours, empty tables",
            theirs=empty,
            bar=0.9,
            note=note(OURS, "end", AFTER),
        ),
        lower(
            name="tasks kept, of a year's",
            unit="rows",
            ours=figure(HISTORY, "end", "tasks"),
            peer="30 days of them, and this run's",
            theirs=TASKS * KEPT + DRAIN_TASKS * ROUNDS,
            bar=1.0,
            note=note(HISTORY, "seed", "end"),
        ),
        lower(
            name="size after more work, in the room that was freed",
            unit="MB",
            ours=figure(HISTORY, "afterwards", "megabytes"),
            peer="before it",
            theirs=figure(HISTORY, "end", "megabytes"),
            bar=0.95,
            note=note(HISTORY, "end", "afterwards"),
        ),
        higher(
            name="rows ended by hand",
            unit="rows/s",
            ours=figure(HISTORY, "end", "per_second"),
            peer="tasks drained, empty tables",
            theirs=empty,
            note=note(HISTORY, "end"),
        ),
    ]
