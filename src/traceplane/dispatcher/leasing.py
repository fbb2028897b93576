"""Claim, heartbeat, events, complete: the transactions behind the internal API.

`complete` is one transaction: the report is fenced, outputs are committed, the cursor advances, events are
written and routed, downstream tasks are drafted with their wake-ups, and the lease ends. All of it happened
or none of it; repeating the call answers the same and changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.auth.capability import (
    Capability,
    JobGrants,
    TaskGrant,
    WriteGrant,
    write_prefix,
)
from traceplane.crash_points import crash_point
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.claimed_data import ClaimedData, JobEntry, gather, job_entry
from traceplane.dispatcher.schema_check import refuse_misfits
from traceplane.errors import Forbidden
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.task import (
    HeartbeatVerdict,
    Report,
    ReportVerdict,
    TaskFacts,
    TaskState,
    judge_heartbeat,
    judge_report,
)
from traceplane.postgres import commits, events, registry, tasks
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction, again_if_concurrent
from traceplane.postgres.events import NewEvent
from traceplane.task_api import (
    ClaimedTask,
    ClaimResponse,
    Completion,
    CompletionOutcome,
    Emission,
    EmissionOutcome,
    EventOut,
    Fence,
    FetchResponse,
    Heartbeat,
    HeartbeatOutcome,
    JobPayload,
    OutputManifest,
    Refusal,
    Scope,
)

_SHORTEST_TOKEN_SECONDS = 3600.0
_GRANTS_PER_TOKEN = 500


@dataclass(frozen=True, slots=True)
class Claim:
    """One call's share of a grouped claim."""

    worker_id: str
    runtime: str
    task_ids: tuple[UUID, ...]
    queue: str = ""
    receipts: tuple[str, ...] = ()
    """The local wake-ups that led here: spent, whatever becomes of the claim."""


@dataclass(frozen=True, slots=True)
class HeartbeatCall:
    beat: Heartbeat
    capability: Capability
    grants: JobGrants


@dataclass(frozen=True, slots=True)
class EmissionCall:
    fence: tasks.Fence
    events: tuple[NewEvent, ...]


@dataclass(frozen=True, slots=True)
class CompletionCall:
    fence: tasks.Fence
    report: Report
    error: dict[str, Any] | None = None
    retryable: bool = True
    outputs: tuple[OutputCommit, ...] = ()
    implied: tuple[NewEvent, ...] = ()
    """The event of each output; an invalidation if the output turns out to replace something."""
    events: tuple[NewEvent, ...] = ()
    """Those that the operator named itself."""


