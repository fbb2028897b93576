"""Jobs in the public API: pausing and resuming them, and closing their batches."""

from __future__ import annotations

from typing import Annotated

import msgspec

from traceplane.wire.scalars import Text, Wire


class JobName(Wire, frozen=True):
    dag: Text
    job: Text


class PauseRequest(Wire, frozen=True):
    dag: Text
    job: Text
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Shown to anyone who asks why the job does not run."""


class PauseView(Wire, frozen=True):
    """A paused job."""

    dag: str
    job: str
    paused_by: str
    since: str
    reason: str = ""
    waiting: int = 0
    """The number of waiting tasks, counted up to 10,000."""


class PauseChange(Wire, frozen=True):
    changed: bool
    """False if the job was already paused, or already running."""
    pause: PauseView | None = None
    """The current pause, or the one that ended; unset if the job was not paused."""


class OpenBatch(Wire, frozen=True):
    """A batch that is about to be closed."""

    job: str
    """The aggregator that collects it."""
    dataset: str
    first: int
    last: int
    scope: str = ""
    """From the first to the last, as people write it."""


class BatchesClosing(Wire, frozen=True):
    closing: list[OpenBatch]
    """The batches that the next pass of a dispatcher will close; empty if none is open."""
