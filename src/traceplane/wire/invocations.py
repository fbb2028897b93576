"""The contract between the dispatcher and the functions that it calls."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from traceplane.wire.scalars import Wire
from traceplane.wire.tasks import LONGEST_LOG, ClaimedTask, EventOut, JobPayload, OutputManifest, TaskError

COMPLETE_PATH = "/internal/task-complete"


class Invocation(Wire, frozen=True):
    """What a function is called with."""

    task: ClaimedTask
    job: JobPayload
    token: str
    """The capability token for this task only."""
    complete_url: str
    """Where a function that answers `accepted` reports, with the task's fence and the token."""
    object_store: str = ""
    """Where the files of datasets are: an absolute path, or `s3://bucket/prefix`."""


class Answer(Wire, frozen=True):
    """What a function answers: a completion without its fence, or that it reports by itself."""

    status: Literal["completed", "failed", "canceled"] | None = None
    outputs: Annotated[list[OutputManifest], msgspec.Meta(max_length=10_000)] = msgspec.field(
        default_factory=list
    )
    events: Annotated[list[EventOut], msgspec.Meta(max_length=10_000)] = msgspec.field(default_factory=list)
    error: TaskError | None = None
    log: Annotated[str, msgspec.Meta(max_length=LONGEST_LOG)] = ""
    """The end of the function's log."""
    accepted: bool = False

    def __post_init__(self) -> None:
        if self.accepted == (self.status is not None):
            raise ValueError("an answer needs either a status or accepted: true")
        if self.accepted and (self.outputs or self.events or self.error or self.log):
            raise ValueError("an answer with accepted: true may have no other fields")