class Leasing:
    """`work_created` is called when tasks came to be, `slot_freed` when a task that waits may have its turn."""

    def __init__(
        self,
        database: Database,
        authority: Authority,
        *,
        work_created: Callable[[], None],
        slot_freed: Callable[[], None],
    ) -> None:
        self._database = database
        self._authority = authority
        self._work_created = work_created
        self._slot_freed = slot_freed
        self._jobs: dict[tuple[UUID, int], JobEntry] = {}
        self._job_names: dict[UUID, str] = {}

    # Claim -----------------------------------------------------------------------------------------

    async def claim(self, claims: Sequence[Claim]) -> list[ClaimResponse]:
        """Claims for several workers in one transaction; of two that want the same task the first gets it."""
        wanted: dict[tuple[UUID, str], tuple[UUID, int, str, str]] = {}
        for number, c in enumerate(claims):
            for task_id in c.task_ids:
                wanted.setdefault((task_id, c.runtime), (task_id, number, c.worker_id, c.runtime))
        async with self._database.transaction("claim") as tx:
            given: defaultdict[int, list[tasks.Claimed]] = defaultdict(list)
            spent = [(c.queue, int(receipt)) for c in claims for receipt in c.receipts]
            for number, claimed in await tasks.claim(tx, list(wanted.values()), spent):
                given[number].append(claimed)
            return [await self._claim_answer(tx, c, given[number]) for number, c in enumerate(claims)]

    async def _claim_answer(
        self, tx: Transaction, claim: Claim, claimed: Sequence[tasks.Claimed]
    ) -> ClaimResponse:
        entries = await self._job_entries(tx, {(c.job_id, c.revision) for c in claimed})
        data = await gather(tx, claimed, entries)
        given = {c.task_id for c in claimed}
        missing = [task_id for task_id in claim.task_ids if task_id not in given]
        reasons = await tasks.why_not_claimed(tx, missing, claim.runtime) if missing else {}
        for job_id, count in Counter(c.job_id for c in claimed).items():
            telemetry.count("tasks_claimed_total", count, job=entries[job_id].payload.name)
        groups = _token_groups([entry.payload for entry in entries.values()])
        token_of = {job_id: number for number, group in enumerate(groups) for job_id in group}
        return ClaimResponse(
            tasks=[_claimed_task(c, entries[c.job_id], data, token_of[c.job_id]) for c in claimed],
            jobs={str(job_id): entry.payload for job_id, entry in entries.items()},
            refused=[Refusal(task_id, reasons.get(task_id, "unknown")) for task_id in missing],
            tokens=[self._mint(group, claimed, entries) for group in groups],
        )

    def _mint(
        self, jobs: Sequence[UUID], claimed: Sequence[tasks.Claimed], entries: dict[UUID, JobEntry]
    ) -> str:
        """One capability for the tasks of these jobs, good for longer than the longest may run."""
        position = {job_id: number for number, job_id in enumerate(jobs)}
        payloads = [entries[job_id].payload for job_id in jobs]
        life = max(_SHORTEST_TOKEN_SECONDS, *(p.timeout_seconds * 1.5 for p in payloads))
        covered = [c for c in claimed if c.job_id in position]
        return self._authority.mint(
            Capability(
                org=payloads[0].org,
                tasks=tuple(TaskGrant(str(c.task_id), c.attempt, position[c.job_id]) for c in covered),
                jobs=tuple(entries[job_id].grants for job_id in jobs),
                expires_at=self._authority.now + life,
            )
        )

    async def _job_entries(self, tx: Transaction, wanted: set[tuple[UUID, int]]) -> dict[UUID, JobEntry]:
        found = {key[0]: self._jobs[key] for key in wanted if key in self._jobs}
        unknown = [job_id for job_id, _ in wanted if job_id not in found]
        if unknown:
            # A deploy may have come in between: the entry is then of a later revision than the one asked for.
            for row in await registry.job_payloads(tx, unknown):
                found[row["job_id"]] = self._jobs[row["job_id"], row["revision"]] = job_entry(row)
                self._job_names[row["job_id"]] = row["name"]
        return found

    async def fetch(self, fence: tasks.Fence) -> FetchResponse:
        """The task again, for a holder that lost the answer to its claim."""
        async with self._database.transaction() as tx:
            found = await tasks.fetch(tx, fence)
            if found is None:
                return FetchResponse("stale")
            claimed, state, cancel_requested = found
            entries = await self._job_entries(tx, {(claimed.job_id, claimed.revision)})
            entry = entries[claimed.job_id]
            data = await gather(tx, [claimed], entries)
        if cancel_requested or state == "canceled":
            return FetchResponse("canceled", state)
        token = self._mint([claimed.job_id], [claimed], entries)
        return FetchResponse("ok", state, _claimed_task(claimed, entry, data, 0), entry.payload, token)

    # Heartbeat -------------------------------------------------------------------------------------

    async def heartbeat(self, calls: Sequence[HeartbeatCall]) -> list[HeartbeatOutcome]:
        reaped: set[UUID] = set()

        async def once() -> list[HeartbeatOutcome] | None:
            async with self._database.transaction("heartbeat") as tx:
                return await self._heartbeat(tx, calls, reaped)

        while (outcomes := await again_if_concurrent(once)) is None:
            pass
        return outcomes

    async def _heartbeat(
        self, tx: Transaction, calls: Sequence[HeartbeatCall], reaped: set[UUID]
    ) -> list[HeartbeatOutcome] | None:
        """The outcomes; or None, with `reaped` grown, when tasks turn up that were given up and yet live.

        They run on if there is room, and their jobs have to be locked before any task is.
        """
        if reaped:
            await tasks.lock_jobs(tx, list(reaped))
        locked = await tasks.lock(tx, [c.beat.task_id for c in calls])
        judged = [
            (c, judge_heartbeat(_facts(locked, c.beat.task_id), c.beat.attempt, c.beat.lease_token))
            for c in calls
        ]
        alive = {c.beat.task_id: c.beat.progress for c, v in judged if v is HeartbeatVerdict.OK}
        if found := {c.beat.task_id: c.beat.progress for c, v in judged if v is HeartbeatVerdict.REVIVE}:
            if not reaped.issuperset(found):
                reaped.update(found)
                return None
            revived = await tasks.revivable(tx, list(found))
            alive |= {task_id: progress for task_id, progress in found.items() if task_id in revived}
        ends = await tasks.extend(tx, list(alive), list(alive.values())) if alive else {}
        return [self._heartbeat_outcome(c, v, ends) for c, v in judged]

    def _heartbeat_outcome(
        self, call: HeartbeatCall, verdict: HeartbeatVerdict, ends: dict[UUID, datetime]
    ) -> HeartbeatOutcome:
        task_id = call.beat.task_id
        match verdict:
            case HeartbeatVerdict.OK | HeartbeatVerdict.REVIVE if task_id in ends:
                seconds = ends[task_id].timestamp() - self._authority.now
                return HeartbeatOutcome(task_id, "ok", seconds, self._renewed(call))
            case HeartbeatVerdict.CANCELED:
                return HeartbeatOutcome(task_id, "canceled")
            case HeartbeatVerdict.UNKNOWN:
                return HeartbeatOutcome(task_id, "unknown")
            case _:
                telemetry.count("stale_calls_total", call="heartbeat")
                return HeartbeatOutcome(task_id, "stale")

    def _renewed(self, call: HeartbeatCall) -> str | None:
        """A task may outlive its token (a source always does); near its end it gets a new one."""
        now = self._authority.now
        if call.capability.expires_at - now > _SHORTEST_TOKEN_SECONDS / 2:
            return None
        task = TaskGrant(str(call.beat.task_id), call.beat.attempt, 0)
        return self._authority.mint(
            Capability(call.capability.org, (task,), (call.grants,), now + _SHORTEST_TOKEN_SECONDS)
        )

    # Events ----------------------------------------------------------------------------------------

    async def emit(self, calls: Sequence[EmissionCall]) -> list[EmissionOutcome]:
        """Events of running tasks. A stale or canceled task's events are not accepted."""

        async def once() -> tuple[list[str], events.Accepted]:
            async with self._database.transaction("events") as tx:
                current = await tasks.hold_fences(tx, [c.fence for c in calls])
                found = [current.get(c.fence, ("stale", False)) for c in calls]
                drafts = [
                    replace(event, backfill=True) if backfill else event
                    for c, (outcome, backfill) in zip(calls, found, strict=True)
                    if outcome == "ok"
                    for event in c.events
                ]
                return [outcome for outcome, _ in found], await events.accept(tx, drafts)

        outcomes, accepted = await again_if_concurrent(once)
        self._after_acceptance(accepted)
        answers, position = [], 0
        for call, outcome in zip(calls, outcomes, strict=True):
            count = len(call.events) if outcome == "ok" else 0
            new = sum(1 for i in accepted.event_ids[position : position + count] if i is not None)
            position += count
            answers.append(EmissionOutcome(call.fence.task_id, outcome, new, count - new))  # type: ignore[arg-type]
        return answers

    # Complete --------------------------------------------------------------------------------------

    async def complete(self, calls: Sequence[CompletionCall]) -> list[CompletionOutcome]:
        outcomes: dict[int, CompletionOutcome] = {}

        async def once() -> list[events.Accepted]:
            async with self._database.transaction("complete") as tx:
                # A caller may repeat itself within a group; the repetition is judged after the first.
                return [
                    await self._complete_round(tx, [calls[i] for i in positions], positions, outcomes)
                    for positions in _rounds([c.fence.task_id for c in calls])
                ]

        for accepted in await again_if_concurrent(once):
            self._after_acceptance(accepted)
        self._slot_freed()  # and a scope
        return [outcomes[i] for i in range(len(calls))]

    async def _complete_round(
        self,
        tx: Transaction,
        calls: Sequence[CompletionCall],
        positions: Sequence[int],
        outcomes: dict[int, CompletionOutcome],
    ) -> events.Accepted:
        locked = await tasks.lock(tx, [c.fence.task_id for c in calls])
        verdicts = [
            judge_report(
                _facts(locked, c.fence.task_id),
                c.fence.attempt,
                c.fence.lease_token,
                c.report,
                retryable=c.retryable,
            )
            for c in calls
        ]
        judged = await self._without_misfits(tx, list(zip(calls, verdicts, strict=True)), locked)
        completed = [c for c, v in judged if v is ReportVerdict.COMPLETE]
        if completed:
            await tasks.mark_completed(tx, [c.fence.task_id for c in completed])
        if canceled := [c.fence.task_id for c, v in judged if v is ReportVerdict.CANCEL]:
            await tasks.mark_canceled(tx, canceled)
        if failed := [(c, v) for c, v in judged if v in (ReportVerdict.RETRY, ReportVerdict.DIE)]:
            await tasks.mark_failed(
                tx,
                [c.fence.task_id for c, _ in failed],
                [v is ReportVerdict.DIE for _, v in failed],
                [c.error for c, _ in failed],
            )
        crash_point("complete.after_fence")
        outputs = [
            replace(output, replaces=locked[c.fence.task_id].replaces)
            for c in completed
            for output in c.outputs
        ]
        replaced = iter(await commits.record(tx, outputs))
        crash_point("complete.after_outputs")
        drafts: list[NewEvent] = []
        for c in completed:
            told = [replace(e, kind="invalidation") if next(replaced) else e for e in c.implied]
            told += c.events
            drafts += [replace(e, backfill=True) for e in told] if locked[c.fence.task_id].backfill else told
        accepted = await events.accept(tx, drafts)
        for position, (call, verdict) in zip(positions, judged, strict=True):
            task = locked.get(call.fence.task_id)
            outcomes[position] = CompletionOutcome(call.fence.task_id, _outcome(verdict, task))
        self._count(judged, locked)
        return accepted

    async def _without_misfits(
        self,
        tx: Transaction,
        judged: list[tuple[CompletionCall, ReportVerdict]],
        locked: dict[UUID, tasks.LockedTask],
    ) -> list[tuple[CompletionCall, ReportVerdict]]:
        """Reports whose outputs do not fit the schema of their dataset count as failures, for good."""
        completed = [c for c, v in judged if v is ReportVerdict.COMPLETE]
        misfits = await refuse_misfits(
            tx,
            {
                c.fence.task_id: [replace(o, replaces=locked[c.fence.task_id].replaces) for o in c.outputs]
                for c in completed
            },
        )
        if not misfits:
            return judged
        return [
            (
                CompletionCall(c.fence, Report.FAILED, misfits[c.fence.task_id], retryable=False),
                judge_report(
                    locked[c.fence.task_id].facts,
                    c.fence.attempt,
                    c.fence.lease_token,
                    Report.FAILED,
                    retryable=False,
                ),
            )
            if v is ReportVerdict.COMPLETE and c.fence.task_id in misfits
            else (c, v)
            for c, v in judged
        ]

    def _after_acceptance(self, accepted: events.Accepted) -> None:
        if accepted.event_ids:
            new = sum(1 for i in accepted.event_ids if i is not None)
            telemetry.count("events_accepted_total", new)
            telemetry.count("events_duplicate_total", len(accepted.event_ids) - new)
        if accepted.tasks_created:
            self._work_created()

    def _count(
        self,
        judged: Sequence[tuple[CompletionCall, ReportVerdict]],
        locked: dict[UUID, tasks.LockedTask],
    ) -> None:
        """Counts by job and verdict, once per group rather than once per task."""
        counts: Counter[tuple[ReportVerdict, str]] = Counter()
        for call, verdict in judged:
            task = locked.get(call.fence.task_id)
            job = self._job_names.get(task.job_id, "?") if task is not None else "?"
            counts[verdict, job] += 1
            if verdict is ReportVerdict.COMPLETE and task is not None:
                telemetry.observe("task_seconds", task.seconds or 0.0, job=job)
            elif verdict in (ReportVerdict.RETRY, ReportVerdict.DIE):
                code = (call.error or {}).get("code", "unknown")
                telemetry.count("tasks_failed_total", job=job, code=code)
                if verdict is ReportVerdict.DIE:
                    telemetry.emit(
                        "task.dead", "warning", task_id=str(call.fence.task_id), job=job, code=code
                    )
        for (verdict, job), count in counts.items():
            match verdict:
                case ReportVerdict.COMPLETE:
                    telemetry.count("tasks_completed_total", count, job=job)
                case ReportVerdict.DIE:
                    telemetry.count("tasks_dead_total", count, job=job)
                case ReportVerdict.CANCEL:
                    telemetry.count("tasks_canceled_total", count)
                case ReportVerdict.STALE:
                    telemetry.count("stale_calls_total", count, call="complete")


