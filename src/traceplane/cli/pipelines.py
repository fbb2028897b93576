"""Commands for pipelines, scanner lists and executions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

import click
import msgspec

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_fields, say_json, say_table
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput
from traceplane.model.counted import counted
from traceplane.model.invalid_values import in_words
from traceplane.model.json_object import JsonObject
from traceplane.settings import Settings
from traceplane.wire.pipelines import (
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


@click.group(cls=Noun)
def pipeline() -> None:
    """Manage pipelines, which signals or a schedule launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """What the options that `create` and `update` share say of a pipeline."""

    tickers: str | None
    scanner_list: str | None
    subscriptions: tuple[str, ...]
    schedule: str | None
    rules: str | None
    launches_per_hour: int | None
    runs: str | None
    celery: bool
    parameters: str | None


def _described(command: Any) -> Any:
    """The options that `create` and `update` share."""
    for option in reversed(
        (
            click.option("--tickers", metavar="A,B,...", help="Tickers whose signals launch it."),
            click.option("--scanner-list", metavar="NAME", help="Use a shared list of tickers instead."),
            click.option(
                "--on",
                "subscriptions",
                multiple=True,
                metavar="TYPE[:DIRECTION][>=CONFIDENCE]",
                help="Signals that launch it, * for any type (default: every signal of its tickers).",
            ),
            click.option("--schedule", metavar="CRON", help="Launch it on a schedule instead, in UTC."),
            click.option("--rules", metavar="JSON", help="Further conditions for a launch."),
            click.option("--launches-per-hour", type=click.IntRange(min=1), help="Most launches per hour."),
            click.option("--runs", metavar="DAG/JOB", help="The job that each execution runs."),
            click.option("--celery", is_flag=True, help="Send executions to Celery workers instead."),
            click.option("--parameters", metavar="JSON", help="Parameters for the operator."),
        )
    ):
        command = option(command)
    return command


@pipeline.command()
@click.argument("name")
@_described
@click.option("--user", "user_id", help="Its owner (default: the name of your token).")
@click.option("--inactive", is_flag=True, help="Do not launch it yet.")
@as_json
@click.pass_obj
def create(
    settings: Settings, /, name: str, user_id: str | None, inactive: bool, as_json: bool, **described: Any
) -> None:
    """Create a pipeline NAME."""
    options = _Described(**described)
    fields = _fields(options)
    if not options.runs and not options.celery:
        raise _bad("--runs", "", "an execution needs --runs DAG/JOB or --celery")
    fields["config"] = _config(options, PipelineConfig(target="celery"))
    if fields.get("schedule") is not None:
        fields["trigger_mode"] = "periodic"
    request = PipelineRequest(name=name, user_id=user_id, is_active=not inactive, **fields)
    _print(call(settings, lambda c: c.call("POST", _PIPELINES, PipelineView, request)), as_json)


@pipeline.command()
@click.argument("pipeline_id", type=click.UUID)
@click.option("--name", help="A new name.")
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
    **described: Any,
) -> None:
    """Change a pipeline; options that are not set keep their values."""
    path = f"{_PIPELINES}/{pipeline_id}"
    options = _Described(**described)
    fields = _fields(options)
    if name is not None:
        fields["name"] = name
    if active is not None:
        fields["is_active"] = active
    if options.runs or options.celery or options.parameters:
        current = call(settings, lambda c: c.call("GET", path, PipelineView))
        fields["config"] = _config(options, current.config)
    change = PipelineChange(**fields)
    _print(call(settings, lambda c: c.call("PATCH", path, PipelineView, change)), as_json)


@pipeline.command("list")
@click.option("--user", "user_id", help="Only this user's.")
@click.option("--ticker", help="Only those that watch this ticker.")
@click.option("--limit", default=100, show_default=True)
@as_json
@click.pass_obj
def list_(settings: Settings, user_id: str | None, ticker: str | None, limit: int, as_json: bool) -> None:
    """List pipelines, oldest first."""
    filters = {"user_id": user_id, "ticker": ticker, "limit": str(limit)}
    query = {k: v for k, v in filters.items() if v is not None}
    answer = call(settings, lambda c: c.call("GET", _PIPELINES, PipelinesResponse, query=query))
    if as_json:
        say_json(answer)
        return
    say_table(
        ("pipeline", "state", "owner", "name", "watches"), map(_cells, answer.pipelines), "no pipelines"
    )


