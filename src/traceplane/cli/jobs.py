"""Commands for jobs and their batches."""

from __future__ import annotations

from typing import Any

import click

from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.settings import Settings
from traceplane.wire.jobs import BatchesClosing, JobName, PauseChange, PauseRequest, PauseView


@click.group()
def jobs() -> None:
    """Pause jobs, and resume them."""


@jobs.command()
@click.argument("dag")
@click.argument("job")
@click.option("--reason", default="", help="Why, for others who look at the job.")
@as_json
@click.pass_obj
def pause(settings: Settings, dag: str, job: str, reason: str, as_json: bool) -> None:
    """Keep the tasks of JOB of DAG from starting; running ones end, and new ones wait."""
    request = PauseRequest(dag, job, reason)
    answer = call(settings, lambda c: c.call("POST", "/api/v1/jobs/pause", PauseChange, request))
    if as_json:
        say_json(answer)
        return
    assert answer.pause is not None
    say(pause_line(answer.pause) if answer.changed else f"already paused: {pause_line(answer.pause)}")


@jobs.command()
@click.argument("dag")
@click.argument("job")
@as_json
@click.pass_obj
def resume(settings: Settings, dag: str, job: str, as_json: bool) -> None:
    """Let the tasks of JOB of DAG start again."""
    request = JobName(dag, job)
    answer = call(settings, lambda c: c.call("POST", "/api/v1/jobs/resume", PauseChange, request))
    if as_json:
        say_json(answer)
    else:
        say(f"{dag}/{job} is resumed" if answer.changed else f"{dag}/{job} was not paused")


@click.group()
def batch() -> None:
    """Close batches that are filling."""


@batch.command()
@click.argument("dag")
@click.argument("job")
@as_json
@click.pass_obj
def close(settings: Settings, dag: str, job: str, as_json: bool) -> None:
    """Close the batches of JOB of DAG that are filling: what has arrived is computed now."""
    request = JobName(dag, job)
    answer = call(settings, lambda c: c.call("POST", "/api/v1/batches/close", BatchesClosing, request))
    if as_json:
        say_json(answer)
        return
    for one in answer.closing:
        say(f"{one.job}: closing {one.scope} of {one.dataset}")
    if not answer.closing:
        say("nothing is open")


def pause_line(pause: PauseView) -> str:
    why = f" ({pause.reason})" if pause.reason else ""
    waiting = f", {pause.waiting} waiting" if pause.waiting else ""
    return f"{pause.dag}/{pause.job}: paused by {pause.paused_by} since {pause.since}{why}{waiting}"


COMMANDS: tuple[Any, ...] = (jobs, batch)
