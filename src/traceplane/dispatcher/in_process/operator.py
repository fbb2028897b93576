"""What an in-process operator receives, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from traceplane.model.edges import Edge
from traceplane.model.partitions import Partitions
from traceplane.postgres.events import NewEvent
from traceplane.postgres.tasks import QueuedTask
from traceplane.wire.tasks import TaskError

MAX_POSITIONS_PER_EVENT = 100_000
"""Operators refuse events with more positions than this: they would block all others."""


class Misconfigured(ValueError):
    """An operator cannot work with its `config`; it notices before it writes anything."""


@dataclass(frozen=True, slots=True)
class InProcessInput:
    input_index: int
    generation_id: UUID
    row_generation_id: UUID
    edge: Edge


@dataclass(frozen=True, slots=True)
class InProcessJob:
    job_id: UUID
    config: Mapping[str, Any]
    outputs: Sequence[UUID]
    """The generations that it writes."""
    inputs: Sequence[InProcessInput] = ()
    partitions: Partitions = Partitions()
    """Those of what it writes."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator did with a batch; tasks of the batch that are not mentioned wait for the next pass."""

    events: Sequence[NewEvent]
    completed: Sequence[QueuedTask]
    failed: Mapping[UUID, TaskError] = field(default_factory=dict)
    next_positions: Mapping[UUID, int] = field(default_factory=dict)
    """Where tasks continue in the next pass."""


def too_wide(operator: str) -> TaskError:
    return TaskError(
        "operator.range_too_wide",
        f"the {operator} accepts events of at most {MAX_POSITIONS_PER_EVENT} positions, within 64 bits",
        next_step="emit the range in parts",
        retryable=False,
    )


def positions(task: QueuedTask) -> int:
    return task.range_end - task.range_start + 1
