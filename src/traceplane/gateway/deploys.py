"""Deploys and versions of DAGs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from traceplane import telemetry
from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access, access_of
from traceplane.errors import Conflict, Forbidden, InvalidInput, UserError
from traceplane.gateway.plan_steps import plan_steps
from traceplane.gateway.refused_names import unknown_dag_or_job
from traceplane.http_service.routes import Call, Route
from traceplane.model import hook_keys
from traceplane.model.counted import counted
from traceplane.model.dag import Dag
from traceplane.model.partitions import Partitions
from traceplane.model.runtimes import Runtime
from traceplane.postgres import registry, versions
from traceplane.postgres.database import Transaction
from traceplane.postgres.registry import DeployedJob
from traceplane.postgres.versions import ListedVersion, Missing
from traceplane.registry import (
    apply,
    code_identity,
    code_project,
    cutover,
    deletion,
    deploy_checks,
    job_checks,
    job_requirements,
    preparation,
)
from traceplane.registry.code_identity import DeployedCode
from traceplane.registry.spec import dag_file, webhooks
from traceplane.registry.spec.job_faults import (
    RefusedJob,
    place_of_fault,
    place_of_input,
    place_of_partitions,
)
from traceplane.secrets.references import found_in
from traceplane.secrets.vault import Vault
from traceplane.settings import Settings
from traceplane.wire.deploys import (
    BuildView,
    CutoverRequest,
    DagName,
    DagsResponse,
    DagView,
    DeletedResponse,
    DeleteRequest,
    DeployRequest,
    DeployResponse,
    JobView,
    LackingView,
    MovedResponse,
    PlanResponse,
    RollbackRequest,
    SourceBehindView,
    VersionQuery,
    VersionsResponse,
    VersionView,
)

READER, ADMIN = "reader", "admin"


class DeployApi:
    def __init__(self, settings: Settings, vault: Vault) -> None:
        self._settings = settings
        self._vault = vault

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/v1/plan", DeployRequest, PlanResponse, self.plan, ADMIN, "What a deploy would do."),
            Route("POST", "/api/v1/deploy", DeployRequest, DeployResponse, self.deploy, ADMIN, "Deploy a DAG."),
            Route("GET", "/api/v1/versions", None, VersionsResponse, self.versions, READER,
                  "Versions of a DAG, and how far one is that is being built.", query=VersionQuery),
            Route("POST", "/api/v1/cutover", CutoverRequest, MovedResponse, self.cutover, ADMIN,
                  "Let the version that was built serve."),
            Route("POST", "/api/v1/rollback", RollbackRequest, MovedResponse, self.rollback, ADMIN,
                  "Let an earlier version serve again."),
            Route("POST", "/api/v1/abort", DagName, MovedResponse, self.abort, ADMIN,
                  "Give up the version that is being built."),
            Route("POST", "/api/v1/delete", DeleteRequest, DeletedResponse, self.delete, ADMIN, "Delete a DAG."),
            Route("GET", "/api/v1/dags", None, DagsResponse, self.dags, READER, "What is deployed."),
        ]  # fmt: skip

    async def plan(self, call: Call[DeployRequest]) -> PlanResponse:
        dag, code, _ = await self._parse(call)
        await self._check_rights(call.principal, dag, call.body)
        async with call.principal.database.transaction() as tx:
            prepared = await preparation.prepare(
                tx,
                call.principal.org,
                dag,
                self._settings.runtimes,
                code,
                no_rematerialize=call.body.no_rematerialize,
            )
        refused = prepared.refusal or await self._secret_refusal(call, dag)
        refusal = await _placed(refused, call.body) if refused else None
        text, gives_up = prepared.text + _missing_keys(dag, call.principal.org, self._settings), None
        if prepared.gives_up is not None and refusal is None:
            gives_up = prepared.gives_up.number
            text += f"A deploy aborts version {gives_up}, which is being built.\n"
        return PlanResponse(
            dag=dag.name,
            noop=prepared.plan.is_noop and gives_up is None,
            text=text,
            deployed_version=prepared.deployed_version,
            blocked=str(refusal) if refusal else None,
            blocked_code=refusal.code if refusal else None,
            steps=plan_steps(prepared.plan, prepared.consequences),
            gives_up=gives_up,
            being_built=prepared.joins.number if prepared.joins is not None else None,
        )

    async def deploy(self, call: Call[DeployRequest]) -> DeployResponse:
        dag, code, locks = await self._parse(call)
        call.principal.act.object["dag"] = dag.name
        await self._check_rights(call.principal, dag, call.body)
        try:
            if (refused := await self._secret_refusal(call, dag)) is not None:
                raise refused
            done = await apply.deploy(
                call.principal.database,
                call.principal.org,
                dag,
                runtimes=self._settings.runtimes,
                window=self._settings.dispatch_window,
                expect_version=call.body.expect_version,
                manual_cutover=call.body.manual_cutover,
                drop_missing=call.body.drop_missing,
                code=code,
                locks=locks,
                no_rematerialize=call.body.no_rematerialize,
            )
        except UserError as error:
            raise await _placed(error, call.body) from None
        telemetry.emit("dag.deployed", dag=dag.name, version=done.version, changed=done.changed)
        for d in done.declassified:
            telemetry.emit(
                "column.declassified",
                dag=dag.name,
                version=done.version,
                dataset=d.dataset_id,
                column=d.column,
                reason=d.reason,
                principal=call.principal.name,
            )
        if done.given_up is not None:
            telemetry.emit("dag.build_aborted", dag=dag.name, version=done.given_up)
        return DeployResponse(dag.name, done.version, done.changed, done.building, done.text, done.given_up)

    async def versions(self, call: Call[None]) -> VersionsResponse:
        query: VersionQuery = call.query
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            rows = await versions.listing(tx, call.principal.org, query.dag, query.limit)
            refusal = None
            if not rows:
                refusal = await unknown_dag_or_job(tx, call.principal.org, query.dag, None, access)
            if refusal is not None:
                raise refusal
            views = [await _version_view(tx, row, access) for row in rows]
        return VersionsResponse(query.dag, views)

    async def cutover(self, call: Call[CutoverRequest]) -> MovedResponse:
        await self._require_dag(call.principal, call.body.dag)
        done = await cutover.cut_over(
            call.principal.database, call.principal.org, call.body.dag, drop_missing=call.body.drop_missing
        )
        if isinstance(done, Missing):
            lost = "; ".join(f"{p.dataset_id} {p.scope}" for p in done.positions[:5])
            at_rest = not (done.unfinished or done.replays)
            raise Conflict(
                "deploy.not_caught_up",
                f"the new version has {counted(done.unfinished, 'unfinished task')}, "
                f"{counted(done.dead, 'dead task')}, {counted(done.replays, 'job')} yet to get tasks for the past, "
                f"and {counted(len(done.sources_behind), 'source')} behind"
                + (f"; readers would lose {lost}" if lost else ""),
                value=call.body.dag,
                next_step="wait; retry dead tasks; give it up with `traceplane abort`"
                + ("; or let it serve without them: `traceplane cutover --drop-missing`" if at_rest else ""),
            )
        telemetry.emit("dag.cut_over", dag=done.dag, version=done.version, before=done.before)
        return MovedResponse(done.dag, done.version, done.before)

    async def rollback(self, call: Call[RollbackRequest]) -> MovedResponse:
        body = call.body
        await self._require_dag(call.principal, body.dag)
        done = await cutover.roll_back(
            call.principal.database, call.principal.org, body.dag, to=body.to, drop_missing=body.drop_missing
        )
        telemetry.emit("dag.rolled_back", dag=done.dag, version=done.version, before=done.before)
        return MovedResponse(
            done.dag,
            done.version,
            done.before,
            tuple(LackingView(p.dataset_id, *p.positions, p.scope) for p in done.lacking),
            done.given_up,
        )

    async def abort(self, call: Call[DagName]) -> MovedResponse:
        await self._require_dag(call.principal, call.body.dag)
        version = await cutover.abort(call.principal.database, call.principal.org, call.body.dag)
        telemetry.emit("dag.build_aborted", dag=call.body.dag, version=version)
        return MovedResponse(call.body.dag, version)

    async def delete(self, call: Call[DeleteRequest]) -> DeletedResponse:
        body = call.body
        await self._require_dag(call.principal, body.dag)
        done = await deletion.delete(call.principal.database, call.principal.org, body.dag, force=body.force)
        telemetry.emit("dag.deleted", dag=body.dag, datasets=len(done.datasets), readers=len(done.readers))
        return DeletedResponse(body.dag, list(done.datasets), list(done.readers))

    async def _secret_refusal(self, call: Call[DeployRequest], dag: Dag) -> UserError | None:
        if not deploy_checks.refers_to_secrets(dag):
            return None
        return await deploy_checks.secret_refusal(
            call.principal.database, self._vault, call.principal.org, dag
        )

    async def _check_rights(self, caller: Caller, dag: Dag, body: DeployRequest) -> None:
        """Whoever deploys needs the right to read what the DAG reads elsewhere, and to write what it writes."""
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
        for dataset_id in dag.external_datasets:
            if not access.reads(dataset_id):
                refusal = Forbidden(
                    "deploy.read_right",
                    "you may not read this dataset, so you cannot deploy what reads it",
                    value=dataset_id,
                    next_step="ask an admin for one of its read_roles, or to deploy the file",
                )
                raise await _placed(refusal, body)
        for dataset in dag.datasets:
            access.require_write(dataset.dataset_id)

    async def _require_dag(self, caller: Caller, dag: str) -> None:
        async with caller.database.transaction() as tx:
            (await access_of(tx, caller.org, caller)).require_dag(dag)

    async def _parse(self, call: Call[DeployRequest]) -> tuple[Dag, DeployedCode | None, dict[str, str]]:
        """The DAG, the code that came with it, and the locks of what its jobs need, by job."""
        # A hostile file may take seconds to refuse; the API goes on meanwhile.
        dag = await asyncio.to_thread(_parsed, call.body, self._settings.runtimes)
        if dag.external_datasets:
            async with call.principal.database.transaction() as tx:
                stored = await registry.datasets_by_id(tx, call.principal.org, dag.external_datasets)
            # Their names may grow without a deploy of this DAG.
            elsewhere = {
                row.dataset_id: replace(row.partitions, names=())
                for row in stored.values()
                if row.sql is None
            }
            dag = await asyncio.to_thread(_parsed, call.body, self._settings.runtimes, elsewhere)
        return await asyncio.to_thread(_checked_code, dag, call.body, self._settings)

    async def dags(self, call: Call[None]) -> DagsResponse:
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            found = await registry.overview(tx, call.principal.org)
            rows = [row for row in found if access.sees(row.dag, row.job)]
        versions: dict[str, int] = {}
        jobs: defaultdict[str, list[JobView]] = defaultdict(list)
        for row in rows:
            versions[row.dag] = row.version
            jobs[row.dag].append(_job_view(row))
        return DagsResponse([DagView(name, versions[name], jobs[name]) for name in versions])


def _job_view(row: DeployedJob) -> JobView:
    fields = {name: getattr(row, name) for name in JobView.__struct_fields__}
    ticks = {name: fields[name] and fields[name].isoformat() for name in ("next_tick", "last_tick")}
    return JobView(**{**fields, **ticks})


def _parsed(
    body: DeployRequest, runtimes: Mapping[str, Runtime], elsewhere: Mapping[str, Partitions] = {}
) -> Dag:
    return dag_file.parse(body.text, body.file, known_runtimes=frozenset(runtimes), elsewhere=elsewhere)


def _checked_code(
    dag: Dag, body: DeployRequest, settings: Settings
) -> tuple[Dag, DeployedCode | None, dict[str, str]]:
    runtimes = settings.runtimes
    project = code_project.project_sent(body.code or {})
    dag = job_requirements.with_requirements(dag, runtimes, body.requirement_files, project)
    job_checks.refuse(
        dag,
        runtimes,
        project,
        body.text,
        body.file,
        is_elsewhere=lambda _: True,
        file_places=settings.file_source_allow,
    )
    locks = job_requirements.locks_of_jobs(dag, body.locks)
    return dag, code_identity.identify(dag, runtimes, body.code), locks


def _missing_keys(dag: Dag, org: str, settings: Settings) -> str:
    """A warning for each webhook source whose deliveries this gateway could not verify."""
    lines = []
    for job in dag.jobs:
        variables = job.config.get("keys") or () if job.operator == webhooks.RECEIVER else ()
        missing = [
            v
            for v in variables
            if not found_in(v) and (not hook_keys.belongs_to(v, org) or not settings.hook_keys.get(v))
        ]
        if missing:
            lines.append(
                f"! job {job.generated_for or job.name}: the gateway does not have the key in {' or '.join(missing)}; "
                "set it in its environment, and restart it\n"
            )
    return "".join(lines)


_PLACES = {
    "deploy.unknown_dataset": place_of_input,
    "deploy.read_right": place_of_input,
    "deploy.virtual_input_unsupported": place_of_input,
    "deploy.virtual_loops_back": place_of_input,
    "deploy.partitions_in_use": place_of_partitions,
}


async def _placed(refusal: UserError, body: DeployRequest) -> UserError:
    """With the place in the file that it is about, if it is about a job, an input or the partitions of a dataset."""
    place = None
    if isinstance(refusal, RefusedJob):
        place = await asyncio.to_thread(place_of_fault, refusal.at, body.text, body.file)
    elif (place_of := _PLACES.get(refusal.code)) is not None:
        place = await asyncio.to_thread(place_of, str(refusal.value), body.text, body.file)
    if place is None:
        return refusal
    kind = InvalidInput if isinstance(refusal, RefusedJob) else type(refusal)
    return kind(refusal.code, f"{place}: {refusal.message}", value=refusal.value, next_step=refusal.next_step)


async def _version_view(tx: Transaction, version: ListedVersion, access: Access) -> VersionView:
    view = VersionView(
        version.number,
        version.state,
        version.created_at.isoformat(),
        version.activated_at.isoformat() if version.activated_at is not None else None,
        version.manual_cutover,
    )
    if view.state != "building":
        return view
    lacking = await versions.missing(tx, version.dag_version_id)
    return msgspec.structs.replace(
        view,
        datasets=tuple(
            BuildView(p.dataset_id, p.built, p.serving)
            for p in await versions.progress(tx, version.dag_version_id)
            if access.reads(p.dataset_id)
        ),
        replays=lacking.replays,
        unfinished=lacking.unfinished,
        dead=lacking.dead,
        sources_behind=len(lacking.sources_behind),
        behind=tuple(
            SourceBehindView(s.job, s.dataset_id, s.position)
            for s in lacking.sources_behind
            if access.reads(s.dataset_id)
        ),
        lacking=tuple(
            LackingView(p.dataset_id, *p.positions, p.scope)
            for p in lacking.positions
            if access.reads(p.dataset_id)
        ),
    )
