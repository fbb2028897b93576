"""Python client of the gateway: its whole public API as typed calls, with the results of queries as tables.

from traceplane.client import Client

client = Client()  # the platform that runs here, found as the command line finds it
client.emit("shop.days", range(14))
table = client.query("select count(*) from shop.sales")
for alert in client.alerts.each(state="open"):
    print(alert.title)

What is called most is a method of the client; the rest is grouped by what it is about:
    deploys         DAGs, their versions and jobs
    events          events that were accepted, and everything that one of them caused
    catalog         datasets, webhook and file sources
    alerting        alerts, silences, channels and their messages, dead letters
    pipelines       pipelines, their lists and limits, executions
    people          roles, members, tokens, identity providers, secrets, the audit log
Beside these:
    connection      calls of a gateway
    scopes          what `emit` takes as scopes
    deploy_files    what a deploy sends
    queries         the result of a query as it arrives, also from Spark
    results         the result of a query as a table
    selections      changes of many objects, repeated until all are done

The types are those by which the gateway describes itself (`traceplane.wire`), and a test compares each call with that
description (docs/adr/0020-a-client-that-is-checked.md).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import msgspec

from traceplane.client import queries
from traceplane.client.alerting import Alerts, Channels, DeadLetters, Deliveries, Silences
from traceplane.client.catalog import Datasets, FileSources, Webhooks
from traceplane.client.connection import Connection, checked_arguments, quoted, uuid_of
from traceplane.client.deploy_files import deploy_request
from traceplane.client.deploys import Dags, Jobs
from traceplane.client.events import Events
from traceplane.client.people import Audit, IdentityProviders, Members, Roles, Secrets, Tokens
from traceplane.client.pipelines import Executions, Pipelines, ScannerLists, UserLimits
from traceplane.client.results import Pieces, as_pandas, as_polars, as_spark
from traceplane.client.scopes import OneScope, event_of, scopes_of
from traceplane.client.selections import all_changes, selected
from traceplane.errors import Conflict, PlatformError
from traceplane.runtime.retrying import pauses
from traceplane.runtime.running_platform import token_for_calls, where_it_runs
from traceplane.settings import Settings, load
from traceplane.wire.control import (
    BackfillRequest,
    BackfillResponse,
    EmitRequest,
    EmitResponse,
    ExplainResponse,
    StatusResponse,
    TaskChanges,
    TaskDetail,
    TaskLogs,
    TaskSelection,
    TasksResponse,
    TaskView,
)
from traceplane.wire.deploys import DeployRequest, DeployResponse, PlanResponse, VersionsResponse, VersionView
from traceplane.wire.health import HealthResponse
from traceplane.wire.people import WhoAmI
from traceplane.wire.pipelines import ExecutionChange, ExecutionView
from traceplane.wire.queries import Engine, QueryPlan, QueryRequest, QueryTask, QueryTaskRequest
from traceplane.wire.scalars import MAX_BATCH

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Format = Literal["json", "csv", "arrow", "parquet"]
_REPORT_PATIENCE_SECONDS = 600.0
_TASKS = "/api/v1/tasks"


class Client:
    """Calls a gateway, given its address and a user token. Calls block, so they work in scripts and notebooks alike.

    Missing arguments are found as the command line finds them: in the environment, in `traceplane.toml`, and, for the
    token of a platform that runs here, in its home folder. `home` selects another home folder. `tls_ca` is a PEM file
    with the certificate authorities of a gateway with TLS; without it, the setting of that name or the system's.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: str | Path | None = None,
        timeout_seconds: float = 600.0,
        tls_ca: str | Path | None = None,
    ) -> None:
        self._home = home
        self._connection = connection = Connection(
            url or self._settings.gateway_address,
            token or token_for_calls(self._settings, url_chosen=url is not None),
            timeout_seconds=timeout_seconds,
            trusted=lambda: Path(tls_ca) if tls_ca is not None else self._settings.tls_ca,
            unreached=lambda: self._where_it_runs() if url is None else None,
        )
        self.dags = Dags(connection)
        self.jobs = Jobs(connection)
        self.datasets = Datasets(connection)
        self.events = Events(connection)
        self.webhooks = Webhooks(connection)
        self.file_sources = FileSources(connection)
        self.alerts = Alerts(connection)
        self.silences = Silences(connection)
        self.channels = Channels(connection)
        self.deliveries = Deliveries(connection)
        self.dead_letters = DeadLetters(connection)
        self.pipelines = Pipelines(connection)
        self.scanner_lists = ScannerLists(connection)
        self.user_limits = UserLimits(connection)
        self.executions = Executions(connection)
        self.roles = Roles(connection)
        self.members = Members(connection)
        self.tokens = Tokens(connection)
        self.identity_providers = IdentityProviders(connection)
        self.secrets = Secrets(connection)
        self.audit = Audit(connection)

    def _where_it_runs(self) -> str | None:
        """Of a platform that is found by its folder."""
        return where_it_runs(self._settings) if self._settings.gateway_url is None else None

    @cached_property
    def _settings(self) -> Settings:
        return load(home=self._home)

    def whoami(self) -> WhoAmI:
        """Who calls, and with what rights."""
        return self._connection.ask("GET", "/api/v1/whoami", WhoAmI)

    # Deploys ---------------------------------------------------------------------------------------

    def plan(
        self,
        file: str | Path,
        *,
        code: str | Path | Sequence[str | Path] = (),
        no_rematerialize: bool = False,
    ) -> PlanResponse:
        """What deploying the DAG in a file would do."""
        request = msgspec.structs.replace(self._files(file, code), no_rematerialize=no_rematerialize)
        return self._connection.ask("POST", "/api/v1/plan", PlanResponse, request)

    def deploy(
        self,
        file: str | Path,
        *,
        code: str | Path | Sequence[str | Path] = (),
        expect_version: int | None = None,
        manual_cutover: bool = False,
        drop_missing: bool = False,
        no_rematerialize: bool = False,
    ) -> DeployResponse:
        """Deploys the DAG in a file, with the modules that its jobs run: those of `code`, a folder or several, or of
        `./code`."""
        request = msgspec.structs.replace(
            self._files(file, code),
            expect_version=expect_version,
            manual_cutover=manual_cutover,
            drop_missing=drop_missing,
            no_rematerialize=no_rematerialize,
        )
        return self._connection.ask("POST", "/api/v1/deploy", DeployResponse, request)

    def _files(self, file: str | Path, code: str | Path | Sequence[str | Path]) -> DeployRequest:
        folders = [code] if isinstance(code, str | Path) else code
        return deploy_request(self._settings, Path(file), tuple(map(Path, folders)))

    def versions(self, dag: str, *, limit: int = 20) -> list[VersionView]:
        """Versions of a DAG, newest first, with the progress of one that is being built."""
        answer = self._connection.ask("GET", "/api/v1/versions", VersionsResponse, dag=dag, limit=limit)
        return answer.versions

    # Events ----------------------------------------------------------------------------------------

    def emit(
        self,
        dataset: str,
        scopes: OneScope | Iterable[OneScope],
        *,
        kind: Literal["data", "invalidation"] = "data",
        emission: str = "",
    ) -> EmitResponse:
        """Emits events of a source dataset, a thousand per request. A number is a cursor, a pair of numbers the
        partition from the first to the last, and text the name of a partition (`2026-11-16`) or a range of them
        (`2026-11-01..2026-11-16`); a list, a range or another iterable holds several."""
        events = (event_of(dataset, scope, kind, emission) for scope in scopes_of(scopes))
        accepted = duplicates = 0
        while batch := list(itertools.islice(events, MAX_BATCH)):
            answer = self._connection.ask("POST", "/api/v1/events", EmitResponse, EmitRequest(batch))
            accepted, duplicates = accepted + answer.accepted, duplicates + answer.duplicates
        return EmitResponse(accepted, duplicates)

    def backfill(
        self,
        dataset: str,
        start: int | str,
        end: int | str,
        *,
        only: Literal["missing", "failed", "all"] = "missing",
        partition_size: int | None = None,
        allow_gaps: bool = False,
        dry_run: bool = False,
    ) -> BackfillResponse:
        """Creates tasks for the positions or partitions from `start` to `end`, both included."""
        request = BackfillRequest(
            dataset,
            start,
            end,
            only=only,
            partition_size=partition_size,
            allow_gaps=allow_gaps,
            dry_run=dry_run,
        )
        return self._connection.ask("POST", "/api/v1/backfill", BackfillResponse, request)

    # Tasks -----------------------------------------------------------------------------------------

    def status(
        self,
        *,
        datasets: bool = True,
        dag: str | None = None,
        dataset: str | None = None,
        unmet: bool = False,
    ) -> StatusResponse:
        """What failed, what is stuck, unfinished tasks, and what datasets hold: each, those that a DAG writes and
        reads, one, or those with dead letters or checks that are not met."""
        asked = {"datasets": datasets, "dag": dag, "dataset": dataset, "unmet": unmet}
        return self._connection.ask("GET", "/api/v1/status", StatusResponse, **asked)

    def health(self) -> HealthResponse:
        """What needs somebody, with the next step; for admins also the processes of the platform."""
        return self._connection.ask("GET", "/api/v1/health", HealthResponse)

    def tasks(
        self,
        *,
        dag: str | None = None,
        job: str | None = None,
        state: str | None = None,
        standing: str | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
        before: UUID | None = None,
        limit: int = 50,
    ) -> list[TaskView]:
        """Tasks, newest first, of positions or partitions from `start` to `end`. `before`: the last task of the
        previous page."""
        return self._connection.ask(
            "GET",
            _TASKS,
            TasksResponse,
            dag=dag,
            job=job,
            state=state,
            standing=standing,
            start=start,
            end=end,
            before=before,
            limit=limit,
        ).tasks

    def task(self, task_id: UUID | str) -> TaskDetail:
        """A task with the events that led to it, what it read, and its own events."""
        return self._connection.ask("GET", _task(task_id), TaskDetail)

    def explain(self, task_id: UUID | str) -> ExplainResponse:
        """Why a task is waiting or failed, with its error, its output and the next step."""
        return self._connection.ask("GET", f"{_task(task_id)}/explain", ExplainResponse)

    def logs(self, task_id: UUID | str) -> TaskLogs:
        """What the attempts of a task wrote, the newest first."""
        return self._connection.ask("GET", f"{_task(task_id)}/logs", TaskLogs)

    def retry(
        self,
        *task_ids: UUID | str,
        dag: str | None = None,
        job: str | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
        state: Literal["dead", "canceled"] = "dead",
    ) -> TaskChanges:
        """Starts dead or canceled tasks again: some by their ids, or all in that state of a DAG, of one of its jobs,
        or of positions or partitions from `start` to `end`."""
        return self._change("retry", selected(task_ids, dag, job, start, end, state))

    def cancel(
        self,
        *task_ids: UUID | str,
        dag: str | None = None,
        job: str | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
    ) -> TaskChanges:
        """Cancels tasks: waiting ones immediately, running ones at their next heartbeat."""
        return self._change("cancel", selected(task_ids, dag, job, start, end))

    def acknowledge(
        self,
        *task_ids: UUID | str,
        dag: str | None = None,
        job: str | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
    ) -> TaskChanges:
        """Marks dead tasks as known: `status` no longer lists them."""
        return self._change("acknowledge", selected(task_ids, dag, job, start, end))

    def _change(self, verb: str, request: TaskSelection) -> TaskChanges:
        def page(request: TaskSelection) -> TaskChanges:
            return self._connection.ask("POST", f"{_TASKS}/{verb}", TaskChanges, request)

        return all_changes(page, request)

    # Queries ---------------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
    ) -> pa.Table:
        """The whole result. An incomplete result raises an error; it is never a shorter table. One that Spark computes
        is waited for."""
        import pyarrow.ipc as ipc  # slow to import, and no other call needs it

        with Pieces(
            self.pieces(
                sql,
                format="arrow",
                as_of_version=as_of_version,
                as_of_time=as_of_time,
                max_rows=max_rows,
                engine=engine,
            )
        ) as file:
            return ipc.open_stream(file).read_all()

    def query_pandas(
        self,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
    ) -> pandas.DataFrame:
        """The whole result, for pandas."""
        return as_pandas(
            self.query(
                sql, as_of_version=as_of_version, as_of_time=as_of_time, max_rows=max_rows, engine=engine
            )
        )

    def query_polars(
        self,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
    ) -> polars.DataFrame:
        """The whole result, for polars, which must be installed."""
        return as_polars(
            self.query(
                sql, as_of_version=as_of_version, as_of_time=as_of_time, max_rows=max_rows, engine=engine
            )
        )

    def query_spark(
        self,
        session: SparkSession,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
    ) -> DataFrame:
        """The whole result, for a Spark session of this process or over Spark Connect. It passes through this process:
        for much data, read the dataset with `traceplane.datasources` or as an Iceberg table."""
        table = self.query(
            sql, as_of_version=as_of_version, as_of_time=as_of_time, max_rows=max_rows, engine=engine
        )
        return as_spark(table, session)

    def pieces(
        self,
        sql: str,
        *,
        format: Format = "arrow",
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
        handed_over: Callable[[QueryTask], None] = lambda task: None,
    ) -> Iterator[bytes]:
        """The result as it arrives, in any format. If Spark computes it, `handed_over` is called with the task, which
        is waited for."""
        versions = dict(as_of_version) if isinstance(as_of_version, Mapping) else as_of_version or {}
        with checked_arguments():
            request = QueryRequest(sql, format, versions, as_of_time, max_rows, engine)
        return queries.pieces(self._connection, request, handed_over)

    def query_plan(
        self,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        engine: Engine = "auto",
    ) -> QueryPlan:
        """Which engine would run a query, and what it would read."""
        with checked_arguments():
            request = QueryRequest(
                sql, as_of_version=dict(as_of_version or {}), as_of_time=as_of_time, engine=engine
            )
        return self._connection.ask("POST", "/api/v1/query-plan", QueryPlan, request)

    def query_task(
        self,
        sql: str,
        dataset: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
    ) -> QueryTask:
        """Starts a task on Spark whose result becomes a dataset, for what is too large for `query`."""
        with checked_arguments():
            request = QueryTaskRequest(sql, dataset, dict(as_of_version or {}), as_of_time)
        return self._connection.ask("POST", "/api/v1/query-tasks", QueryTask, request)

    # Celery ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def execution(self, execution_id: str) -> Iterator[ExecutionView | None]:
        """For a Celery worker that received a message about an execution: claims it and yields it, or yields None if
        another worker has it. It completes when the block ends, and fails when the block raises."""
        path = f"/api/v1/executions/{quoted(execution_id)}"
        try:
            claimed = self._move(path, ExecutionChange("RUNNING"))
        except Conflict:
            yield None
            return
        try:
            yield claimed
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:20_000]
            self._patiently_move(path, ExecutionChange("FAILED", text))
            raise
        self._patiently_move(path, ExecutionChange("COMPLETED"))

    def _move(self, path: str, change: ExecutionChange) -> ExecutionView:
        return self._connection.ask("PATCH", path, ExecutionView, change)

    def _patiently_move(self, path: str, change: ExecutionChange) -> None:
        """Retries the report while the gateway is unavailable; reporting twice is harmless."""
        tries = pauses(0.1, 5.0, seconds=_REPORT_PATIENCE_SECONDS)
        while True:
            try:
                self._move(path, change)
                return
            except Conflict:
                return  # it was declared lost in the meantime
            except PlatformError:
                if (pause := next(tries, None)) is None:
                    raise
                time.sleep(pause)


def _task(task_id: UUID | str) -> str:
    return f"{_TASKS}/{uuid_of(task_id, 'task_id', 'tasks()')}"
