"""Positions become batches, each of which is one partition event.

    size           aligned ranges of a fixed size, each closed when all of it has arrived; with `finality`, not before
                   a position has arrived that is at least that far beyond its end; with `max_wait_seconds`, after
                   that time it is closed up to the last position that has arrived, and the rest of it fills on. The
                   range in which the dataset starts begins there
    every_seconds  all that has arrived, this long after the first of it
    all            all that has arrived, once the jobs behind have done the batch before
    each           no batches: every event is passed on as it came

Batches of `every_seconds` and `all` begin where the one before them ends, so that between the first and the last
position each belongs to exactly one batch, however the batches were cut. Whatever is open can also be closed by hand.

A closed batch is recorded, with the reason and the positions that had arrived. Anything that arrives later for one of
its positions, data or an invalidation, changes it: it is emitted again, as an invalidation, once per pass however much
arrived. An invalidation fills a batch only if it comes from a commit, which wrote the whole scope. A batch of which the
input has dropped something because of its age is not emitted again: it could not be computed from all of it.

A deploy may change the rule and keep the data. What is closed stays as it was cut, and what fills is cut by the new
rule; if there are no batches any more, it is closed as it is. What was passed on as it came, because the job behind had
no batches then, is in no batch: an event about it is passed on too.

The job itself is the producer, and a repeated event is named after the first task that caused it. A pass that is
rolled back leaves nothing, so the pass after it emits the same events or more, each once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self
from uuid import UUID

from traceplane.dispatcher.in_process.operator import (
    MAX_POSITIONS_PER_EVENT,
    InProcessJob,
    Misconfigured,
    Work,
    too_wide,
)
from traceplane.model.positions import Range, without
from traceplane.postgres import aggregator, dataset_retention, scopes
from traceplane.postgres.aggregator import BY_HAND, CUT_ANEW, ClosedBatch, ClosedBy, DueSlot, OpenPiece
from traceplane.postgres.database import Transaction
from traceplane.postgres.events import NewEvent
from traceplane.postgres.scopes import KnownScope
from traceplane.postgres.tasks import QueuedTask

_RANGES_PER_PASS = 5_000
"""Events that touch more ranges in total take several passes."""
_LOWEST = -(2**63)
_HIGHEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How positions are cut into batches."""

    size: int | None
    finality: int
    every: timedelta | None
    max_wait: timedelta | None
    each: bool = False
    """There are no batches."""

    @classmethod
    def of(cls, job: InProcessJob) -> Self:
        config = job.config
        size, every, max_wait = (config.get(name) for name in ("size", "every_seconds", "max_wait_seconds"))
        each = bool(config.get("each"))
        if [size is not None, every is not None, bool(config.get("all")), each].count(True) != 1:
            raise Misconfigured("one of size, every_seconds, all and each must be set")
        batching = cls(
            int(size) if size is not None else None,
            int(config.get("finality", 0)),
            timedelta(seconds=every) if every is not None else None,
            timedelta(seconds=max_wait) if max_wait is not None else None,
            each,
        )
        if (batching.size is not None and batching.size < 1) or batching.finality < 0:
            raise Misconfigured("size must be at least 1, and finality must not be negative")
        return batching

    @property
    def is_timed(self) -> bool:
        """Whether something else than the last position closes a batch."""
        return not self.each and (self.size is None or self.max_wait is not None)

    def slots(self, positions: Range) -> range:
        """The starts of the aligned ranges that these positions touch; without a size, there is one slot."""
        if self.size is None:
            return range(1)
        return range(positions[0] // self.size * self.size, positions[1] + 1, self.size)

    def final_slots(self, old_head: int | None, head: int | None) -> Range | None:
        """The first and the last end of ranges that became final because the head moved."""
        if not self.finality or self.size is None or head is None:
            return None
        after = head if old_head is None else old_head + 1
        first = max(after, self.finality + self.size + _LOWEST) - self.finality
        last = head - self.finality
        return (first, last) if first <= last else None

    def is_final(self, last: int, head: int | None) -> bool:
        """Whether the newest position is far enough beyond an end to consider it final."""
        return not self.finality or (head is not None and last <= head - self.finality)


async def run(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    batching = BatchRule.of(job)
    accepted, refused = take(batch, batching)
    closed = await _changed(tx, job.job_id, accepted)
    changed = await _without_dropped(tx, job.job_id, closed)
    told = await scopes.told_by(tx, [t.task_id for t in accepted if t.kind == "invalidation"])
    bringers = [t for t in accepted if t.kind == "data" or (t.task_id in told and told[t.task_id].brings)]
    events = [_event(job, scope.positions, scope, causes) for scope, causes in changed]
    if batching.each:
        events += await _pass_on(tx, job, accepted, closed)
    else:
        parts = await aggregator.passed(tx, job.job_id, [(t.range_start, t.range_end) for t in accepted])
        events += [_as_it_came(job, t, part) for t, own in zip(accepted, parts, strict=True) for part in own]
        if bringers:
            events += await _fill(tx, job, batching, bringers)
    if changed:
        await aggregator.note_changes(tx, job.job_id, [scope.scope_key for scope, _ in changed])
    return Work(events, accepted, dict.fromkeys((task.task_id for task in refused), too_wide("aggregator")))


def take(batch: Sequence[QueuedTask], batching: BatchRule) -> tuple[list[QueuedTask], list[QueuedTask]]:
    """The tasks to process now, in order, and those that are too wide for any pass."""
    accepted: list[QueuedTask] = []
    refused: list[QueuedTask] = []
    room = _RANGES_PER_PASS
    for task in batch:
        slots = batching.slots((task.range_start, task.range_end))
        size = batching.size or 0
        if len(slots) > MAX_POSITIONS_PER_EVENT or slots[0] < _LOWEST or slots[-1] + size > _HIGHEST:
            refused.append(task)
        elif accepted and len(slots) > room:
            break
        else:
            accepted.append(task)
            room -= len(slots)
    return accepted, refused


async def _changed(
    tx: Transaction, job_id: UUID, accepted: Sequence[QueuedTask]
) -> list[tuple[KnownScope, list[QueuedTask]]]:
    """The closed batches that tasks are about, with these tasks."""
    if not accepted:
        return []
    closed, _ = await scopes.overlapping(tx, job_id, [(t.range_start, t.range_end) for t in accepted])
    return [(scope, [accepted[number - 1] for number in scope.ranges]) for scope in closed]


async def _pass_on(
    tx: Transaction,
    job: InProcessJob,
    accepted: Sequence[QueuedTask],
    closed: Sequence[tuple[KnownScope, Sequence[QueuedTask]]],
) -> list[NewEvent]:
    """The events of tasks as they came, without what is in a batch."""
    batched: dict[UUID, list[Range]] = {}
    for scope, causes in closed:
        for task in causes:
            batched.setdefault(task.task_id, []).append(scope.positions)
    parts = [
        (task, part)
        for task in accepted
        for part in without([(task.range_start, task.range_end)], batched.get(task.task_id, []))
    ]
    if parts:
        await aggregator.add_passed(tx, job.job_id, [part for _, part in parts])
    return [_as_it_came(job, task, part) for task, part in parts]


async def _without_dropped(
    tx: Transaction, job_id: UUID, changed: list[tuple[KnownScope, list[QueuedTask]]]
) -> list[tuple[KnownScope, list[QueuedTask]]]:
    """A batch of which the input has dropped something because of its age stays as it was computed from all."""
    dropped = await dataset_retention.dropped_inputs(tx, job_id) if changed else []
    return [
        (scope, causes)
        for scope, causes in changed
        if not any(first <= scope.range_end and scope.range_start <= last for _, (first, last) in dropped)
    ]


async def _fill(
    tx: Transaction, job: InProcessJob, batching: BatchRule, bringers: Sequence[QueuedTask]
) -> list[NewEvent]:
    """Adds what has arrived; returns the events of batches that are full now."""
    causes: dict[int, list[QueuedTask]] = {}
    for task in bringers:
        for slot in batching.slots((task.range_start, task.range_end)):
            causes.setdefault(slot, []).append(task)
    old_head = await _head(tx, job.job_id) if batching.finality else None
    told = [(0, (task.range_start, task.range_end)) for task in bringers]
    await scopes.add_positions(tx, job.job_id, told)
    if batching.size is None:
        open_slots = set(causes)
        events: list[NewEvent] = []
    else:
        open_slots, events = await _full(tx, job, batching, bringers, causes, old_head)
    if batching.is_timed:
        opened = [(slot, all(t.backfill for t in causes.get(slot, bringers))) for slot in sorted(open_slots)]
        await aggregator.open_batches(tx, job.job_id, opened, batching.every or batching.max_wait)
        await aggregator.forget_open(tx, job.job_id, sorted(causes.keys() - open_slots))
    return events


async def _full(
    tx: Transaction,
    job: InProcessJob,
    batching: BatchRule,
    bringers: Sequence[QueuedTask],
    causes: Mapping[int, Sequence[QueuedTask]],
    old_head: int | None,
) -> tuple[set[int], list[NewEvent]]:
    """The slots that stay open, and the events of batches that are full and final."""
    assert batching.size is not None
    size = batching.size
    head = await _head(tx, job.job_id) if batching.finality else None
    slots = set(causes)
    if (ends := batching.final_slots(old_head, head)) is not None:
        # Also ranges that no task of this pass touches, but that are final now because the head moved.
        slots |= await aggregator.slots_with_positions(tx, job.job_id, (ends[0] - size + 1, ends[1]), size)
    filling, full = await _cut(tx, job, batching, slots)
    await aggregator.close(tx, job.job_id, [_batch(job, p.first, p.last, "full") for p in full])
    newest = max(bringers, key=lambda task: task.range_end)
    events = [_event(job, (p.first, p.last), None, causes.get(p.slot, [newest])) for p in full]
    return filling, events


async def _cut(
    tx: Transaction, job: InProcessJob, batching: BatchRule, slots: Collection[int]
) -> tuple[set[int], list[OpenPiece]]:
    """Of aligned ranges: those that stay open, and the pieces of them that are full and final."""
    assert batching.size is not None
    head = await _head(tx, job.job_id) if batching.finality else None
    pieces = await aggregator.open_pieces(
        tx, job.job_id, job.partitions, sorted(slots), batching.size, await scopes.widest(tx, job.job_id)
    )
    full, filling = [], set[int]()
    for piece in pieces:
        if piece.is_full and batching.is_final(piece.last, head):
            full.append(piece)
        else:
            filling.add(piece.slot)
    return filling, full


async def _head(tx: Transaction, job_id: UUID) -> int | None:
    """The highest position that has arrived."""
    extent = (await scopes.extents(tx, job_id)).get(0)
    return None if extent is None else extent[1]


# Closing ---------------------------------------------------------------------------------------------


async def close_due(tx: Transaction, job: InProcessJob) -> list[NewEvent]:
    """Closes the batches of a locked aggregator whose time has come; returns their events."""
    batching = BatchRule.of(job)
    due = await aggregator.due_slots(tx, job.job_id)
    if not due:
        return []
    slots = {slot.slot for slot in due}
    if CUT_ANEW in slots:
        closed = await _cut_anew(tx, job, batching)
        # Whatever else is due is so for longer than this rule holds; closing by hand comes next.
        slots &= {CUT_ANEW}
    else:
        closed = await _closed(tx, job, batching, due, by_hand=BY_HAND in slots)
    await aggregator.close(tx, job.job_id, closed)
    await aggregator.forget_open(tx, job.job_id, sorted(slots))
    backfill = all(slot.backfill for slot in due)
    return [
        NewEvent(job.job_id, job.outputs[0], "data", b.partition_key, b.first, b.last, backfill=backfill)
        for b in closed
    ]


async def _cut_anew(tx: Transaction, job: InProcessJob, batching: BatchRule) -> list[ClosedBatch]:
    """What has arrived and is in no batch, cut by a rule that holds since a deploy: the batches that it closes."""
    pieces = await aggregator.unbatched(tx, job.job_id)
    if batching.each:
        return [_batch(job, first, last, "deploy") for piece in pieces for first, last in piece.arrived]
    if not pieces:
        return []
    filling, full = {0}, list[OpenPiece]()
    if batching.size is not None:
        slots = await aggregator.slots_with_positions(tx, job.job_id, (_LOWEST, _HIGHEST), batching.size)
        filling, full = await _cut(tx, job, batching, slots)
    if batching.is_timed:
        opened = [(slot, False) for slot in sorted(filling)]
        await aggregator.open_batches(tx, job.job_id, opened, batching.every or batching.max_wait)
    return [_batch(job, p.first, p.last, "full") for p in full]


async def _closed(
    tx: Transaction, job: InProcessJob, batching: BatchRule, due: Sequence[DueSlot], *, by_hand: bool
) -> list[ClosedBatch]:
    if by_hand or batching.size is None:
        reason: ClosedBy = "hand" if by_hand else "every" if batching.every is not None else "all"
        ranges = await aggregator.closable(tx, job.job_id, job.partitions, batching.size)
        return [_batch(job, first, last, reason) for first, last in ranges]
    slots = [slot.slot for slot in due]
    widest = await scopes.widest(tx, job.job_id)
    pieces = await aggregator.open_pieces(tx, job.job_id, job.partitions, slots, batching.size, widest)
    return [_batch(job, p.first, p.arrived, "max_wait") for p in pieces]


def _batch(job: InProcessJob, first: int, last: int, closed_by: ClosedBy) -> ClosedBatch:
    return ClosedBatch(first, last, closed_by, _name(job, (first, last)))


def _name(job: InProcessJob, positions: Range) -> str:
    return job.partitions.written(positions) if job.partitions.is_time else f"{positions[0]}-{positions[1]}"


def _event(
    job: InProcessJob, positions: Range, again: KnownScope | None, causes: Iterable[QueuedTask]
) -> NewEvent:
    """Of a batch: data the first time, an invalidation if it was closed before."""
    causes = list(causes)
    cause = min(causes, key=lambda task: task.task_id)
    first, last = positions
    return NewEvent(
        producer_id=job.job_id,
        generation_id=job.outputs[0],
        kind="invalidation" if again is not None else "data",
        partition_key=again.partition_key if again is not None else _name(job, positions),
        start=first,
        end=last,
        emission=f"task:{cause.task_id}" if again is not None else "",
        backfill=all(task.backfill for task in causes),
        traceparent=cause.traceparent,
    )


def _as_it_came(job: InProcessJob, task: QueuedTask, positions: Range) -> NewEvent:
    """The event of a task, about some of its positions."""
    whole = positions == (task.range_start, task.range_end)
    return NewEvent(
        producer_id=task.task_id,
        generation_id=job.outputs[0],
        kind=task.kind,
        partition_key=task.partition_key if whole else _name(job, positions),
        start=positions[0],
        end=positions[1],
        backfill=task.backfill,
        traceparent=task.traceparent,
    )
