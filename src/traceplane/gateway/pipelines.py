"""Pipelines, lists of tickers and executions, as people and Celery workers reach them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.auth.access import may_see_parameters
from traceplane.auth.opaque import TokenRecord
from traceplane.errors import Conflict, InvalidInput, NotFound
from traceplane.gateway.hidden_values import hidden_from
from traceplane.http_service.routes import Call, Route
from traceplane.model import cron
from traceplane.model.hidden_values import HiddenValues
from traceplane.model.pipeline_rules import parse_rules
from traceplane.postgres import executions, pipelines
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.pipelines import Pipeline
from traceplane.wire.control import (
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
    Subscription,
    UserLimitRequest,
    UserLimitsResponse,
)

READER, WRITER, ADMIN = "reader", "writer", "admin"
_LIMITS = "/api/v1/user-limits"
_PIPELINES, _LISTS, _EXECUTIONS = "/api/v1/pipelines", "/api/v1/scanner-lists", "/api/v1/executions"


class PipelineApi:
    def __init__(self, database: Database) -> None:
        self._database = database

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
        ]  # fmt: skip

    # Pipelines -------------------------------------------------------------------------------------

    async def create(self, call: Call[PipelineRequest]) -> PipelineView:
        org, body = call.principal.org, call.body
        fields = {name: getattr(body, name) for name in PipelineChange.__struct_fields__}
        async with self._database.transaction() as tx:
            wanted = await _checked(tx, org, body.user_id or call.principal.name, fields)
            pipeline_id = await pipelines.add(tx, org, wanted)
            if pipeline_id is None:
                raise _name_taken(body.name)
            view = await _pipeline(tx, call.principal, pipeline_id)
        telemetry.emit("pipeline.created", pipeline_id=str(pipeline_id), name=body.name)
        return view

    async def listing(self, call: Call[None]) -> PipelinesResponse:
        query: PipelineQuery = call.query
        async with self._database.transaction() as tx:
            rows = await pipelines.listing(tx, call.principal.org, **msgspec.structs.asdict(query))
        return PipelinesResponse([_pipeline_view(row, call.principal) for row in rows])

    async def show(self, call: Call[None]) -> PipelineView:
        async with self._database.transaction() as tx:
            return await _pipeline(tx, call.principal, _id(call, "pipeline_id"))

    async def change(self, call: Call[PipelineChange]) -> PipelineView:
        org, pipeline_id = call.principal.org, _id(call, "pipeline_id")
        given = {k: v for k, v in msgspec.structs.asdict(call.body).items() if v is not msgspec.UNSET}
        # Tickers of one kind take the place of the other, so that nobody has to say both.
        if given.get("scanner_list") is not None:
            given.setdefault("scanner_tickers", None)
        elif given.get("scanner_tickers") is not None:
            given.setdefault("scanner_list", None)
        async with self._database.transaction() as tx:
            row = await pipelines.lock(tx, org, pipeline_id)
            if row is None:
                raise _no_pipeline(pipeline_id)
            before = msgspec.structs.asdict(_pipeline_view({**row, "running": None}, call.principal))
            fields = {name: before[name] for name in PipelineChange.__struct_fields__} | given
            wanted = await _checked(tx, org, row["user_id"], fields)
            if await pipelines.name_taken(tx, org, row["user_id"], wanted.name, besides=pipeline_id):
                raise _name_taken(wanted.name)
            await pipelines.change(tx, org, pipeline_id, wanted)
            return await _pipeline(tx, call.principal, pipeline_id)

    async def delete(self, call: Call[None]) -> PipelineView:
        org, pipeline_id = call.principal.org, _id(call, "pipeline_id")
        async with self._database.transaction() as tx:
            if await pipelines.lock(tx, org, pipeline_id) is None:
                raise _no_pipeline(pipeline_id)
            view = await _pipeline(tx, call.principal, pipeline_id)
            await pipelines.remove(tx, org, pipeline_id)
        telemetry.emit("pipeline.deleted", pipeline_id=str(pipeline_id), name=view.name)
        return view

    # Lists of tickers ------------------------------------------------------------------------------

    async def lists(self, call: Call[None]) -> ScannerListsResponse:
        async with self._database.transaction() as tx:
            rows = await pipelines.scanner_lists(tx, call.principal.org)
        return ScannerListsResponse([_list_view(row) for row in rows])

    async def set_list(self, call: Call[ScannerListRequest]) -> ScannerListView:
        org, name = call.principal.org, _list_name(call)
        async with self._database.transaction() as tx:
            await pipelines.set_scanner_list(tx, org, name, _distinct(call.body.tickers))
            return _list_view((await pipelines.scanner_lists(tx, org, name))[0])

    async def delete_list(self, call: Call[None]) -> ScannerListView:
        org, name = call.principal.org, _list_name(call)
        async with self._database.transaction() as tx:
            found = await pipelines.scanner_lists(tx, org, name)
            gone = await pipelines.remove_scanner_list(tx, org, name)
        if gone is None or not found:
            raise _no_list(name)
        if not gone:
            raise Conflict(
                "scanner_list.in_use",
                f"{found[0]['pipelines']} pipelines use this list",
                value=name,
                next_step="give them other tickers, or delete them, first",
            )
        return _list_view(found[0])

    # Limits ----------------------------------------------------------------------------------------

    async def limits(self, call: Call[None]) -> UserLimitsResponse:
        async with self._database.transaction() as tx:
            return UserLimitsResponse(await pipelines.user_limits(tx, call.principal.org))

    async def set_limit(self, call: Call[UserLimitRequest]) -> UserLimitsResponse:
        org, user_id = call.principal.org, call.path_params["user_id"]
        if not 0 < len(user_id) <= 512:
            raise InvalidInput("request.invalid", "a user has at most 512 characters", value=user_id[:100])
        async with self._database.transaction() as tx:
            await pipelines.set_user_limit(tx, org, user_id, call.body.launches_per_hour)
            return UserLimitsResponse(await pipelines.user_limits(tx, org))

    # Executions ------------------------------------------------------------------------------------

    async def executions(self, call: Call[None]) -> ExecutionsResponse:
        query: ExecutionQuery = call.query
        async with self._database.transaction() as tx:
            rows = await executions.listing(tx, call.principal.org, **msgspec.structs.asdict(query))
            views = await _execution_views(tx, call.principal, rows)
        return ExecutionsResponse(views)

    async def execution(self, call: Call[None]) -> ExecutionView:
        async with self._database.transaction() as tx:
            return await _execution(tx, call.principal, _id(call, "execution_id"))

    async def move(self, call: Call[ExecutionChange]) -> ExecutionView:
        """A claim is for one worker: of two messages about one execution the second is refused here."""
        org, execution_id, change = call.principal.org, _id(call, "execution_id"), call.body
        start = ("PENDING",) if change.status == "RUNNING" else ("RUNNING",)
        error = (
            {"code": "execution.failed", "message": change.error or ""} if change.status == "FAILED" else None
        )
        async with self._database.transaction() as tx:
            found = await _execution(tx, call.principal, execution_id)
            moved = await executions.move(tx, org, execution_id, change.status, start=start, error=error)
            if not moved and found.status == change.status != "RUNNING" and found.target == "celery":
                return found  # the answer to the first call was lost
            if not moved:
                raise _not_movable(found, change)
            view = await _execution(tx, call.principal, execution_id)
        if change.status != "RUNNING":
            telemetry.count("executions_finished_total", status=change.status)
        return view


async def _checked(tx: Transaction, org: str, user_id: str, fields: dict[str, Any]) -> Pipeline:
    """The pipeline as it is to be stored, once all of it makes sense together."""
    config: PipelineConfig = fields["config"]
    tickers, scanner_list, schedule = fields["scanner_tickers"], fields["scanner_list"], fields["schedule"]
    periodic = fields["trigger_mode"] == "periodic"
    if periodic != (schedule is not None):
        raise InvalidInput(
            "pipeline.schedule",
            "a periodic pipeline has a schedule, and no other has",
            value=schedule,
            next_step='give trigger_mode "periodic" and a schedule such as "*/5 * * * *", or neither',
        )
    if schedule is not None:
        _check_schedule(schedule)
    _check_rules(fields["rules"])
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
        await _check_job(tx, org, config.dag, config.job)
    stored = msgspec.to_builtins(config) | {"target": config.target}
    return Pipeline(
        user_id=user_id,
        name=fields["name"],
        trigger_mode=fields["trigger_mode"],
        scanner_tickers=None if tickers is None else _distinct(tickers),
        scanner_list_id=list_id,
        signal_subscriptions=[msgspec.to_builtins(s) for s in fields["signal_subscriptions"]],
        rules=fields["rules"],
        schedule=schedule,
        is_active=fields["is_active"],
        config=stored,
        launches_per_hour=fields["launches_per_hour"],
    )


def _check_schedule(schedule: str) -> None:
    try:
        cron.parse(schedule)
    except ValueError as error:
        raise InvalidInput(
            "pipeline.bad_schedule",
            f"this is not a cron schedule: {error}",
            value=schedule,
            next_step="write five numeric fields, such as '*/5 * * * *'; times are in UTC",
        ) from None


def _check_rules(rules: dict[str, Any]) -> None:
    try:
        parse_rules(rules)
    except ValueError as error:
        raise InvalidInput(
            "pipeline.bad_rules",
            f"the rules cannot be understood: {error}",
            next_step="see the rules of pipelines in docs/concepts/trigger.md",
        ) from None


async def _check_job(tx: Transaction, org: str, dag: str, job: str) -> None:
    kind = await pipelines.job_kind(tx, org, dag, job)
    if kind is None:
        raise NotFound(
            "pipeline.unknown_job",
            "there is no such job",
            value=f"{dag}/{job}",
            next_step="deploy its DAG first; see `traceplane dags`",
        )
    if kind != "pipeline":
        raise InvalidInput(
            "pipeline.not_for_pipelines",
            "pipelines run jobs of the source kind pipeline",
            value=f"{dag}/{job}",
            next_step="declare the job with activation: source and source: { kind: pipeline }",
        )


async def _pipeline(tx: Transaction, caller: TokenRecord, pipeline_id: UUID) -> PipelineView:
    rows = await pipelines.listing(tx, caller.org, pipeline_id=pipeline_id, limit=1)
    if not rows:
        raise _no_pipeline(pipeline_id)
    return _pipeline_view(rows[0], caller)


def _pipeline_view(row: dict[str, Any], caller: TokenRecord) -> PipelineView:
    config = msgspec.convert(row["config"], PipelineConfig)
    parameters, names = _parameters(config.parameters, caller)
    return PipelineView(
        **{
            **row,
            "created_at": row["created_at"].isoformat(),
            "config": msgspec.structs.replace(config, parameters=parameters),
            "signal_subscriptions": msgspec.convert(row["signal_subscriptions"], list[Subscription]),
            "hidden_parameters": names,
        }
    )


def _parameters(given: dict[str, Any], caller: TokenRecord) -> tuple[dict[str, Any], list[str]]:
    """The parameters that the caller may see, and the names of those that it may not."""
    return (given, []) if may_see_parameters(caller) else ({}, sorted(given))


def _list_view(row: dict[str, Any]) -> ScannerListView:
    return ScannerListView(row["name"], row["tickers"], row["pipelines"])


async def _execution(tx: Transaction, caller: TokenRecord, execution_id: UUID) -> ExecutionView:
    rows = await executions.listing(tx, caller.org, execution_id=execution_id, limit=1)
    if not rows:
        raise NotFound(
            "execution.unknown",
            "there is no such execution",
            value=str(execution_id),
            next_step="see `traceplane executions list`",
        )
    (view,) = await _execution_views(tx, caller, rows)
    return view


async def _execution_views(
    tx: Transaction, caller: TokenRecord, rows: list[dict[str, Any]]
) -> list[ExecutionView]:
    hidden = await hidden_from(tx, caller, [row["execution_id"] for row in rows if row["error"]])
    return [_execution_view(row, caller, hidden.get(row["execution_id"])) for row in rows]


def _execution_view(
    row: dict[str, Any], caller: TokenRecord, of_its_task: HiddenValues | None
) -> ExecutionView:
    text: Callable[[Any], Any] = lambda v: v.isoformat() if isinstance(v, datetime) else v  # noqa: E731
    parameters, names = _parameters(row["parameters"], caller)
    hidden = of_its_task or HiddenValues([] if may_see_parameters(caller) else [row["parameters"]])
    shown = {"parameters": parameters, "hidden_parameters": names, "error": hidden.without(row["error"])}
    return ExecutionView(**{name: text(value) for name, value in {**row, **shown}.items()})


def _not_movable(found: ExecutionView, change: ExecutionChange) -> Conflict:
    if found.target != "celery":
        return Conflict(
            "execution.not_celery",
            "this execution is a task of the platform, which says itself how it ends",
            value=str(found.execution_id),
            next_step="see the task of the same id",
        )
    return Conflict(
        "execution.not_movable",
        f"the execution is {found.status} and cannot become {change.status}",
        value=str(found.execution_id),
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
        next_step="see `traceplane pipelines list`",
    )


def _no_list(name: str) -> NotFound:
    return NotFound(
        "scanner_list.unknown",
        "there is no such list of tickers",
        value=name,
        next_step="see `traceplane scanner-lists list`",
    )


def _name_taken(name: str) -> Conflict:
    return Conflict(
        "pipeline.name_taken",
        "the user has a pipeline of this name",
        value=name,
        next_step="choose another name, or change that pipeline",
    )
