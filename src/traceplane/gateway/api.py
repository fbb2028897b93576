"""Routes of the public API."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Awaitable, Iterator
from typing import Any
from uuid import UUID, uuid4

import msgspec

from traceplane import __version__, telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_stores import object_store_for
from traceplane.auth.access import bearer, check_org, cut_down, require_role
from traceplane.auth.callers import Caller, CallerKind
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.auth.opaque import Principal, TokenBook, TokenRecord
from traceplane.auth.rights import Access, access_of
from traceplane.auth.roles import Role
from traceplane.auth.second_look import SecondLook
from traceplane.auth.store import load_roles, load_token_book
from traceplane.delivery.sending import Channels
from traceplane.errors import Forbidden, PlatformError, TraceplaneError, UserError
from traceplane.gateway import coverage, cron_sources, datasets
from traceplane.gateway.alerts import AlertApi
from traceplane.gateway.audit import AuditApi, act_of, audited, names_in
from traceplane.gateway.backfill import backfill
from traceplane.gateway.browser_links import BrowserLinks, is_browser_token
from traceplane.gateway.changes import ChangesApi
from traceplane.gateway.channels import ChannelApi
from traceplane.gateway.column_lineage import ColumnLineageApi
from traceplane.gateway.coverage_strip import CoverageStripApi
from traceplane.gateway.dataset_history import DatasetHistoryApi
from traceplane.gateway.dead_letters import DeadLetterApi
from traceplane.gateway.deliveries import DeliveryApi
from traceplane.gateway.deploys import DeployApi
from traceplane.gateway.emits import Emits
from traceplane.gateway.events import EventApi
from traceplane.gateway.file_sources import FileSources
from traceplane.gateway.graph import GraphApi
from traceplane.gateway.health import HealthApi
from traceplane.gateway.iceberg import IcebergApi
from traceplane.gateway.identity_providers import IdentityProviderApi
from traceplane.gateway.jobs import JobApi, pause_view
from traceplane.gateway.pages import Pages
from traceplane.gateway.people import PeopleApi
from traceplane.gateway.pipelines import PipelineApi
from traceplane.gateway.query_engines import QueryEngines
from traceplane.gateway.rate_limits import RateLimits
from traceplane.gateway.secrets import SecretApi
from traceplane.gateway.sign_in import SignIn
from traceplane.gateway.tasks import TaskApi, standing
from traceplane.gateway.webhooks import Webhooks
from traceplane.http_service.app import App
from traceplane.http_service.outgoing import Outgoing
from traceplane.http_service.routes import Call, ClientGone, Incoming, Push, Route, Stream
from traceplane.postgres import (
    buffers,
    channels,
    check_failures,
    commits,
    events,
    graph,
    job_pauses,
    outbox,
    tokens,
)
from traceplane.postgres.audit import Act
from traceplane.postgres.coverage import of_datasets as positions_held
from traceplane.postgres.database import Database, OrgDatabases, Transaction
from traceplane.query.datasets import AsOf, QueryCaller
from traceplane.query.engine_pool import EnginePool
from traceplane.query.preparation import OverLimit, PlannedFiles
from traceplane.query.service import Queries, QueryResult, query_hash
from traceplane.query.wire import Format, QueryLimits
from traceplane.runtime.process import Outcome
from traceplane.secrets.vault import Vault
from traceplane.settings import Settings
from traceplane.signin.issuers import Issuers
from traceplane.signin.jwts import is_jwt
from traceplane.sql import gate
from traceplane.wire.control import (
    BackfillRequest,
    BackfillResponse,
    DatasetView,
    EmitRequest,
    EmitResponse,
    FailedCheckView,
    ScopeExplanation,
    ScopeQuery,
    StatusQuery,
    StatusResponse,
)
from traceplane.wire.queries import (
    CatalogQuery,
    CatalogResponse,
    DatasetDetail,
    QueryPlan,
    QueryRequest,
    QueryTask,
    QueryTaskRequest,
)

READER, WRITER, ADMIN = "reader", "writer", "admin"


class PublicApi:
    """`database` is the platform's, for what is nobody's own; a call works in its caller's, of `orgs`."""

    def __init__(self, *, database: Database, orgs: OrgDatabases, settings: Settings) -> None:
        self._database, self._orgs = database, orgs
        self._settings = settings
        self._used: set[UUID] = set()
        """Tokens, since their use was last noted."""
        self._book = TokenBook(())
        self._second_look = SecondLook(self.refresh)
        self._rate_limits = RateLimits(settings.rate_limit_per_second, settings.rate_limit_burst)
        self._now = 0.0
        master_keys = MasterKeyFile(settings.master_key_path)
        self.vault = Vault.of(settings, master_keys.keys)
        self.deploys = DeployApi(settings, self.vault)
        self.jobs = JobApi()
        self.changes = ChangesApi(orgs, self._check_again)
        self.tasks = TaskApi()
        self.dead_letters = DeadLetterApi()
        self._emits = Emits()
        self.webhooks = Webhooks(database, settings, self.vault)
        self.file_sources = FileSources()
        self.audit = AuditApi(database)
        self.secrets = SecretApi(self.vault)
        outgoing = Outgoing(settings.outgoing_allow)
        issuers = Issuers(outgoing)
        self.sign_in = SignIn(
            database, orgs, settings, self.vault, outgoing, issuers, self._rate_limits, self.audit
        )
        self.browser_links = BrowserLinks(database, settings.gateway_address, self._record_of)
        self.identity_providers = IdentityProviderApi(outgoing, issuers)
        self.channels = ChannelApi(Channels(outgoing), self.vault)
        self._queries = Queries(
            EnginePool(
                spill_root=settings.home / "spill",
                concurrency=settings.query_concurrency,
                of_one_caller=settings.queries_of_one_caller,
            ),
            object_root=None if settings.object_bucket else settings.object_store_root.resolve(),
            open_cache=self._open_cache,
            limits=QueryLimits(
                seconds=settings.query_timeout_seconds,
                max_rows=settings.query_max_rows,
                max_bytes=settings.query_max_bytes,
                memory_mb=settings.query_memory_mb,
                spill_mb=settings.query_spill_mb,
                threads=settings.query_threads or os.cpu_count() or 1,
            ),
        )
        self._engines = QueryEngines(
            database,
            self._queries,
            spark_above=settings.query_spark_above_mb << 20,
            window=settings.dispatch_window,
        )
        self.iceberg = IcebergApi(
            database, self._queries, settings, lambda: object_store_for(settings), _caller
        )
        self.alerts = AlertApi(self._queries, settings.runtimes)

    async def close(self) -> None:
        with contextlib.suppress(PlatformError):
            await self.audit.flush(at_end=True)
        self.alerts.close()
        await self._queries.close()
        await self.iceberg.close()
        await self.vault.close()

    async def _open_cache(self) -> ObjectCache:
        settings = self._settings
        return await ObjectCache.open(
            object_store_for(settings), settings.object_cache_root, limit_bytes=settings.object_cache_mb << 20
        )

    def app(self) -> App:
        routes = [
            *self.deploys.routes(),
            *GraphApi().routes(),
            *self.changes.routes(),
            Route("POST", "/api/v1/events", EmitRequest, EmitResponse, self.emit, WRITER,
                  "Emit events of source datasets."),
            Route("POST", "/api/v1/backfill", BackfillRequest, BackfillResponse, self.backfill, WRITER,
                  "Compute a range of history."),
            *EventApi().routes(),
            *self.jobs.routes(),
            *self.tasks.routes(),
            *self.dead_letters.routes(),
            Route("POST", "/api/v1/query", QueryRequest, Stream, self.query, READER, "One SELECT over datasets."),
            Route("POST", "/api/v1/query-plan", QueryRequest, QueryPlan, self.query_plan, READER,
                  "Which engine would run a query, and what it would read."),
            Route("POST", "/api/v1/query-tasks", QueryTaskRequest, QueryTask, self.query_task, WRITER,
                  "One SELECT, whose result becomes a dataset."),
            Route("GET", "/api/v1/datasets", None, CatalogResponse, self.datasets, READER,
                  "Datasets with their sizes.", query=CatalogQuery),
            Route("GET", "/api/v1/datasets/{dataset_id}", None, DatasetDetail, self.dataset, READER,
                  "One dataset with its schema and lineage."),
            Route("GET", "/api/v1/datasets/{dataset_id}/explain", None, ScopeExplanation, self.explain_scope, READER,
                  "Why positions of a dataset are missing.", query=ScopeQuery),
            *CoverageStripApi().routes(),
            *ColumnLineageApi().routes(),
            *DatasetHistoryApi(_caller).routes(),
            Route("GET", "/api/v1/status", None, StatusResponse, self.status, READER, "Counts and cursors.",
                  query=StatusQuery),
            *HealthApi(self.status_of).routes(),
            *self.iceberg.routes(),
            *PipelineApi().routes(),
            *self.webhooks.routes(),
            *self.file_sources.routes(),
            *self.secrets.routes(),
            *self.alerts.routes(),
            *self.channels.routes(),
            *DeliveryApi().routes(),
            *PeopleApi().routes(),
            *self.identity_providers.routes(),
            *self.sign_in.routes(),
            *self.browser_links.routes(),
            *self.audit.routes(),
        ]  # fmt: skip
        return App(
            routes,
            authenticate=self._authenticate,
            title="Traceplane API",
            version=__version__,
            ready=self._ready,
            max_body_bytes=self._settings.max_body_bytes,
            decoded=lambda caller, body: caller.act.object.update(names_in(body)),
            refused=self._refused,
            page=Pages.built().find,
        )

    async def refresh(self) -> Outcome:
        """Reads the user tokens anew; runs as a loop."""
        async with self._database.transaction() as tx:
            if used := tuple(self._used):
                await tokens.note_use(tx, used)
            roles = await load_roles(tx)
            self._book = await load_token_book(tx, roles)
            self._now = await tokens.clock(tx)
            await self.sign_in.read(tx, roles, self._now)
        self._used.difference_update(used)
        return Outcome()

    def _authenticate(self, incoming: Incoming) -> Caller | Awaitable[Caller]:
        session = self.sign_in.session_of(incoming)
        if session is not None and not is_browser_token(session):
            return self.sign_in.caller_of_session(incoming)
        token = session or bearer(incoming.header("authorization"))
        if is_jwt(token):
            return self.sign_in.caller_of_jwt(token, incoming)
        if session is not None:
            self.sign_in.check_browser(incoming, session)

        def check() -> Caller:
            record = self._book.check(token, Principal.USER, self._now)
            self._rate_limits.count(record.org, record.counted_as, record.name)
            check_org("token", record.org, incoming.header("traceplane-org"))
            role = require_role(record, incoming.auth)
            if incoming.auth == ADMIN and record.datasets is not None:
                raise cut_down(record.name)
            return self._caller(incoming, record, role)

        return self._second_look.check(check)

    async def _check_again(self, call: Call[None]) -> Caller:
        """Who makes a call that takes long, as things stand now."""
        caller: Caller = call.principal
        checked = self._authenticate(
            Incoming(READER, "GET", caller.act.action, {}, call.raw_headers, call.remote, call.request_id)
        )
        return await checked if isinstance(checked, Awaitable) else checked

    def _caller(self, incoming: Incoming, record: TokenRecord, role: Role | None) -> Caller:
        assert record.org_id is not None
        assert record.token_id is not None
        self._used.add(record.token_id)
        act = _act(incoming, record)
        return Caller(
            org=record.org,
            org_id=record.org_id,
            name=act.principal,
            counted_as=record.counted_as,
            kind=CallerKind(act.kind),
            roles=record.rights.roles,
            role=role,
            sees_pii=record.sees_pii or record.rights.sees_pii,
            datasets=record.datasets,
            database=audited(self._orgs, incoming, act),
            act=act,
            member_id=record.member_id,
            cut_token_id=record.token_id if record.is_cut_down else None,
        )

    def _refused(self, incoming: Incoming, caller: Caller | None, error: UserError) -> None:
        """For the audit log, if it is known whose token it is."""
        if caller is not None:
            self.audit.refuse(caller.act, error.code)
            return
        with contextlib.suppress(UserError):
            record = self._book.find(
                self.sign_in.session_of(incoming) or bearer(incoming.header("authorization"))
            )
            if record is not None and record.org_id is not None:
                self.audit.refuse(_act(incoming, record), error.code)

    def _record_of(self, token: str) -> TokenRecord | None:
        return self._book.find(token)

    async def _ready(self) -> None:
        async with self._database.transaction():
            pass

    # Events ----------------------------------------------------------------------------------------

    async def emit(self, call: Call[EmitRequest]) -> EmitResponse:
        return await self._emits.emit(call.principal, call.body.events)

    async def backfill(self, call: Call[BackfillRequest]) -> BackfillResponse:
        return await backfill(call.principal, call.body)

    # Queries ---------------------------------------------------------------------------------------

    async def query(self, call: Call[QueryRequest]) -> Stream:
        body = call.body
        most_bytes = self._engines.most_bytes(body)
        running = asyncio.create_task(
            self._queries.run(
                call.principal.database,
                _caller(call.principal),
                body.sql,
                format_=body.format or _accepted(call.header("accept")),
                as_of=AsOf(body.as_of_version, body.as_of_time),
                max_rows=body.max_rows,
                most_bytes=most_bytes,
            )
        )
        with self._audited_denial(call.principal, body.sql):
            try:
                result = await _unless_hung_up(call, running)
            except OverLimit as over:
                return await self._hand_over(call, over.plan)
        pinned = msgspec.json.encode(result.generations) if len(result.generations) <= 20 else b"{}"

        async def write(push: Push) -> None:
            async with contextlib.aclosing(result.pieces) as pieces:
                async for piece in pieces:
                    await push(piece)

        headers = ((b"traceplane-generations", pinned), (b"traceplane-engine", b"duckdb"))
        return Stream(write, result.content_type, headers)

    async def _hand_over(self, call: Call[QueryRequest], planned: PlannedFiles) -> Stream:
        caller = _caller(call.principal)
        dataset = f"query-results.{uuid4().hex[:16]}"
        named = call.principal.act.object
        named["dataset"] = dataset
        try:
            made = await self._engines.hand_over(call.principal.database, caller, call.body, planned, dataset)
        except TraceplaneError as error:
            del named["dataset"]  # there is none
            self._queries.note_failure(caller, call.body.sql, error)
            raise
        telemetry.emit(
            "query.handed_over", principal=caller.name, dataset=made.dataset, task_id=str(made.task_id)
        )

        async def write(push: Push) -> None:
            await push(msgspec.json.encode(made))

        return Stream(write, "application/json", ((b"traceplane-engine", b"spark"),))

    async def query_plan(self, call: Call[QueryRequest]) -> QueryPlan:
        caller = _caller(call.principal)
        with self._audited_denial(call.principal, call.body.sql):
            return await self._engines.plan(call.principal.database, caller, call.body)

    async def query_task(self, call: Call[QueryTaskRequest]) -> QueryTask:
        caller = _caller(call.principal)
        with self._audited_denial(call.principal, call.body.sql):
            try:
                made = await self._engines.start(call.principal.database, caller, call.body)
            except TraceplaneError as error:
                self._queries.note_failure(caller, call.body.sql, error)
                raise
        telemetry.emit(
            "query.handed_over", principal=caller.name, dataset=made.dataset, task_id=str(made.task_id)
        )
        return made

    @contextlib.contextmanager
    def _audited_denial(self, caller: Caller, sql: str) -> Iterator[None]:
        """Some denials are no refusals of the caller (401, 403), which are audited in any case."""
        caller.act.object["query_hash"] = query_hash(sql)
        try:
            yield
        except TraceplaneError as error:
            if gate.denied(error) and not isinstance(error, Forbidden):
                self.audit.refuse(caller.act, error.code)
            raise

    async def datasets(self, call: Call[None]) -> CatalogResponse:
        return await datasets.catalog(call.principal.database, _caller(call.principal), call.query)

    async def dataset(self, call: Call[None]) -> DatasetDetail:
        dataset_id = call.path_params["dataset_id"]
        return await datasets.detail(
            call.principal.database, self._queries, _caller(call.principal), dataset_id
        )

    async def explain_scope(self, call: Call[None]) -> ScopeExplanation:
        query: ScopeQuery = call.query
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            return await coverage.explain(
                tx, call.principal.org, call.path_params["dataset_id"], query.first, query.last, access
            )

    # Tasks -----------------------------------------------------------------------------------------

    async def status(self, call: Call[None]) -> StatusResponse:
        return await self.status_of(call.principal, call.query)

    async def status_of(self, caller: Caller, query: StatusQuery) -> StatusResponse:
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            work = await standing(tx, caller, access, query.dag)
            paused = await job_pauses.of_org(tx, caller.org)
            views = await _dataset_views(tx, caller.org, access, query) if query.datasets else []
            lag = await outbox.lag_seconds_of(tx, caller.org)
            cron = await cron_sources.views(tx, caller.org)
            dead_messages = await channels.dead_messages(tx, caller.org_id) if caller.is_admin else {}
        return StatusResponse(
            work.counts,
            views,
            lag,
            failed=work.failed,
            stuck=work.stuck,
            dead_superseded=work.dead_elsewhere.get("superseded", 0),
            dead_retired=work.dead_elsewhere.get("retired", 0),
            cron=[c for c in cron if access.sees(c.dag, c.job) and query.dag in (None, c.dag)],
            paused=[
                pause_view(pause)
                for pause in paused
                if access.sees(pause.dag, pause.job) and query.dag in (None, pause.dag)
            ],
            dead_messages=dead_messages,
        )