@pipeline.command()
@click.argument("pipeline_id", type=click.UUID)
@as_json
@click.pass_obj
def show(settings: Settings, pipeline_id: UUID, as_json: bool) -> None:
    """Show one pipeline."""
    shown = call(settings, lambda c: c.call("GET", f"{_PIPELINES}/{pipeline_id}", PipelineView))
    say_json(shown) if as_json else say_fields(shown)


@pipeline.command()
@click.argument("pipeline_id", type=click.UUID)
@as_json
@click.pass_obj
def delete(settings: Settings, pipeline_id: UUID, as_json: bool) -> None:
    """Delete a pipeline; a running execution continues, and its executions stay listed."""
    deleted = call(settings, lambda c: c.call("DELETE", f"{_PIPELINES}/{pipeline_id}", PipelineView))
    say_json(deleted) if as_json else say(f"{deleted.pipeline_id}  {deleted.name} is deleted")


@pipeline.command()
@click.argument("user_id", metavar="USER")
@click.argument("launches_per_hour", type=click.IntRange(min=1), required=False)
@as_json
@click.pass_obj
def limit(settings: Settings, user_id: str, launches_per_hour: int | None, as_json: bool) -> None:
    """Let signals launch at most LAUNCHES_PER_HOUR executions for USER; without a number, remove the limit."""
    path, request = f"/api/v1/user-limits/{quote(user_id, safe='')}", UserLimitRequest(launches_per_hour)
    answer = call(settings, lambda c: c.call("PUT", path, UserLimitsResponse, request))
    if as_json:
        say_json(answer)
        return
    for user, most in answer.launches_per_hour.items():
        say(f"{user}  {counted(most, 'launch')} per hour")


@click.group(cls=Noun)
def scanner_list() -> None:
    """Manage lists of tickers that pipelines share."""


@scanner_list.command("list")
@as_json
@click.pass_obj
def list_lists(settings: Settings, as_json: bool) -> None:
    """List them, with the number of pipelines that use each."""
    answer = call(settings, lambda c: c.call("GET", _LISTS, ScannerListsResponse))
    if as_json:
        say_json(answer)
        return
    for scanner_list in answer.scanner_lists:
        say(_list_line(scanner_list))


@scanner_list.command("set")
@click.argument("name")
@click.argument("tickers", nargs=-1, required=True)
@as_json
@click.pass_obj
def set_list(settings: Settings, name: str, tickers: tuple[str, ...], as_json: bool) -> None:
    """Set the list NAME to exactly TICKERS; the pipelines that use it follow."""
    path, request = f"{_LISTS}/{quote(name, safe='')}", ScannerListRequest(list(tickers))
    answer = call(settings, lambda c: c.call("PUT", path, ScannerListView, request))
    say_json(answer) if as_json else say(_list_line(answer))


def _list_line(scanner_list: ScannerListView) -> str:
    tickers, users = len(scanner_list.tickers), scanner_list.pipelines
    return f"{scanner_list.name}  {counted(tickers, 'ticker')}, {counted(users, 'pipeline')}"


@scanner_list.command("delete")
@click.argument("name")
@as_json
@click.pass_obj
def delete_list(settings: Settings, name: str, as_json: bool) -> None:
    """Delete a list that no pipeline uses."""
    path = f"{_LISTS}/{quote(name, safe='')}"
    answer = call(settings, lambda c: c.call("DELETE", path, ScannerListView))
    say_json(answer) if as_json else say(f"{name} is deleted")


@click.group(cls=Noun)
def execution() -> None:
    """Show runs of pipelines."""


