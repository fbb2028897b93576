"""Routes of the public API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from traceplane import __version__, telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_stores import object_store_for
from traceplane.auth.access import bearer, may_see_pii, require_role
from traceplane.auth.opaque import Principal, Role, TokenBook, TokenRecord
from traceplane.auth.second_look import SecondLook
from traceplane.auth.store import load_token_book
from traceplane.errors import Conflict, InvalidInput, NotFound, TraceplaneError
from traceplane.gateway import coverage, datasets, query_tasks
from traceplane.gateway.backfill import backfill
from traceplane.gateway.pipelines import PipelineApi
from traceplane.gateway.plan_steps import plan_steps
from traceplane.gateway.tasks import TaskApi, standing
from traceplane.http_service.app import App
from traceplane.http_service.routes import Call, ClientGone, Push, Route, Stream
from traceplane.model.dag import Dag
from traceplane.model.positions import written
from traceplane.model.runtimes import Runtime
from traceplane.postgres import commits, events, outbox, registry, tokens, versions
from traceplane.postgres.coverage import of_datasets as positions_held
from traceplane.postgres.database import Database, Transaction, again_if_concurrent
from traceplane.postgres.events import NewEvent
from traceplane.postgres.versions import Missing
from traceplane.query.engines import Engines
from traceplane.query.service import AsOf, Caller, Limits, Queries, Result
from traceplane.registry import apply, code_identity, cutover, deletion, job_checks, spec
from traceplane.registry.code_identity import DeployedCode
from traceplane.runtime.group_commit import GroupCommit
from traceplane.runtime.process import Outcome
from traceplane.settings import Settings
from traceplane.wire.control import (
    BackfillRequest,
    BackfillResponse,
    BuildView,
    CatalogResponse,
    CutoverRequest,
    DagName,
    DagsResponse,
    DagView,
    DatasetDetail,
    DatasetView,
    DeletedResponse,
    DeleteRequest,
    DeployRequest,
    DeployResponse,
    EmitRequest,
    EmitResponse,
    JobView,
    LackingView,
    ManualEvent,
    MovedResponse,
    PlanResponse,
    QueryRequest,
    QueryTask,
    QueryTaskRequest,
    RollbackRequest,
    ScopeExplanation,
    ScopeQuery,
    StatusResponse,
    VersionQuery,
    VersionsResponse,
    VersionView,
)

READER, WRITER, ADMIN = "reader", "writer", "admin"


@dataclass(frozen=True, slots=True)
class _Emit:
    """One call's events, resolved by name when its group commits."""

    org: str
    events: tuple[ManualEvent, ...]


