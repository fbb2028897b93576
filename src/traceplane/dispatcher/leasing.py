"""Claim, heartbeat, events, complete: the transactions behind the internal API.

`complete` is one transaction: the report is fenced, outputs are committed, the cursor advances, events are
written and routed, downstream tasks are drafted with their wake-ups, and the lease ends. All of it happened
or none of it; repeating the call answers the same and changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
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
from traceplane.decoding.decoders import Decoders
from traceplane.dispatcher import hot_reads, hot_writes
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.claimed_data import ClaimedData, gather
from traceplane.dispatcher.hot_writes import HotRows, HotWrites, OpenStore, Unfit, as_hot
from traceplane.dispatcher.job_entry import JobEntry, job_entry
from traceplane.dispatcher.schema_check import refuse_misfits
from traceplane.errors import Conflict, Forbidden
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.positions import execution_position
from traceplane.model.task import (
    HeartbeatVerdict,
    Report,
    ReportVerdict,
    TaskFacts,
    TaskState,
    judge_heartbeat,
    judge_report,
)
from traceplane.postgres import commits, coverage, events, hot_tables, registry, task_logs, tasks
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction, again_if_concurrent
from traceplane.postgres.events import NewEvent
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
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
    HotRead,
    JobPayload,
    OutputManifest,
    Refusal,
    RowsRequest,
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
    hot_reads: tuple[HotRead, ...] = ()
    seen_commit: int | None = None
    """Of an `append` job: the newest commit that it dropped duplicates by."""
    rows: tuple[HotRows, ...] = ()
    """What its outputs put into hot tables."""
    log: str = ""
    """What its operator wrote."""


_HEEDED = (ReportVerdict.COMPLETE, ReportVerdict.RETRY, ReportVerdict.DIE, ReportVerdict.CANCEL)


class _TaskRefused(Exception):
    """Postgres does not take the rows of one task; nothing of the group was kept."""

    def __init__(self, task_id: UUID, reason: str) -> None:
        super().__init__(reason)
        self.task_id = task_id


class Leasing:
    """`work_created` is called when tasks came to be, `slot_freed` when a task that waits may have its turn."""

    def __init__(
        self,
        database: Database,
        authority: Authority,
        *,
        work_created: Callable[[], None],
        slot_freed: Callable[[], None],
        decoders: Decoders,
        staged: Path | OpenStore,
    ) -> None:
        self._hot = HotWrites(database, staged, decoders)
        self._moved_inputs: dict[UUID, dict[int, UUID]] = {}
        self._database = database
        self._authority = authority
        self._work_created = work_created
        self._slot_freed = slot_freed
        self._jobs: dict[tuple[UUID, int], JobEntry] = {}
        self._job_names: dict[UUID, str] = {}

    # Claim -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self._hot.close()

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

    async def read_rows(
        self,
        database: Database,
        request: RowsRequest,
        grants: JobGrants,
        push: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Sends a piece of a hot input, if it is still as it was when the task was told of it."""
        fence = _fence(request.fence)
        async with database.snapshot() as tx:
            found = await tasks.fetch(tx, fence)
            if found is None or found[1] != "running":
                raise Conflict(
                    "task.stale", "the task's rows were not sent: it is stale", value=str(fence.task_id)
                )
            claimed = found[0]
            entry = (await self._job_entries(tx, {(claimed.job_id, claimed.revision)}))[claimed.job_id]
            await hot_reads.send(tx, claimed, entry, request, grants, push)

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

    async def hand_back(self, claimed: Sequence[ClaimedTask]) -> None:
        """Leases that their worker will never hear of."""
        await self.complete([CompletionCall(_fence(task), Report.RETURNED) for task in claimed])

    # Complete --------------------------------------------------------------------------------------

    async def complete(self, calls: Sequence[CompletionCall]) -> list[CompletionOutcome]:
        prepared = await self._with_rows(calls)
        try:
            while True:
                try:
                    return await self._complete(prepared)
                except _TaskRefused as refused:
                    reason = {"code": "commit.rows_unfit", "message": f"Postgres refused rows: {refused}"}
                    prepared = [
                        CompletionCall(c.fence, Report.FAILED, reason, retryable=False, log=c.log)
                        if c.fence.task_id == refused.task_id
                        else c
                        for c in prepared
                    ]
        finally:
            for call in prepared:
                for rows in call.rows:
                    rows.close()

    async def any_hot(self, calls: Sequence[CompletionCall]) -> bool:
        """Whether some of what they report goes into hot tables."""
        return bool(await self._hot.tables({o.generation_id for c in calls for o in c.outputs}))

    async def _with_rows(self, calls: Sequence[CompletionCall]) -> list[CompletionCall]:
        """The calls, with the rows of hot outputs read and checked; one whose rows do not fit is a failure."""
        tables = await self._hot.tables({o.generation_id for c in calls for o in c.outputs})
        if not tables:
            return list(calls)

        async def prepare(call: CompletionCall) -> CompletionCall:
            rows: list[HotRows] = []
            try:
                for output in call.outputs:
                    if table := tables.get(output.generation_id):
                        rows.append(await self._hot.prepare(table, output))
            except Unfit as unfit:
                for one in rows:
                    one.close()
                retryable = bool(unfit.error["retryable"])
                return CompletionCall(call.fence, Report.FAILED, unfit.error, retryable, log=call.log)
            outputs = tuple(
                as_hot(o, tables[o.generation_id]) if o.generation_id in tables else o for o in call.outputs
            )
            return replace(call, outputs=outputs, rows=tuple(rows))

        return list(await asyncio.gather(*map(prepare, calls)))

    async def _complete(self, calls: Sequence[CompletionCall]) -> list[CompletionOutcome]:
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
        if any(outcome.outcome == "retrying" for outcome in outcomes.values()):
            self._work_created()
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
        judged, moves = await self._moves(tx, judged, locked)
        judged = await self._without_repetitions(tx, judged, locked)
        completed = [c for c, v in judged if v is ReportVerdict.COMPLETE]
        if completed:
            await tasks.mark_completed(tx, [c.fence.task_id for c in completed])
        if canceled := [c.fence.task_id for c, v in judged if v is ReportVerdict.CANCEL]:
            await tasks.mark_canceled(tx, canceled)
        if returned := [c.fence.task_id for c, v in judged if v is ReportVerdict.RETURN]:
            await tasks.mark_returned(tx, returned)
        if failed := [(c, v) for c, v in judged if v in (ReportVerdict.RETRY, ReportVerdict.DIE)]:
            await tasks.mark_failed(
                tx,
                [c.fence.task_id for c, _ in failed],
                [v is ReportVerdict.DIE for _, v in failed],
                [c.error for c, _ in failed],
            )
        if written := [
            (c.fence.task_id, c.fence.attempt, c.log) for c, v in judged if c.log and v in _HEEDED
        ]:
            await task_logs.keep(tx, written)
        crash_point("complete.after_fence")
        outputs = [
            replace(output, replaces=locked[c.fence.task_id].replaces)
            for c in completed
            for output in c.outputs
        ]
        # Moves come first: they were judged by what was there before this call.
        await self._move(tx, moves)
        replaced = iter(await self._record(tx, completed, outputs))
        if completed:
            await coverage.add(tx, [c.fence.task_id for c in completed], outputs)
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
        return _failed(judged, misfits, locked, retryable=False)

    async def _without_repetitions(
        self,
        tx: Transaction,
        judged: list[tuple[CompletionCall, ReportVerdict]],
        locked: dict[UUID, tasks.LockedTask],
    ) -> list[tuple[CompletionCall, ReportVerdict]]:
        """Tasks of `append` jobs that could not see rows which others added to their scope meanwhile run again: they
        may have the same ones."""
        additions = [
            (output, call.seen_commit)
            for call, verdict in judged
            if verdict is ReportVerdict.COMPLETE
            and call.seen_commit is not None
            and not locked[call.fence.task_id].replaces
            for output in call.outputs
            if output.files
        ]
        if not additions:
            return judged
        unseen = {output.task_id for output in await commits.added_since(tx, additions)}
        reached: dict[UUID, OutputCommit] = {}  # of each generation, the one that reaches furthest
        for output, _ in sorted(additions, key=lambda one: (one[0].generation_id, one[0].start)):
            other = reached.get(output.generation_id)
            if other is not None and other.task_id != output.task_id and output.start <= other.end:
                unseen.add(output.task_id)
            elif output.task_id not in unseen and (other is None or output.end > other.end):
                reached[output.generation_id] = output

        def again(call: CompletionCall) -> tuple[CompletionCall, ReportVerdict]:
            fence, facts = call.fence, locked[call.fence.task_id].facts
            verdict = judge_report(facts, fence.attempt, fence.lease_token, Report.RETURNED, retryable=True)
            return CompletionCall(fence, Report.RETURNED, log=call.log), verdict

        return [again(c) if c.fence.task_id in unseen else (c, v) for c, v in judged]

    async def _record(
        self, tx: Transaction, completed: Sequence[CompletionCall], outputs: Sequence[OutputCommit]
    ) -> list[bool]:
        """Commits the outputs; for each, whether it rewrote something."""
        hot = {rows.table.generation_id: rows.table for c in completed for rows in c.rows}
        ranges = [(o.generation_id, o.start, o.end) for o in outputs if o.generation_id in hot and o.replaces]
        # A hot commit within a wider one takes no commit's place, and yet rewrites its positions.
        found = await hot_tables.states(tx, ranges) if ranges else []
        rewritten = {range_ for range_, state in zip(ranges, found, strict=True) if state}
        replaced = await commits.record(tx, outputs)
        for call in completed:
            try:
                await hot_writes.apply(tx, call.rows)
            except hot_tables.RowsRefused as refused:
                raise _TaskRefused(call.fence.task_id, str(refused)) from refused
        return [
            took or (o.generation_id, o.start, o.end) in rewritten
            for took, o in zip(replaced, outputs, strict=True)
        ]

    async def _moves(
        self,
        tx: Transaction,
        judged: list[tuple[CompletionCall, ReportVerdict]],
        locked: dict[UUID, tasks.LockedTask],
    ) -> tuple[list[tuple[CompletionCall, ReportVerdict]], list[OutputCommit]]:
        """Commits of hot generations that say where moved rows are now; locks every hot generation of the call.

        A task may move only what it has read. One whose input changed since then is tried again.
        """
        completed = [c for c, v in judged if v is ReportVerdict.COMPLETE]
        asked: list[tuple[UUID, str, OutputCommit]] = []
        for call in completed:
            moved = (
                await self._moved_inputs_of(tx, locked[call.fence.task_id].job_id) if call.hot_reads else {}
            )
            for read in call.hot_reads:
                if read.input_index in moved and call.outputs:
                    output = replace(
                        call.outputs[0],
                        output_index=-1 - read.input_index,
                        generation_id=moved[read.input_index],
                        schema=None,
                    )
                    asked.append((call.fence.task_id, read.state, output))
        generations = {o.generation_id for _, _, o in asked}
        generations |= {rows.table.generation_id for c in completed for rows in c.rows}
        if generations:
            await hot_tables.lock(tx, sorted(generations))
        if not asked:
            return judged, []
        states = await hot_tables.states(tx, [(o.generation_id, o.start, o.end) for _, _, o in asked])
        changed = {
            task_id: {
                "code": "compact.input_changed",
                "message": f"positions from {o.start} to {o.end} were written while the task ran",
                "next_step": "none: the task is tried again",
                "retryable": True,
            }
            for (task_id, read_at, o), state in zip(asked, states, strict=True)
            if read_at != state
        }
        return (
            _failed(judged, changed, locked, retryable=True),
            [output for task_id, _, output in asked if task_id not in changed],
        )

    async def _moved_inputs_of(self, tx: Transaction, job_id: UUID) -> dict[int, UUID]:
        """The hot inputs of a job that deletes what it has compacted, and their generations."""
        if job_id not in self._moved_inputs:
            (row,) = await registry.job_payloads(tx, [job_id])
            entry = job_entry(row)
            deletes = entry.payload.operator == "compact" and entry.payload.config.get("delete_after_commit")
            self._moved_inputs[job_id] = {
                i.input_index: generation
                for i, generation in zip(entry.payload.inputs, entry.row_generations, strict=True)
                if deletes and i.hot
            }
        return self._moved_inputs[job_id]

    async def _move(self, tx: Transaction, moves: Sequence[OutputCommit]) -> None:
        if not moves:
            return
        tables = await self._hot.tables({o.generation_id for o in moves}, tx)
        await commits.record(tx, moves)
        for output in moves:
            await hot_tables.clear(tx, tables[output.generation_id], output.start, output.end)

    def _after_acceptance(self, accepted: events.Accepted) -> None:
        if accepted.event_ids:
            new = sum(1 for i in accepted.event_ids if i is not None)
            telemetry.count("events_accepted_total", new)
            telemetry.count("events_duplicate_total", len(accepted.event_ids) - new)
        if accepted.tasks_created:
            telemetry.count("tasks_created_total", accepted.tasks_created)
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
                case ReportVerdict.RETURN:
                    telemetry.count("tasks_returned_total", count, job=job)
                case ReportVerdict.CANCEL:
                    telemetry.count("tasks_canceled_total", count)
                case ReportVerdict.STALE:
                    telemetry.count("stale_calls_total", count, call="complete")


