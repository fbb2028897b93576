"""Sources: what it costs to keep many of them going.

Peers keep their schedules in a process, not in a table that several share; the rows are promises of our own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median

from bench import results
from bench.postgres_server import running_postgres
from traceplane.dispatcher.loops.cron_ticks import CronTicks
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.postgres.database import Database
from traceplane.postgres.migrate import migrate
from traceplane.registry import apply
from traceplane.registry.spec.dag_file import parse

SUITE = "sources"
DAGS, SOURCES_OF_A_DAG = 20, 500
SCHEDULES = DAGS * SOURCES_OF_A_DAG
IDLE_PASSES = 100
BUSY_PASSES = 3

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    with running_postgres() as server:
        idle, per_second = asyncio.run(_cron(server.fresh_database(), progress))
    return [
        results.compare(
            suite=SUITE, name=f"cron: a pass over {SCHEDULES:,} schedules, none due", unit="ms", better="lower",
            ours=idle, peer="target", theirs=50.0, bar=1.0,
        ),
        results.compare(
            suite=SUITE, name=f"cron: ticks of {SCHEDULES:,} schedules, all due", unit="ticks/s", better="higher",
            ours=per_second, peer="target", theirs=1000.0,
        ),
    ]  # fmt: skip


async def _cron(url: str, progress: Progress) -> tuple[float, float]:
    """Milliseconds of a pass when nothing is due; ticks that fire in a second when everything is."""
    await migrate(url)
    database = await Database.connect(url, connections=4)
    try:
        for number in range(DAGS):
            dag = parse(_dag(number), "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
            await apply.deploy(database, "default", dag, runtimes=DEFAULT_RUNTIMES, window=64)
        cron = CronTicks(database)
        await cron.run_once()
        async with database.autocommit() as tx:
            await tx.rows("analyze")
        progress(f"{SCHEDULES:,} schedules deployed")
        idle = [await _seconds(cron) for _ in range(IDLE_PASSES)]
        progress(f"a pass, none due: p50 {median(idle) * 1000:.2f} ms, worst {max(idle) * 1000:.2f} ms")
        busy = []
        for _ in range(BUSY_PASSES):
            async with database.autocommit() as tx:
                await tx.rows("delete from events")  # the same ticks again, and none of them known
                await tx.rows(
                    "update cron_schedules set settled_through = next_tick - interval '61 minutes', due_at = tp_now()"
                )
            busy.append(await _seconds(cron))
        progress(f"all due: {SCHEDULES / median(busy):,.0f} ticks/s")
        return median(idle) * 1000, SCHEDULES / median(busy)
    finally:
        await database.close()


async def _seconds(cron: CronTicks) -> float:
    began = time.perf_counter()
    await cron.run_once()
    return time.perf_counter() - began


def _dag(number: int) -> str:
    """Sources with schedules of their own minute, each with a dataset of hours."""
    names = [f"s{number}_{n}" for n in range(SOURCES_OF_A_DAG)]
    datasets = ", ".join(f"{name}: {{partitions: {{by: hour}}}}" for name in names)
    jobs = "\n".join(
        f"- {{name: {name}, activation: source, outputs: [{{dataset: {name}}}],"
        f' source: {{kind: cron, schedule: "{n % 60} * * * *", time_zone: Europe/Berlin, catch_up: all}}}}'
        for n, name in enumerate(names)
    )
    return f"version: 1\ndag: d{number}\ndatasets: {{{datasets}}}\njobs:\n{jobs}\n"
