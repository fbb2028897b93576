"""Commands for people who own pipelines."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import UUID

import click
import msgspec

from traceplane.cli.control import as_json, call
from traceplane.cli.output import say, say_json
from traceplane.errors import InvalidInput
from traceplane.settings import Settings
from traceplane.wire.control import (
    ExecutionsResponse,
    ExecutionView,
    PipelineChange,
    PipelineConfig,
    PipelineRequest,
    PipelinesResponse,
    PipelineView,
    ScannerListRequest,
    ScannerListsResponse,
    ScannerListView,
    Subscription,
    UserLimitRequest,
    UserLimitsResponse,
)

_PIPELINES, _LISTS, _EXECUTIONS = "/api/v1/pipelines", "/api/v1/scanner-lists", "/api/v1/executions"


@click.group()
def pipelines() -> None:
    """What is launched by signals, or by the clock."""


def _described(command: Any) -> Any:
    """What `create` and `update` say of a pipeline."""
    for option in reversed(
        (
            click.option("--tickers", metavar="A,B,...", help="Tickers whose signals launch it."),
            click.option("--scanner-list", metavar="NAME", help="A shared list of tickers instead."),
            click.option(
                "--on",
                "subscriptions",
                multiple=True,
                metavar="TYPE[:DIRECTION][>=CONFIDENCE]",
                help="Signals that launch it, * for any type; without it, every signal of its tickers.",
            ),
            click.option("--schedule", metavar="CRON", help="Launch it by the clock instead, in UTC."),
            click.option("--rules", metavar="JSON", help="What else must hold before a match launches it."),
            click.option("--launches-per-hour", type=click.IntRange(min=1), help="At most so many launches."),
            click.option("--runs", metavar="DAG/JOB", help="The job that an execution is a task of."),
            click.option("--celery", is_flag=True, help="Executions go to Celery's workers instead."),
            click.option("--parameters", metavar="JSON", help="What the operator is handed."),
        )
    ):
        command = option(command)
    return command


@pipelines.command()
@click.argument("name")
@_described
@click.option("--user", "user_id", help="Whose it is; by default the name of your token.")
@click.option("--inactive", is_flag=True, help="Do not launch it yet.")
@as_json
@click.pass_obj
def create(
    settings: Settings, /, name: str, user_id: str | None, inactive: bool, as_json: bool, **said: Any
) -> None:
    """Make a pipeline NAME."""
    fields = _fields(said)
    if not said["runs"] and not said["celery"]:
        raise _bad("--runs", "", "say what an execution runs: --runs DAG/JOB, or --celery")
    fields["config"] = _config(said, PipelineConfig(target="celery"))
    if fields.get("schedule") is not None:
        fields["trigger_mode"] = "periodic"
    request = PipelineRequest(name=name, user_id=user_id, is_active=not inactive, **fields)
    _print(call(settings, lambda c: c.call("POST", _PIPELINES, PipelineView, request)), as_json)


@pipelines.command()
@click.argument("pipeline_id", type=click.UUID)
@click.option("--name", help="Another name.")
@_described
@click.option("--active/--inactive", default=None, help="Whether it is launched.")
@as_json
@click.pass_obj
def update(
    settings: Settings,
    /,
    pipeline_id: UUID,
    name: str | None,
    active: bool | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Change a pipeline; what is not said stays."""
    path = f"{_PIPELINES}/{pipeline_id}"
    fields = _fields(said)
    if name is not None:
        fields["name"] = name
    if active is not None:
        fields["is_active"] = active
    if said["runs"] or said["celery"] or said["parameters"]:
        now = call(settings, lambda c: c.call("GET", path, PipelineView))
        fields["config"] = _config(said, now.config)
    change = PipelineChange(**fields)
    _print(call(settings, lambda c: c.call("PATCH", path, PipelineView, change)), as_json)


