"""Datasets of a gateway: `spark.read.format("traceplane").load("shop.orders")`.

Rows come from the query service, with its rights: columns that the token may not see are not there. What is loaded
belongs to one moment, that of `load()` or of `as_of`, however often the frame is used. Several queries read it side by
side, each a range of positions; without a moment they could see different states, so there is one query then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.ipc as ipc
from msgspec import Meta
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from traceplane.client import Client
from traceplane.client.results import Pieces
from traceplane.datasources.filters import as_sql, quoted
from traceplane.datasources.options import read, selected
from traceplane.errors import InvalidInput
from traceplane.iceberg.states import state_of
from traceplane.wire.iceberg import CatalogConfig

_HOT = "postgres"


class DatasetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    """The dataset: what `load` is given."""
    url: str | None = None
    token: str | None = None
    """Both as found by the Python client, in each process, if they are not given."""
    tls_ca: str | None = None
    as_of: str = ""
    """A time, `live`, or DAG@VERSION; empty: now."""
    columns: tuple[str, ...] = ()
    parts: Annotated[int, Meta(ge=1, le=10_000)] = 4
    timeout_seconds: Annotated[float, Meta(gt=0)] = 600.0

    def client(self) -> Client:
        return Client(self.url, self.token, tls_ca=self.tls_ca, timeout_seconds=self.timeout_seconds)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a query is asked as of; neither: the current state."""

    time: datetime | None = None
    versions: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, chosen: DatasetOptions) -> Moment:
        asked = state_of(chosen.as_of)
        if asked.versions and asked.at is not None:
            raise InvalidInput(
                "datasource.bad_option",
                "as_of is either a time or a version",
                value=chosen.as_of,
                next_step="give a time such as 2026-11-18T12:00:00Z, `live` or DAG@VERSION",
            )
        if asked.versions:
            return cls(versions=tuple(asked.versions.items()))
        if asked.at is not None or asked.is_live:
            return cls(asked.at)
        client = chosen.client()
        if client.datasets.get(chosen.path).dataset.storage == _HOT:
            return cls()  # which has no history
        return cls(state_of(_present(client)).at)

    @property
    def arguments(self) -> dict[str, Any]:
        return {"as_of_time": self.time, "as_of_version": dict(self.versions) or None}


class TraceplaneDataSource(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._chosen = read(options, DatasetOptions, {})
        self._moment = Moment.of(self._chosen)

    @classmethod
    def name(cls) -> str:
        return "traceplane"

    def schema(self) -> StructType:
        sql = f"select * from {quoted(self._chosen.path)} limit 0"  # noqa: S608 -- its name is quoted
        schema = self._chosen.client().query(sql, **self._moment.arguments).schema
        return from_arrow_schema(selected(schema, self._chosen.columns))

    def reader(self, schema: StructType) -> TraceplaneReader:
        return TraceplaneReader(self._chosen, self._moment, schema)


class TraceplaneReader(DataSourceReader):
    def __init__(self, chosen: DatasetOptions, moment: Moment, schema: StructType) -> None:
        self._chosen, self._moment, self._schema = chosen, moment, schema
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._filters = filters
        return filters

    def partitions(self) -> list[InputPartition]:
        """A partition is the text of its query."""
        conditions = [text for one in self._filters if (text := as_sql(one)) is not None]
        return [InputPartition(self._query([*conditions, *part])) for part in self._parts(conditions)]

    def _query(self, conditions: list[str], columns: str | None = None) -> str:
        columns = columns or ", ".join(map(quoted, self._schema.fieldNames()))
        where = f" where {' and '.join(conditions)}" if conditions else ""
        return f"select {columns} from {quoted(self._chosen.path)}{where}"  # noqa: S608 -- names are quoted

    def _parts(self, conditions: list[str]) -> list[list[str]]:
        """Conditions that share out the rows. The outer ranges have no ends, so that no row is left out."""
        if self._chosen.parts == 1 or self._moment.time is None:
            return [[]]
        client = self._chosen.client()
        position = client.datasets.get(self._chosen.path).position
        if position is None:
            return [[]]
        column = quoted(position)
        ends = client.query(
            self._query(conditions, f"min({column}), max({column})"), **self._moment.arguments
        )
        first, last = (end.as_py() for end in (ends[0][0], ends[1][0]))
        if type(first) is not int or type(last) is not int:
            return [[]]
        cuts = _cuts(first, last, self._chosen.parts)
        if not cuts:
            return [[]]
        return [
            [f"({column} < {cuts[0]} or {column} is null)"],
            *([f"{column} >= {low}", f"{column} < {high}"] for low, high in itertools.pairwise(cuts)),
            [f"{column} >= {cuts[-1]}"],
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(self._schema, timezone="UTC")
        pieces = self._chosen.client().pieces(partition.value, **self._moment.arguments)
        with Pieces(pieces) as file:
            for batch in ipc.open_stream(file):
                yield from pa.Table.from_batches([batch]).select(target.names).cast(target).to_batches()


def _present(client: Client) -> str:
    """The present state of all datasets: a moment to which nothing can be added later."""
    config = client._connection.ask("GET", "/iceberg/v1/config", CatalogConfig)
    return config.overrides["prefix"]


def _cuts(first: int, last: int, parts: int) -> list[int]:
    """Where ranges of about the same length begin, except for the first one."""
    count = min(parts, last - first + 1)
    return [first + (last - first + 1) * number // count for number in range(1, count)]
