"""A dispatcher and a gateway as objects on one pool, for tests that call one step after the other.

    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(YAML)
        await plane.emit("in", range(3))
        (held, *_) = await plane.claim(plane.wake_ups.take())
        await plane.complete(held)

Nothing runs by itself: a test says when the valve meters, the relay sends and the reaper reaps, and sets the
database's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from traceplane.adapters.wake_queue import Depth, Message
from traceplane.adapters.watched_files import WatchedFiles
from traceplane.auth.callers import Caller, CallerKind
from traceplane.auth.roles import Role
from traceplane.decoding.decoder_pool import Decoders
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leases.calls import (
    Claim,
    batch_call,
    completion_call,
    emission_call,
    heartbeat_call,
)
from traceplane.dispatcher.leases.grouped import GroupedReports
from traceplane.dispatcher.leases.service import Leases
from traceplane.dispatcher.loops.batch_closer import BatchCloser
from traceplane.dispatcher.loops.builds import Builds
from traceplane.dispatcher.loops.cron_ticks import CronTicks
from traceplane.dispatcher.loops.file_listing import FileListing
from traceplane.dispatcher.loops.outbox_relay import OutboxRelay
from traceplane.dispatcher.loops.reaper import Reaper
from traceplane.dispatcher.loops.reconciler import Reconciler
from traceplane.dispatcher.loops.sinks import Sinks, Written
from traceplane.dispatcher.loops.source_monitor import SourceMonitor
from traceplane.dispatcher.scheduling import Scheduler
from traceplane.errors import QueueUnavailable
from traceplane.gateway.api import PublicApi
from traceplane.http_service.routes import Call
from traceplane.model.runtimes import DEFAULT_RUNTIMES, Runtime
from traceplane.postgres.audit import Act
from traceplane.postgres.database import Database, OrgDatabases
from traceplane.runtime.process import Activity
from traceplane.settings import Settings
from traceplane.wire.control import (
    BackfillRequest,
    BackfillResponse,
    EmitRequest,
    EmitResponse,
    ExplainResponse,
    ManualEvent,
    ScopeExplanation,
    ScopeQuery,
    StatusQuery,
    StatusResponse,
    TaskSelection,
)
from traceplane.wire.deploys import (
    CutoverRequest,
    DagName,
    DeployRequest,
    DeployResponse,
    MovedResponse,
    PlanResponse,
    RollbackRequest,
    VersionQuery,
    VersionView,
)
from traceplane.wire.jobs import JobName, PauseChange, PauseRequest
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
    Batch,
    ClaimedTask,
    Completion,
    Emission,
    EventOut,
    Heartbeat,
    HeartbeatOutcome,
    JobPayload,
    OutputManifest,
    StagedFile,
    TaskError,
)

MASTER_KEY = bytes(range(32))
RESEND_AFTER_SECONDS = 30.0


class WakeUps:
    """A wake queue that keeps what was sent; the test decides what arrives, how often and in which order."""

    def __init__(self) -> None:
        self.sent: list[UUID] = []
        self.down = False

    def take(self) -> list[UUID]:
        """Everything that was sent since the last time."""
        taken, self.sent = self.sent, []
        return taken

    async def send(self, queue: str, task_ids: Sequence[UUID]) -> None:
        if self.down:
            raise QueueUnavailable("queue.unavailable", "the queue is down")
        self.sent.extend(task_ids)

    async def receive(
        self, queue: str, limit: int, *, wait_seconds: float, visibility_seconds: float
    ) -> list[Message]:
        raise NotImplementedError

    async def delete(self, queue: str, receipts: Sequence[str]) -> None:
        raise NotImplementedError

    async def extend(self, queue: str, receipts: Sequence[str], visibility_seconds: float) -> int:
        raise NotImplementedError

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        raise NotImplementedError

    async def depth(self, queue: str) -> Depth:
        return Depth(len(self.sent), 0, 0)


def _invoke_nothing(runtime: Runtime, task_ids: tuple[UUID, ...]) -> None:
    raise AssertionError(f"nothing here is invoked: {runtime.name}")


@dataclass(frozen=True)
class Held:
    """A lease, as a worker holds it."""

    task: ClaimedTask
    job: JobPayload
    capability_token: str

    @property
    def task_id(self) -> UUID:
        return self.task.task_id

    @property
    def scope(self) -> Scope:
        assert self.task.scope is not None
        return self.task.scope

    @property
    def fence(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "attempt": self.task.attempt, "lease_token": self.task.lease_token}

    def outputs(self) -> list[OutputManifest]:
        """One file for each output, covering the task's own scope."""
        scope = self.task.scope or Scope(cursor=0)
        return [
            OutputManifest(
                output.output_index,
                output.dataset_uuid,
                output.dataset_version,
                scope,
                files=[StagedFile(f"{prefix}part-0.parquet", 1, 10)],
                row_count=1,
                bytes=10,
            )
            for output, prefix in zip(self.job.outputs, self.task.write_prefixes, strict=True)
        ]