@pipelines.command("list")
@click.option("--user", "user_id", help="Only this user's.")
@click.option("--ticker", help="Only those that watch this ticker.")
@click.option("--limit", default=100, show_default=True)
@as_json
@click.pass_obj
def list_(settings: Settings, user_id: str | None, ticker: str | None, limit: int, as_json: bool) -> None:
    """List pipelines, in the order in which they were made."""
    wanted = {"user_id": user_id, "ticker": ticker, "limit": str(limit)}
    query = {k: v for k, v in wanted.items() if v is not None}
    answer = call(settings, lambda c: c.call("GET", _PIPELINES, PipelinesResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for p in answer.pipelines:
        say(_line(p))


@pipelines.command()
@click.argument("pipeline_id", type=click.UUID)
@click.pass_obj
def show(settings: Settings, pipeline_id: UUID) -> None:
    """Show one pipeline, as JSON."""
    say_json(call(settings, lambda c: c.call("GET", f"{_PIPELINES}/{pipeline_id}", PipelineView)))


@pipelines.command()
@click.argument("pipeline_id", type=click.UUID)
@click.pass_obj
def delete(settings: Settings, pipeline_id: UUID) -> None:
    """Delete a pipeline; an execution that it is at goes on, and its executions stay listed."""
    gone = call(settings, lambda c: c.call("DELETE", f"{_PIPELINES}/{pipeline_id}", PipelineView))
    say(f"{gone.pipeline_id}  {gone.name} is deleted")


@pipelines.command()
@click.argument("user_id", metavar="USER")
@click.argument("launches_per_hour", type=click.IntRange(min=1), required=False)
@click.pass_obj
def limit(settings: Settings, user_id: str, launches_per_hour: int | None) -> None:
    """Let signals launch at most LAUNCHES_PER_HOUR executions for USER; without a number, any."""
    path, request = f"/api/v1/user-limits/{quote(user_id, safe='')}", UserLimitRequest(launches_per_hour)
    done = call(settings, lambda c: c.call("PUT", path, UserLimitsResponse, request))
    for user, most in done.launches_per_hour.items():
        say(f"{user}  {most} launches per hour")


@click.group("scanner-lists")
def scanner_lists() -> None:
    """Lists of tickers that pipelines share."""


@scanner_lists.command("list")
@as_json
@click.pass_obj
def list_lists(settings: Settings, as_json: bool) -> None:
    """List them, and how many pipelines use each."""
    answer = call(settings, lambda c: c.call("GET", _LISTS, ScannerListsResponse))
    if as_json:
        say_json(answer)
        return
    for found in answer.scanner_lists:
        say(f"{found.name}  {len(found.tickers)} tickers, {found.pipelines} pipelines")


@scanner_lists.command("set")
@click.argument("name")
@click.argument("tickers", nargs=-1, required=True)
@click.pass_obj
def set_list(settings: Settings, name: str, tickers: tuple[str, ...]) -> None:
    """Make the list NAME hold exactly TICKERS; the pipelines that use it follow."""
    path, request = f"{_LISTS}/{quote(name, safe='')}", ScannerListRequest(list(tickers))
    done = call(settings, lambda c: c.call("PUT", path, ScannerListView, request))
    say(f"{done.name}  {len(done.tickers)} tickers, {done.pipelines} pipelines")


@scanner_lists.command("delete")
@click.argument("name")
@click.pass_obj
def delete_list(settings: Settings, name: str) -> None:
    """Delete a list that no pipeline uses."""
    path = f"{_LISTS}/{quote(name, safe='')}"
    call(settings, lambda c: c.call("DELETE", path, ScannerListView))
    say(f"{name} is deleted")


@click.group()
def executions() -> None:
    """Runs of pipelines."""


@executions.command("list")
@click.option("--pipeline", "pipeline_id", type=click.UUID, help="Only this pipeline's.")
@click.option("--status", type=click.Choice(["PENDING", "RUNNING", "COMPLETED", "FAILED"]))
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_executions(
    settings: Settings, pipeline_id: UUID | None, status: str | None, limit: int, as_json: bool
) -> None:
    """List executions, newest first."""
    wanted = {
        "pipeline_id": str(pipeline_id) if pipeline_id else None,
        "status": status,
        "limit": str(limit),
    }
    query = {k: v for k, v in wanted.items() if v is not None}
    answer = call(settings, lambda c: c.call("GET", _EXECUTIONS, ExecutionsResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for e in answer.executions:
        why = f"signal {e.signal_id}" if e.signal_id is not None else f"time {e.scheduled_for}"
        error = f"  {e.error['code']}: {e.error['message'][:80]}" if e.error else ""
        say(f"{e.execution_id}  {e.status:<9} {e.pipeline}  {why}{error}")


@executions.command("show")
@click.argument("execution_id", type=click.UUID)
@click.pass_obj
def show_execution(settings: Settings, execution_id: UUID) -> None:
    """Show one execution with its signal, as JSON."""
    say_json(call(settings, lambda c: c.call("GET", f"{_EXECUTIONS}/{execution_id}", ExecutionView)))


def _fields(said: dict[str, Any]) -> dict[str, Any]:
    """The fields that were said, as the API has them."""
    fields: dict[str, Any] = {
        name: said[name]
        for name in ("scanner_list", "schedule", "launches_per_hour")
        if said[name] is not None
    }
    if said["tickers"] is not None:
        fields["scanner_tickers"] = [t for t in said["tickers"].split(",") if t]
    if said["subscriptions"]:
        fields["signal_subscriptions"] = [_subscription(text) for text in said["subscriptions"]]
    if said["rules"] is not None:
        fields["rules"] = _object("--rules", said["rules"])
    return fields


def _config(said: dict[str, Any], before: PipelineConfig) -> PipelineConfig:
    fields = msgspec.to_builtins(before)
    if said["runs"]:
        dag, _, job = said["runs"].partition("/")
        fields = {"parameters": fields.get("parameters", {}), "dag": dag, "job": job}
    elif said["celery"]:
        fields = {"parameters": fields.get("parameters", {}), "target": "celery"}
    if said["parameters"] is not None:
        fields["parameters"] = _object("--parameters", said["parameters"])
    try:
        return msgspec.convert(fields, PipelineConfig)
    except msgspec.ValidationError as error:
        raise _bad("--runs", said["runs"] or "", str(error)) from None


def _subscription(text: str) -> Subscription:
    named, _, confidence = text.partition(">=")
    kind, _, direction = named.partition(":")
    fields = {"signal_type": None if kind == "*" else kind, "min_confidence": confidence or 0}
    if direction:
        fields["direction"] = direction.upper()
    try:
        return msgspec.convert(fields, Subscription, strict=False)
    except msgspec.ValidationError as error:
        raise _bad("--on", text, f"{error}; for example golden_cross:BULLISH>=80") from None


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise _bad(option, text, f"{error}; write a JSON object") from None


def _bad(option: str, value: str, problem: str) -> InvalidInput:
    return InvalidInput("cli.bad_pipeline", f"{option} cannot be understood: {problem}", value=value or None)


def _print(pipeline: PipelineView, as_json: bool) -> None:
    if as_json:
        say_json(pipeline)
    else:
        say(_line(pipeline))


def _line(p: PipelineView) -> str:
    watched = p.scanner_list or ",".join((p.scanner_tickers or [])[:5]) or p.schedule
    state = "running" if p.running else "idle" if p.is_active else "inactive"
    return f"{p.pipeline_id}  {state:<8} {p.user_id}  {p.name}  {watched}"


COMMANDS: tuple[Any, ...] = (pipelines, scanner_lists, executions)
