"""Messages between the gateway and the process of a query. Without DuckDB and Arrow, so that a gateway starts without
them.

The gateway sends one `EngineRequest`. The process sends the pieces of the result and, as the last frame
(`linux.conversation`), an `Answer`: the result is complete, or why there is none.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from traceplane.model.row_positions import ValueRange

Format = Literal["json", "csv", "arrow", "parquet"]


class QueryLimits(msgspec.Struct, frozen=True):
    """Limits of one query."""

    seconds: float
    max_rows: int
    """Of the result, like `max_bytes`."""
    max_bytes: int
    memory_mb: int
    spill_mb: int
    threads: int


class FileGroup(msgspec.Struct, frozen=True):
    paths: list[str]
    kept: list[ValueRange] = []
    """The ranges of the position column to read; empty for all rows."""
    rows: int | None = None
    """About how many rows the files have: what joins are ordered by. None if nobody knows."""


class EngineColumn(msgspec.Struct, frozen=True):
    name: str
    type: str | None
    """DuckDB's spelling; None if only the files know."""
    absent: bool = False
    """No file has it: it is null."""


class EngineRelation(msgspec.Struct, frozen=True):
    name: str
    columns: list[EngineColumn]
    """The columns that the caller may see."""
    groups: list[FileGroup]
    position: EngineColumn | None = None
    sql: str | None = None
    """Of a virtual dataset: its SQL, over relations that come before it."""
    left_out: bool = False
    """Rather than the rows that are read: the `filename` and the `file_row_number` of those that are not."""


class EngineQuery(msgspec.Struct, frozen=True):
    sql: str
    relations: list[EngineRelation]
    format: Format
    roots: list[str]
    """The folders that hold the files."""
    limits: QueryLimits
    in_parts: dict[str, int] = {}
    """Files of the store that are read in parts, by their names (`store_files`): their sizes, in the order of their
    numbers."""


class EngineRequest(msgspec.Struct, frozen=True):
    query: EngineQuery
    spill: str
    """An empty folder for this query alone."""


class QueryFinished(msgspec.Struct, frozen=True, tag=True):
    rows: int
    bytes: int


class QueryFailed(msgspec.Struct, frozen=True, tag=True):
    """For the caller."""

    code: str
    message: str


Answer = QueryFinished | QueryFailed
