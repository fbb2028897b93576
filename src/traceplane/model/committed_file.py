"""A file of a commit, as the database stores it."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from traceplane.model.row_positions import ValueRange


class StoredBounds(TypedDict, total=False):
    """Of one column."""

    min: str | int | float | bool | None
    max: str | int | float | bool | None
    null_count: int | None


class CommittedFile(TypedDict):
    """A claim passes on thousands of them; building objects would cost more than the claim."""

    path: str
    rows: int
    bytes: int
    statistics: NotRequired[dict[str, StoredBounds] | None]
    kept: NotRequired[list[ValueRange]]
    """The values of the position column to read of it, if it is not read in full; never stored."""
