"""Depths and ages of queues as gauges: of tasks, of wake-ups, and of messages for channels; and workers."""

from __future__ import annotations

from collections import Counter, defaultdict

from traceplane import telemetry
from traceplane.postgres import channels, outbox, task_views, workers
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome


class Gauges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Outcome:
        async with self._database.transaction() as tx:
            rows = await task_views.depths(tx)
            lag = await outbox.lag_seconds(tx)
            messages = await channels.depths(tx)
            seen = Counter(worker.runtime for worker in await workers.there(tx))
        depth: defaultdict[str, float] = defaultdict(float)
        age: defaultdict[str, float] = defaultdict(float)
        running: defaultdict[str, float] = defaultdict(float)
        for row in rows:
            job = f"{row.dag}/{row.job}"
            if row.state == "running":
                running[job] = row.tasks
            else:
                depth[job] += row.tasks
                age[job] = max(age[job], row.oldest_seconds)
        telemetry.replace_gauge("queue_depth", depth)
        telemetry.replace_gauge("queue_age_seconds", age)
        telemetry.replace_gauge("tasks_running", running)
        telemetry.replace_gauge("workers", seen)
        telemetry.gauge("outbox_lag_seconds", lag)
        telemetry.replace_gauge("deliveries_waiting", {m.channel: m.waiting for m in messages})
        telemetry.replace_gauge("deliveries_dead", {m.channel: m.dead for m in messages})
        return Outcome()
