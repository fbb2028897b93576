"""Queries and the catalog in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.wire.control import CoverageView, CronView
from traceplane.wire.scalars import Wire


class QueryRequest(Wire, frozen=True):
    sql: Annotated[str, msgspec.Meta(max_length=65_536)]
    """One SELECT, in DuckDB's dialect."""
    format: Literal["json", "csv", "arrow", "parquet"] | None = None
    """Of the result; unset: by the Accept header, or JSON."""
    as_of_version: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]] = msgspec.field(
        default_factory=dict
    )
    """Versions of DAGs, by their names, to read instead of the active ones."""
    as_of_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Read what was there at this time."""
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Refuse a larger result; unset: the setting query_max_rows."""

    def __post_init__(self) -> None:
        if self.as_of_version and self.as_of_time is not None:
            raise ValueError("a query is as of versions or as of a time, not both")


class QueryTaskRequest(Wire, frozen=True):
    sql: Annotated[str, msgspec.Meta(max_length=65_536)]
    """One SELECT, in DuckDB's dialect."""
    dataset: Annotated[str, msgspec.Meta(pattern=r"^[^\s#\x00-\x20\x7f]{1,200}$")]
    """The dataset that its result becomes."""
    as_of_version: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]] = msgspec.field(
        default_factory=dict
    )
    """Versions of DAGs, by their names, to read instead of the active ones."""


class QueryTask(Wire, frozen=True):
    task_id: UUID
    dataset: str
    dag: str
    """Made for this query alone."""


class ColumnView(Wire, frozen=True):
    name: str
    type: str
    nullable: bool
    pii: bool = False
    """Marked as personal data; listed only for those who may see it."""
    derived_from: list[str] | None = None
    """Columns of other datasets, as dataset.column, that it is computed from; unset where that is not known."""


class CatalogEntry(Wire, frozen=True):
    dataset: str
    dag: str
    storage: str
    rows: int
    bytes: int
    commits: int
    version: int | None = None
    """The DAG's version that is read."""
    generation: UUID | None = None
    cursor: int | None = None
    coverage: CoverageView | None = None
    description: str = ""
    at_most: bool = False
    """Newer commits have replaced some of the rows that are counted; how many is not known."""
    events: int | None = None
    """Of a dataset without rows: how many there are, counted up to 10,000. `cursor` is the last one's position."""
    cursor_name: str | None = None
    """The partition at `cursor`, if partitions have names; those by name have no last one."""


class CatalogResponse(Wire, frozen=True):
    datasets: list[CatalogEntry]


class DatasetDetail(Wire, frozen=True):
    dataset: CatalogEntry
    columns: list[ColumnView]
    position: str | None = None
    """The column that says to which position a row belongs."""
    produced_by: list[str] = msgspec.field(default_factory=list)
    """Jobs, as dag/job."""
    read_by: list[str] = msgspec.field(default_factory=list)
    sql: str | None = None
    """Of a virtual dataset: what it is."""
    cron: CronView | None = None
    """The schedule of its source."""