def heartbeat_call(beat: Heartbeat, capabilities: Sequence[Capability]) -> HeartbeatCall:
    capability, grants = _granted(beat, capabilities)
    return HeartbeatCall(beat, capability, grants)


def emission_call(emission: Emission, capabilities: Sequence[Capability]) -> EmissionCall:
    _, grants = _granted(emission, capabilities)
    events = tuple(
        _new_event(emission.task_id, grants, event, emission.traceparent) for event in emission.events
    )
    return EmissionCall(_fence(emission), events)


def completion_call(completion: Completion, capabilities: Sequence[Capability]) -> CompletionCall:
    """Checks a completion against what its task was granted, and works out its effects: its outputs, and
    one event per output besides those it names."""
    _, grants = _granted(completion, capabilities)
    fence = _fence(completion)
    report = Report(completion.status)
    if report is not Report.COMPLETED:
        error = msgspec.to_builtins(completion.error) if completion.error is not None else None
        retryable = completion.error.retryable if completion.error is not None else True
        return CompletionCall(fence, report, error, retryable)
    if not completion.outputs and not completion.events:
        return CompletionCall(fence, report)
    outputs = tuple(_output(completion, o, grants) for o in completion.outputs)
    drafts = [
        _new_event(completion.task_id, grants, e, completion.traceparent)
        for e in (*(EventOut(o.output_index, o.scope) for o in completion.outputs), *completion.events)
    ]
    implied, named = tuple(drafts[: len(outputs)]), tuple(drafts[len(outputs) :])
    return CompletionCall(fence, report, outputs=outputs, implied=implied, events=named)


