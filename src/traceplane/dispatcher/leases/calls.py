"""Requests, checked against what their capability token grants."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane import telemetry
from traceplane.auth.capability import Capability, JobGrants, WriteGrant, write_prefix
from traceplane.dispatcher.leases.hot_writes import HotRows
from traceplane.errors import Forbidden
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.task import Report
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.events import NewEvent
from traceplane.postgres.tasks import LeaseFence
from traceplane.wire.tasks import (
    Batch,
    ClaimedTask,
    Completion,
    Emission,
    EventOut,
    Fence,
    Heartbeat,
    HotRead,
    OutputManifest,
    TaskError,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """One call's share of a grouped claim."""

    worker_id: str
    runtime: str
    task_ids: tuple[UUID, ...]
    wake_ups: tuple[tuple[str, str], ...] = ()
    """The local wake-ups that led to the claim, by queue and receipt; deleted whatever its outcome."""
    queues: tuple[str, ...] = ("",)
    """The suffixes of the wake queues that the worker can serve."""
    orgs: tuple[str, ...] | None = None
    """The organizations that it serves; None: all."""


@dataclass(frozen=True, slots=True)
class HeartbeatCall:
    beat: Heartbeat
    capability: Capability
    grants: JobGrants


@dataclass(frozen=True, slots=True)
class EmissionCall:
    fence: LeaseFence
    events: tuple[NewEvent, ...]


@dataclass(frozen=True, slots=True)
class CompletionCall:
    fence: LeaseFence
    report: Report
    error: TaskError | None = None
    outputs: tuple[OutputCommit, ...] = ()
    implied: tuple[NewEvent, ...] = ()
    """The event of each output; an invalidation if the output replaces something."""
    events: tuple[NewEvent, ...] = ()
    """The events that the operator emitted itself."""
    hot_reads: tuple[HotRead, ...] = ()
    seen_commit: int | None = None
    """Of an `append` job: the newest commit that it saw when it dropped duplicates."""
    rows: tuple[HotRows, ...] = ()
    """The rows of its outputs for hot tables."""
    log: str = ""
    """The log output of its operator."""
    org: str = ""
    """The organization of the task, if it has outputs."""

    @property
    def retryable(self) -> bool:
        return self.error is None or self.error.retryable

    def failed(self, error: TaskError) -> CompletionCall:
        """The same call, as a report that the attempt failed."""
        return CompletionCall(self.fence, Report.FAILED, error, log=self.log)


@dataclass(frozen=True, slots=True)
class BatchCall:
    fence: LeaseFence
    batch: int
    output: OutputManifest


def batch_call(batch: Batch, capabilities: Sequence[Capability]) -> BatchCall:
    _, grants = granted(batch, capabilities)
    _output(batch, batch.output, grants)
    return BatchCall(lease_fence(batch), batch.batch, batch.output)


def heartbeat_call(beat: Heartbeat, capabilities: Sequence[Capability]) -> HeartbeatCall:
    capability, grants = granted(beat, capabilities)
    return HeartbeatCall(beat, capability, grants)


def emission_call(emission: Emission, capabilities: Sequence[Capability]) -> EmissionCall:
    _, grants = granted(emission, capabilities)
    events = tuple(
        _new_event(emission.task_id, grants, event, emission.traceparent) for event in emission.events
    )
    return EmissionCall(lease_fence(emission), events)


def completion_call(completion: Completion, capabilities: Sequence[Capability]) -> CompletionCall:
    """Checks a completion against its task's grants, and derives its effects: its outputs, and one event per
    output in addition to those it names."""
    capability, grants = granted(completion, capabilities)
    fence = lease_fence(completion)
    report = Report(completion.status)
    if report is not Report.COMPLETED:
        return CompletionCall(fence, report, completion.error, log=completion.log)
    if not completion.outputs and not completion.events:
        return CompletionCall(fence, report, log=completion.log)
    outputs = tuple(_output(completion, o, grants) for o in completion.outputs)
    drafts = [
        _new_event(completion.task_id, grants, e, completion.traceparent)
        for e in (*(EventOut(o.output_index, o.scope) for o in completion.outputs), *completion.events)
    ]
    implied, named = tuple(drafts[: len(outputs)]), tuple(drafts[len(outputs) :])
    reads = tuple(completion.hot_reads)
    return CompletionCall(
        fence,
        report,
        outputs=outputs,
        implied=implied,
        events=named,
        hot_reads=reads,
        seen_commit=completion.seen_commit,
        log=completion.log,
        org=capability.org,
    )


def granted(fence: Fence, capabilities: Sequence[Capability]) -> tuple[Capability, JobGrants]:
    if fence.token < len(capabilities):
        capability = capabilities[fence.token]
        grants = capability.grants_of(str(fence.task_id), fence.attempt)
        if grants is not None:
            return capability, grants
    raise Forbidden(
        "token.other_task",
        "the capability token does not cover this task and attempt",
        value=str(fence.task_id),
        next_step="send the token that came with the claim of this attempt",
    )


def _output(completion: Completion | Batch, o: OutputManifest, grants: JobGrants) -> OutputCommit:
    grant = _write_grant(completion.task_id, grants, o.output_index)
    if (str(o.dataset_uuid), str(o.dataset_version)) != (grant.dataset_uuid, grant.dataset_version):
        what = f"output {o.output_index} is not {o.dataset_uuid}/{o.dataset_version}"
        raise _not_granted(completion.task_id, what)
    prefix = write_prefix(grant, str(completion.task_id), completion.attempt)
    for file in o.files:
        steps = file.path.removeprefix(prefix).split("/")
        if not file.path.startswith(prefix) or any(step in ("", ".", "..") for step in steps):
            raise _not_granted(completion.task_id, f"{file.path} is outside {prefix}")
    return OutputCommit(
        task_id=completion.task_id,
        output_index=o.output_index,
        generation_id=o.dataset_version,
        partition_key=o.scope.partition_key,
        start=o.scope.first,
        end=o.scope.last,
        files=o.files,
        row_count=o.row_count,
        bytes=o.bytes,
        schema_hash=o.schema_hash,
        schema=None
        if o.schema is None
        else tuple(SchemaColumn(c.name, c.type, c.nullable) for c in o.schema),
        failed_checks=o.failed_checks,
    )


def _new_event(task_id: UUID, grants: JobGrants, event: EventOut, traceparent: str | None) -> NewEvent:
    grant = _write_grant(task_id, grants, event.output_index)
    now = time.time_ns()
    return NewEvent(
        producer_id=task_id,
        generation_id=UUID(grant.dataset_version),
        kind=event.kind,
        partition_key=event.scope.partition_key,
        start=event.scope.first,
        end=event.scope.last,
        emission=event.emission,
        traceparent=telemetry.record_span("event", traceparent, now, now, dataset=grant.dataset_uuid),
    )


def _write_grant(task_id: UUID, grants: JobGrants, output_index: int) -> WriteGrant:
    for grant in grants.writes:
        if grant.output_index == output_index:
            return grant
    raise _not_granted(task_id, f"output {output_index}")


def _not_granted(task_id: UUID, what: str) -> Forbidden:
    return Forbidden(
        "task.output_not_granted",
        f"task {task_id} may not write this",
        value=what,
        next_step="write only the outputs and prefixes that came with the claim",
    )


def lease_fence(call: Fence | ClaimedTask) -> LeaseFence:
    return LeaseFence(call.task_id, call.attempt, call.lease_token)