async def _dataset_views(tx: Transaction, org: str, access: Access, query: StatusQuery) -> list[DatasetView]:
    dead_letters = await buffers.letter_counts(tx, org)
    failed_checks: dict[str, list[FailedCheckView]] = defaultdict(list)
    for f in await check_failures.standing(tx, org):
        failed_checks[f.dataset_id].append(FailedCheckView(f.name, f.scopes, f.problem, f.task_id))
    names: set[str] | None = None
    if query.dag is not None:
        names = await graph.used(tx, org, query.dag)
    if query.dataset is not None:
        names = {query.dataset} if names is None else names & {query.dataset}
    if query.unmet:
        unmet = dead_letters.keys() | failed_checks.keys()
        names = unmet if names is None else names & unmet
    asked = None if names is None else sorted(names)
    datasets = await commits.summary(tx, org, asked)
    tallies = await events.tally(tx, [d.generation_id for d in datasets if not d.commits])
    held = await positions_held(tx, org, asked)
    views = []
    for d in filter(lambda d: access.reads(d.dataset_id), datasets):
        tally = tallies.get(d.generation_id)
        cursor, cursor_name = coverage.last_position(
            tally.last if tally else d.cursor, held.get(d.dataset_id)
        )
        view = DatasetView(
            *(d.dataset_id, d.commits, d.rows, d.bytes),
            cursor=cursor,
            coverage=coverage.view(held.get(d.dataset_id)),
            storage=d.storage,
            at_most=d.at_most,
            events=tally.events if tally else None,
            cursor_name=cursor_name,
            dead_letters=dead_letters.get(d.dataset_id, 0),
            failed_checks=failed_checks.get(d.dataset_id, []),
        )
        views.append(view)
    return views


