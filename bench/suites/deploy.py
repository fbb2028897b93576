"""Deploys: how long a move of all pointers takes, and how deploying grows with the data behind it.

Peers do not move a subgraph atomically, so there is nobody to run beside us: the rows are promises of our own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median, quantiles
from typing import Any

from bench import results
from bench.postgres_server import running_postgres
from traceplane.dispatcher.loops.builds import Builds
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.postgres import commits, versions
from traceplane.postgres.database import Database
from traceplane.postgres.migrate import migrate
from traceplane.registry import apply, cutover, preparation
from traceplane.registry.spec.dag_file import parse

SUITE = "deploy"
DATASETS = 200
MOVES = 200
WINDOW = 64
FEW, MANY = 5, 500
"""Commits of each of the datasets that move."""
PARTITIONS = 100_000

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    with running_postgres() as server:
        few = _moves(server.fresh_database(), FEW)
        progress(f"{MOVES} moves of {DATASETS} datasets with {FEW} commits each: {_told(few)}")
        many = _moves(server.fresh_database(), MANY)
        progress(f"{MOVES} moves of {DATASETS} datasets with {MANY} commits each: {_told(many)}")
        small = asyncio.run(_metadata(server.fresh_database(), PARTITIONS // 100))
        large = asyncio.run(_metadata(server.fresh_database(), PARTITIONS))
        progress(f"metadata of {PARTITIONS:,} partitions: {large}")
    rows = [
        _target(f"move of {DATASETS} pointers, p50", "ms", median(few), 50.0),
        _target(f"move of {DATASETS} pointers, p99", "ms", _p99(few), 50.0),
        _target(f"the same with {MANY // FEW}× the data, p99", "ms", _p99(many), 50.0),
        results.compare(
            suite=SUITE, name="move with more data against less, p50", unit="ms", better="lower",
            ours=median(many), peer="less data", theirs=median(few), bar=0.67,
        ),
    ]  # fmt: skip
    for what, seconds in large.items():
        rows.append(_target(f"{what}, {PARTITIONS:,} partitions", "s", seconds, 1.0))
        rows.append(
            results.compare(
                suite=SUITE, name=f"{what}, growth over 100× partitions", unit="s", better="lower",
                ours=seconds, peer=f"{PARTITIONS // 100:,}", theirs=small[what],
            )
        )  # fmt: skip
    return rows


def _target(name: str, unit: str, ours: float, target: float) -> results.Row:
    return results.compare(
        suite=SUITE, name=name, unit=unit, better="lower", ours=ours, peer="target", theirs=target, bar=1.0
    )  # fmt: skip


def _p99(samples: list[float]) -> float:
    return quantiles(samples, n=100)[98]


def _told(samples: list[float]) -> str:
    return f"p50 {median(samples):.1f} ms, p99 {_p99(samples):.1f} ms, worst {max(samples):.1f} ms"


def dag(version: int, datasets: int) -> str:
    """A job that changes with the version, and a tree of jobs below it."""
    lines = [
        "version: 1",
        "dag: wide",
        "jobs:",
        "- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: in}]}",
    ]
    for n in range(datasets):
        reads = "in" if n == 0 else f"d{(n - 1) // 8}"
        lines.append(
            f"- {{name: j{n}, runtime: python, operator: python, inputs: [{{from: {{dataset: {reads}}}}}],"
            f' outputs: [{{dataset: d{n}}}], config: {{entrypoint: "a:b", version: {version if n == 0 else 0}}}}}'
        )
    return "\n".join(lines) + "\n"


async def _deploy(database: Database, text: str) -> apply.DeployOutcome:
    parsed = parse(text, "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
    return await apply.deploy(database, "default", parsed, runtimes=DEFAULT_RUNTIMES, window=WINDOW)


SEED = """
insert into dataset_commits (task_id, output_index, generation_id, partition_key, range_start, range_end, files,
                             row_count, bytes, schema_hash, committed_at)
select uuid7(), 0, d.current_generation_id, null, n, n,
       jsonb_build_array(jsonb_build_object('path', d.dataset_uuid || '/' || n, 'rows', 100, 'bytes', 10000)),
       100, 10000, 'x', tp_now()
from datasets d, generate_series(1, $1::int) n where d.dataset_id like $2
"""
CURSORS = """
insert into generation_cursors (generation_id, position, widest, updated_at)
select current_generation_id, $1::int, 0, tp_now() from datasets where dataset_id like $2
on conflict (generation_id) do nothing
"""
EVENTS = """
insert into events (producer_id, dataset_uuid, generation_id, kind, range_start, range_end, created_at)
select uuid7(), d.dataset_uuid, d.current_generation_id, 'data', n, n, tp_now()
from datasets d, generate_series(1, $1::int) n where d.dataset_id = $2
"""


async def _fill(database: Database, scopes: int, datasets: str, events_of: str | None = None) -> None:
    async with database.transaction() as tx:
        await tx.rows(SEED, scopes, datasets)
        await tx.rows(CURSORS, scopes, datasets)
        if events_of is not None:
            await tx.rows(EVENTS, scopes, events_of)
    async with database.autocommit() as tx:
        await tx.rows("analyze")


def _moves(url: str, scopes: int) -> list[float]:
    """Milliseconds of each of many moves there and back between two versions, all datasets of which differ."""

    async def run_moves() -> list[float]:
        await migrate(url)
        database = await Database.connect(url, connections=4)
        try:
            for version in (1, 2):
                await _deploy(database, dag(version, DATASETS))
                await Builds(database).run_once()
                await _fill(database, scopes, "d%")
            samples = []
            for move in range(MOVES):
                began = time.perf_counter()
                await cutover.roll_back(database, "default", "wide", to=1 + move % 2)
                samples.append((time.perf_counter() - began) * 1000)
                await Builds(database).run_once()
            return samples
        finally:
            await database.close()

    return asyncio.run(run_moves())


async def _metadata(url: str, partitions: int) -> dict[str, float]:
    """Seconds of what people wait for, on a dataset of many partitions."""
    await migrate(url)
    database = await Database.connect(url, connections=4)
    try:
        await _deploy(database, dag(1, 2))
        await _fill(database, partitions, "d%", events_of="d0")
        changed = dag(1, 1) + dag(2, 2).splitlines()[-1].replace("version: 0", "version: 7") + "\n"
        parsed = parse(changed, "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))

        async def plan() -> Any:
            async with database.transaction() as tx:
                return await preparation.prepare(tx, "default", parsed, DEFAULT_RUNTIMES)

        async def status() -> Any:
            async with database.transaction() as tx:
                return await commits.summary(tx, "default")

        async def progress() -> Any:
            async with database.transaction() as tx:
                (building,) = await versions.building(tx)
                await versions.missing(tx, building.dag_version_id)
                return await versions.progress(tx, building.dag_version_id)

        timings = {"plan": await _timed(plan), "deploy": await _timed(lambda: _deploy(database, changed))}
        return {**timings, "status": await _timed(status), "versions": await _timed(progress)}
    finally:
        await database.close()


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began
