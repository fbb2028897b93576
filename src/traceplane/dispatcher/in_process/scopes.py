"""Which scopes of a job are ready, and which a change of an input makes stale.

A job that joins inputs, reads a window around its scope, or has other partitions than its inputs has a `scopes` job in
front of it, which receives the events of those inputs. It remembers which positions each input has told, and which
scopes the job has. An event concerns the scopes that read some of it (`model.edges`); each of them that has all it
waits for becomes an event of this job, which creates the task: data the first time, an invalidation after that.

If the partitions of the job are periods of time, its scopes are the periods of what its inputs tell. Otherwise they are
the scopes that its first input tells.

A change that concerns very many scopes, such as one of a table that is read as a whole, is worked off in pages, each in
a transaction of its own.

A pass emits a scope once, however much arrived for it. The job itself is the producer, and a repeated event is named
after the first task that caused it, so a pass that is rolled back leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from traceplane.dispatcher.in_process import told_times
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
from traceplane.postgres.scopes import KnownScope, NewScope, PeriodBounds
from traceplane.postgres.tasks import QueuedTask
from traceplane.wire.tasks import TaskError

SCOPES_PER_PASS = 2_000
"""A change that concerns more scopes takes several passes."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an event changed of an input."""

    task: QueuedTask
    input: InProcessInput
    brings: bool
    """Whether its positions have been written."""
    concerned: Sequence[Range] = ()
    """The scopes that read some of it, before or after the change."""
    scopes: Sequence[Range] = ()
    """Of a job whose partitions are periods: the scopes that it has because of it."""

    @property
    def positions(self) -> Range:
        return self.task.range_start, self.task.range_end

    @property
    def by_time(self) -> bool:
        return self.input.edge.read.time_column is not None


@dataclass(frozen=True, slots=True)
class Stale:
    """A scope that is to be computed, and the tasks that cause it."""

    scope: KnownScope
    causes: Sequence[QueuedTask]


