"""Reports are judged; outputs, cursors, events and the end of the attempts commit together.

`complete` is one transaction: the report is fenced, outputs are committed, the cursor advances, events are
written and routed, downstream tasks are created with their wake-ups, and the lease ends. It is all or nothing;
repeating the call returns the same answer and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from msgspec import structs

from traceplane import telemetry
from traceplane.crash_points import crash_point
from traceplane.dispatcher.leases import failed_checks, file_compaction, hot_writes
from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.dispatcher.leases.compaction import Compaction, Move, changed_inputs
from traceplane.dispatcher.leases.emit import after_acceptance
from traceplane.dispatcher.leases.hot_writes import HotRows, HotWrites, Unfit, Write, as_hot
from traceplane.dispatcher.leases.job_entry import KnownJobs
from traceplane.dispatcher.leases.judged import Judged
from traceplane.dispatcher.leases.schema_check import refuse_misfits
from traceplane.model.checks import Severity
from traceplane.model.counted import counted
from traceplane.model.hot_table import HotTable
from traceplane.model.task import ReportVerdict, TaskState
from traceplane.postgres import check_failures, commits, coverage, events, hot_tables, task_logs, tasks
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import AcceptedEvents, NewEvent
from traceplane.postgres.tasks import FailedAttempt
from traceplane.wire.tasks import CompletionOutcome, TaskError

_LONGEST_KEY = 500
_FAILED = {ReportVerdict.RETRY: TaskState.QUEUED, ReportVerdict.DIE: TaskState.DEAD}
_ENDS_ATTEMPT = (ReportVerdict.COMPLETE, ReportVerdict.RETRY, ReportVerdict.DIE, ReportVerdict.CANCEL)


class _RowsRefused(Exception):
    """Postgres rejected rows; the whole group was rolled back."""

    def __init__(self, write: Write, reason: str) -> None:
        super().__init__(reason)
        tasks_ = {one.task_id for one in write.outputs}
        self.task_id = tasks_.pop() if len(tasks_) == 1 else None
        """None if the rows of several were written together."""
        self.write = write
        self.error = TaskError("commit.rows_unfit", f"Postgres refused rows: {reason}", retryable=False)


@dataclass(frozen=True, slots=True)
class _Committed:
    """What a round of reports did."""

    judged: list[Judged]
    accepted: AcceptedEvents


AlsoCommitted = Callable[[Transaction, Sequence[Judged]], Awaitable[None]]
"""Something that is committed with reports."""


class Reports:
    """`work_created` is called when tasks were created, `slot_freed` when a waiting task may be dispatched."""

    def __init__(
        self,
        database: Database,
        jobs: KnownJobs,
        hot: HotWrites,
        *,
        work_created: Callable[[], None],
        slot_freed: Callable[[], None],
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._hot = hot
        self._compaction = Compaction(hot)
        self._work_created = work_created
        self._slot_freed = slot_freed

    async def hot_tables(
        self, generation_ids: Iterable[UUID], tx: Transaction | None = None
    ) -> dict[UUID, HotTable]:
        """The tables of those that are hot."""
        return await self._hot.tables(generation_ids, tx)

    async def complete(self, calls: Sequence[CompletionCall]) -> list[CompletionOutcome]:
        return await self.commit(await self.with_rows(calls))

    async def commit(
        self, calls: Sequence[CompletionCall], also: AlsoCommitted | None = None
    ) -> list[CompletionOutcome]:
        """Commits calls whose rows were read, with what else belongs to them. Their rows are closed."""
        with contextlib.ExitStack() as opened:
            for call in calls:
                for rows in call.rows:
                    opened.callback(rows.close)
            one_by_one = False
            while True:
                try:
                    return await self._commit(calls, also, one_by_one=one_by_one)
                except _RowsRefused as refused:
                    one_by_one |= refused.task_id is None
                    error = refused.error
                    if refused.task_id is not None and isinstance(refused.__cause__, hot_tables.KeyRepeated):
                        error = await self._repeated_key(refused.write) or error
                    calls = [c.failed(error) if c.fence.task_id == refused.task_id else c for c in calls]

    async def _repeated_key(self, write: Write) -> TaskError | None:
        """Postgres says that a key is repeated, but not how often, and not always which. Its transaction is over."""
        try:
            async with self._database.transaction() as tx:
                found = await hot_tables.repeated_key(tx, write.table, hot_writes.joined(write.outputs))
        except hot_tables.RowsRefused:
            return None
        if found is None:
            return None
        key = ", ".join(f"{name} = {value}" for name, value in found.values.items())[:_LONGEST_KEY]
        verb = "is" if found.others == 1 else "are"
        others = f", and {counted(found.others, 'other key')} {verb} repeated too" if found.others else ""
        return TaskError(
            "commit.rows_unfit",
            f"{found.rows} rows have the same unique_key ({key}){others}",
            value=key,
            next_step="write one row for each key, for example the newest one, or add the column that tells the rows"
            " apart to unique_key of the dataset",
            retryable=False,
        )

    async def with_rows(self, calls: Sequence[CompletionCall]) -> list[CompletionCall]:
        """The calls, with the rows of hot outputs read and checked; a call whose rows do not fit becomes a failure."""
        tables = await self.hot_tables(generations_of(calls))
        if not tables:
            return list(calls)

        async def prepare(call: CompletionCall) -> CompletionCall:
            rows: list[HotRows] = []
            try:
                for output in call.outputs:
                    if table := tables.get(output.generation_id):
                        rows.append(await self._hot.prepare(call.org, table, output))
            except Unfit as unfit:
                for one in rows:
                    one.close()
                return call.failed(unfit.error)
            outputs = tuple(
                as_hot(o, tables[o.generation_id]) if o.generation_id in tables else o for o in call.outputs
            )
            return replace(call, outputs=outputs, rows=tuple(rows))

        return list(await asyncio.gather(*map(prepare, calls)))

    async def _commit(
        self, calls: Sequence[CompletionCall], also: AlsoCommitted | None, *, one_by_one: bool
    ) -> list[CompletionOutcome]:
        # A call may occur twice in a group; the repetition is judged after the first.
        rounds = _rounds([c.fence.task_id for c in calls])

        async def once() -> list[_Committed]:
            async with self._database.transaction("complete" if also is None else "sink") as tx:
                return [
                    await self._round(tx, [calls[i] for i in positions], also, one_by_one=one_by_one)
                    for positions in rounds
                ]

        outcomes: dict[int, CompletionOutcome] = {}
        for positions, committed in zip(rounds, await retry_on_conflict(once), strict=True):
            after_acceptance(committed.accepted, self._work_created)
            self._count(committed.judged)
            outcomes.update(zip(positions, (report.outcome for report in committed.judged), strict=True))
        if any(outcome.outcome == "retrying" for outcome in outcomes.values()):
            self._work_created()
        self._slot_freed()  # and a scope
        return [outcomes[i] for i in range(len(calls))]

    async def _round(
        self,
        tx: Transaction,
        calls: Sequence[CompletionCall],
        also: AlsoCommitted | None,
        *,
        one_by_one: bool,
    ) -> _Committed:
        locked = await tasks.lock(tx, [c.fence.task_id for c in calls])
        judged = [Judged.of(c, locked.get(c.fence.task_id)) for c in calls]
        judged = _fail(judged, await refuse_misfits(tx, {j.task_id: j.outputs for j in _completed(judged)}))
        moves = await self._compaction.moves(tx, judged)
        await _lock_hot_tables(tx, judged, moves)
        judged = _fail(judged, await changed_inputs(tx, moves))
        judged = await _return_repetitions(tx, judged)
        judged = await _return_overtaken(tx, judged)
        compacted = await file_compaction.read_states(tx, judged)
        judged = [compacted.judge(report) for report in judged]
        judged = await failed_checks.masked(tx, judged)
        await _end_attempts(tx, judged)
        if also is not None:
            await also(tx, judged)
        crash_point("complete.after_fence")
        completed = _completed(judged)
        outputs = [output for report in completed for output in report.outputs]
        # Moves come first: they were judged by the state before this call.
        moving = {report.task_id for report in completed}
        await self._compaction.apply(tx, [move for move in moves if move.task_id in moving])
        rewrote = await _record(tx, completed, outputs, one_by_one=one_by_one)
        await compacted.settle(tx, completed)
        if completed:
            await coverage.add(tx, [report.task_id for report in completed], outputs)
            await check_failures.add(tx, [output for output in outputs if output.failed_checks])
        crash_point("complete.after_outputs")
        return _Committed(judged, await events.accept(tx, _events(completed, rewrote)))

    def _count(self, judged: Sequence[Judged]) -> None:
        """Counts by job and verdict, once per group rather than once per task."""
        counts: Counter[tuple[ReportVerdict, str]] = Counter()
        for report in judged:
            job = self._jobs.name(report.task.job_id) if report.task is not None else "?"
            counts[report.verdict, job] += 1
            if failed := failed_checks.of(report):
                severity = Severity.WARN if report.completes else Severity.BLOCK
                telemetry.count("checks_failed_total", len(failed), job=job, severity=severity)
            if report.completes and report.task is not None:
                telemetry.observe("task_seconds", report.task.seconds or 0.0, job=job)
            elif report.verdict in _FAILED:
                error = report.call.error
                code = error.code if error is not None else "unknown"
                telemetry.count("tasks_failed_total", job=job, code=code)
                if report.verdict is ReportVerdict.DIE:
                    telemetry.emit("task.dead", "warning", task_id=str(report.task_id), job=job, code=code)
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


def generations_of(calls: Sequence[CompletionCall]) -> set[UUID]:
    return {output.generation_id for call in calls for output in call.outputs}


def _completed(judged: Sequence[Judged]) -> list[Judged]:
    return [report for report in judged if report.completes]


def _fail(judged: list[Judged], errors: Mapping[UUID, TaskError]) -> list[Judged]:
    """Successful reports of tasks that have an error become failures."""
    if not errors:
        return judged
    return [
        report.failed(errors[report.task_id]) if report.completes and report.task_id in errors else report
        for report in judged
    ]


async def _lock_hot_tables(tx: Transaction, judged: Sequence[Judged], moves: Sequence[Move]) -> None:
    """All hot generations of the call together, in the order of their ids."""
    generations = {move.commit.generation_id for move in moves}
    generations |= {rows.table.generation_id for report in _completed(judged) for rows in report.call.rows}
    if generations:
        await hot_tables.lock(tx, sorted(generations))


async def _return_repetitions(tx: Transaction, judged: list[Judged]) -> list[Judged]:
    """Tasks of `append` jobs run again if others added rows to their scope meanwhile: they may have written the same
    rows."""
    additions = [
        (output, report.call.seen_commit)
        for report in _completed(judged)
        if report.call.seen_commit is not None
        for output in report.outputs
        if output.files and not output.replaces
    ]
    if not additions:
        return judged
    unseen = {output.task_id for output in await commits.added_since(tx, additions)}
    unseen = _with_overlaps([output for output, _ in additions], unseen)
    return [report.returned() if report.task_id in unseen else report for report in judged]


def _with_overlaps(additions: Sequence[OutputCommit], unseen: set[UUID]) -> set[UUID]:
    """Of the tasks whose scopes overlap within the call, all but one run again."""
    again = set(unseen)
    furthest: dict[UUID, OutputCommit] = {}  # per generation, the commit with the highest end
    for output in sorted(additions, key=lambda output: (output.generation_id, output.start)):
        other = furthest.get(output.generation_id)
        if other is not None and other.task_id != output.task_id and output.start <= other.end:
            again.add(output.task_id)
        elif output.task_id not in again and (other is None or output.end > other.end):
            furthest[output.generation_id] = output
    return again


async def _return_overtaken(tx: Transaction, judged: list[Judged]) -> list[Judged]:
    """A task whose lease has expired is not in flight, so another one of its scope, which began later, may commit what
    a later event brought, now or before. What the late one read is older: it runs again."""
    completed = _completed(judged)
    late = {report.task_id for report in completed if not report.is_held}
    if not late:
        return judged
    outputs = [output for report in completed for output in report.outputs if output.replaces]
    age = {report.task_id: report.seconds for report in completed}
    overtaken = late & await commits.overtaken(tx, outputs)
    overtaken |= {
        one.task_id
        for one in outputs
        if one.task_id in late
        and any(one.overlaps(other) and age[other.task_id] < age[one.task_id] for other in outputs)
    }
    return [report.returned() if report.task_id in overtaken else report for report in judged]


async def _end_attempts(tx: Transaction, judged: Sequence[Judged]) -> None:
    if completed := [report.task_id for report in _completed(judged)]:
        await tasks.mark_completed(tx, completed)
    if canceled := [report.task_id for report in judged if report.verdict is ReportVerdict.CANCEL]:
        await tasks.mark_canceled(tx, canceled)
    if returned := [report.task_id for report in judged if report.verdict is ReportVerdict.RETURN]:
        await tasks.mark_returned(tx, returned)
    if failed := [
        FailedAttempt(report.task_id, report.call.fence.attempt, _FAILED[report.verdict], report.call.error)
        for report in judged
        if report.verdict in _FAILED
    ]:
        await tasks.mark_failed(tx, failed, reported=True)
    if logs := [
        (report.task_id, report.call.fence.attempt, report.call.log)
        for report in judged
        if report.call.log and report.verdict in _ENDS_ATTEMPT
    ]:
        await task_logs.keep(tx, logs)


async def _record(
    tx: Transaction, completed: Sequence[Judged], outputs: Sequence[OutputCommit], *, one_by_one: bool
) -> list[bool]:
    """Commits the outputs; returns for each whether it rewrote something."""
    rows = [one for report in completed for one in report.call.rows]
    ranges = [one.range for one in rows]
    states = await hot_tables.states(tx, ranges) if ranges else []
    empty = {range_ for range_, state in zip(ranges, states, strict=True) if not state}
    # A hot commit within a wider one replaces no commit, but still rewrites its positions.
    rewritten = set(ranges) - empty
    added: dict[tuple[UUID, UUID, int, int], int] = {}
    for write in hot_writes.planned(rows, empty, one_by_one=one_by_one):
        try:
            counts = await hot_writes.apply(tx, write)
        except hot_tables.RowsRefused as refused:
            raise _RowsRefused(write, str(refused)) from refused
        for one, count in zip(write.outputs, counts, strict=True):
            added[one.task_id, *one.range] = count
    if added:
        keys = [(o.task_id, o.generation_id, o.start, o.end) for o in outputs]
        outputs = [
            replace(o, row_count=added.get(key, o.row_count)) for o, key in zip(outputs, keys, strict=True)
        ]
    replaced = await commits.record(tx, outputs)
    return [
        took or (o.replaces and (o.generation_id, o.start, o.end) in rewritten)
        for took, o in zip(replaced, outputs, strict=True)
    ]


def _events(completed: Sequence[Judged], rewrote: Sequence[bool]) -> list[NewEvent]:
    """One event for each output, an invalidation if it rewrote something, and those that the operators emitted."""
    rewrites = iter(rewrote)
    drafts: list[NewEvent] = []
    for report in completed:
        call, task = report.call, report.task
        assert task is not None
        own = [structs.replace(e, kind="invalidation") if next(rewrites) else e for e in call.implied]
        if task.compacts:
            continue  # the rows are those that were there
        own += call.events
        drafts += [structs.replace(event, backfill=True) for event in own] if task.backfill else own
    return drafts


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
