"""Jobs of the public API, as people look after them."""

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
    """For those who wonder why the job does nothing."""


class PauseView(Wire, frozen=True):
    """A job that somebody paused."""

    dag: str
    job: str
    paused_by: str
    since: str
    reason: str = ""
    waiting: int = 0
    """Its tasks that wait, counted up to 10,000."""


class PauseChange(Wire, frozen=True):
    changed: bool
    """False: the job was paused, or not paused, before."""
    pause: PauseView | None = None
    """The pause that holds now, or that ended; none: the job was not paused."""


class OpenBatch(Wire, frozen=True):
    """Positions that have arrived and are in no batch."""

    job: str
    """The aggregator that collects them."""
    dataset: str
    first: int
    last: int
    scope: str = ""
    """From the first to the last, as people write it."""


class BatchesClosing(Wire, frozen=True):
    closing: list[OpenBatch]
    """What is closed in the next pass of a dispatcher; empty: nothing is open."""
