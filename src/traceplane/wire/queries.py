"""Queries and the catalog in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.wire.control import CoverageView, CronView
from traceplane.wire.scalars import Text, Wire

Engine = Literal["auto", "duckdb", "spark"]
"""`auto`: Spark if the files to read have more bytes than the setting query_spark_above_mb allows, DuckDB otherwise."""


class QueryRequest(Wire, frozen=True):
    sql: Annotated[str, msgspec.Meta(max_length=65_536)]
    """One SELECT, in DuckDB's dialect."""
    format: Literal["json", "csv", "arrow", "parquet"] | None = None
    """The format of the result; if unset, the Accept header decides, and the default is JSON."""
    as_of_version: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]] = msgspec.field(
        default_factory=dict
    )
    """DAG versions to read instead of the active ones, by DAG name."""
    as_of_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Read the data as of this time."""
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Refuse a larger result; the default is the setting query_max_rows."""
    engine: Engine = "duckdb"
    """What runs the query. If Spark does, the answer is a `QueryTask`, with the header `traceplane-engine: spark`."""

    def __post_init__(self) -> None:
        _not_both(self.as_of_version, self.as_of_time)


def _not_both(versions: dict[str, int], time: datetime | None) -> None:
    if versions and time is not None:
        raise ValueError("a query is as of versions or as of a time, not both")


class QueryTaskRequest(Wire, frozen=True):
    sql: Annotated[str, msgspec.Meta(max_length=65_536)]
    """One SELECT, in DuckDB's dialect."""
    dataset: Annotated[str, msgspec.Meta(pattern=r"^[^\s#\x00-\x20\x7f]{1,200}$")]
    """The name of the dataset that the result becomes."""
    as_of_version: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]] = msgspec.field(
        default_factory=dict
    )
    """DAG versions to read instead of the active ones, by DAG name."""
    as_of_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Read the data as of this time; unset: what is committed when the task starts."""

    def __post_init__(self) -> None:
        _not_both(self.as_of_version, self.as_of_time)


class QueryTask(Wire, frozen=True):
    task_id: UUID
    dataset: str
    dag: str
    """Created for this query only."""
    as_of: datetime | None = None
    """The moment whose rows it reads; unset: those that are there when the task starts."""
    reason: str = ""
    """Why Spark runs it, if the platform chose."""


class QueryPlan(Wire, frozen=True):
    """What would run a query, and why."""

    engine: Literal["duckdb", "spark"]
    reason: str
    files: int
    """Those that can contain matching rows."""
    of_files: int
    bytes: int
    """About how many these files have."""
    limit_bytes: int
    """From which the engine `auto` is Spark."""
    generations: dict[str, str]
    """Of the datasets that it reads and the caller may read."""


class ColumnView(Wire, frozen=True):
    name: str
    type: str
    nullable: bool
    pii: bool = False
    """Personal data, marked or computed from what is; listed only for callers who may see it."""
    derived_from: list[str] | None = None
    """The columns it is computed from, as dataset.column; unset if unknown."""
    declassified: str | None = None
    """Why it is no personal data, although it is computed from some."""


class CatalogEntry(Wire, frozen=True):
    dataset: str
    dag: str
    storage: str
    rows: int
    bytes: int
    commits: int
    version: int | None = None
    """The version of the DAG that is read."""
    generation: UUID | None = None
    cursor: int | None = None
    coverage: CoverageView | None = None
    description: str = ""
    at_most: bool = False
    """`rows` is an upper bound: newer commits have replaced an unknown number of the counted rows."""
    events: int | None = None
    """For a dataset without rows: its number of events, counted up to 10,000. `cursor` is the position of the last."""
    cursor_name: str | None = None
    """The name of the partition at `cursor`, if it is a period; partitions by name have no last one."""


class CatalogQuery(Wire, frozen=True):
    find: Text | None = None
    """In the name of the dataset, of its DAG, or in its description, in any case of letters."""
    after: Text | None = None
    """Only datasets whose names come after this one."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """Unset: all."""


class CatalogResponse(Wire, frozen=True):
    datasets: list[CatalogEntry]
    after: str | None = None
    """Of the next page, if there is one."""


class DatasetDetail(Wire, frozen=True):
    dataset: CatalogEntry
    columns: list[ColumnView]
    position: str | None = None
    """The column that holds each row's position."""
    produced_by: list[str] = msgspec.field(default_factory=list)
    """Jobs, as dag/job."""
    read_by: list[str] = msgspec.field(default_factory=list)
    sql: str | None = None
    """For a virtual dataset: its query."""
    cron: CronView | None = None
    """The schedule of its source."""
    read_roles: list[str] | None = None
    """Unset: everybody of the organization."""
    write_roles: list[str] | None = None
    """Unset: every writer."""


class ColumnLineageQuery(Wire, frozen=True):
    column: Text


class DerivedColumn(Wire, frozen=True):
    dataset: str
    column: str
    derived_from: list[str] = []
    """Columns that it is computed from, as dataset.column."""


class ColumnLineage(Wire, frozen=True):
    columns: list[DerivedColumn]
    """The column itself, what it is computed from, and what is computed from it, however far."""
    cut: bool = False
    """Whether there are more datasets than were looked at."""


class HistoryPoint(Wire, frozen=True):
    at: datetime
    """When the span of time begins."""
    rows: int
    """Of what was committed in it and is still there."""
    bytes: int
    commits: int


class DatasetHistory(Wire, frozen=True):
    dataset: str
    points: list[HistoryPoint]
    """Oldest first; spans without commits are left out."""
    seconds: float | None = None
    """How long each span is."""
    updated_at: datetime | None = None
    """When something was last committed."""
    filled_at: datetime | None = None
    """When rows were last committed."""
    is_cut: bool = False
    """Only the 20,000 commits with the highest positions are counted; there are more."""
