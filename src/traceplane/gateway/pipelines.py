"""Pipelines, lists of tickers and executions, as people and Celery workers reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.auth.access import may_see_parameters
from traceplane.auth.callers import Caller
from traceplane.auth.rights import access_of, with_personal_data
from traceplane.errors import Conflict, InvalidInput, NotFound
from traceplane.gateway.hidden_values import hidden_from
from traceplane.gateway.tasks import without_output
from traceplane.http_service.routes import Call, Route
from traceplane.model.counted import counted
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.json_object import JsonObject
from traceplane.model.pipeline_rules import parse_rules
from traceplane.postgres import executions, pipelines, signal_minutes, task_views
from traceplane.postgres.database import Transaction
from traceplane.postgres.executions import ListedExecution
from traceplane.postgres.pipelines import ListedPipeline, Pipeline, ScannerList
from traceplane.schedule import cron
from traceplane.wire.pipelines import (
    ExecutionChange,
    ExecutionQuery,
    ExecutionsResponse,
    ExecutionView,
    PipelineChange,
    PipelineConfig,
    PipelineQuery,
    PipelineRequest,
    PipelinesResponse,
    PipelineView,
    ScannerListRequest,
    ScannerListsResponse,
    ScannerListView,
    SignalMinuteView,
    SignalsResponse,
    Subscription,
    UserLimitRequest,
    UserLimitsResponse,
)
from traceplane.wire.tasks import TaskError

READER, WRITER, ADMIN = "reader", "writer", "admin"
_LIMITS = "/api/v1/user-limits"
_PIPELINES, _LISTS, _EXECUTIONS = "/api/v1/pipelines", "/api/v1/scanner-lists", "/api/v1/executions"


class PipelineApi:
    def routes(self) -> list[Route]:
        one, listed, run = (
            f"{_PIPELINES}/{{pipeline_id}}",
            f"{_LISTS}/{{name}}",
            f"{_EXECUTIONS}/{{execution_id}}",
        )
        return [
            Route("POST", _PIPELINES, PipelineRequest, PipelineView, self.create, WRITER, "Make a pipeline."),
            Route("GET", _PIPELINES, None, PipelinesResponse, self.listing, READER,
                  "Pipelines, in the order in which they were made.", query=PipelineQuery),
            Route("GET", one, None, PipelineView, self.show, READER, "One pipeline."),
            Route("PATCH", one, PipelineChange, PipelineView, self.change, WRITER, "Change a pipeline."),
            Route("DELETE", one, None, PipelineView, self.delete, WRITER, "Delete a pipeline."),
            Route("GET", _LISTS, None, ScannerListsResponse, self.lists, READER, "Lists of tickers."),
            Route("PUT", listed, ScannerListRequest, ScannerListView, self.set_list, WRITER,
                  "Set a list of tickers."),
            Route("DELETE", listed, None, ScannerListView, self.delete_list, WRITER,
                  "Delete a list of tickers."),
            Route("GET", _LIMITS, None, UserLimitsResponse, self.limits, READER,
                  "How much signals may launch for users."),
            Route("PUT", f"{_LIMITS}/{{user_id}}", UserLimitRequest, UserLimitsResponse, self.set_limit, ADMIN,
                  "Limit what signals launch for a user."),
            Route("GET", _EXECUTIONS, None, ExecutionsResponse, self.executions, READER,
                  "Executions, newest first.", query=ExecutionQuery),
            Route("GET", run, None, ExecutionView, self.execution, READER, "One execution."),
            Route("PATCH", run, ExecutionChange, ExecutionView, self.move, WRITER,
                  "Claim or end an execution that Celery runs."),
            Route("GET", "/api/v1/signals", None, SignalsResponse, self.signals, READER,
                  "Signals, matches and lag of the trigger, by the minute, in the last hour."),
        ]  # fmt: skip

    # Pipelines -------------------------------------------------------------------------------------

    async def create(self, call: Call[PipelineRequest]) -> PipelineView:
        org, body = call.principal.org, call.body
        async with call.principal.database.transaction() as tx:
            pipeline = await _checked(tx, call.principal, body.user_id or call.principal.name, body)
            pipeline_id = await pipelines.add(tx, org, pipeline)
            if pipeline_id is None:
                raise _name_taken(body.name)
            view = await _pipeline(tx, call.principal, pipeline_id)
        telemetry.emit("pipeline.created", pipeline_id=str(pipeline_id), name=body.name)
        return view

    async def listing(self, call: Call[None]) -> PipelinesResponse:
        query: PipelineQuery = call.query
        async with call.principal.database.transaction() as tx:
            hidden = (await access_of(tx, call.principal.org, call.principal)).hidden
            rows = await pipelines.listing(
                tx, call.principal.org, **msgspec.structs.asdict(query), hidden=hidden
            )
        return PipelinesResponse([_pipeline_view(row, call.principal) for row in rows])

    async def show(self, call: Call[None]) -> PipelineView:
        async with call.principal.database.transaction() as tx:
            return await _pipeline(tx, call.principal, _id(call, "pipeline_id"))

    async def change(self, call: Call[PipelineChange]) -> PipelineView:
        org, pipeline_id = call.principal.org, _id(call, "pipeline_id")
        given = {k: v for k, v in msgspec.structs.asdict(call.body).items() if v is not msgspec.UNSET}
        # Tickers of one kind take the place of the other, so that nobody has to say both.
        if given.get("scanner_list") is not None:
            given.setdefault("scanner_tickers", None)
        elif given.get("scanner_tickers") is not None:
            given.setdefault("scanner_list", None)
        async with call.principal.database.transaction() as tx:
            pipeline = await pipelines.lock(tx, org, pipeline_id)
            if pipeline is None:
                raise _no_pipeline(pipeline_id)
            await _changeable(tx, call.principal, pipeline_id)
            before = msgspec.structs.asdict(_pipeline_view(pipeline, call.principal))
            fields = {name: before[name] for name in PipelineChange.__struct_fields__} | given
            after = await _checked(tx, call.principal, pipeline.user_id, PipelineRequest(**fields))
            if await pipelines.name_taken(tx, org, pipeline.user_id, after.name, besides=pipeline_id):
                raise _name_taken(after.name)
            await pipelines.change(tx, org, pipeline_id, after)
            return await _pipeline(tx, call.principal, pipeline_id)

    async def delete(self, call: Call[None]) -> PipelineView:
        org, pipeline_id = call.principal.org, _id(call, "pipeline_id")
        async with call.principal.database.transaction() as tx:
            if await pipelines.lock(tx, org, pipeline_id) is None:
                raise _no_pipeline(pipeline_id)
            view = await _changeable(tx, call.principal, pipeline_id)
            await pipelines.remove(tx, org, pipeline_id)
        telemetry.emit("pipeline.deleted", pipeline_id=str(pipeline_id), name=view.name)
        return view

    # Lists of tickers ------------------------------------------------------------------------------

    async def lists(self, call: Call[None]) -> ScannerListsResponse:
        async with call.principal.database.transaction() as tx:
            rows = await pipelines.scanner_lists(tx, call.principal.org)
        return ScannerListsResponse([_list_view(row) for row in rows])

    async def set_list(self, call: Call[ScannerListRequest]) -> ScannerListView:
        org, name = call.principal.org, _list_name(call)
        async with call.principal.database.transaction() as tx:
            await pipelines.set_scanner_list(tx, org, name, _distinct(call.body.tickers))
            return _list_view((await pipelines.scanner_lists(tx, org, name))[0])

    async def delete_list(self, call: Call[None]) -> ScannerListView:
        org, name = call.principal.org, _list_name(call)
        async with call.principal.database.transaction() as tx:
            lists = await pipelines.scanner_lists(tx, org, name)
            removed = await pipelines.remove_scanner_list(tx, org, name)
        if removed is None or not lists:
            raise _no_list(name)
        if not removed:
            raise Conflict(
                "scanner_list.in_use",
                f"this list is used by {counted(lists[0].pipelines, 'pipeline')}",
                value=name,
                next_step="give them other tickers, or delete them, first",
            )
        return _list_view(lists[0])

    # Limits ----------------------------------------------------------------------------------------

    async def limits(self, call: Call[None]) -> UserLimitsResponse:
        async with call.principal.database.transaction() as tx:
            return UserLimitsResponse(await pipelines.user_limits(tx, call.principal.org))

    async def set_limit(self, call: Call[UserLimitRequest]) -> UserLimitsResponse:
        org, user_id = call.principal.org, call.path_params["user_id"]
        if not 0 < len(user_id) <= 512:
            raise InvalidInput("request.invalid", "a user has at most 512 characters", value=user_id[:100])
        async with call.principal.database.transaction() as tx:
            await pipelines.set_user_limit(tx, org, user_id, call.body.launches_per_hour)
            return UserLimitsResponse(await pipelines.user_limits(tx, org))

    # Executions ------------------------------------------------------------------------------------

    async def executions(self, call: Call[None]) -> ExecutionsResponse:
        query: ExecutionQuery = call.query
        async with call.principal.database.transaction() as tx:
            hidden = (await access_of(tx, call.principal.org, call.principal)).hidden
            rows = await executions.listing(
                tx, call.principal.org, **msgspec.structs.asdict(query), hidden=hidden
            )
            if not rows and query.pipeline_id is not None:
                await _pipeline(tx, call.principal, query.pipeline_id)
            views = await _execution_views(tx, call.principal, rows)
        return ExecutionsResponse(views)

    async def execution(self, call: Call[None]) -> ExecutionView:
        async with call.principal.database.transaction() as tx:
            return await _execution(tx, call.principal, _id(call, "execution_id"))

    async def move(self, call: Call[ExecutionChange]) -> ExecutionView:
        """A claim is for one worker: of two messages about one execution the second is refused here."""
        org, execution_id, change = call.principal.org, _id(call, "execution_id"), call.body
        start = ("PENDING",) if change.status == "RUNNING" else ("RUNNING",)
        error = TaskError("execution.failed", change.error or "") if change.status == "FAILED" else None
        async with call.principal.database.transaction() as tx:
            execution = await _execution(tx, call.principal, execution_id)
            await _changeable(tx, call.principal, execution.pipeline_id)
            moved = await executions.move(tx, org, execution_id, change.status, start=start, error=error)
            if not moved and execution.status == change.status != "RUNNING" and execution.target == "celery":
                return execution  # the answer to the first call was lost
            if not moved:
                raise _not_movable(execution, change)
            view = await _execution(tx, call.principal, execution_id)
        if change.status != "RUNNING":
            telemetry.count("executions_finished_total", status=change.status)
        return view

    # Signals ---------------------------------------------------------------------------------------

    async def signals(self, call: Call[None]) -> SignalsResponse:
        async with call.principal.database.transaction() as tx:
            # Counts of all pipelines would tell of those whose jobs are hidden. The lag is the trigger's own.
            is_limited = bool((await access_of(tx, call.principal.org, call.principal)).hidden)
            minutes = await signal_minutes.latest(tx, call.principal.org)
        views = [SignalMinuteView(**asdict(minute)) for minute in minutes]
        if is_limited:
            views = [msgspec.structs.replace(view, signals=None, matches=None) for view in views]
        return SignalsResponse(views, is_limited)


async def _checked(tx: Transaction, caller: Caller, user_id: str, request: PipelineRequest) -> Pipeline:
    """The pipeline as it is to be stored, once all of it makes sense together."""
    tickers, scanner_list, schedule = request.scanner_tickers, request.scanner_list, request.schedule
    config, periodic = request.config, request.trigger_mode == "periodic"
    org = caller.org
    if periodic != (schedule is not None):
        raise InvalidInput(
            "pipeline.schedule",
            "a periodic pipeline has a schedule, and no other has",
            value=schedule,
            next_step='give trigger_mode "periodic" and a schedule such as "*/5 * * * *", or neither',
        )
    if schedule is not None:
        _check_schedule(schedule)
    _check_rules(request.rules)
    if (tickers is not None and scanner_list is not None) or (
        not periodic and tickers is None and scanner_list is None
    ):
        raise InvalidInput(
            "pipeline.tickers",
            "a pipeline that waits for signals has tickers of its own or a scanner list",
            value=scanner_list,
            next_step="give scanner_tickers or scanner_list, not both",
        )
    list_id = None
    if scanner_list is not None:
        list_id = await pipelines.scanner_list_id(tx, org, scanner_list)
        if list_id is None:
            raise _no_list(scanner_list)
    if config.dag is not None and config.job is not None:
        access = await access_of(tx, org, caller)
        if not access.sees(config.dag, config.job):
            raise _no_job(config.dag, config.job)
        await _check_job(tx, org, config.dag, config.job)
        access.require_job(config.dag, config.job)
    stored = msgspec.to_builtins(config) | {"target": config.target}
    return Pipeline(
        user_id=user_id,
        name=request.name,
        trigger_mode=request.trigger_mode,
        scanner_tickers=None if tickers is None else _distinct(tickers),
        scanner_list_id=list_id,
        signal_subscriptions=[msgspec.to_builtins(s) for s in request.signal_subscriptions],
        rules=request.rules,
        schedule=schedule,
        is_active=request.is_active,
        config=stored,
        launches_per_hour=request.launches_per_hour,
    )


def _check_schedule(schedule: str) -> None:
    try:
        cron.check(schedule)
    except ValueError as error:
        raise InvalidInput(
            "pipeline.bad_schedule",
            f"this is not a valid cron schedule: {error}",
            value=schedule,
            next_step=f"{cron.FORM}; times are in UTC",
        ) from None


def _check_rules(rules: JsonObject) -> None:
    try:
        parse_rules(rules)
    except ValueError as error:
        raise InvalidInput(
            "pipeline.bad_rules",
            f"the rules cannot be understood: {error}",
            next_step="see the rules of pipelines in docs/concepts/trigger.md",
        ) from None


def _no_job(dag: str, job: str) -> NotFound:
    return NotFound(
        "pipeline.unknown_job",
        "there is no such job",
        value=f"{dag}/{job}",
        next_step="deploy its DAG first; see `traceplane dags`",
    )


async def _check_job(tx: Transaction, org: str, dag: str, job: str) -> None:
    kind = await pipelines.job_kind(tx, org, dag, job)
    if kind is None:
        raise _no_job(dag, job)
    if kind != "pipeline":
        raise InvalidInput(
            "pipeline.not_for_pipelines",
            "pipelines run jobs of the source kind pipeline",
            value=f"{dag}/{job}",
            next_step="declare the job with activation: source and source: { kind: pipeline }",
        )


async def _pipeline(tx: Transaction, caller: Caller, pipeline_id: UUID) -> PipelineView:
    hidden = (await access_of(tx, caller.org, caller)).hidden
    rows = await pipelines.listing(tx, caller.org, pipeline_id=pipeline_id, limit=1, hidden=hidden)
    if not rows:
        raise _no_pipeline(pipeline_id)
    return _pipeline_view(rows[0], caller)


async def _changeable(tx: Transaction, caller: Caller, pipeline_id: UUID) -> PipelineView:
    """The pipeline as it stands, if the caller may write what its job writes."""
    view = await _pipeline(tx, caller, pipeline_id)
    if view.config.dag is not None:
        (await access_of(tx, caller.org, caller)).require_job(view.config.dag, view.config.job)
    return view


def _pipeline_view(pipeline: ListedPipeline, caller: Caller) -> PipelineView:
    config = msgspec.convert(pipeline.config, PipelineConfig)
    parameters, names = _parameters(config.parameters, caller)
    return PipelineView(
        **{
            **asdict(pipeline),
            "created_at": pipeline.created_at.isoformat(),
            "config": msgspec.structs.replace(config, parameters=parameters),
            "signal_subscriptions": msgspec.convert(pipeline.signal_subscriptions, list[Subscription]),
            "hidden_parameters": names,
        }
    )


def _parameters(given: JsonObject, caller: Caller) -> tuple[JsonObject, list[str]]:
    """The parameters that the caller may see, and the names of those that it may not."""
    return (given, []) if may_see_parameters(caller) else ({}, sorted(given))


def _list_view(scanner_list: ScannerList) -> ScannerListView:
    return ScannerListView(scanner_list.name, scanner_list.tickers, scanner_list.pipelines)


async def _execution(tx: Transaction, caller: Caller, execution_id: UUID) -> ExecutionView:
    hidden = (await access_of(tx, caller.org, caller)).hidden
    rows = await executions.listing(tx, caller.org, execution_id=execution_id, limit=1, hidden=hidden)
    if not rows:
        raise NotFound(
            "execution.unknown",
            "there is no such execution",
            value=str(execution_id),
            next_step="see `traceplane execution list`",
        )
    (view,) = await _execution_views(tx, caller, rows)
    return view


async def _execution_views(
    tx: Transaction, caller: Caller, rows: Sequence[ListedExecution]
) -> list[ExecutionView]:
    failed = [row for row in rows if row.error]
    hidden = await hidden_from(tx, caller, [row.execution_id for row in failed])
    # The task knows which job ran, even if the pipeline runs another one now; old tasks are gone.
    jobs = {
        row.execution_id: (row.dag, row.job) for row in failed if row.dag is not None and row.job is not None
    }
    jobs |= await task_views.jobs_of(tx, caller.org, [row.execution_id for row in failed]) if failed else {}
    access = await access_of(tx, caller.org, caller)
    access = await with_personal_data(tx, caller, access, set(jobs.values()))
    rows = [
        replace(row, error=without_output(row.error, job[1]))
        if (job := jobs.get(row.execution_id)) is not None and not access.is_told(*job)
        else row
        for row in rows
    ]
    return [_execution_view(row, caller, hidden.get(row.execution_id)) for row in rows]


def _execution_view(row: ListedExecution, caller: Caller, of_its_task: HiddenValues | None) -> ExecutionView:
    parameters, names = _parameters(row.parameters, caller)
    hidden = of_its_task or HiddenValues([] if may_see_parameters(caller) else [row.parameters])
    return ExecutionView(
        execution_id=row.execution_id,
        pipeline_id=row.pipeline_id,
        pipeline=row.pipeline,
        user_id=row.user_id,
        target=row.target,
        status=row.status,
        signal_id=row.signal_id,
        signal=row.signal,
        scheduled_for=_time(row.scheduled_for),
        error=hidden.without(row.error),
        created_at=row.created_at.isoformat(),
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        parameters=parameters,
        hidden_parameters=names,
    )


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value is not None else None


def _not_movable(execution: ExecutionView, change: ExecutionChange) -> Conflict:
    if execution.target != "celery":
        return Conflict(
            "execution.not_celery",
            "this execution is a task of the platform, which says itself how it ends",
            value=str(execution.execution_id),
            next_step="see the task of the same id",
        )
    return Conflict(
        "execution.not_movable",
        f"the execution is {execution.status} and cannot become {change.status}",
        value=str(execution.execution_id),
        next_step="somebody else has it, or it is over: do nothing",
    )


def _id(call: Call[Any], name: str) -> UUID:
    text = call.path_params[name]
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput("request.invalid", f"the path's `{name}` is a UUID", value=text) from None


def _list_name(call: Call[Any]) -> str:
    name = call.path_params["name"]
    if not 0 < len(name) <= 512:
        raise InvalidInput("request.invalid", "a list's name has at most 512 characters", value=name[:100])
    return name


def _distinct(tickers: list[str]) -> list[str]:
    return list(dict.fromkeys(tickers))


def _no_pipeline(pipeline_id: UUID) -> NotFound:
    return NotFound(
        "pipeline.unknown",
        "there is no such pipeline",
        value=str(pipeline_id),
        next_step="see `traceplane pipeline list`",
    )


def _no_list(name: str) -> NotFound:
    return NotFound(
        "scanner_list.unknown",
        "there is no such list of tickers",
        value=name,
        next_step="see `traceplane scanner-list list`",
    )


def _name_taken(name: str) -> Conflict:
    return Conflict(
        "pipeline.name_taken",
        "the user has a pipeline of this name",
        value=name,
        next_step="choose another name, or change that pipeline",
    )
