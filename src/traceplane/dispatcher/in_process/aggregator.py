"""Positions fill aligned ranges of a fixed size; a full range becomes one partition event, once. With `finality`, not
before a position has arrived that is at least that far beyond its end.

Anything that arrives later for a position of a full range, data or an invalidation, changes that range: it is emitted
again, as an invalidation, once per pass however much arrived. An invalidation fills a range only if it comes from a
commit, which wrote the whole scope; an invalidation alone brings no data.

The job itself is the producer, and a repeated event is named after the first task that caused it. A pass that is
rolled back leaves nothing, so the pass after it emits the same events or more, each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from traceplane.dispatcher.in_process.operator import (
    MAX_POSITIONS_PER_EVENT,
    InProcessJob,
    Work,
    positions,
    too_wide,
)
from traceplane.postgres import aggregator
from traceplane.postgres.database import Transaction
from traceplane.postgres.events import NewEvent
from traceplane.postgres.tasks import QueuedTask

_POSITIONS_PER_PASS = 20_000
"""Events with more positions in total take several passes."""
_LOWEST = -(2**63)
_BEYOND = 2**63


@dataclass(frozen=True, slots=True)
class Ranges:
    """How positions are cut into ranges, and when a range is final."""

    size: int
    finality: int

    @classmethod
    def of(cls, job: InProcessJob) -> Self:
        ranges = cls(int(job.config["size"]), int(job.config.get("finality", 0)))
        if ranges.size < 1 or ranges.finality < 0:
            raise ValueError("size must be at least 1, and finality must not be negative")
        return ranges

    def touched(self, task: QueuedTask) -> range:
        """The starts of the ranges that contain a position of the task."""
        return range(task.range_start // self.size * self.size, task.range_end + 1, self.size)

    def is_final(self, start: int, head: int | None) -> bool:
        """Whether the newest position is far enough beyond a range to consider the range final."""
        if not self.finality:
            return True
        return head is not None and start + self.size - 1 <= head - self.finality

    def ends_made_final(self, old_head: int | None, head: int | None) -> tuple[int, int] | None:
        """The first and the last end of ranges that became final because the head moved."""
        if not self.finality or head is None:
            return None
        after = head if old_head is None else old_head + 1
        first = max(after, self.finality + self.size + _LOWEST) - self.finality
        last = head - self.finality
        return (first, last) if first <= last else None


@dataclass(frozen=True, slots=True)
class Filled:
    """The ranges at one moment: the full ones, and the highest position that arrived."""

    full: Set[int]
    head: int | None


async def run(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    ranges = Ranges.of(job)
    filling = await _filling(tx, batch)
    accepted, refused = take(batch, ranges, filling)
    causes = _causes(accepted, ranges)
    before = Filled(
        full=set(await aggregator.full_ranges(tx, job.job_id, sorted(causes), ranges.size)),
        head=await aggregator.head(tx, job.job_id) if ranges.finality else None,
    )
    if bringers := [task for task in accepted if task.task_id in filling]:
        await aggregator.add_positions(tx, job.job_id, [(t.range_start, t.range_end) for t in bringers])
        after = await _after(tx, job.job_id, ranges, causes, before)
        newest = max(bringers, key=lambda task: task.range_end)
        causes = {start: [newest] for start in after.full} | causes
    else:
        after = before
    events = list(decide(job, ranges, causes, before, after))
    return Work(events, accepted, dict.fromkeys((task.task_id for task in refused), too_wide("aggregator")))


async def _filling(tx: Transaction, batch: Sequence[QueuedTask]) -> set[UUID]:
    """The tasks whose positions have been written."""
    invalidations = [task.task_id for task in batch if task.kind == "invalidation"]
    committed = await aggregator.told_of_commits(tx, invalidations) if invalidations else set()
    return {task.task_id for task in batch if task.kind == "data"} | committed


async def _after(
    tx: Transaction, job_id: UUID, ranges: Ranges, touched: Iterable[int], before: Filled
) -> Filled:
    """Includes ranges that no task of this pass touches but that are final now because the head moved."""
    head = await aggregator.head(tx, job_id) if ranges.finality else None
    ends = ranges.ends_made_final(before.head, head)
    made_final = await aggregator.ranges_between(tx, job_id, *ends, ranges.size) if ends else []
    starts = sorted({*touched, *made_final})
    return Filled(set(await aggregator.full_ranges(tx, job_id, starts, ranges.size)), head)


def take(
    batch: Sequence[QueuedTask], ranges: Ranges, filling: Set[UUID]
) -> tuple[list[QueuedTask], list[QueuedTask]]:
    """The tasks to process now, in order, and those that are too wide for any pass."""
    accepted: list[QueuedTask] = []
    refused: list[QueuedTask] = []
    room = _POSITIONS_PER_PASS
    for task in batch:
        starts = ranges.touched(task)
        cost = positions(task) if task.task_id in filling else len(starts)
        if cost > MAX_POSITIONS_PER_EVENT or starts[0] < _LOWEST or starts[-1] + ranges.size > _BEYOND:
            refused.append(task)
        elif accepted and cost > room:
            break
        else:
            accepted.append(task)
            room -= cost
    return accepted, refused


def _causes(accepted: Sequence[QueuedTask], ranges: Ranges) -> dict[int, list[QueuedTask]]:
    """By the start of each range, the tasks that are about it."""
    causes: dict[int, list[QueuedTask]] = {}
    for task in accepted:
        for start in ranges.touched(task):
            causes.setdefault(start, []).append(task)
    return causes


def decide(
    job: InProcessJob,
    ranges: Ranges,
    causes: Mapping[int, Sequence[QueuedTask]],
    before: Filled,
    after: Filled,
) -> Iterable[NewEvent]:
    """One event for each range that is full and final now: data the first time, an invalidation after that."""
    for start in sorted(after.full):
        if not ranges.is_final(start, after.head):
            continue
        cause = min(causes[start], key=lambda task: task.task_id)
        again = start in before.full and ranges.is_final(start, before.head)
        end = start + ranges.size - 1
        yield NewEvent(
            producer_id=job.job_id,
            generation_id=job.outputs[0],
            kind="invalidation" if again else "data",
            partition_key=f"{start}-{end}",
            start=start,
            end=end,
            emission=f"task:{cause.task_id}" if again else "",
            backfill=all(task.backfill for task in causes[start]),
            traceparent=cause.traceparent,
        )