def _granted(fence: Fence, capabilities: Sequence[Capability]) -> tuple[Capability, JobGrants]:
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


def _output(completion: Completion, o: OutputManifest, grants: JobGrants) -> OutputCommit:
    grant = _write_grant(completion.task_id, grants, o.output_index)
    if (str(o.dataset_uuid), str(o.dataset_version)) != (grant.dataset_uuid, grant.dataset_version):
        what = f"output {o.output_index} is not {o.dataset_uuid}/{o.dataset_version}"
        raise _not_granted(completion.task_id, what)
    prefix = write_prefix(grant, str(completion.task_id), completion.attempt)
    for file in o.files:
        steps = file.path.removeprefix(prefix).split("/")
        if not file.path.startswith(prefix) or any(step in ("", ".", "..") for step in steps):
            raise _not_granted(completion.task_id, f"{file.path} lies outside of {prefix}")
    return OutputCommit(
        task_id=completion.task_id,
        output_index=o.output_index,
        generation_id=o.dataset_version,
        partition_key=o.scope.partition_key,
        start=o.scope.first,
        end=o.scope.last,
        files=msgspec.to_builtins(o.files),
        row_count=o.row_count,
        bytes=o.bytes,
        schema_hash=o.schema_hash,
        schema=None
        if o.schema is None
        else tuple(SchemaColumn(c.name, c.type, c.nullable) for c in o.schema),
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


def _facts(locked: dict[UUID, tasks.LockedTask], task_id: UUID) -> TaskFacts | None:
    task = locked.get(task_id)
    return task.facts if task is not None else None


_OUTCOMES: dict[ReportVerdict, Any] = {
    ReportVerdict.COMPLETE: "committed",
    ReportVerdict.RETRY: "retrying",
    ReportVerdict.DIE: "dead",
    ReportVerdict.CANCEL: "canceled",
    ReportVerdict.CANCELED: "canceled",
    ReportVerdict.STALE: "stale",
    ReportVerdict.UNKNOWN: "unknown",
}
_REPLAYED: dict[TaskState, Any] = {
    TaskState.COMPLETED: "committed",
    TaskState.DEAD: "dead",
    TaskState.CANCELED: "canceled",
}


def _outcome(verdict: ReportVerdict, task: tasks.LockedTask | None) -> Any:
    if verdict is ReportVerdict.REPLAYED and task is not None:
        return _REPLAYED.get(task.facts.state, "retrying")
    return _OUTCOMES[verdict]


def _fence(call: Fence) -> tasks.Fence:
    return tasks.Fence(call.task_id, call.attempt, call.lease_token)


def _rounds(task_ids: Sequence[UUID]) -> list[list[int]]:
    """Positions in groups without a repeated task: one statement may change a row only once."""
    if len(set(task_ids)) == len(task_ids):
        return [list(range(len(task_ids)))]
    rounds: list[list[int]] = []
    seen: Counter[UUID] = Counter()
    for position, task_id in enumerate(task_ids):
        if seen[task_id] == len(rounds):
            rounds.append([])
        rounds[seen[task_id]].append(position)
        seen[task_id] += 1
    return rounds


def _with_span(c: tasks.Claimed, entry: JobEntry) -> tasks.Claimed:
    """The task's time in the queue as a span, between its event's and its attempt's."""
    if c.traceparent is None:
        return c
    created, claimed = int(c.created_at.timestamp() * 1e9), time.time_ns()
    span = telemetry.record_span(
        "task", c.traceparent, created, claimed, job=entry.payload.name, task=str(c.task_id)
    )
    return replace(c, traceparent=span)


def _token_groups(jobs: Sequence[JobPayload]) -> list[list[UUID]]:
    """As few capabilities as cover a claim: one per organization, none with more grants than fit a token."""
    groups: list[list[UUID]] = []
    org, grants = None, 0
    for job in sorted(jobs, key=lambda job: job.org):
        size = len(job.inputs) + len(job.outputs)
        if job.org != org or grants + size > _GRANTS_PER_TOKEN:
            groups.append([])
            org, grants = job.org, 0
        groups[-1].append(job.job_id)
        grants += size
    return groups


def _claimed_task(claimed: tasks.Claimed, entry: JobEntry, data: ClaimedData, token: int) -> ClaimedTask:
    job, c = entry.payload, _with_span(claimed, entry)
    return ClaimedTask(
        task_id=c.task_id,
        attempt=c.attempt,
        lease_token=c.lease_token,
        lease_seconds=job.lease_seconds,
        job_id=c.job_id,
        kind=c.kind,
        write_prefixes=[write_prefix(g, str(c.task_id), c.attempt) for g in entry.grants.writes],
        scope=_scope(c.partition_key, c.range_start, c.range_end),
        input_files=data.input_files.get(c.task_id, []),
        input_schemas=data.input_schemas.get(c.task_id, []),
        output_files=data.output_files.get(c.task_id, []),
        emission=data.emissions.get(c.task_id, ""),
        resume=data.resume.get(c.task_id, []),
        traceparent=c.traceparent,
        token=token,
    )


def _scope(partition_key: str | None, start: int | None, end: int | None) -> Scope | None:
    if start is None:
        return None
    if partition_key is None:
        return Scope(cursor=start)
    return Scope(partition_key=partition_key, start=start, end=end)
