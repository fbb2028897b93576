"""What other engines read through the catalog is what our own query of the same moment reads, row by row."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from tests.docs_pages import blocks, page
from tests.iceberg.engines import ENGINES, duckdb_rows, pyiceberg_catalog, rows_of
from tests.iceberg.served_shop import ServedShop
from tests.query.published import orders

DAYS = """
version: 1
dag: days
datasets:
  days.in: {partitions: {by: day}}
  days.sales:
    position: day
    partitions: {by: day}
    columns: [{name: day, type: date}, {name: amount, type: double}]
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: days.in}]}
- name: sales
  runtime: python
  operator: python
  inputs: [{from: {dataset: days.in}}]
  outputs: [{dataset: days.sales}]
  config: {entrypoint: "basic:copy"}
"""
TYPES = """
version: 1
dag: types
datasets: {types.all: {position: n}}
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: types.in}]}
- name: copy
  runtime: python
  operator: python
  inputs: [{from: {dataset: types.in}}]
  outputs: [{dataset: types.all}]
  config: {entrypoint: "basic:copy"}
"""


async def test_engines_read_what_a_query_reads(served: ServedShop) -> None:
    assert await served.equal("shop.orders") == 60
    assert await served.equal("shop.items") == 30
    assert await served.equal("shop.ranges") == 60


async def test_rows_that_newer_commits_hide_are_deleted(served: ServedShop) -> None:
    """A reorg: ranges are replaced across files, some wholly, some with fewer rows, some again."""
    again = orders(15, 25).set_column(2, "amount", pa.array([-1.0] * 11))
    await served.shop.publish("shop.orders", again, 15, 25)
    assert await served.equal("shop.orders") == 60
    await served.shop.publish("shop.orders", orders(20, 22).slice(0, 1), 20, 22)
    assert await served.equal("shop.orders") == 58
    await served.shop.publish("shop.orders", orders(41, 60), 41, 60)
    assert await served.equal("shop.orders") == 58
    before = await served.pinned()
    await served.shop.publish("shop.orders", orders(1, 60), 1, 60)
    assert await served.equal("shop.orders") == 60
    assert await served.equal("shop.orders", before, as_of_time=before) == 58


async def test_random_reorgs(served: ServedShop) -> None:
    chance = random.Random(7)
    for step in range(12):
        first = chance.randint(1, 60)
        last = min(60, first + chance.randint(0, 15))
        table = orders(first, last).set_column(2, "amount", pa.array([float(step)] * (last - first + 1)))
        kept = [n for n in range(table.num_rows) if chance.random() < 0.8]
        await served.shop.publish("shop.orders", table.take(kept), first, last)
        expected = await served.query("select * from shop.orders")
        actual = await served.read("pyiceberg", "shop.orders")
        assert rows_of(actual) == rows_of(expected), step
    await served.equal("shop.orders")


async def test_columns_that_come_later_or_become_wider(served: ServedShop) -> None:
    await served.shop.plane.deploy(TYPES)
    publish = served.shop.publish
    await publish("types.all", pa.table({"n": pa.array([1, 2], pa.int32()), "a": ["x", None]}), 1, 2)
    wider = {"n": pa.array([3], pa.int64()), "a": ["y"], "b": pa.array([[1, None]], pa.list_(pa.int64()))}
    await publish("types.all", pa.table(wider), 3, 3)
    assert rows_of(await served.query("select * from types.all")) == rows_of(
        pa.table({"n": [1, 2, 3], "a": ["x", None, "y"], "b": [None, None, [1, None]]})
    )
    expected = rows_of(await served.query("select * from types.all"))
    for engine in ENGINES:
        assert rows_of(await served.read(engine, "types.all", dag="types")) == expected, engine


async def test_all_types(served: ServedShop) -> None:
    await served.shop.plane.deploy(TYPES)
    moment = datetime(2026, 11, 18, 12, 30, 1, 250_000, tzinfo=UTC)
    columns = {
        "n": pa.array([1, 2], pa.int64()),
        "truth": pa.array([True, None]),
        "small": pa.array([-5, 5], pa.int16()),
        "unsigned": pa.array([2**32 - 1, 0], pa.uint32()),
        "single": pa.array([1.5, None], pa.float32()),
        "money": pa.array([Decimal("12.34"), None], pa.decimal128(38, 2)),
        "text": pa.array(["ä€😀", ""], pa.large_string()),
        "coded": pa.array(["a", "a"]).dictionary_encode(),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "day": pa.array([date(1969, 12, 31), None]),
        "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
        "zoned": pa.array([moment, None], pa.timestamp("ms", "UTC")),
        "list": pa.array([["x"], []], pa.list_(pa.string())),
        "struct": pa.array([{"a": 1, "b": {"c": "d"}}, None]),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
    await served.shop.publish("types.all", pa.table(columns), 1, 2)
    expected = rows_of(await served.query("select * from types.all"))
    for engine in ("pyiceberg", "duckdb"):
        assert rows_of(await served.read(engine, "types.all", dag="types")) == expected, engine
    # Polars has maps as lists.
    by_polars = (await served.read("polars", "types.all", dag="types")).drop_columns(["map"])
    assert rows_of(by_polars) == rows_of(
        (await served.query("select * from types.all")).drop_columns(["map"])
    )


def _planned(table: Table, condition: str) -> int:
    return len(list(table.scan(row_filter=condition).plan_files()))


async def test_engines_skip_files_by_statistics(served: ServedShop) -> None:
    catalog = await asyncio.to_thread(pyiceberg_catalog, served.url, served.token)
    table = await asyncio.to_thread(catalog.load_table, ("shop", "shop.orders"))
    assert _planned(table, "id >= 0") == 3
    assert _planned(table, "id = 30") == 1
    assert _planned(table, "day < '2024-01-10'") == 1
    assert _planned(table, "email is null") == 0
    assert _planned(table, "amount < 2") == 1
    assert _planned(table, "amount > 1000") == 3  # it might be NaN


async def test_periods_are_partitions(served: ServedShop) -> None:
    await served.shop.plane.deploy(DAYS)
    first = date(2026, 11, 1)
    position = (first - date(1970, 1, 1)).days
    for n in range(4):
        rows = pa.table({"day": [first + timedelta(days=n)] * 3, "amount": [1.0, 2.0, float(n)]})
        await served.shop.publish("days.sales", rows, position + n, position + n)
    both = pa.table({"day": [first + timedelta(days=n) for n in (4, 5)], "amount": [1.0, 1.0]})
    await served.shop.publish("days.sales", both, position + 4, position + 5)
    again = pa.table({"day": [first + timedelta(days=5)], "amount": [9.0]})
    await served.shop.publish("days.sales", again, position + 5, position + 5)
    catalog = await asyncio.to_thread(pyiceberg_catalog, served.url, served.token)
    table = await asyncio.to_thread(catalog.load_table, ("days", "days.sales"))
    assert str(table.spec().fields[0].transform) == "day"
    assert _planned(table, "day = '2026-11-02'") == 1
    assert _planned(table, "day >= '2026-11-04'") == 3
    expected = await served.query("select * from days.sales")
    for engine in ENGINES:
        assert rows_of(await served.read(engine, "days.sales", dag="days")) == rows_of(expected), engine
    sql = "select sum(amount) from ic.days.\"days.sales\" where day between '2026-11-03' and '2026-11-06'"
    ((found,),) = await asyncio.to_thread(duckdb_rows, served.url, served.token, sql)
    assert found == 5.0 + 6.0 + 1.0 + 9.0


async def test_a_dataset_without_rows_is_an_empty_table(served: ServedShop) -> None:
    await served.shop.plane.deploy(DAYS)
    for engine in ENGINES:
        table = await served.read(engine, "days.sales", dag="days")
        assert (table.num_rows, table.column_names) == (0, ["day", "amount"]), engine


async def test_the_examples_of_the_guide(served: ServedShop) -> None:
    def here(text: str) -> str:
        return text.replace("http://localhost:7461", served.url).replace("tpu_…", served.token)

    first, second = blocks(page("guides/iceberg.md"), "python")
    names: dict[str, Any] = {}
    (sql,) = blocks(page("guides/iceberg.md"), "sql")
    await asyncio.to_thread(exec, here(first), names)
    await asyncio.to_thread(exec, here(second), names)
    assert (await asyncio.to_thread(names["frame"].collect)).height == 60
    by_short_name = await asyncio.to_thread(names["catalog"].load_table, "shop.orders")
    assert by_short_name.name() == ("shop", "orders")
    *_, query = here(sql).strip().rstrip(";").split(";")
    assert len(await asyncio.to_thread(duckdb_rows, served.url, served.token, query)) == 3
