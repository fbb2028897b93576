"""A small shop whose datasets are really published: Parquet files in an object store, commits in Postgres.

Orders 1 to 60 lie in three files by position; each has an email, which is marked as personal data. Nothing is
computed here; commits are made as the dispatcher makes them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as parquet

from tests.control_plane import ControlPlane
from traceplane.columnar import parquet_facts
from traceplane.model.dataset_schema import SchemaColumn, merge
from traceplane.postgres import commits, generation_schemas
from traceplane.postgres.commits import OutputCommit
from traceplane.wire.tasks import ColumnStatistics, StagedFile

DAG = """
version: 1
dag: shop
datasets:
  shop.orders:
    position: id
    columns:
    - {name: id, type: bigint}
    - {name: customer, type: string}
    - {name: amount, type: double}
    - {name: day, type: date}
    - {name: email, type: string, pii: true}
  shop.items:
    position: order_id
    columns: [{name: order_id, type: bigint}, {name: sku, type: string}]
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: shop.in}]}
- name: orders
  runtime: python
  operator: python
  inputs: [{from: {dataset: shop.in}}]
  outputs: [{dataset: shop.orders}]
  config: {entrypoint: "basic:copy"}
- name: items
  runtime: spark
  operator: sql
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{name: items, dataset: shop.items}]
  config: {query: "select id as order_id, upper(customer) || '-' || day as sku from orders where amount > 1"}
- name: tens
  runtime: dispatcher
  operator: aggregator
  inputs: [{from: {dataset: shop.orders}}]
  outputs: [{dataset: shop.ranges}]
  config: {size: 10}
"""
SECRET = "secret"


def orders(first: int, last: int) -> pa.Table:
    ids = range(first, last + 1)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": [("ann", "bob", "cleo")[i % 3] for i in ids],
            "amount": [i / 2 for i in ids],
            "day": [date(2024, 1, 1) + timedelta(days=i) for i in ids],
            "email": [f"{SECRET}-{i}@mail.example" for i in ids],
        }
    )


def items(first: int, last: int) -> pa.Table:
    ids = range(first, last + 1)
    return pa.table({"order_id": pa.array(ids, pa.int64()), "sku": [f"sku-{i % 7}" for i in ids]})


class Shop:
    def __init__(self, plane: ControlPlane, store: Path) -> None:
        self.plane, self.store = plane, store

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, store: Path) -> AsyncIterator[Shop]:
        async with ControlPlane.open(url, object_store=str(store), home=store.parent) as plane:
            await plane.deploy(DAG)
            shop = cls(plane, store)
            for first in (1, 21, 41):
                await shop.publish("shop.orders", orders(first, first + 19), first, first + 19)
            await shop.publish("shop.items", items(1, 30), 1, 30)
            yield shop

    async def generation(self, dataset: str) -> tuple[UUID, UUID]:
        (row,) = await self.plane.sql(
            "select dataset_uuid, current_generation_id from datasets where dataset_id = $1", dataset
        )
        return row[0], row[1]

    async def publish(
        self, dataset: str, table: pa.Table, first: int, last: int, generation: UUID | None = None
    ) -> str:
        """Commits a table as the rows of a range; the path of its file."""
        dataset_uuid, current = await self.generation(dataset)
        generation, task_id = generation or current, uuid4()
        path = f"{dataset_uuid}/{generation}/staging/{task_id}/1/part-0.parquet"
        place = self.store / path
        place.parent.mkdir(parents=True)
        parquet.write_table(table, place)
        statistics = parquet_facts.statistics(parquet.read_metadata(place))
        file = StagedFile(
            path,
            table.num_rows,
            place.stat().st_size,
            {name: ColumnStatistics(f.min, f.max, f.null_count) for name, f in statistics.items()},
        )
        columns = tuple(SchemaColumn(c.name, str(c.type), c.nullable) for c in table.schema)
        commit = OutputCommit(
            task_id, 0, generation, f"{first}-{last}", first, last, [file], table.num_rows, file.bytes, "h", columns
        )  # fmt: skip
        async with self.plane.database.transaction() as tx:
            known = (await generation_schemas.load(tx, [generation]))[generation]
            merged = merge(known.schema, columns)
            assert isinstance(merged, tuple)
            await commits.record(tx, [commit])
            if merged != known.schema:
                await generation_schemas.save(tx, {generation: (merged, known.revision)})
        return path


def queries(name: str, **paths: Any) -> Iterator[str]:
    """The queries of a file, with paths filled in and escapes decoded."""
    for line in (Path(__file__).parent / name).read_text().splitlines():
        if line and not line.startswith("#"):
            for key, path in paths.items():
                line = line.replace("{" + key + "}", str(path))
            yield re.sub(r"\\(\\|n|t|r|u[0-9a-f]{4})", _decoded, line)


def _decoded(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if code[0] == "u" else {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}[code]