def _act(incoming: Incoming, record: TokenRecord) -> Act:
    assert record.org_id is not None
    if record.principal is Principal.WORKER:
        return act_of(incoming, record.org_id, record.name, "worker")
    if record.member is None:
        return act_of(incoming, record.org_id, record.name, CallerKind.TOKEN)
    return act_of(incoming, record.org_id, record.member.name, record.member.kind)


def _caller(caller: Caller) -> QueryCaller:
    return QueryCaller(
        *(caller.org, caller.name, str(caller.role), caller.sees_pii, caller.roles, caller.datasets),
        counted_as=caller.counted_as,
    )


_BY_MEDIA_TYPE: dict[str, Format] = {
    "text/csv": "csv",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/vnd.apache.parquet": "parquet",
}


def _accepted(header: str | None) -> Format:
    for wish in (header or "").split(","):
        if (format_ := _BY_MEDIA_TYPE.get(wish.partition(";")[0].strip().lower())) is not None:
            return format_
    return "json"


async def _unless_hung_up(call: Call[Any], running: asyncio.Task[QueryResult]) -> QueryResult:
    """What the task gives; it is ended when nobody waits for it any more."""
    leaving = asyncio.create_task(call.hung_up())
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))
            raise ClientGone
        return running.result()
    finally:
        leaving.cancel()
        running.cancel()
