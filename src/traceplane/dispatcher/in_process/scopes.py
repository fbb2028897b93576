"""Which scopes of a job are ready, and which a change of an input makes stale.

A job that joins inputs, reads a window around its scope, or has other partitions than its inputs has a `scopes` job in
front of it, which receives the events of those inputs. It remembers which positions each input has told, and which
scopes the job has. An event concerns the scopes that read some of it (`model.edges`); each of them that has all it
waits for becomes an event of this job, which creates the task: data the first time, an invalidation after that.

If the partitions of the job are periods of time, its scopes are the periods of what its inputs tell. Otherwise they are
the scopes that its first input tells.

A pass emits a scope once, however much arrived for it. The job itself is the producer, and a repeated event is named
after the first task that caused it, so a pass that is rolled back leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from traceplane.dispatcher.in_process.operator import (
    MAX_POSITIONS_PER_EVENT,
    InProcessInput,
    InProcessJob,
    Work,
    too_wide,
)
from traceplane.model.edges import OnChange, WaitFor, What, overlapping
from traceplane.model.positions import Range
from traceplane.postgres import dataset_retention, scopes
from traceplane.postgres.database import Transaction
from traceplane.postgres.events import NewEvent
from traceplane.postgres.scopes import KnownScope, NewScope
from traceplane.postgres.tasks import QueuedTask


@dataclass(frozen=True, slots=True)
class Change:
    """What an event changed of an input."""

    task: QueuedTask
    input: InProcessInput
    brings: bool
    """Whether its positions have been written."""

    @property
    def positions(self) -> Range:
        return self.task.range_start, self.task.range_end


async def run(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    narrow = [task for task in batch if _new_scopes_of(job, task) <= MAX_POSITIONS_PER_EVENT]
    wide = {task.task_id for task in batch} - {task.task_id for task in narrow}
    before = extents = await scopes.extents(tx, job.job_id)
    changes = [change for change in await _changes(tx, job, narrow) if _matters(change, before)]
    brought = [change for change in changes if change.brings and change.input.edge.read.what is What.SCOPE]
    tables = [change for change in changes if change.brings and _waits_for_table(change.input)]
    if brought or tables:
        told = [(change.input.input_index, change.positions) for change in brought + tables]
        await scopes.add_positions(tx, job.job_id, told)
        await scopes.add_scopes(tx, job.job_id, list(_new_scopes(job, brought)))
        extents = await scopes.extents(tx, job.job_id)
    stale = await _stale(tx, job, changes, list(_ended(brought, before)))
    ready = await _ready(tx, job, [scope for scope, _ in stale], extents)
    emitted = [(scope, causes) for scope, causes in stale if scope.scope_key in ready]
    await scopes.mark_emitted(tx, job.job_id, [scope.scope_key for scope, _ in emitted if not scope.emitted])
    events = [_event(job, scope, causes) for scope, causes in emitted]
    return Work(events, narrow, dict.fromkeys(wide, too_wide("scopes job")))


async def _changes(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> list[Change]:
    """One for each input that reads what a task is about."""
    told_by = await scopes.told_by(tx, [task.task_id for task in batch])
    return [
        Change(task, used, told_by[task.task_id].brings)
        for task in batch
        if task.task_id in told_by
        for used in job.inputs
        if used.generation_id == told_by[task.task_id].generation_id
    ]


def _matters(change: Change, before: Mapping[int, Range]) -> bool:
    """A table that is read as a whole and not recomputed for is of interest only until it has something."""
    read = change.input.edge.read
    recomputes = read.what is What.SCOPE or read.on_change is OnChange.RECOMPUTE
    return recomputes or change.input.input_index not in before


def _waits_for_table(used: InProcessInput) -> bool:
    """Whether the input is read as a whole, and no scope is computed before it has something."""
    return used.edge.read.what is not What.SCOPE and used.edge.read.wait_for is not WaitFor.NOTHING


def _new_scopes_of(job: InProcessJob, task: QueuedTask) -> int:
    """The most scopes that a task adds."""
    if not job.partitions.is_time:
        return 1
    edges = [used.edge for used in job.inputs if used.edge.read.what is What.SCOPE]
    ranges = [
        overlapping((task.range_start, task.range_end), e.input, e.job) for e in edges if e.input.is_time
    ]
    return max((last - first + 1 for first, last in ranges), default=1)


def _new_scopes(job: InProcessJob, brought: Sequence[Change]) -> Iterable[NewScope]:
    if job.partitions.is_time:
        for change in brought:
            first, last = overlapping(change.positions, change.input.edge.input, job.partitions)
            for position in range(first, last + 1):
                yield NewScope(job.partitions.name(position), (position, position))
        return
    primary = next(used for used in job.inputs if used.edge.read.what is What.SCOPE)
    for change in brought:
        if change.input is primary:
            yield NewScope(change.task.partition_key, change.positions)


def _ended(brought: Sequence[Change], before: Mapping[int, Range]) -> Iterable[tuple[Range, Change]]:
    """Scopes that nothing more is expected for since an input has told a later position; with the change that did."""
    newest: dict[int, Change] = {}
    for change in brought:
        index = change.input.input_index
        if change.input.edge.read.wait_for is WaitFor.END and (
            index not in newest or change.positions[1] > newest[index].positions[1]
        ):
            newest[index] = change
    for index, change in newest.items():
        first = min(c.positions[0] for c in brought if c.input.input_index == index)
        old, new = before[index][1] if index in before else first, change.positions[1]
        if new > old:
            yield overlapping((old, new - 1), change.input.edge.input, change.input.edge.job), change


async def _stale(
    tx: Transaction,
    job: InProcessJob,
    changes: Sequence[Change],
    ended: Sequence[tuple[Range, Change]],
) -> list[tuple[KnownScope, list[QueuedTask]]]:
    """The scopes that are to be computed if they are ready, each with the tasks that cause it."""
    concerned = [(change.input.edge.concerned(change.positions), change) for change in changes]
    concerned += ended
    stale = []
    ranges = [positions for positions, _ in concerned]
    for scope in await scopes.overlapping(tx, job.job_id, ranges) if ranges else ():
        causes = [
            concerned[number - 1][1].task
            for number in scope.ranges
            if not scope.emitted
            or (
                number <= len(changes)
                and concerned[number - 1][1].input.edge.read.on_change is OnChange.RECOMPUTE
            )
        ]
        if causes:
            stale.append((scope, causes))
    return stale


async def _ready(
    tx: Transaction, job: InProcessJob, candidates: Sequence[KnownScope], extents: Mapping[int, Range]
) -> set[str]:
    """Those that have what they wait for. What was dropped because of its age does not come back: a scope that reads
    some of it stays as it was computed from all."""
    if any(_waits_for_table(used) and used.input_index not in extents for used in job.inputs):
        return set()
    waited_for = [
        used
        for used in job.inputs
        if used.edge.read.what is What.SCOPE and used.edge.read.wait_for is not WaitFor.NOTHING
    ]
    asked = [
        (scope, used, _waits_for(used, scope.positions, extents.get(used.input_index)))
        for scope in candidates
        for used in waited_for
    ]
    answers = await scopes.held(
        tx, job.job_id, [(used.input_index, positions) for _, used, positions in asked]
    ) if asked else []  # fmt: skip
    verdicts: dict[str, list[bool]] = {scope.scope_key: [] for scope in candidates}
    dropped = await dataset_retention.dropped_inputs(tx, job.job_id)
    for (scope, used, positions), held in zip(asked, answers, strict=True):
        wait_for = used.edge.read.wait_for
        extent = extents.get(used.input_index)
        if wait_for is WaitFor.END:
            there = extent is not None and extent[1] > positions[1] and held.some_of_it
        else:
            there = held.all_of_it if wait_for is WaitFor.ALL else held.some_of_it
        verdicts[scope.scope_key].append(there)
    enough = all if job.config.get("when", "all") == "all" else any
    unreadable = {scope.scope_key for scope in candidates if _reads_any(job, scope, dropped)}
    return {key for key, there in verdicts.items() if (not there or enough(there)) and key not in unreadable}


def _reads_any(job: InProcessJob, scope: KnownScope, dropped: Sequence[tuple[int, Range]]) -> bool:
    edges = {used.input_index: used.edge for used in job.inputs if used.edge.read.what is What.SCOPE}
    for index, (first, last) in dropped:
        if index in edges:
            reads_from, reads_to = edges[index].reads(scope.positions)
            if reads_from <= last and first <= reads_to:
                return True
    return False


def _waits_for(used: InProcessInput, scope: Range, extent: Range | None) -> Range:
    """What of an input must be there; before the first position that it has, there is nothing to wait for."""
    edge = used.edge
    if edge.read.wait_for is not WaitFor.ALL:
        return edge.own(scope)
    first, last = edge.reads(scope)
    own = edge.own(scope)
    begin = edge.input.start if edge.input.start is not None else extent[0] if extent is not None else first
    return min(max(first, begin), max(own[0], begin), last), last


def _event(job: InProcessJob, scope: KnownScope, causes: Sequence[QueuedTask]) -> NewEvent:
    cause = min(causes, key=lambda task: task.task_id)
    return NewEvent(
        producer_id=job.job_id,
        generation_id=job.outputs[0],
        kind="invalidation" if scope.emitted else "data",
        partition_key=scope.partition_key,
        start=scope.range_start,
        end=scope.range_end,
        emission=f"task:{cause.task_id}" if scope.emitted else "",
        backfill=all(task.backfill for task in causes),
        traceparent=cause.traceparent,
    )