def _failed(
    judged: list[tuple[CompletionCall, ReportVerdict]],
    errors: Mapping[UUID, dict[str, Any]],
    locked: dict[UUID, tasks.LockedTask],
    *,
    retryable: bool,
) -> list[tuple[CompletionCall, ReportVerdict]]:
    """Good reports of the tasks that have an error become failures."""

    def failed(call: CompletionCall) -> tuple[CompletionCall, ReportVerdict]:
        fence, facts = call.fence, locked[call.fence.task_id].facts
        verdict = judge_report(facts, fence.attempt, fence.lease_token, Report.FAILED, retryable=retryable)
        error = errors[fence.task_id]
        return CompletionCall(fence, Report.FAILED, error, retryable, log=call.log), verdict

    return [
        failed(c) if v is ReportVerdict.COMPLETE and c.fence.task_id in errors else (c, v) for c, v in judged
    ]


def heartbeat_call(beat: Heartbeat, capabilities: Sequence[Capability]) -> HeartbeatCall:
    capability, grants = granted(beat, capabilities)
    return HeartbeatCall(beat, capability, grants)


def emission_call(emission: Emission, capabilities: Sequence[Capability]) -> EmissionCall:
    _, grants = granted(emission, capabilities)
    events = tuple(
        _new_event(emission.task_id, grants, event, emission.traceparent) for event in emission.events
    )
    return EmissionCall(_fence(emission), events)


