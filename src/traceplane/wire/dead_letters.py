"""Dead letters of buffered datasets in the public API."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.wire.scalars import Count, Wire
from traceplane.wire.tasks import RefusedRow


class DeadLetterQuery(Wire, frozen=True):
    dag: str | None = None
    job: str | None = None
    dataset: str | None = None
    after: Count | None = None
    """The `after` of the previous page."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class DeadLetterView(Wire, frozen=True):
    """A completed attempt whose rows could not be written; its task is dead."""

    task_id: UUID
    dag: str
    job: str
    dataset: str
    """Whose sink refused it: the first buffered dataset that the task writes."""
    attempt: int
    tries: int
    """How often the sink tried to write it."""
    rows: int
    bytes: int
    files: int
    handed_over_at: str
    failed_at: str
    scope: str | None = None
    error: JsonObject | None = None
    standing: Literal["open", "superseded", "retired", "acknowledged"] | None = None
    """Of the task."""


class DeadLettersResponse(Wire, frozen=True):
    letters: list[DeadLetterView]
    after: int | None = None
    """Set if there may be more: the `after` of the next page."""


class LetterFileView(Wire, frozen=True):
    dataset: str
    path: str
    """Within the object store."""
    rows: int
    bytes: int


class DeadLetterDetail(Wire, frozen=True):
    letter: DeadLetterView
    files: list[LetterFileView]
    """The first hundred."""
    row: RefusedRow | None = None
    """The row that was refused, if it is known and the caller may see it."""
    why_not_replayed: str | None = None
    """Why it cannot be replayed now; unset if it can. The values are those of `TaskChanges`."""
    next_step: str = ""