async def run(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    before = extents = await scopes.extents(tx, job.job_id)
    told_by = [change for change in await _changes(tx, job, batch) if _matters(change, before)]
    paged, waiting = _one_page(told_by)
    told_by = [
        c for c in told_by if c.task.task_id not in waiting and (c.task.next_position is None or c in paged)
    ]
    changes, failed = await _with_scopes(tx, job, told_by)
    brought = [change for change in changes if change.brings and change.input.edge.read.what is What.SCOPE]
    tables = [change for change in changes if change.brings and _waits_for_table(change.input)]
    if brought or tables:
        told = [(change.input.input_index, change.positions) for change in brought + tables]
        await scopes.add_positions(tx, job.job_id, told)
        await scopes.add_scopes(tx, job.job_id, list(_new_scopes(job, brought)))
        extents = await scopes.extents(tx, job.job_id)
    ended = [*_ended(brought, before), *await _over(tx, job, brought)]
    stale, next_positions = await _stale(tx, job, changes, ended)
    ready = await _ready(tx, job, [one.scope for one in stale], extents)
    emitted = [one for one in stale if one.scope.scope_key in ready]
    new = [one.scope.scope_key for one in emitted if not one.scope.emitted]
    await scopes.mark_emitted(tx, job.job_id, new)
    events = [_event(job, one.scope, one.causes) for one in emitted]
    unfinished = {*failed, *waiting, *next_positions}
    return Work(events, [task for task in batch if task.task_id not in unfinished], failed, next_positions)


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
    return recomputes or change.input.input_index not in before or change.task.next_position is not None


def _is_wide(change: Change) -> bool:
    """Whether it may concern more scopes than one pass should emit, such as a change of a table that is read as a
    whole."""
    if change.by_time:
        return False
    first, last = change.input.edge.concerned(change.positions)
    return last - first >= SCOPES_PER_PASS


def _one_page(changes: Sequence[Change]) -> tuple[list[Change], set[UUID]]:
    """The wide changes that this pass works on, which are equally far, and the tasks of the others, which wait: so the
    first of them is done first, and those that arrive meanwhile are done together."""
    wide = [change for change in changes if _is_wide(change)]
    start = wide[0].task.next_position if wide else None
    waiting = {change.task.task_id for change in wide if change.task.next_position != start}
    return [change for change in wide if change.task.task_id not in waiting], waiting


def _waits_for_table(used: InProcessInput) -> bool:
    """Whether the input is read as a whole, and no scope is computed before it has something."""
    return used.edge.read.what is not What.SCOPE and used.edge.read.wait_for is not WaitFor.NOTHING


async def _with_scopes(
    tx: Transaction, job: InProcessJob, changes: Sequence[Change]
) -> tuple[list[Change], dict[UUID, TaskError]]:
    """The changes with the scopes that they concern, and errors of tasks that cannot be told what these are."""
    placed: list[Change] = []
    failed: dict[UUID, TaskError] = {}
    for change in changes:
        if change.by_time:
            continue
        edge, own = change.input.edge, []
        if job.partitions.is_time and edge.read.what is What.SCOPE:
            own = [overlapping(change.positions, edge.input, job.partitions)]
        if any(last - first >= MAX_POSITIONS_PER_EVENT for first, last in own):
            failed[change.task.task_id] = too_wide("scopes job")
        placed.append(replace(change, concerned=[edge.concerned(change.positions)], scopes=own))
    by_time = [change for change in changes if change.by_time and change.task.task_id not in failed]
    written, invalid = [c for c in by_time if c.brings], [c for c in by_time if not c.brings]
    if by_time:
        now, had = await told_times.tell(
            tx, job, [(c.input, c.positions) for c in written], [(c.input, c.positions) for c in invalid]
        )
        for change, periods in zip([*written, *invalid], [*now, *had], strict=True):
            if isinstance(periods, TaskError):
                failed[change.task.task_id] = periods
            else:
                placed.append(replace(change, concerned=periods[0], scopes=periods[1]))
    return [change for change in placed if change.task.task_id not in failed], failed


def _new_scopes(job: InProcessJob, brought: Sequence[Change]) -> Iterable[NewScope]:
    if job.partitions.is_time:
        for change in brought:
            for first, last in change.scopes:
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
        if (
            change.input.edge.read.wait_for is WaitFor.END
            and not change.by_time
            and (index not in newest or change.positions[1] > newest[index].positions[1])
        ):
            newest[index] = change
    for index, change in newest.items():
        first = min(c.positions[0] for c in brought if c.input.input_index == index)
        old, new = before[index][1] if index in before else first, change.positions[1]
        if new > old:
            yield overlapping((old, new - 1), change.input.edge.input, change.input.edge.job), change


async def _over(tx: Transaction, job: InProcessJob, brought: Sequence[Change]) -> list[tuple[Range, Change]]:
    """The same, of inputs that are read by a column of time."""
    told = {(c.input, c.positions): c for c in brought if c.by_time}
    return [(periods, told[one]) for periods, one in await told_times.maybe_over(tx, job, list(told))]


async def _stale(
    tx: Transaction,
    job: InProcessJob,
    changes: Sequence[Change],
    ended: Sequence[tuple[Range, Change]],
) -> tuple[list[Stale], dict[UUID, int]]:
    """The scopes that are to be computed if they are ready, and where tasks with more of them continue."""
    paged = [change for change in changes if _is_wide(change)]
    rest = [change for change in changes if not _is_wide(change)]
    stale = {stale.scope.scope_key: stale for stale in (await _concerned(tx, job, rest, ended))[0]}
    if not paged:
        return list(stale.values()), {}
    page, start = await _concerned(tx, job, paged, start=paged[0].task.next_position, most=SCOPES_PER_PASS)
    for one in page:
        causes = stale[one.scope.scope_key].causes if one.scope.scope_key in stale else []
        stale[one.scope.scope_key] = Stale(one.scope, [*causes, *one.causes])
    more = {} if start is None else dict.fromkeys((change.task.task_id for change in paged), start)
    return list(stale.values()), more


async def _concerned(
    tx: Transaction,
    job: InProcessJob,
    changes: Sequence[Change],
    ended: Sequence[tuple[Range, Change]] = (),
    *,
    start: int | None = None,
    most: int | None = None,
) -> tuple[list[Stale], int | None]:
    concerned = [(positions, change) for change in changes for positions in change.concerned]
    recomputing = len(concerned)
    concerned += ended
    if not concerned:
        return [], None
    known, following = await scopes.overlapping(
        tx, job.job_id, [positions for positions, _ in concerned], start=start, most=most
    )
    stale = []
    for scope in known:
        causes = [
            concerned[number - 1][1].task
            for number in scope.ranges
            if not scope.emitted
            or (
                number <= recomputing
                and concerned[number - 1][1].input.edge.read.on_change is OnChange.RECOMPUTE
            )
        ]
        if causes:
            stale.append(Stale(scope, causes))
    return stale, following


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
    by_time = [used for used in job.inputs if used.edge.read.time_column is not None]
    periods = await told_times.bounds(tx, job, by_time, [scope.range_start for scope in candidates])
    asked = [
        (scope, used, positions)
        for scope in candidates
        for used in waited_for
        for bounds in [periods.get((used.input_index, scope.range_start))]
        for positions in [
            _waits_for(used, scope.positions, extents.get(used.input_index))
            if bounds is None
            else bounds.extent(used.edge.input.start)
        ]
    ]
    answers = await scopes.held(
        tx, job.job_id, [(used.input_index, positions) for _, used, positions in asked]
    ) if asked else []  # fmt: skip
    verdicts: dict[str, list[bool]] = {scope.scope_key: [] for scope in candidates}
    dropped = await dataset_retention.dropped_inputs(tx, job.job_id)
    for (scope, used, positions), held in zip(asked, answers, strict=True):
        wait_for = used.edge.read.wait_for
        extent = extents.get(used.input_index)
        bounds = periods.get((used.input_index, scope.range_start))
        if bounds is not None:
            there = scope.emitted or bounds.has(wait_for, whole=held.all_of_it)
        elif wait_for is WaitFor.END:
            there = extent is not None and extent[1] > positions[1] and held.some_of_it
        else:
            there = held.all_of_it if wait_for is WaitFor.ALL else held.some_of_it
        verdicts[scope.scope_key].append(there)
    enough = all if job.config.get("when", "all") == "all" else any
    unreadable = {scope.scope_key for scope in candidates if _reads_any(job, scope, dropped, periods)}
    if by_time and all(used in by_time for used in job.inputs if used.edge.read.what is What.SCOPE):
        # All rows of the period have moved to others before it was computed.
        unreadable |= {
            scope.scope_key
            for scope in candidates
            if not scope.emitted
            and all(periods[used.input_index, scope.range_start].positions is None for used in by_time)
        }
    return {key for key, there in verdicts.items() if (not there or enough(there)) and key not in unreadable}


def _reads_any(
    job: InProcessJob,
    scope: KnownScope,
    dropped: Sequence[tuple[int, Range]],
    periods: Mapping[tuple[int, int], PeriodBounds],
) -> bool:
    edges = {used.input_index: used.edge for used in job.inputs if used.edge.read.what is What.SCOPE}
    for index, (first, last) in dropped:
        if index in edges:
            bounds = periods.get((index, scope.range_start))
            reads = edges[index].reads(scope.positions) if bounds is None else bounds.positions
            if reads is not None and reads[0] <= last and first <= reads[1]:
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
