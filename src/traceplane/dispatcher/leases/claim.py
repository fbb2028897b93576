"""Leases for workers; fetching a held task again, and the rows of its hot inputs."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from msgspec import structs

from traceplane import telemetry
from traceplane.auth.capability import JobGrants, write_prefix
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leases import hot_reads, tokens
from traceplane.dispatcher.leases.calls import Claim, lease_fence
from traceplane.dispatcher.leases.claimed_data import ClaimedData, gather, send_files
from traceplane.dispatcher.leases.job_entry import JobEntry, KnownJobs
from traceplane.errors import Conflict, Forbidden
from traceplane.model.positions import execution_position
from traceplane.postgres import tasks
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.tasks import Claimed, LeaseFence, LeaseRequest
from traceplane.secrets.vault import Denied, Handed, JobNeeds, Lookup
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
    ClaimedTask,
    ClaimResponse,
    FetchResponse,
    FilesRequest,
    JobPayload,
    Refusal,
    RowsRequest,
    TaskError,
)


@dataclass(slots=True)
class JobSecrets:
    """The secrets of some jobs, as they were when their tasks were claimed. Their values are read after that
    transaction, since they may be in another service."""

    needs: Mapping[str, JobNeeds]
    """By job."""
    lookup: Lookup | None
    _handed: Handed | None = None

    async def put_into(self, job_id: str, payload: JobPayload) -> JobPayload:
        if self.lookup is None or job_id not in self.needs:
            return payload
        if self._handed is None:
            self._handed = await self.lookup.values()
        match self._handed[self.needs[job_id]]:
            case Denied() as denied:
                return structs.replace(payload, secret_denied=f"{denied.name}: {denied.why}")
            case values:
                return structs.replace(payload, secrets={str(name): value for name, value in values.items()})


class Claims:
    def __init__(self, database: Database, authority: Authority, jobs: KnownJobs) -> None:
        self._database = database
        self._authority = authority
        self._jobs = jobs

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimResponse]:
        """Claims for several workers in one transaction; if two want the same task, the first gets it."""
        requests: dict[tuple[UUID, str, tuple[str, ...], tuple[str, ...] | None], LeaseRequest] = {}
        for number, c in enumerate(claims):
            for task_id in c.task_ids:
                request = LeaseRequest(task_id, number, c.worker_id, c.runtime, c.queues, c.orgs)
                requests.setdefault((task_id, c.runtime, c.queues, c.orgs), request)
        async with self._database.transaction("claim") as tx:
            claimed_by: defaultdict[int, list[Claimed]] = defaultdict(list)
            spent = [(queue, int(receipt)) for c in claims for queue, receipt in c.wake_ups]
            for number, claimed in await tasks.claim(tx, list(requests.values()), spent):
                claimed_by[number].append(claimed)
            answers = [await self._response(tx, c, claimed_by[number]) for number, c in enumerate(claims)]
        return [await _with_secrets(response, lookup) for response, lookup in answers]

    async def _response(
        self, tx: Transaction, claim: Claim, claimed: Sequence[Claimed]
    ) -> tuple[ClaimResponse, JobSecrets]:
        """The response, still without secrets, and where those of its jobs are."""
        entries = await self._jobs.entries(tx, {(c.job_id, c.revision) for c in claimed})
        data = await gather(tx, claimed, entries)
        if data.not_computable:
            await _cancel(tx, data.not_computable)
            claimed = [c for c in claimed if c.task_id not in data.not_computable]
            entries = {c.job_id: entries[c.job_id] for c in claimed}
        claimed_ids = {c.task_id for c in claimed}
        missing = [task_id for task_id in claim.task_ids if task_id not in claimed_ids]
        reasons = (
            await tasks.why_not_claimed(tx, missing, claim.runtime, claim.queues, claim.orgs)
            if missing
            else {}
        )
        for job_id, count in Counter(c.job_id for c in claimed).items():
            telemetry.count("tasks_claimed_total", count, job=entries[job_id].payload.name)
        groups = tokens.group_jobs([entry.payload for entry in entries.values()])
        token_of = {job_id: number for number, group in enumerate(groups) for job_id in group}
        response = ClaimResponse(
            tasks=[_claimed_task(c, entries[c.job_id], data, token_of[c.job_id]) for c in claimed],
            jobs={str(job_id): entry.payload for job_id, entry in entries.items()},
            refused=[Refusal(task_id, reasons.get(task_id, "unknown")) for task_id in missing],
            tokens=[tokens.mint(self._authority, group, claimed, entries) for group in groups],
        )
        return response, await self._secrets(tx, entries)

    async def _secrets(self, tx: Transaction, entries: Mapping[UUID, JobEntry]) -> JobSecrets:
        needs = {str(job_id): entry.needs for job_id, entry in entries.items() if entry.needs is not None}
        lookup = await self._authority.vault.look_up(tx, list(needs.values())) if needs else None
        return JobSecrets(needs, lookup)

    async def fetch(self, fence: LeaseFence, orgs: tuple[str, ...] | None) -> FetchResponse:
        """The held task again, for a holder that lost the response to its claim and serves these organizations."""
        async with self._database.transaction() as tx:
            held = await tasks.fetch(tx, fence)
            if held is None:
                return FetchResponse("stale")
            claimed = held.claimed
            entries = await self._jobs.entries(tx, {(claimed.job_id, claimed.revision)})
            if orgs is not None and entries[claimed.job_id].payload.org not in orgs:
                return FetchResponse("stale")
            data = await gather(tx, [claimed], entries)
            if data.not_computable and held.state == "running":
                await _cancel(tx, data.not_computable)
                return FetchResponse("canceled", "canceled")
            secrets = await self._secrets(tx, entries)
        if held.cancel_requested or held.state == "canceled":
            return FetchResponse("canceled", held.state)
        entry = entries[claimed.job_id]
        token = tokens.mint(self._authority, [claimed.job_id], [claimed], entries)
        payload = await secrets.put_into(str(claimed.job_id), entry.payload)
        return FetchResponse("ok", held.state, _claimed_task(claimed, entry, data, 0), payload, token)

    async def read_rows(
        self,
        database: Database,
        request: RowsRequest,
        grants: JobGrants,
        push: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Sends a piece of a hot input, if it has not changed since the task was claimed."""
        fence = lease_fence(request.fence)
        async with database.snapshot() as tx:
            claimed, entry = await self._running(tx, fence, "rows")
            await hot_reads.send(tx, claimed, entry, request, grants, push)

    async def read_files(
        self,
        database: Database,
        request: FilesRequest,
        grants: JobGrants,
        push: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Sends the files of an input of a task that is held."""
        fence = lease_fence(request.fence)
        async with database.snapshot() as tx:
            claimed, entry = await self._running(tx, fence, "files")
            reads_files = entry.reads_files and claimed.range_start is not None
            if not reads_files or request.input_index >= min(len(entry.payload.inputs), len(grants.reads)):
                raise Forbidden(
                    "task.input_not_granted",
                    f"task {fence.task_id} may not read this",
                    value=f"input {request.input_index}",
                    next_step="read inputs of the task",
                )
            await send_files(tx, claimed, entry, request.input_index, push)

    async def _running(self, tx: Transaction, fence: LeaseFence, asked: str) -> tuple[Claimed, JobEntry]:
        held = await tasks.fetch(tx, fence)
        if held is None or held.state != "running":
            raise Conflict(
                "task.stale", f"the {asked} were not sent: the task is stale", value=str(fence.task_id)
            )
        claimed = held.claimed
        entries = await self._jobs.entries(tx, {(claimed.job_id, claimed.revision)})
        return claimed, entries[claimed.job_id]


async def _cancel(tx: Transaction, errors: Mapping[UUID, TaskError]) -> None:
    """Ends tasks that would read what is gone, and says why."""
    await tasks.mark_not_computable(tx, errors)
    first = next(iter(errors.values())).message
    telemetry.emit("task.input_dropped", "warning", tasks=len(errors), message=first)


def _claimed_task(claimed: Claimed, entry: JobEntry, data: ClaimedData, token: int) -> ClaimedTask:
    job, c = entry.payload, _with_span(claimed, entry)
    return ClaimedTask(
        task_id=c.task_id,
        attempt=c.attempt,
        lease_token=c.lease_token,
        lease_seconds=job.lease_seconds,
        job_id=c.job_id,
        kind=c.kind,
        write_prefixes=[write_prefix(g, str(c.task_id), c.attempt) for g in entry.grants.writes],
        scope=_execution_scope(c.task_id)
        if job.source_kind == "pipeline"
        else _scope(c.partition_key, c.range_start, c.range_end),
        input_files=data.input_files.get(c.task_id, []),
        long_inputs=data.long_inputs.get(c.task_id, []),
        input_schemas=data.input_schemas.get(c.task_id, []),
        input_times=data.input_times.get(c.task_id, []),
        hot_inputs=data.hot_inputs.get(c.task_id, []),
        output_files=data.output_files.get(c.task_id, []),
        seen_commit=data.seen_commits.get(c.task_id),
        emission=data.emissions.get(c.task_id, ""),
        resume=data.resume.get(c.task_id, []),
        execution=data.executions.get(c.task_id),
        traceparent=c.traceparent,
        token=token,
    )


async def _with_secrets(response: ClaimResponse, secrets: JobSecrets) -> ClaimResponse:
    if not secrets.needs:
        return response
    jobs = {job_id: await secrets.put_into(job_id, payload) for job_id, payload in response.jobs.items()}
    return structs.replace(response, jobs=jobs)


def _with_span(c: Claimed, entry: JobEntry) -> Claimed:
    """The task's time in the queue as a span, between those of its event and its attempt."""
    if c.traceparent is None:
        return c
    created, claimed = int(c.created_at.timestamp() * 1e9), time.time_ns()
    span = telemetry.record_span(
        "task", c.traceparent, created, claimed, job=entry.payload.name, task=str(c.task_id)
    )
    return replace(c, traceparent=span)


def _execution_scope(execution_id: UUID) -> Scope:
    """The scope of an execution's rows: its own partition, at a position that grows with time."""
    position = execution_position(execution_id)
    return Scope(partition_key=str(execution_id), start=position, end=position)


def _scope(partition_key: str | None, start: int | None, end: int | None) -> Scope | None:
    if start is None:
        return None
    if partition_key is None:
        return Scope(cursor=start)
    return Scope(partition_key=partition_key, start=start, end=end)
