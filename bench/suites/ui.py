"""The web UI on a platform that has been in use for long: what its pages ask for, and when they are useful.

The database has 10,000 jobs, 1,000,000 tasks, 1,000,000 partitions of one dataset and 10,000,000 events. A browser
visits every page and notes what it asks the gateway for; then each of these calls is timed alone. Before that, a
newcomer's path to the first rows is timed (`bench.newcomer`). `bench.ui_dagster` measures the pages beside Dagster's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import aiohttp
import asyncpg

from bench import newcomer, results, ui_pages, ui_world
from bench.ours_control import Stand, stand
from bench.peers import measure
from bench.postgres_server import running_postgres
from bench.ui_frames import Frames, graph_frames
from bench.ui_pages import Visit
from tests import chromium
from traceplane.gateway.pages import BUILT, are_built
from traceplane.wire.sign_in import BrowserLink

SUITE = "ui"
SIZE = ui_world.Size()
SERVER_MS, USEFUL_MS, BUNDLE_KB, FRAMES = 300.0, 1500.0, 500.0, 30.0
SAMPLES = 20
ROUNDS = 3
"""How often each page is visited."""
EDITOR = "codemirror"
"""In the names of the files that hold the code editor, which is loaded where it is used."""

Progress = Callable[[str], None]


def run(progress: Progress) -> list[results.Row]:
    first_minutes = newcomer.run(progress)  # before there are other processes that take memory and time
    if not are_built():
        progress("the web UI is not built: `make setup` says why")
        return first_minutes
    with running_postgres({"max_wal_size": "8GB"}) as server:
        url = server.fresh_database()
        return [*first_minutes, *asyncio.run(_measured(url, progress)), bundle()]


async def _measured(url: str, progress: Progress) -> list[results.Row]:
    began = time.monotonic()
    await ui_world.deploy(url, SIZE)
    await ui_world.fill(url, SIZE)
    progress(f"seeded {_told(SIZE)} in {time.monotonic() - began:.0f} s")
    return await of_filled(url, progress)


async def of_filled(url: str, progress: Progress) -> list[results.Row]:
    async with stand(url) as made:
        paths = await _single_things(made.connection)
        seen, drawn, why = await _visits(made, paths)
        for visit in seen:
            progress(f"{visit.path}: useful after {visit.useful_ms:.0f} ms; {len(visit.calls)} calls")
        rows = [_smooth(drawn, why)]
        rows += [_useful(path, [v.useful_ms for v in seen if v.path == path], why) for path in _unique(seen)]
        calls = {call: visit.path for visit in reversed(seen) for call in visit.calls}
        async with _session(made) as http:
            for call in sorted(calls):
                samples = [await _timed(http, call) for _ in range(SAMPLES)]
                worst = measure.percentile(samples, 0.95)
                progress(f"GET {call}: p50 {median(samples):.0f} ms, p95 {worst:.0f} ms")
                rows.append(_target(f"GET {_shortened(call)}, p95", "ms", worst, SERVER_MS))
    return rows


def _told(size: ui_world.Size) -> str:
    figures = asdict(size) | {"jobs": size.dags * size.jobs_each}
    return ", ".join(f"{figures[name]:,} {name}" for name in ("jobs", "tasks", "partitions", "events"))


async def _single_things(connection: asyncpg.Connection) -> list[str]:
    """Pages of one thing each: those with the most behind them."""
    tasks = await connection.fetch(
        "select distinct on (state) state, task_id from tasks where state in ('completed', 'queued', 'dead')"
        " order by state, task_id desc"
    )
    (alert,) = await connection.fetch(
        "select alert_event_id from alert_events order by alert_event_id desc limit 1"
    )
    return [
        f"/graph?dag={ui_world.BUSY_DAG}",
        f"/tasks?state=dead&dag={ui_world.BUSY_DAG}",
        f"/tasks?dag={ui_world.BUSY_DAG}&job={ui_world.BUSY_JOB}",
        f"/datasets/{ui_world.LARGE_DATASET}",
        f"/datasets/{ui_world.BUSY_DAG}.r0",
        f"/deploys?dag={ui_world.BUSY_DAG}",
        *(f"/tasks/{task['task_id']}" for task in tasks),
        f"/alerts/{alert['alert_event_id']}",
    ]


async def _visits(made: Stand, paths: list[str]) -> tuple[list[Visit], Frames | None, str]:
    """None where there is no browser, and why."""
    address = made.environment["BENCH_GATEWAY"]
    try:
        async with chromium.running() as browser:
            seen = []
            for _ in range(ROUNDS):
                seen += await ui_pages.visits(browser, await _link(made), address, paths)
            return seen, await graph_frames(browser, await _link(made)), ""
    except chromium.ChromiumUnavailable as why:
        return [], None, str(why)


async def _link(made: Stand) -> str:
    return (await made.caller.call("POST", "/auth/browser-link", BrowserLink)).url


def _smooth(drawn: Frames | None, why: str) -> results.Row:
    """A graph of 500 nodes that is moved all the time, while 100 changes a second are told of."""
    per_second = drawn.per_second if drawn else None
    return results.compare(
        suite=SUITE, name="graph of 500 nodes, 100 changes/s", unit="frames/s", better="higher", ours=per_second,
        peer="target", theirs=FRAMES, bar=1.0, note=why,
    )  # fmt: skip


def _unique(seen: list[Visit]) -> list[str]:
    return list(dict.fromkeys(visit.path for visit in seen))


@contextlib.asynccontextmanager
async def _session(made: Stand) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {made.token}"}
    async with aiohttp.ClientSession(made.environment["BENCH_GATEWAY"], headers=headers) as http:
        yield http


async def _timed(http: aiohttp.ClientSession, call: str) -> float:
    """Milliseconds from the request to the last byte of the answer."""
    began = time.perf_counter()
    async with http.get(call) as answer:
        content = await answer.read()
        assert answer.status == 200, f"{call}: {answer.status} {content[:300]!r}"
    return (time.perf_counter() - began) * 1000


def bundle() -> results.Row:
    """What a browser loads before its first page, as it is sent."""
    files = [path for path in Path(BUILT).rglob("*") if path.is_file() and EDITOR not in path.name]
    size = sum(len(gzip.compress(path.read_bytes(), 9, mtime=0)) for path in files)
    return _target("bundle without the editor, compressed", "kB", size / 1000, BUNDLE_KB)


def _useful(path: str, samples: list[float], why: str) -> results.Row:
    return _target(
        f"{_shortened(path)} useful", "ms", median(samples) if samples else None, USEFUL_MS, note=why
    )


def _shortened(path: str) -> str:
    """Without ids, which say nothing to a reader."""
    parts = urlsplit(path)
    names = ["{id}" if len(part) == 36 else part for part in parts.path.split("/")]
    return "/".join(names) + (f"?{parts.query}" if parts.query else "")


def _target(name: str, unit: str, ours: float | None, target: float, note: str = "") -> results.Row:
    return results.compare(
        suite=SUITE, name=name, unit=unit, better="lower", ours=ours, peer="target", theirs=target, bar=1.0,
        note=note,
    )  # fmt: skip
