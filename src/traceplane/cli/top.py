"""`traceplane top`: what the platform does now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

from traceplane.cli.coverage import contents
from traceplane.cli.failures import problems
from traceplane.cli.output import Screen, as_json, say_json_line
from traceplane.cli.whereabouts import call
from traceplane.http_service.client import Caller
from traceplane.settings import Settings
from traceplane.wire.control import StatusResponse

_COLUMNS = ("queued", "running", "retrying", "dead")


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    """Seconds of a clock that only goes forward."""
    status: StatusResponse


@click.command()
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--times", type=click.IntRange(min=1), help="Stop after this many looks.")
@as_json
@click.pass_obj
def top(settings: Settings, every: float, times: int | None, as_json: bool) -> None:
    """Show tasks by job, and how fast datasets grow, again and again until Ctrl-C."""

    async def watch(caller: Caller) -> StatusResponse:
        screen, before, looks = Screen(), None, 0
        while True:
            status = await caller.call("GET", "/api/v1/status", StatusResponse)
            now = Reading(time.monotonic(), status)
            say_json_line(status) if as_json else screen.show(list(lines(now, before)))
            before, looks = now, looks + 1
            if looks == times:
                return status
            await asyncio.sleep(every)

    call(settings, watch)


def lines(now: Reading, before: Reading | None) -> Iterator[str]:
    jobs = _by_job(now.status)
    width = max([len(job) for job in jobs] + [len(d.dataset) for d in now.status.datasets] + [len("dataset")])
    if jobs:
        yield f"{'job':<{width}}  " + "  ".join(f"{column:>8}" for column in _COLUMNS)
        for job, counts in sorted(jobs.items()):
            yield f"{job:<{width}}  " + "  ".join(f"{counts.get(column, 0) or '·':>8}" for column in _COLUMNS)
    else:
        yield "no unfinished tasks"
    yield ""
    yield f"{'dataset':<{width}}  {'commits/s':>9}  {'rows/s':>9}  holds"
    for d in now.status.datasets:
        commits, rows = _rates(now, before, d.dataset)
        yield f"{d.dataset:<{width}}  {commits:>9}  {rows:>9}  {contents(d)}"
    if wrong := list(problems(now.status)):
        yield ""
        yield from wrong


def _by_job(status: StatusResponse) -> Mapping[str, Mapping[str, int]]:
    jobs: dict[str, dict[str, int]] = {}
    for job, states in status.counts.items():
        found = jobs.setdefault(job, {})
        found["queued"] = states.get("queued", 0)
        found["running"] = states.get("running", 0) + states.get("dispatched", 0)
    for failure in status.failed:
        found = jobs.setdefault(f"{failure.dag}/{failure.job}", {})
        found[failure.state] = found.get(failure.state, 0) + failure.tasks
    return jobs


def _rates(now: Reading, before: Reading | None, dataset: str) -> tuple[str, str]:
    """Nothing is known of the first look."""
    here = {d.dataset: d for d in now.status.datasets}[dataset]
    there = {d.dataset: d for d in before.status.datasets}.get(dataset) if before is not None else None
    if before is None or there is None:
        return "", ""
    seconds = now.at - before.at
    return _rate(here.commits - there.commits, seconds), _rate(here.rows - there.rows, seconds)


def _rate(grown: int, seconds: float) -> str:
    per_second = grown / seconds
    return "·" if grown == 0 else f"{per_second:.1f}" if abs(per_second) < 100 else f"{per_second:,.0f}"
