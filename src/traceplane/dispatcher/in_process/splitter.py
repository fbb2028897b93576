"""A partition becomes one cursor event for each of its positions, in order; the inverse of an aggregator."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from traceplane.dispatcher.in_process.operator import (
    MAX_POSITIONS_PER_EVENT,
    InProcessJob,
    Work,
    positions,
    too_wide,
)
from traceplane.postgres.database import Transaction
from traceplane.postgres.events import NewEvent
from traceplane.postgres.tasks import QueuedTask

_EVENTS_PER_PASS = 2_000
"""A wide partition takes several passes."""


async def run(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    """A task that a pass completes only in part stores the position to continue at, in the same transaction as the
    events before it."""
    events: list[NewEvent] = []
    completed: list[QueuedTask] = []
    next_positions: dict[UUID, int] = {}
    narrow = [task for task in batch if positions(task) <= MAX_POSITIONS_PER_EVENT]
    for task in narrow:
        room = (_EVENTS_PER_PASS - len(events)) // max(1, len(job.outputs))
        if room <= 0:
            break
        first = task.range_start if task.next_position is None else task.next_position
        last = min(task.range_end, first + room - 1)
        events += (
            NewEvent(
                producer_id=task.task_id,
                generation_id=generation,
                kind=task.kind,
                partition_key=None,
                start=position,
                end=position,
                backfill=task.backfill,
                traceparent=task.traceparent,
            )
            for position in range(first, last + 1)
            for generation in job.outputs
        )
        if last == task.range_end:
            completed.append(task)
        else:
            next_positions[task.task_id] = last + 1
    wide = [task.task_id for task in batch if positions(task) > MAX_POSITIONS_PER_EVENT]
    return Work(events, completed, dict.fromkeys(wide, too_wide("splitter")), next_positions)