@execution.command("list")
@click.option("--pipeline", "pipeline_id", type=click.UUID, help="Only this pipeline's.")
@click.option("--status", type=click.Choice(["PENDING", "RUNNING", "COMPLETED", "FAILED"]))
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_executions(
    settings: Settings, pipeline_id: UUID | None, status: str | None, limit: int, as_json: bool
) -> None:
    """List executions, newest first."""
    filters = {
        "pipeline_id": str(pipeline_id) if pipeline_id else None,
        "status": status,
        "limit": str(limit),
    }
    query = {k: v for k, v in filters.items() if v is not None}
    answer = call(settings, lambda c: c.call("GET", _EXECUTIONS, ExecutionsResponse, query=query))
    if as_json:
        say_json(answer)
        return
    say_table(
        ("execution", "status", "pipeline", "launched by", "error"),
        map(_run_cells, answer.executions),
        "no executions",
    )


def _run_cells(e: ExecutionView) -> tuple[str, ...]:
    why = f"signal {e.signal_id}" if e.signal_id is not None else f"time {e.scheduled_for}"
    error = f"{e.error['code']}: {e.error['message'][:80]}" if e.error else ""
    return str(e.execution_id), e.status, e.pipeline, why, error


@execution.command("show")
@click.argument("execution_id", type=click.UUID)
@as_json
@click.pass_obj
def show_execution(settings: Settings, execution_id: UUID, as_json: bool) -> None:
    """Show one execution with its signal."""
    shown = call(settings, lambda c: c.call("GET", f"{_EXECUTIONS}/{execution_id}", ExecutionView))
    say_json(shown) if as_json else say_fields(shown)


def _fields(options: _Described) -> dict[str, Any]:
    """The fields of the API that the options set."""
    fields: dict[str, Any] = {
        name: value
        for name in ("scanner_list", "schedule", "launches_per_hour")
        if (value := getattr(options, name)) is not None
    }
    if options.tickers is not None:
        fields["scanner_tickers"] = [t for t in options.tickers.split(",") if t]
    if options.subscriptions:
        fields["signal_subscriptions"] = [_subscription(text) for text in options.subscriptions]
    if options.rules is not None:
        fields["rules"] = _object("--rules", options.rules)
    return fields


def _config(options: _Described, before: PipelineConfig) -> PipelineConfig:
    fields = msgspec.to_builtins(before)
    if options.runs:
        dag, _, job = options.runs.partition("/")
        fields = {"parameters": fields.get("parameters", {}), "dag": dag, "job": job}
    elif options.celery:
        fields = {"parameters": fields.get("parameters", {}), "target": "celery"}
    if options.parameters is not None:
        fields["parameters"] = _object("--parameters", options.parameters)
    try:
        return msgspec.convert(fields, PipelineConfig)
    except msgspec.ValidationError as error:
        raise _bad("--runs", options.runs or "", in_words(error)) from None


def _subscription(text: str) -> Subscription:
    name, _, confidence = text.partition(">=")
    kind, _, direction = name.partition(":")
    fields = {"signal_type": None if kind == "*" else kind, "min_confidence": confidence or 0}
    if direction:
        fields["direction"] = direction.upper()
    try:
        return msgspec.convert(fields, Subscription, strict=False)
    except msgspec.ValidationError as error:
        raise _bad("--on", text, f"{in_words(error)}; for example golden_cross:BULLISH>=80") from None


def _object(option: str, text: str) -> JsonObject:
    try:
        return msgspec.json.decode(text.encode(), type=JsonObject)
    except msgspec.DecodeError as error:
        raise _bad(option, text, f"{in_words(error)}; write a JSON object") from None


def _bad(option: str, value: str, problem: str) -> InvalidInput:
    return InvalidInput("cli.bad_pipeline", f"{option} is invalid: {problem}", value=value or None)


def _print(pipeline: PipelineView, as_json: bool) -> None:
    if as_json:
        say_json(pipeline)
    else:
        say("  ".join(_cells(pipeline)))


def _cells(p: PipelineView) -> tuple[str, ...]:
    watched = p.scanner_list or ",".join((p.scanner_tickers or [])[:5]) or p.schedule
    state = "running" if p.running else "idle" if p.is_active else "inactive"
    return str(p.pipeline_id), state, p.user_id, p.name, watched or ""