class PublicApi:
    def __init__(self, *, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._book = TokenBook(())
        self._second_look = SecondLook(self.refresh)
        self._now = 0.0
        self.tasks = TaskApi(database)
        self._emits: GroupCommit[_Emit, EmitResponse] = GroupCommit("emit", self._commit_emits, max_items=64)
        self._queries = Queries(
            database,
            Engines(spill_root=settings.home / "spill", concurrency=settings.query_concurrency),
            object_root=None if settings.object_bucket else settings.object_store_root.resolve(),
            open_cache=self._open_cache,
            cache_bytes=settings.object_cache_mb << 20,
            limits=Limits(
                seconds=settings.query_timeout_seconds,
                max_rows=settings.query_max_rows,
                max_bytes=settings.query_max_bytes,
                memory_mb=settings.query_memory_mb,
                spill_mb=settings.query_spill_mb,
                threads=settings.query_threads or os.cpu_count() or 1,
            ),
        )

    async def close(self) -> None:
        await self._queries.close()

    async def _open_cache(self) -> ObjectCache:
        settings = self._settings
        return await ObjectCache.open(
            object_store_for(settings), settings.object_cache_root, limit_bytes=settings.object_cache_mb << 20
        )

    def app(self) -> App:
        routes = [
            Route("POST", "/v1/plan", DeployRequest, PlanResponse, self.plan, ADMIN, "What a deploy would do."),
            Route("POST", "/v1/deploy", DeployRequest, DeployResponse, self.deploy, ADMIN, "Deploy a DAG."),
            Route("GET", "/v1/versions", None, VersionsResponse, self.versions, READER,
                  "Versions of a DAG, and how far one is that is being built.", query=VersionQuery),
            Route("POST", "/v1/cutover", CutoverRequest, MovedResponse, self.cutover, ADMIN,
                  "Let the version that was built serve."),
            Route("POST", "/v1/rollback", RollbackRequest, MovedResponse, self.rollback, ADMIN,
                  "Let an earlier version serve again."),
            Route("POST", "/v1/abort", DagName, MovedResponse, self.abort, ADMIN,
                  "Give up the version that is being built."),
            Route("POST", "/v1/delete", DeleteRequest, DeletedResponse, self.delete, ADMIN, "Delete a DAG."),
            Route("GET", "/v1/dags", None, DagsResponse, self.dags, READER, "What is deployed."),
            Route("POST", "/v1/events", EmitRequest, EmitResponse, self.emit, WRITER,
                  "Emit events of source datasets."),
            Route("POST", "/v1/backfill", BackfillRequest, BackfillResponse, self.backfill, WRITER,
                  "Compute a range of history."),
            *self.tasks.routes(),
            Route("POST", "/v1/query", QueryRequest, Stream, self.query, READER, "One SELECT over datasets."),
            Route("POST", "/v1/query-tasks", QueryTaskRequest, QueryTask, self.query_task, WRITER,
                  "One SELECT, whose result becomes a dataset."),
            Route("GET", "/v1/datasets", None, CatalogResponse, self.datasets, READER, "Datasets with their sizes."),
            Route("GET", "/v1/datasets/{dataset_id}", None, DatasetDetail, self.dataset, READER,
                  "One dataset with its schema and lineage."),
            Route("GET", "/v1/datasets/{dataset_id}/explain", None, ScopeExplanation, self.explain_scope, READER,
                  "Why positions of a dataset are missing.", query=ScopeQuery),
            Route("GET", "/v1/status", None, StatusResponse, self.status, READER, "Counts and cursors."),
            *PipelineApi(self._database).routes(),
        ]  # fmt: skip
        return App(
            routes,
            authenticate=self._authenticate,
            title="Traceplane API",
            version=__version__,
            ready=self._ready,
            max_body_bytes=self._settings.max_body_bytes,
        )

    async def refresh(self) -> Outcome:
        """Reads the user tokens anew; runs as a loop."""
        async with self._database.transaction() as tx:
            self._book = await load_token_book(tx)
            self._now = await tokens.clock(tx)
        return Outcome()

    def _authenticate(self, role: str, headers: Any) -> TokenRecord | Awaitable[TokenRecord]:
        token = bearer(headers.get("authorization"))

        def check() -> TokenRecord:
            record = self._book.check(token, Principal.USER, self._now)
            require_role(record, Role(role))
            return record

        return self._second_look.check(check)

    async def _ready(self) -> None:
        async with self._database.transaction():
            pass

    async def plan(self, call: Call[DeployRequest]) -> PlanResponse:
        dag, code = await self._parse(call.body)
        async with self._database.transaction() as tx:
            prepared = await apply.prepare(
                tx,
                call.principal.org,
                dag,
                self._settings.runtimes,
                code,
                no_rematerialize=call.body.no_rematerialize,
            )
        return PlanResponse(
            dag=dag.name,
            noop=prepared.plan.is_noop,
            text=prepared.text,
            deployed_version=prepared.deployed_version,
            blocked=str(prepared.refusal) if prepared.refusal else None,
            blocked_code=prepared.refusal.code if prepared.refusal else None,
            steps=plan_steps(prepared.plan, prepared.consequences),
        )

    async def deploy(self, call: Call[DeployRequest]) -> DeployResponse:
        dag, code = await self._parse(call.body)
        done = await apply.deploy(
            self._database,
            call.principal.org,
            dag,
            runtimes=self._settings.runtimes,
            window=self._settings.dispatch_window,
            expect_version=call.body.expect_version,
            manual_cutover=call.body.manual_cutover,
            drop_missing=call.body.drop_missing,
            code=code,
            no_rematerialize=call.body.no_rematerialize,
        )
        telemetry.emit("dag.deployed", dag=dag.name, version=done.version, changed=done.changed)
        return DeployResponse(dag.name, done.version, done.changed, done.building, done.text)

    async def versions(self, call: Call[None]) -> VersionsResponse:
        query: VersionQuery = call.query
        async with self._database.transaction() as tx:
            rows = await versions.listing(tx, call.principal.org, query.dag, query.limit)
            if not rows:
                raise NotFound(
                    "dag.unknown", "there is no such DAG", value=query.dag, next_step="see `traceplane dags`"
                )
            views = [await _version_view(tx, row) for row in rows]
        return VersionsResponse(query.dag, views)

    async def cutover(self, call: Call[CutoverRequest]) -> MovedResponse:
        done = await cutover.cut_over(
            self._database, call.principal.org, call.body.dag, drop_missing=call.body.drop_missing
        )
        if isinstance(done, Missing):
            lost = "; ".join(f"{p.dataset_id} {written(p.positions)}" for p in done.positions[:5])
            only_lost = lost and not replace(done, positions=()).anything
            raise Conflict(
                "deploy.not_caught_up",
                f"the new version lacks {done.unfinished} tasks, {done.dead} of its tasks are dead, "
                f"{done.replays} jobs have yet to get tasks for the past, and {done.sources_behind} sources are behind"
                + (f"; readers would lose {lost}" if lost else ""),
                value=call.body.dag,
                next_step="wait; retry dead tasks; give it up with `traceplane abort`"
                + (
                    "; or let it serve without them: `traceplane cutover --drop-missing`" if only_lost else ""
                ),
            )
        telemetry.emit("dag.cut_over", dag=done.dag, version=done.version, before=done.before)
        return MovedResponse(done.dag, done.version, done.before)

    async def rollback(self, call: Call[RollbackRequest]) -> MovedResponse:
        body = call.body
        done = await cutover.roll_back(self._database, call.principal.org, body.dag, to=body.to)
        telemetry.emit("dag.rolled_back", dag=done.dag, version=done.version, before=done.before)
        return MovedResponse(
            done.dag,
            done.version,
            done.before,
            tuple(LackingView(p.dataset_id, *p.positions) for p in done.lacking),
            done.given_up,
        )

    async def abort(self, call: Call[DagName]) -> MovedResponse:
        version = await cutover.abort(self._database, call.principal.org, call.body.dag)
        telemetry.emit("dag.build_aborted", dag=call.body.dag, version=version)
        return MovedResponse(call.body.dag, version)

    async def delete(self, call: Call[DeleteRequest]) -> DeletedResponse:
        body = call.body
        done = await deletion.delete(self._database, call.principal.org, body.dag, force=body.force)
        telemetry.emit("dag.deleted", dag=body.dag, datasets=len(done.datasets), readers=len(done.readers))
        return DeletedResponse(body.dag, list(done.datasets), list(done.readers))

    async def _parse(self, body: DeployRequest) -> tuple[Dag, DeployedCode | None]:
        # A hostile file may take seconds to refuse; the API goes on meanwhile.
        return await asyncio.to_thread(_parse, body, self._settings.runtimes)

    async def dags(self, call: Call[None]) -> DagsResponse:
        async with self._database.transaction() as tx:
            rows = await registry.overview(tx, call.principal.org)
        versions: dict[str, int] = {}
        jobs: defaultdict[str, list[JobView]] = defaultdict(list)
        for row in rows:
            versions[row["dag"]] = row["version"]
            jobs[row["dag"]].append(JobView(**{f: row[f] for f in JobView.__struct_fields__}))
        return DagsResponse([DagView(name, versions[name], jobs[name]) for name in versions])

    # Events ----------------------------------------------------------------------------------------

    async def emit(self, call: Call[EmitRequest]) -> EmitResponse:
        return (await self._emits.submit([_Emit(call.principal.org, tuple(call.body.events))]))[0]

    async def _commit_emits(self, emits: Sequence[_Emit]) -> Sequence[EmitResponse]:
        async def once() -> events.Accepted:
            named = list({(emit.org, e.dataset) for emit in emits for e in emit.events})
            async with self._database.glance() as tx:
                targets = await registry.manual_targets(tx, named)
            drafts = [
                _manual_event(event, targets.get((emit.org, event.dataset)))
                for emit in emits
                for event in emit.events
            ]
            async with self._database.statement("emit") as tx:
                return await events.accept(tx, drafts, notify_dispatchers=True)

        accepted = await again_if_concurrent(once)
        answers, position = [], 0
        for emit in emits:
            ids = accepted.event_ids[position : position + len(emit.events)]
            position += len(emit.events)
            new = sum(1 for i in ids if i is not None)
            answers.append(EmitResponse(new, len(ids) - new))
        telemetry.count("events_accepted_total", sum(a.accepted for a in answers))
        telemetry.count("events_duplicate_total", sum(a.duplicates for a in answers))
        telemetry.count("tasks_created_total", accepted.tasks_created)
        return answers

    async def backfill(self, call: Call[BackfillRequest]) -> BackfillResponse:
        return await backfill(self._database, call.principal.org, call.body)

    # Queries ---------------------------------------------------------------------------------------

    async def query(self, call: Call[QueryRequest]) -> Stream:
        body = call.body
        running = asyncio.create_task(
            self._queries.run(
                _caller(call.principal),
                body.sql,
                format_=body.format or _accepted(call.header("accept")),
                as_of=AsOf(body.as_of_version, body.as_of_time),
                max_rows=body.max_rows,
            )
        )
        result = await _unless_hung_up(call, running)
        pinned = msgspec.json.encode(result.generations) if len(result.generations) <= 20 else b"{}"

        async def write(push: Push) -> None:
            async with contextlib.aclosing(result.pieces) as pieces:
                async for piece in pieces:
                    await push(piece)

        return Stream(write, result.content_type, ((b"traceplane-generations", pinned),))

    async def query_task(self, call: Call[QueryTaskRequest]) -> QueryTask:
        caller = _caller(call.principal)
        try:
            made = await query_tasks.start(
                self._database, caller, call.body, window=self._settings.dispatch_window
            )
        except TraceplaneError as error:
            await self._queries.note_failure(caller, call.body.sql, error)
            raise
        telemetry.emit(
            "query.handed_over", principal=caller.name, dataset=made.dataset, task_id=str(made.task_id)
        )
        return made

    async def datasets(self, call: Call[None]) -> CatalogResponse:
        return await datasets.catalog(self._database, _caller(call.principal))

    async def dataset(self, call: Call[None]) -> DatasetDetail:
        dataset_id = call.path_params["dataset_id"]
        return await datasets.detail(self._database, self._queries, _caller(call.principal), dataset_id)

    async def explain_scope(self, call: Call[None]) -> ScopeExplanation:
        query: ScopeQuery = call.query
        if query.first > query.last:
            raise InvalidInput(
                "scope.bad_range", "a range ends after it begins", value=f"{query.first}-{query.last}"
            )
        async with self._database.snapshot() as tx:
            return await coverage.explain(
                tx, call.principal.org, call.path_params["dataset_id"], (query.first, query.last)
            )

    # Tasks -----------------------------------------------------------------------------------------

    async def status(self, call: Call[None]) -> StatusResponse:
        async with self._database.transaction() as tx:
            work = await standing(tx, call.principal)
            datasets = await commits.summary(tx, call.principal.org)
            held = await positions_held(tx, call.principal.org)
            lag = await outbox.lag_seconds_of(tx, call.principal.org)
        views = [
            DatasetView(
                *(r["dataset_id"], r["commits"], r["rows"], r["bytes"], r["cursor"]),
                coverage.view(held.get(r["dataset_id"])),
            )
            for r in datasets
        ]
        return StatusResponse(
            work.counts,
            views,
            lag,
            failed=work.failed,
            stuck=work.stuck,
            dead_superseded=work.dead_elsewhere.get("superseded", 0),
            dead_retired=work.dead_elsewhere.get("retired", 0),
        )


def _parse(body: DeployRequest, runtimes: Mapping[str, Runtime]) -> tuple[Dag, DeployedCode | None]:
    dag = spec.parse(body.text, body.file, known_runtimes=frozenset(runtimes))
    project = code_identity.project_sent(body.code or {})
    job_checks.refuse(dag, runtimes, project, body.text, body.file, is_elsewhere=lambda _: True)
    return dag, code_identity.identify(dag, runtimes, body.code)


async def _version_view(tx: Transaction, row: dict[str, Any]) -> VersionView:
    created = _time(row["created_at"])
    assert created is not None
    view = VersionView(
        row["number"], row["state"], created, _time(row["activated_at"]), row["manual_cutover"]
    )
    if view.state != "building":
        return view
    lacking = await versions.missing(tx, row["dag_version_id"])
    return msgspec.structs.replace(
        view,
        datasets=tuple(
            BuildView(r["dataset_id"], r["built"], r["serving"])
            for r in await versions.progress(tx, row["dag_version_id"])
        ),
        replays=lacking.replays,
        unfinished=lacking.unfinished,
        dead=lacking.dead,
        sources_behind=lacking.sources_behind,
        lacking=tuple(LackingView(p.dataset_id, *p.positions) for p in lacking.positions),
    )


def _caller(record: TokenRecord) -> Caller:
    return Caller(record.org, record.name, str(record.role), may_see_pii(record))


_BY_MEDIA_TYPE = {
    "text/csv": "csv",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/vnd.apache.parquet": "parquet",
}


def _accepted(header: str | None) -> str:
    for wish in (header or "").split(","):
        if (format_ := _BY_MEDIA_TYPE.get(wish.partition(";")[0].strip().lower())) is not None:
            return format_
    return "json"


async def _unless_hung_up(call: Call[Any], running: asyncio.Task[Result]) -> Result:
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


def _manual_event(event: ManualEvent, target: dict[str, Any] | None) -> NewEvent:
    if target is None or target["current_generation_id"] is None:
        raise NotFound(
            "dataset.unknown",
            "there is no such dataset",
            value=event.dataset,
            next_step="deploy its DAG first",
        )
    if target["job_id"] is None or target["source_kind"] not in ("manual", "webhook", "cron"):
        raise InvalidInput(
            "dataset.not_a_source",
            f"only datasets of manual, webhook or cron sources take events by hand; "
            f"this one is produced by job {target['job']}",
            value=event.dataset,
            next_step="emit an event of the source it derives from",
        )
    now = time.time_ns()
    return NewEvent(
        producer_id=target["voice"],
        generation_id=target["current_generation_id"],
        kind=event.kind,
        partition_key=event.scope.partition_key,
        start=event.scope.first,
        end=event.scope.last,
        emission=event.emission,
        traceparent=telemetry.record_span("event", None, now, now, dataset=event.dataset),
    )


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value is not None else None
