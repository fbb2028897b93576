"""The control plane: how fast tasks that do nothing get done, how soon they start, how both hold up.

Every contender uses the same Postgres server (Celery: a Valkey of its own), one after the other, in a
fresh database each time. The rounds interleave all of them, so that noise of the machine is shared, and
each figure is the median over the rounds. docs/benchmarks.md says how each peer is set up, and why.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import contender, environments, results
from bench.postgres_server import PostgresServer, running_postgres

SUITE = "control"
ROUNDS = 3
ROUNDS_BUDGET = 360.0
"""Seconds; a busy machine gets two rounds instead of three, so that the suite ends within ten minutes."""
RATE = 100
LATENCY_SAMPLES = 400
DRAIN_TASKS = 40_000
HISTORY = {"tasks": 1_000_000, "waiting": 100_000}
WORKER_TASKS = 6_000
ORDINARY_USER = "nobody"
ROUTED_EVENTS = 10_000
FEW_JOBS, MANY_JOBS = 10, 10_000
TIMEOUT = 120
"""Seconds for one measurement of one contender, its start included."""
SEED_TIMEOUT = 420


@dataclass(frozen=True)
class Contender:
    key: str
    module: str
    tasks: int
    """As many as it drains in a few seconds."""
    peer: str | None = None
    """The environment it runs in; our own if there is none."""
    environment: dict[str, str] = field(default_factory=dict)
    measurements: tuple[str, ...] = ("drain", "latency")

    @property
    def label(self) -> str:
        return f"{self.key} {environments.pinned_version(self.peer)}" if self.peer else self.key


OURS = Contender("Traceplane", "bench.ours_control", DRAIN_TASKS, measurements=("drain", "flow", "latency"))
FLOOR_100 = Contender(
    "raw floor, batches of 100", "bench.peers.raw_peer", 40_000, environment={"BATCH": "100"}
)
FLOOR_1000 = Contender(
    "raw floor, batches of 1000",
    "bench.peers.raw_peer",
    40_000,
    environment={"BATCH": "1000"},
    measurements=("drain",),
)
PGQUEUER = Contender("pgqueuer", "bench.peers.pgqueuer_peer", 20_000, peer="pgqueuer")
CELERY = Contender("celery", "bench.peers.celery_peer", 2_000, peer="celery")
PROCRASTINATE = Contender("procrastinate", "bench.peers.procrastinate_peer", 1_000, peer="procrastinate")
DBOS = Contender("dbos", "bench.peers.dbos_peer", 1_000, peer="dbos")
PEERS = (CELERY, PROCRASTINATE, PGQUEUER, DBOS, FLOOR_100, FLOOR_1000)
CONTENDERS = (OURS, *PEERS)

WORKERS: dict[str, dict[str, Any]] = {
    "worker, no-op": {"rows": 0},
    "worker, one row each": {"rows": 1},
}
"""Of the worker that users run, as whoever runs the benchmark; and as an ordinary user, if that is root."""
if os.geteuid() == 0:
    WORKERS |= {
        f"{title}, ordinary user": {**options, "user": ORDINARY_USER} for title, options in WORKERS.items()
    }

Progress = Callable[[str], None]


class Measurements:
    """Samples by contender and title, and why a contender has no figure under a title."""

    def __init__(self, server: PostgresServer, progress: Progress) -> None:
        self.server = server
        self.progress = progress
        self.pythons: dict[str, Path] = {}
        self.problems: dict[str, dict[str, str]] = defaultdict(dict)
        self.samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def prepare(self, each: Contender) -> None:
        if not each.peer:
            self.pythons[each.key] = Path(sys.executable)
            return
        try:
            self.pythons[each.key] = environments.prepare(each.peer)
            self.progress(f"environment of {each.label} is ready")
        except environments.PeerUnavailableError as reason:
            self.progress(f"{each.label} is skipped: {reason}")
            self.problems[each.key] = dict.fromkeys(each.measurements, f"skipped: {reason}")

    def take(self, each: Contender, measurement: str, title: str, url: str = "", **options: object) -> None:
        """One measurement, in a fresh database unless one is given. After a failure, its title is not tried again."""
        if title in self.problems[each.key]:
            return
        database = url or self.server.fresh_database()
        try:
            result = contender.measure(
                self.pythons[each.key],
                each.module,
                measurement,
                {"url": database, **options},
                environment=each.environment,
                timeout=SEED_TIMEOUT if measurement in ("seed", "end") else TIMEOUT,
            )
        except contender.ContenderFailedError as reason:
            self.problems[each.key][title] = str(reason)
            self.progress(f"{title}: {each.label}: {reason}")
        else:
            for figure, value in result.items():
                self.samples[each.key][f"{title} {figure}"].append(value)
            shown = ", ".join(f"{figure} {value:,.1f}" for figure, value in result.items())
            self.progress(f"{title}: {each.label}: {shown}")
        finally:
            if not url:
                self.server.drop(database)

    def median(self, each: Contender, title: str, figure: str) -> float | None:
        """None if any round failed: a contender that fails now and then has no figure to be proud of."""
        values = self.samples[each.key][f"{title} {figure}"]
        return median(values) if values and title not in self.problems[each.key] else None

    def note(self, each: Contender, *titles: str) -> str:
        return "; ".join(
            f"{one.label}, {title}: {self.problems[one.key][title]}"
            for one in ([OURS] if each is OURS else [OURS, each])
            for title in titles
            if title in self.problems[one.key]
        )


def run(progress: Progress) -> list[results.Row]:
    with running_postgres() as server:
        progress(f"Postgres {server.version} on {server.file_system}, fsync and synchronous_commit on")
        measurements = Measurements(server, progress)
        for each in CONTENDERS:
            measurements.prepare(each)
        began, rounds = time.monotonic(), 0
        for number in range(1, ROUNDS + 1):
            if number > 2 and (time.monotonic() - began) * number / (number - 1) > ROUNDS_BUDGET:
                progress(f"no time for round {number}: the machine is busy, medians are of {number - 1}")
                break
            progress(f"round {number} of {ROUNDS}")
            measure_round(measurements)
            rounds = number
        measure_growth(measurements, rounds)
    results.OUT.mkdir(exist_ok=True)
    samples = {"samples": measurements.samples, "problems": measurements.problems}
    (results.OUT / f"{SUITE}-samples.json").write_text(json.dumps(samples, indent=1) + "\n")
    return rows(measurements)


def measure_round(measurements: Measurements) -> None:
    for measurement in ("drain", "flow", "latency"):
        for each in CONTENDERS:
            if measurement in each.measurements:
                tasks = LATENCY_SAMPLES if measurement == "latency" else each.tasks
                measurements.take(each, measurement, measurement, tasks=tasks, rate=RATE)
    for title, options in WORKERS.items():
        measurements.take(OURS, "worker", title, tasks=WORKER_TASKS, timeout=TIMEOUT - 20, **options)


def measure_growth(measurements: Measurements, rounds: int) -> None:
    """Does it stay as fast when the tables and the DAGs are large? Small and large take turns."""
    full = measurements.server.fresh_database()
    measurements.take(OURS, "seed", "history", url=full, **HISTORY)
    if "history" not in measurements.problems[OURS.key]:
        for _ in range(rounds):
            measurements.take(OURS, "drain", "drain, empty tables", tasks=DRAIN_TASKS)
            measurements.take(OURS, "drain", "drain, full tables", url=full, tasks=DRAIN_TASKS)
    measurements.server.drop(full)
    for _ in range(rounds):
        for jobs in (FEW_JOBS, MANY_JOBS):
            measurements.take(OURS, "routing", f"routing, {jobs} jobs", tasks=ROUTED_EVENTS, jobs=jobs)


def rows(measurements: Measurements) -> list[results.Row]:
    higher = partial(results.compare, suite=SUITE, better="higher")
    lower = partial(results.compare, suite=SUITE, better="lower")
    figure, note = measurements.median, measurements.note

    throughput = partial(higher, name="throughput", unit="tasks/s", ours=figure(OURS, "drain", "per_second"))
    listed = [throughput(peer="target", theirs=5_000, bar=1.0, note=note(OURS, "drain"))]
    bars = {CELERY.key: 10.0, PROCRASTINATE.key: 10.0, PGQUEUER.key: 1.0}
    for each in PEERS:
        theirs = figure(each, "drain", "per_second")
        listed.append(
            throughput(peer=each.label, theirs=theirs, bar=bars.get(each.key), note=note(each, "drain"))
        )

    flow = partial(higher, name="event to commit", unit="tasks/s", ours=figure(OURS, "flow", "per_second"))
    listed.append(flow(peer="target", theirs=5_000, bar=1.0, note=note(OURS, "flow")))
    for each in (CELERY, PROCRASTINATE):
        theirs = figure(each, "drain", "per_second")
        listed.append(
            flow(peer=f"{each.label}, drain", theirs=theirs, bar=10.0, note=note(each, "flow", "drain"))
        )

    for title, target in (("worker, no-op", 1_500.0), ("worker, one row each", 1_000.0)):
        ours = figure(OURS, title, "per_second")
        real = partial(higher, name=f"real {title}", unit="tasks/s", ours=ours)
        listed.append(real(peer="target", theirs=target, bar=1.0, note=note(OURS, title)))
        theirs = figure(CELERY, "drain", "per_second")
        listed.append(real(peer=CELERY.label, theirs=theirs, bar=1.0, note=note(CELERY, title, "drain")))
        if (as_user := f"{title}, ordinary user") in WORKERS:
            listed.append(
                higher(
                    name=f"real {as_user}",
                    unit="tasks/s",
                    ours=figure(OURS, as_user, "per_second"),
                    peer="ours, as root",
                    theirs=ours,
                    bar=0.7,
                    note=note(OURS, title, as_user),
                )
            )

    for name, target in (("p50", 15.0), ("p99", 60.0)):
        started = partial(
            lower, name=f"latency {name}", unit="ms", ours=figure(OURS, "latency", f"{name}_ms")
        )
        listed.append(started(peer="target", theirs=target, bar=1.0, note=note(OURS, "latency")))
        for each in PEERS:
            if "latency" in each.measurements:
                theirs = figure(each, "latency", f"{name}_ms")
                listed.append(started(peer=each.label, theirs=theirs, note=note(each, "latency")))

    full, empty = "drain, full tables", "drain, empty tables"
    listed.append(
        higher(
            name=f"throughput, {HISTORY['tasks']:,} finished, {HISTORY['waiting']:,} waiting",
            unit="tasks/s",
            ours=figure(OURS, full, "per_second"),
            peer="ours, empty tables",
            theirs=figure(OURS, empty, "per_second"),
            bar=0.8,
            note=note(OURS, "history", full, empty),
        )
    )
    many, few = f"routing, {MANY_JOBS} jobs", f"routing, {FEW_JOBS} jobs"
    listed.append(
        higher(
            name=f"routing, {MANY_JOBS:,} unrelated jobs",
            unit="events/s",
            ours=figure(OURS, many, "per_second"),
            peer=f"ours, {FEW_JOBS} jobs",
            theirs=figure(OURS, few, "per_second"),
            bar=0.8,
            note=note(OURS, many, few),
        )
    )
    return listed