def completed(held: Held, *events: EventOut, **changes: Any) -> Completion:
    body: dict[str, Any] = {
        "status": "completed",
        "outputs": held.outputs(),
        "events": list(events),
        "seen_commit": held.task.seen_commit,
    }
    return Completion(**{**held.fence, **body, **changes})


def failed(held: Held, *, retryable: bool = True, **changes: Any) -> Completion:
    error = TaskError("operator.failed", "it failed", retryable=retryable)
    return Completion(**{**held.fence, "status": "failed", "error": error, **changes})


def canceled(held: Held) -> Completion:
    return Completion(**held.fence, status="canceled")


def returned(held: Held) -> Completion:
    return Completion(**held.fence, status="returned")


class ControlPlane:
    def __init__(
        self, database: Database, orgs: OrgDatabases, org_id: UUID, wake_ups: WakeUps, settings: Settings
    ) -> None:
        self.database, self.orgs = database, orgs
        self.admin = Caller(
            org=settings.own_org,
            org_id=org_id,
            name="admin",
            counted_as="token admin",
            kind=CallerKind.TOKEN,
            roles=frozenset({"admin"}),
            role=Role.ADMIN,
            sees_pii=True,
            datasets=None,
            database=orgs.of(org_id),
            act=Act(org_id, "admin", "token", "test"),
        )
        self.wake_ups = wake_ups
        self.settings = settings
        self.authority = Authority(database, lambda: (MASTER_KEY,))
        self.decoders = Decoders()
        self.scheduler = Scheduler(database, Activity())
        self.leases = Leases(
            database,
            self.authority,
            decoders=self.decoders,
            work_created=self.scheduler.work_created,
            slot_freed=self.scheduler.slot_freed,
            staged=settings.object_store_root,
        )
        self.grouped_reports = GroupedReports(self.leases.reports, self.leases.handovers)
        self.sinks = Sinks(database, self.leases.reports)
        self.relay = OutboxRelay(database, wake_ups, DEFAULT_RUNTIMES, _invoke_nothing)
        self.valve = self.scheduler.valve
        self.in_process = self.scheduler.in_process
        self.backpressure = self.scheduler.backpressure
        self.builds = Builds(database)
        self.cron = CronTicks(database)
        self.files = FileListing(database, WatchedFiles(settings))
        self.batch_closer = BatchCloser(database, work_created=self.scheduler.work_created)
        self.sources = SourceMonitor(database)
        self.reaper = Reaper(database, grace_seconds=0.0)
        self.reconciler = Reconciler(database, resend_after_seconds=RESEND_AFTER_SECONDS)
        self.api = PublicApi(database=database, orgs=orgs, settings=settings)

    async def close(self) -> None:
        await self.orgs.close()
        await self.database.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, url: str, *, wake_ups: WakeUps | None = None, connections: int = 4, **settings: Any
    ) -> AsyncIterator[ControlPlane]:
        plane = await cls.connect(url, wake_ups=wake_ups, connections=connections, **settings)
        try:
            yield plane
        finally:
            plane.decoders.close()
            await plane.close()

    @classmethod
    async def connect(
        cls, url: str, *, wake_ups: WakeUps | None = None, connections: int = 4, **settings: Any
    ) -> ControlPlane:
        database = await Database.connect(url, connections=connections)
        orgs = await OrgDatabases.connect(url, connections=connections)
        chosen = Settings(**settings)
        async with database.autocommit() as tx:
            org_id = await tx.value("select org_id from orgs where slug = $1", chosen.own_org)
        plane = cls(database, orgs, org_id, wake_ups or WakeUps(), chosen)
        await plane.authority.refresh()
        return plane

    # What users do ---------------------------------------------------------------------------------

    async def deploy(self, yaml: str, **fields: Any) -> DeployResponse:
        return await self.api.deploys.deploy(self._call(DeployRequest(yaml, **fields)))

    async def plan(self, yaml: str, **fields: Any) -> PlanResponse:
        return await self.api.deploys.plan(self._call(DeployRequest(yaml, **fields)))

    async def rollback(self, dag: str, to: int | None = None, *, drop_missing: bool = False) -> MovedResponse:
        return await self.api.deploys.rollback(self._call(RollbackRequest(dag, to, drop_missing)))

    async def cutover(self, dag: str, *, drop_missing: bool = False) -> MovedResponse:
        return await self.api.deploys.cutover(self._call(CutoverRequest(dag, drop_missing)))

    async def versions(self, dag: str) -> list[VersionView]:
        call: Call[Any] = Call(None, {}, VersionQuery(dag), self.admin, {}, receive=_nothing_more)
        return (await self.api.deploys.versions(call)).versions

    async def backfill(
        self, dataset: str, start: int | str, end: int | str, **fields: Any
    ) -> BackfillResponse:
        return await self.api.backfill(self._call(BackfillRequest(dataset, start, end, **fields)))

    async def status(self) -> StatusResponse:
        return await self.api.status_of(self.admin, StatusQuery())

    async def explain_scope(self, dataset: str, first: int | str, last: int | str) -> ScopeExplanation:
        query, admin = ScopeQuery(str(first), str(last)), self.admin
        call: Call[Any] = Call(None, {"dataset_id": dataset}, query, admin, {}, receive=_nothing_more)
        return await self.api.explain_scope(call)

    async def abort(self, dag: str) -> MovedResponse:
        return await self.api.deploys.abort(self._call(DagName(dag)))

    async def emit(self, dataset: str, scopes: Iterable[int | Scope], **fields: Any) -> EmitResponse:
        """Events of a manual source; a number stands for a cursor."""
        return await self.emit_events(
            [ManualEvent(dataset, s if isinstance(s, Scope) else Scope(cursor=s), **fields) for s in scopes]
        )

    async def emit_events(self, events: Sequence[ManualEvent]) -> EmitResponse:
        return await self.api.emit(self._call(EmitRequest(list(events))))

    async def explain(self, task_id: UUID) -> ExplainResponse:
        return await self.api.tasks.explain(self._call(None, task_id=str(task_id)))

    async def cancel(self, *task_ids: UUID) -> dict[UUID, str]:
        changes = await self.api.tasks.cancel(self._call(TaskSelection(list(task_ids))))
        return {UUID(task_id): state for task_id, state in changes.changed.items()}

    async def retry(self, *task_ids: UUID) -> dict[UUID, str]:
        changes = await self.api.tasks.retry(self._call(TaskSelection(list(task_ids))))
        return {UUID(task_id): state for task_id, state in changes.changed.items()}

    async def pause(self, dag: str, job: str, reason: str = "") -> PauseChange:
        return await self.api.jobs.pause(self._call(PauseRequest(dag, job, reason)))

    async def resume(self, dag: str, job: str) -> PauseChange:
        return await self.api.jobs.resume(self._call(JobName(dag, job)))

    def _call(self, body: Any, query: Any = None, **path_params: str) -> Call[Any]:
        return Call(body, path_params, query, self.admin, {}, receive=_nothing_more)

    # What workers do -------------------------------------------------------------------------------

    async def claim(
        self, task_ids: Iterable[UUID], *, worker: str = "worker", runtime: str = "python"
    ) -> list[Held]:
        claimed, _ = await self.try_claim(task_ids, worker=worker, runtime=runtime)
        return claimed

    async def try_claim(
        self, task_ids: Iterable[UUID], *, worker: str = "worker", runtime: str = "python"
    ) -> tuple[list[Held], dict[UUID, str]]:
        """The leases that were given, and why the others were not."""
        claim = Claim(worker, runtime, tuple(dict.fromkeys(task_ids)))
        (answer,) = await self.leases.claims.claim([claim])
        held = [Held(t, answer.jobs[str(t.job_id)], answer.tokens[t.token]) for t in answer.tasks]
        return held, {refusal.task_id: refusal.reason for refusal in answer.refused}

    async def heartbeat(self, *held: Held) -> list[str]:
        return [outcome.outcome for outcome in await self.heartbeat_outcomes(*held)]

    async def heartbeat_outcomes(self, *held: Held) -> list[HeartbeatOutcome]:
        calls = [heartbeat_call(Heartbeat(**h.fence), self._capabilities(h)) for h in held]
        return await self.leases.heartbeats.extend(calls)

    async def emit_running(self, held: Held, *events: EventOut) -> tuple[str, int, int]:
        """Events of a task under way: outcome, accepted, duplicates."""
        emission = Emission(**held.fence, events=list(events))
        (answer,) = await self.leases.emissions.accept([emission_call(emission, self._capabilities(held))])
        return answer.outcome, answer.accepted, answer.duplicates

    async def complete(self, *held: Held) -> list[str]:
        return await self.report(*((h, completed(h)) for h in held))

    async def fail(self, *held: Held, retryable: bool = True) -> list[str]:
        return await self.report(*((h, failed(h, retryable=retryable)) for h in held))

    async def report(self, *reports: tuple[Held, Completion]) -> list[str]:
        calls = [completion_call(completion, self._capabilities(held)) for held, completion in reports]
        return [answer.outcome for answer in await self.grouped_reports.submit(calls)]

    async def publish(self, held: Held, number: int, output: OutputManifest) -> str:
        batch = Batch(**held.fence, batch=number, output=output)
        (answer,) = await self.leases.handovers.publish([batch_call(batch, self._capabilities(held))])
        return answer.outcome

    async def sink(self) -> Written:
        """Until nothing waits in a buffer."""
        await self.sinks.run_once()
        await self.sinks.finish()
        return await self.sinks.run_once()

    def _capabilities(self, held: Held) -> list[Any]:
        return self.authority.capabilities([held.capability_token])

    # Steps -----------------------------------------------------------------------------------------

    async def meter(self) -> int:
        """Passes of the dispatcher's valve loop until none asks for another; how many tasks went out."""
        dispatched = 0
        self.scheduler.work.set()
        while self.scheduler.work.is_set():
            self.scheduler.work.clear()
            dispatched += (await self.scheduler.meter()).dispatched
        return dispatched

    async def send(self) -> list[UUID]:
        """The wake-ups that leave the outbox."""
        await self.relay.run_once()
        return self.wake_ups.take()

    async def run_all(self, *, rounds: int = 200) -> int:
        """A perfect worker: everything that comes out is claimed and completed; how many tasks that was."""
        done = 0
        for _ in range(rounds):
            await self.backpressure.run_once()
            moved = await self.meter()
            held = await self.claim(await self.send())
            done += len(await self.complete(*held)) if held else 0
            if not moved and not held:
                return done
        raise AssertionError(f"it did not come to rest in {rounds} rounds")

    # What tests look at ----------------------------------------------------------------------------

    async def sql(self, statement: str, *args: object) -> list[Any]:
        async with self.database.autocommit() as tx:
            return await tx.rows(statement, *args)

    async def value(self, statement: str, *args: object) -> Any:
        async with self.database.autocommit() as tx:
            return await tx.value(statement, *args)

    async def waits_or_ended(self, task: asyncio.Task[Any]) -> bool:
        """Whether somebody waits for an advisory lock, or the task did without."""
        waits = "select exists (select 1 from pg_locks where locktype = 'advisory' and not granted)"
        return task.done() or bool(await self.value(waits))

    async def tasks(self, job: str, state: str | None = None) -> list[UUID]:
        """Ids of a job's tasks, oldest first."""
        rows = await self.sql(
            "select task_id from tasks join jobs using (job_id)"
            " where name = $1 and ($2::text is null or state::text = $2) order by task_id",
            job,
            state,
        )
        return [row["task_id"] for row in rows]

    async def states(self, job: str | None = None) -> dict[str, int]:
        rows = await self.sql(
            "select state::text, count(*) as tasks from tasks join jobs using (job_id)"
            " where $1::text is null or name = $1 group by 1",
            job,
        )
        return {row["state"]: row["tasks"] for row in rows}

    async def holds(self) -> dict[str, int]:
        rows = await self.sql("select name, level from job_holds join jobs using (job_id)")
        return {row["name"]: row["level"] for row in rows}

    async def set_clock(self, seconds: float) -> None:
        """Stops the database's clock, so many seconds after an arbitrary start."""
        async with self.database.transaction() as tx:
            await tx.run(
                "create or replace function tp_now() returns timestamptz language sql stable parallel safe"
                f" as 'select timestamptz ''2030-01-01 00:00:00Z'' + interval ''{seconds} seconds'''"
            )

    async def pass_time(self, seconds: float) -> None:
        """Moves the database's running clock on."""
        async with self.database.transaction() as tx:
            offset = await tx.value("select extract(epoch from tp_now() - now())::float8")
            await tx.run(
                "create or replace function tp_now() returns timestamptz language sql stable parallel safe"
                f" as 'select now() + interval ''{timedelta(seconds=offset + seconds).total_seconds()} seconds'''"
            )


async def _nothing_more() -> dict[str, Any]:
    return {"type": "http.disconnect"}
