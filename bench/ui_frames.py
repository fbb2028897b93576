"""How many frames a second the graph of the web UI draws while much changes in it.

The page is the gateway's own, in a real Chromium. What it asks for about the graph is answered here: a graph of a given
size whose jobs change at a given rate, each change told to the page by itself, as the stream of changes does. The graph
is moved all the time, so that every frame has something to draw. Frames are counted by the browser.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from playwright.async_api import Browser, Page, Route

_JOBS_PER_STAGE = 10
_WIDTH, _HEIGHT = 1440, 900
_COUNT_FRAMES = """async ([moved, drawn, seconds, updates, jobs]) => {
    const changes = new BroadcastChannel('traceplane-changes')
    const graph = document.querySelector(moved)
    const begun = performance.now(), times = []
    let told = 0, steps = 0
    await new Promise((done) => {
        const frame = (now) => {
            times.push(now)
            const passed = now - begun
            for (; told < passed / 1000 * updates; told++)
                changes.postMessage({changed: {jobs: [`bench/${jobs[told % jobs.length]}`]}})
            const by = 4 * Math.sign(Math.sin(steps++ / 40))
            graph.dispatchEvent(new WheelEvent('wheel', {deltaX: by, deltaY: by, cancelable: true, bubbles: true}))
            passed < seconds * 1000 ? requestAnimationFrame(frame) : done()
        }
        requestAnimationFrame(frame)
    })
    const gaps = times.slice(1).map((time, n) => time - times[n]).sort((a, b) => a - b)
    return {
        frames: gaps.length / ((times.at(-1) - times[0]) / 1000),
        slow: gaps[Math.floor(gaps.length * 0.95)],
        updates: told / seconds,
        nodes: document.querySelectorAll(drawn).length,
    }
}"""


@dataclass(frozen=True, slots=True)
class Frames:
    per_second: float
    slow_ms: float
    """The time between two frames that 95 of 100 stay below."""
    nodes: int
    updates_per_second: float


async def graph_frames(
    browser: Browser, link: str, *, nodes: int = 500, updates: int = 100, seconds: float = 10.0
) -> Frames:
    """`link`: one of `traceplane ui`, which signs the browser in."""
    world = _Changing(nodes, updates)
    context = await browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})
    try:
        page = await context.new_page()
        await page.route("**/api/v1/graph*", world.graph)
        await page.route("**/api/v1/status*", world.status)
        await page.goto(link)
        await page.wait_for_selector("[data-node]", timeout=120_000)
        await page.get_by_role("button", name="Show all of it").click()
        return await frames_while_moved(page, ".graph-box", "[data-node]", seconds, updates, world.jobs)
    finally:
        await context.close()


async def frames_while_moved(
    page: Page, moved: str, drawn: str, seconds: float, updates: int = 0, jobs: Sequence[str] = ()
) -> Frames:
    """Of any page: `moved` selects what the wheel moves, `drawn` the nodes."""
    measured = await page.evaluate(_COUNT_FRAMES, [moved, drawn, seconds, updates, jobs])
    return Frames(measured["frames"], measured["slow"], measured["nodes"], measured["updates"])


class _Changing:
    """A graph in stages, where each job writes one dataset that two jobs of the next stage read."""

    def __init__(self, nodes: int, updates: int) -> None:
        self.jobs = [f"job{n:03}" for n in range(nodes // 2)]
        self._updates, self._begun = updates, time.monotonic()

    async def graph(self, route: Route) -> None:
        def reads(n: int) -> list[dict[str, str]]:
            before = n - _JOBS_PER_STAGE
            first = before - before % _JOBS_PER_STAGE
            across = first + (before + 1) % _JOBS_PER_STAGE
            return [] if before < 0 else [{"dataset": f"data{m:03}"} for m in sorted({before, across})]

        numbered = list(enumerate(self.jobs))
        jobs = [
            {
                "dag": "bench",
                "job": job,
                "version": 1,
                "runtime": "python",
                "operator": "python",
                "activation": "reactive" if n >= _JOBS_PER_STAGE else "source",
                "max_queue_depth": 50,
                "reads": reads(n),
                "writes": [f"data{n:03}"],
            }
            for n, job in numbered
        ]
        datasets = [{"dataset": f"data{n:03}", "dag": "bench", "storage": "parquet"} for n, _ in numbered]
        await route.fulfill(json={"jobs": jobs, "datasets": datasets})

    async def status(self, route: Route) -> None:
        """As many jobs as were told of have other figures each time."""
        step = int((time.monotonic() - self._begun) * self._updates)
        counts = {
            f"bench/{job}": {"queued": (n * 7 + step) % 60, "running": (n + step) % 3}
            for n, job in enumerate(self.jobs)
        }
        datasets = [
            {"dataset": f"data{n:03}", "commits": step + n, "rows": step * 100 + n, "bytes": step * 1000}
            for n, _ in enumerate(self.jobs)
        ]
        body = {"counts": counts, "datasets": datasets, "outbox_lag_seconds": 0}
        await route.fulfill(body=json.dumps(body), content_type="application/json")
