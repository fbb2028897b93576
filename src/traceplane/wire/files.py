"""File sources in the public API."""

from __future__ import annotations

from datetime import datetime

from traceplane.wire.scalars import Wire


class RefusedFilesView(Wire, frozen=True):
    reason: str
    """Why no partition of the dataset is the one that the names say."""
    count: int
    example: str
    """The path of one of them."""


class FileSourceView(Wire, frozen=True):
    dag: str
    job: str
    dataset: str
    """The dataset that lists the files."""
    path: str
    pattern: str
    listed_at: datetime | None
    """The end of the last complete listing; null: there was none yet."""
    due_at: datetime | None
    """When the next one begins."""
    problem: str | None
    """Why the last listing failed."""
    matched: int
    """Files of the last listing whose names match the pattern."""
    ignored: int
    """Files of the last listing whose names do not match."""
    waiting: int
    """Files that are new or have changed, and are not announced yet."""
    refusals: list[RefusedFilesView]
    """Matching files that belong to no partition, most frequent reason first."""


class FileSourcesResponse(Wire, frozen=True):
    sources: list[FileSourceView]