def completion_call(completion: Completion, capabilities: Sequence[Capability]) -> CompletionCall:
    """Checks a completion against what its task was granted, and works out its effects: its outputs, and
    one event per output besides those it names."""
    _, grants = granted(completion, capabilities)
    fence = _fence(completion)
    report = Report(completion.status)
    if report is not Report.COMPLETED:
        error = msgspec.to_builtins(completion.error) if completion.error is not None else None
        retryable = completion.error.retryable if completion.error is not None else True
        return CompletionCall(fence, report, error, retryable, log=completion.log)
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
    ReportVerdict.RETURN: "retrying",
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


def _fence(call: Fence | ClaimedTask) -> tasks.Fence:
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
        scope=_execution_scope(c.task_id)
        if job.source_kind == "pipeline"
        else _scope(c.partition_key, c.range_start, c.range_end),
        input_files=data.input_files.get(c.task_id, []),
        input_schemas=data.input_schemas.get(c.task_id, []),
        hot_inputs=data.hot_inputs.get(c.task_id, []),
        output_files=data.output_files.get(c.task_id, []),
        seen_commit=data.seen_commits.get(c.task_id),
        emission=data.emissions.get(c.task_id, ""),
        resume=data.resume.get(c.task_id, []),
        execution=data.executions.get(c.task_id),
        traceparent=c.traceparent,
        token=token,
    )


def _execution_scope(execution_id: UUID) -> Scope:
    """Where the rows of an execution belong: a partition of its own, at a position that grows with time."""
    position = execution_position(execution_id)
    return Scope(partition_key=str(execution_id), start=position, end=position)


def _scope(partition_key: str | None, start: int | None, end: int | None) -> Scope | None:
    if start is None:
        return None
    if partition_key is None:
        return Scope(cursor=start)
    return Scope(partition_key=partition_key, start=start, end=end)
