"""Commands for jobs and their batches."""

from __future__ import annotations

import click

from traceplane.cli.cron import local
from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.errors import NotFound
from traceplane.model.near_names import near
from traceplane.settings import Settings
from traceplane.wire.deploys import DagsResponse, JobView
from traceplane.wire.jobs import BatchesClosing, JobName, PauseChange, PauseRequest, PauseView


@click.group(cls=Noun)
def job() -> None:
    """The jobs of DAGs: list, pause and resume them."""


@job.command("list")
@click.option("--dag", help="Only this DAG's.")
@as_json
@click.pass_obj
def list_(settings: Settings, dag: str | None, as_json: bool) -> None:
    """List the jobs that are deployed, by DAG."""
    answer = deployed(settings, dag)
    if as_json:
        say_json(answer)
        return
    for d in answer.dags:
        for j in d.jobs:
            say(f"{d.dag}/{job_line(j)}")
    if not answer.dags:
        say("no DAG is deployed; see `traceplane deploy --help`")


def deployed(settings: Settings, dag: str | None = None) -> DagsResponse:
    """What is deployed of one DAG, or of all."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/dags", DagsResponse))
    if dag is None:
        return answer
    if chosen := [d for d in answer.dags if d.dag == dag]:
        return DagsResponse(chosen)
    raise NotFound(
        "dag.unknown",
        "no such DAG is deployed",
        value=dag,
        next_step=near(dag, [d.dag for d in answer.dags]) or "see `traceplane dags`",
    )


def job_line(j: JobView) -> str:
    held = {1: ", backfill held", 2: ", held"}.get(j.hold_level or 0, "")
    held += ", paused" if j.paused else ""
    zone = j.time_zone or "UTC"
    tick = f", next tick {local(j.next_tick, zone)} ({zone})" if j.next_tick is not None else ""
    return f"{j.job} ({j.runtime}: {j.operator}{held}{tick})"


@job.command()
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


@job.command()
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


@click.group(cls=Noun)
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
