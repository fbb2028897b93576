"""Events as people look at them, and all that one of them caused, in the public API."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.wire.scalars import Position, Text, Wire


class EventQuery(Wire, frozen=True):
    dataset: Text | None = None
    """Only events of this dataset."""
    kind: Literal["data", "invalidation"] | None = None
    start: Text | None = None
    end: Text | None = None
    """Only events whose scope begins from `start` to `end`: positions or partitions of the dataset. They come by
    position then, the last one first, and have no further pages."""
    task_id: UUID | None = None
    """Only events that this task produced."""
    commit_id: Position | None = None
    """Only events that tell of this commit."""
    before: Position | None = None
    """Only events older than this one."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class EventView(Wire, frozen=True):
    event_id: int
    dataset: str
    kind: str
    scope: str
    created_at: str
    backfill: bool = False
    """Whether a backfill led to it."""
    emission: str = ""
    """What tells it from other events of the same scope and kind."""
    task_id: UUID | None = None
    """The task that produced it; unset if it came from outside, or the caller may not see the task."""
    dag: str | None = None
    job: str | None = None
    """Of that task."""
    serving: bool = True
    """Whether it is of the version that serves; others are being built, or no longer serve."""


class EventList(Wire, frozen=True):
    events: list[EventView]
    before: int | None = None
    """Where the next page begins; unset if there is none."""
    more: bool = False
    """Of a range: whether there are more events than `limit`."""


class EffectsQuery(Wire, frozen=True):
    depth: Annotated[int, msgspec.Meta(ge=1, le=50)] = 12
    """How many steps down, from an event to its tasks or from a task to its events."""
    width: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20
    """How much of one event or task is shown; the rest is counted."""
    after: Text | None = None
    """Only what comes after this in the root: the `next` of an earlier answer."""


class EffectCommit(Wire, frozen=True):
    commit_id: int
    dataset: str
    scope: str
    rows: int
    bytes: int
    committed_at: str


class EffectTask(Wire, frozen=True):
    task_id: UUID
    dag: str
    job: str
    state: str
    kind: str
    attempt: int
    max_attempts: int
    created_at: str
    scope: str | None = None
    started_at: str | None = None
    """When its last attempt began."""
    finished_at: str | None = None
    commits: list[EffectCommit] = []
    """The first of its commits."""
    more_commits: bool = False


class Effect(Wire, frozen=True):
    """An event or a task, within what another one caused."""

    parent: int | None = None
    """Its place in `effects`; unset for the root."""
    event: EventView | None = None
    task: EffectTask | None = None
    left_out: int = 0
    """What it caused besides what is shown, counted up to 1,000."""
    next: str | None = None
    """`after` of a call with this as its root, to see what was left out."""
    shown_at: int | None = None
    """Of what is reached on several ways: the place where it is shown first, with what it caused."""


class EffectsResponse(Wire, frozen=True):
    effects: list[Effect]
    """The root first; parents come before what they caused."""
