"""The web UI beside Dagster's, on worlds of one size, in one run: `python -m bench.ui_dagster`.

Both have a graph of 500 nodes, one dataset (asset) of 50,000 partitions and 50,000 tasks (runs), on the same Postgres
server. The same Chromium opens their pages in turns. These are not the sizes of the suite `ui`, which Dagster does not
get.

A page of ours is useful when nothing of it is loading any more, one of Dagster as soon as what it is for is there,
whatever else is loading. Its calls are those that were sent until then, and each is timed alone.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Browser, BrowserContext, Request, Response

from bench import dagster_world, environments, results, ui_frames, ui_pages, ui_world
from bench.ours_control import Stand, stand
from bench.peers import measure, ui_graph
from bench.postgres_server import running_postgres
from bench.run import print_machine_facts, progress_since
from tests import chromium
from traceplane.wire.sign_in import BrowserLink

SUITE = "ui-dagster"
SIZE = ui_world.Size(
    dags=1, jobs_each=ui_graph.JOBS, partitions=ui_graph.PARTITIONS, tasks=ui_graph.PARTITIONS, events=500_000,
    alerts=1000,
)  # fmt: skip
ROUNDS = 3
"""After one that is not measured, in the same browser: caches of both sides are filled."""
SAMPLES = 10
FRAME_SECONDS = 10.0
JSON = {"content-type": "application/json"}
NODE = "[class*=AssetNode_assetNodeContainer]"
GRAPH = "[class*=AssetGraphExplorer_svgContainer]"
ZOOM_IN = "[class*=SVGViewport_iconButton] >> nth=0"

Progress = Callable[[str], None]


@dataclass
class Side:
    """One of the two UIs, in a browser of its own."""

    context: BrowserContext
    address: str
    http: aiohttp.ClientSession
    call_of: Callable[[Request], str | None]
    first: str
    """What a newcomer opens; signs in where that is needed."""
    pages: dict[str, tuple[str, str]]
    """By the name of what is shown: its path, and JavaScript that says whether it is there."""
    useful: dict[str, list[float]] = field(default_factory=dict)
    calls: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def loaded_kb(self) -> float:
        """Scripts and styles that the first page loads in a browser that was never there, compressed by us."""
        loaded: list[Response] = []
        page = await self.context.new_page()
        page.on("response", lambda response: loaded.append(response))  # noqa: PLW0108 - as in ui_pages
        await page.goto(self.first)
        _, useful = next(iter(self.pages.values()))
        async with asyncio.timeout(ui_pages.PATIENCE_MS / 1000):
            while not await page.evaluate(f"Boolean(document.body && {useful.strip()})"):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        wanted = [one for one in loaded if one.request.resource_type in ("script", "stylesheet")]
        size = sum([len(gzip.compress(await one.body(), 9, mtime=0)) for one in wanted])
        await page.close()
        return size / 1000

    async def visit(self, name: str, *, counts: bool) -> None:
        path, useful = self.pages[name]
        page = await self.context.new_page()
        try:
            visit = await ui_pages.visit(page, self.address, path, useful, self.call_of)
        except TimeoutError:
            return  # a row without a figure
        self.calls[name] = visit.calls  # those of the last time
        if counts:
            self.useful.setdefault(name, []).append(visit.useful_ms)

    def useful_ms(self, name: str) -> float | None:
        return median(self.useful[name]) if name in self.useful else None

    async def slowest_ms(self, name: str, timed: dict[str, float]) -> float | None:
        for call in self.calls.get(name, ()):
            if call not in timed:
                samples = [await self._timed(call) for _ in range(SAMPLES)]
                timed[call] = measure.percentile(samples, 0.95)
        return max((timed[call] for call in self.calls.get(name, ())), default=None)

    async def _timed(self, call: str) -> float:
        began = time.perf_counter()
        asked = self.http.post("/graphql", data=call, headers=JSON) if call[0] == "{" else self.http.get(call)
        async with asked as answer:
            content = await answer.read()
            assert answer.status == 200, f"{call[:300]}: {answer.status} {content[:300]!r}"
        return (time.perf_counter() - began) * 1000


def run(progress: Progress) -> list[results.Row]:
    try:
        environments.prepare(dagster_world.PEER)
        with running_postgres({"max_wal_size": "8GB"}) as server:
            return asyncio.run(_measured([server.fresh_database() for _ in range(2)], progress))
    except (chromium.ChromiumUnavailable, environments.PeerUnavailableError) as why:
        return [_row("pages", "ms", None, None, note=f"{why}")]


async def _measured(urls: list[str], progress: Progress) -> list[results.Row]:
    began = time.monotonic()
    await ui_world.deploy(urls[0], SIZE, _dag())
    await ui_world.fill(urls[0], SIZE)
    progress(f"filled our world in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(chromium.running())
        made = await stack.enter_async_context(stand(urls[0]))
        address = stack.enter_context(dagster_world.webserver(urls[1]))
        dagster = await stack.enter_async_context(aiohttp.ClientSession(address))
        newest_run = await dagster_world.fill(dagster, urls[1])
        progress(f"started Dagster and filled its world in {time.monotonic() - began:.0f} s")
        gateway, headers = made.environment["BENCH_GATEWAY"], {"authorization": f"Bearer {made.token}"}
        http = await stack.enter_async_context(aiohttp.ClientSession(gateway, headers=headers))
        ours = Side(
            await _context(browser),
            gateway,
            http,
            ui_pages.call_of,
            await _link(made),
            await _our_pages(made),
        )
        theirs = Side(
            await _context(browser), address, dagster, _graphql, address, _dagsters_pages(newest_run)
        )
        rows = [
            _row(
                "first page: scripts and styles, compressed",
                "kB",
                await ours.loaded_kb(),
                await theirs.loaded_kb(),
            )
        ]
        for number in range(ROUNDS + 1):
            for name in ours.pages:
                for side in (ours, theirs):
                    await side.visit(name, counts=number > 0)
            progress(f"round {number} of {ROUNDS} is done")
        our_times: dict[str, float] = {}
        their_times: dict[str, float] = {}
        for name in ours.pages:
            rows.append(_row(f"{name}: useful", "ms", ours.useful_ms(name), theirs.useful_ms(name)))
            slowest = await ours.slowest_ms(name, our_times), await theirs.slowest_ms(name, their_times)
            rows.append(_row(f"{name}: slowest call, p95", "ms", *slowest))
        for call, took in sorted(their_times.items(), key=lambda one: -one[1])[:5]:
            progress(f"Dagster's {json.loads(call)['operationName']}: p95 {took:.0f} ms")
        drawn = await ui_frames.graph_frames(browser, await _link(made), seconds=FRAME_SECONDS)
        rows.append(await _smooth(drawn, await _dagsters_frames(theirs)))
    return rows


async def _context(browser: Browser) -> BrowserContext:
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(ui_pages.PATIENCE_MS)
    return context


async def _link(made: Stand) -> str:
    return (await made.caller.call("POST", "/auth/browser-link", BrowserLink)).url


def _dag() -> str:
    """Our side of the graph."""
    name = ui_world.BUSY_DAG
    lines = [
        *("version: 1", f"dag: {name}", "jobs:"),
        f"- {{name: source, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.r0}}]}}",
    ]
    for job in range(1, ui_graph.JOBS):
        inputs = ", ".join(f"{{name: r{n}, from: {{dataset: {name}.r{n}}}}}" for n in ui_graph.reads(job))
        lines.append(
            f"- {{name: j{job}, runtime: python, operator: python, inputs: [{inputs}],"
            f' outputs: [{{dataset: {name}.r{job}}}], config: {{entrypoint: "operators:one"}}}}'
        )
    return "\n".join(lines) + "\n"


async def _our_pages(made: Stand) -> dict[str, tuple[str, str]]:
    task = await made.connection.fetchval(
        "select task_id from tasks where state = 'completed' order by task_id desc limit 1"
    )
    large = f"/datasets/{ui_world.LARGE_DATASET}"
    paths = {
        "first page": "/graph",
        "graph of 500 nodes": f"/graph?dag={ui_world.BUSY_DAG}",
        "datasets": "/datasets",
        "a dataset": f"/datasets/{ui_world.BUSY_DAG}.r0",
        "dataset of 50,000 partitions": large,
        "its partitions": large,
        "tasks": "/tasks",
        "a task": f"/tasks/{task}",
        "health": "/health",
    }
    return {name: (path, ui_pages.USEFUL) for name, path in paths.items()}


def _dagsters_pages(run: str) -> dict[str, tuple[str, str]]:
    hour = dagster_world.LAST_HOUR
    return {
        "first page": ("/overview/activity/timeline", _says(dagster_world.DEFINITIONS)),
        "graph of 500 nodes": ("/asset-groups", f"document.querySelector('{GRAPH} path[marker-end]')"),
        "datasets": ("/assets", "document.querySelector('a[href*=\"/assets/j0\"]')"),
        "a dataset": ("/assets/r0", _says("Latest materialization", "Downstream assets", "j1")),
        "dataset of 50,000 partitions": ("/assets/r1", _says("Latest materialization", hour)),
        "its partitions": (
            "/assets/r1?view=partitions",
            _says(f"Materialized ({dagster_world.MATERIALIZED})"),
        ),
        "tasks": ("/runs", _says("Manually launched", hour)),
        "a task": (f"/runs/{run}", _says("RUN_SUCCESS")),
        "health": ("/deployment/daemons", _says("Scheduler", "Not running")),
    }


def _says(*texts: str) -> str:
    return f"{json.dumps(texts)}.every(text => document.body.innerText.includes(text))"


def _graphql(request: Request) -> str | None:
    return request.post_data if urlsplit(request.url).path == "/graphql" else None


async def _dagsters_frames(side: Side) -> ui_frames.Frames:
    """It draws no nodes while all of them fit in; so in the widest view that has any."""
    page = await side.context.new_page()
    await page.goto(f"{side.address}/asset-groups")
    await page.wait_for_selector(GRAPH)
    for _ in range(10):
        await page.wait_for_timeout(1000)
        if await page.locator(NODE).count():
            break
        await page.click(ZOOM_IN)
    drawn = await ui_frames.frames_while_moved(page, GRAPH, NODE, FRAME_SECONDS)
    await page.close()
    return drawn


async def _smooth(ours: ui_frames.Frames, theirs: ui_frames.Frames) -> results.Row:
    note = (
        f"frames: ours with 100 changes/s and all nodes in view, Dagster's without changes, {theirs.nodes} in view,"
        " as it draws none of them where all fit in"
    )
    name = "graph of 500 nodes, moved all the time"
    return _row(name, "frames/s", ours.per_second, theirs.per_second, note=note)


def _row(name: str, unit: str, ours: float | None, theirs: float | None, note: str = "") -> results.Row:
    version = environments.pinned_version(dagster_world.PEER)
    return results.compare(
        suite=SUITE, name=name, unit=unit, better="higher" if unit == "frames/s" else "lower", ours=ours,
        peer=f"{dagster_world.PEER} {version}", theirs=theirs, note=note,
    )  # fmt: skip


if __name__ == "__main__":
    print_machine_facts()
    measured = run(progress_since(time.monotonic()))
    results.save(SUITE, measured)
    print(results.table(measured))
