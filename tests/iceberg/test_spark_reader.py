"""Datasets as a data source for Spark: the rows, rights and moments of queries, read side by side.

The reader is called as Spark calls it; `tests/spark/test_datasources.py` has a real Spark.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, StringContains

from tests.iceberg.served_shop import ServedShop
from tests.query.published import orders
from traceplane.auth.roles import Role
from traceplane.datasources import TraceplaneDataSource
from traceplane.datasources.datasets import TraceplaneReader
from traceplane.errors import TraceplaneError


class Loaded:
    """What Spark keeps of `load()`; each call is made in another process, so it is pickled in between."""

    def __init__(self, served: ServedShop, dataset: str, **options: str) -> None:
        given = {"url": served.url, "token": served.token, **options, "path": dataset}
        self._source = pickle.dumps(TraceplaneDataSource(given))

    def reader(self, *filters: Any) -> TraceplaneReader:
        source = pickle.loads(self._source)  # noqa: S301 -- of this test
        reader = source.reader(source.schema())
        assert reader.pushFilters([*filters]) == [*filters]
        copied: TraceplaneReader = pickle.loads(pickle.dumps(reader))  # noqa: S301 -- of this test
        return copied

    def queries(self, *filters: Any) -> list[str]:
        return [part.value for part in self.reader(*filters).partitions()]

    def rows(self, *filters: Any) -> list[dict[str, Any]]:
        reader = self.reader(*filters)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return pa.Table.from_batches(batches).to_pylist() if batches else []


async def loaded(served: ServedShop, dataset: str, **options: str) -> Loaded:
    return await asyncio.to_thread(Loaded, served, dataset, **options)


async def test_the_rows_are_those_of_a_query_in_parts_that_share_them_out(served: ServedShop) -> None:
    frame = await loaded(served, "shop.orders", parts="3")
    queries = await asyncio.to_thread(frame.queries)
    assert [query.partition(" where ")[2] for query in queries] == [
        '("id" < 21 or "id" is null)',
        '"id" >= 21 and "id" < 41',
        '"id" >= 41',
    ]
    expected = (await served.query('select * from "shop.orders" order by id')).to_pylist()
    rows = await asyncio.to_thread(frame.rows)
    assert sorted(rows, key=lambda row: row["id"]) == expected


async def test_columns_and_filters_are_asked_of_the_query_service(served: ServedShop) -> None:
    frame = await loaded(served, "shop.orders", columns="id, customer", parts="2")
    filters = (GreaterThan(("id",), 10), LessThanOrEqual(("id",), 14), StringContains(("customer",), "e"))
    queries = await asyncio.to_thread(frame.queries, *filters)
    assert queries[0] == (
        'select "id", "customer" from "shop.orders" where "id" > 10 and "id" <= 14'
        ' and ("id" < 13 or "id" is null)'
    )
    rows = await asyncio.to_thread(frame.rows, *filters)
    assert sorted(row["id"] for row in rows) == [11, 12, 13, 14]
    quote = await asyncio.to_thread(frame.rows, EqualTo(("customer",), "x' or 'a' = 'a"), In(("id",), (1, 2)))
    assert quote == []


async def test_a_frame_stays_as_of_the_moment_when_it_was_loaded(served: ServedShop) -> None:
    before = await loaded(served, "shop.orders", columns="id")
    version = await loaded(served, "shop.orders", as_of="shop@1")
    count = len(await asyncio.to_thread(before.rows))
    await served.shop.publish("shop.orders", orders(61, 65), 61, 65)
    assert len(await asyncio.to_thread(before.rows)) == count
    assert len(await asyncio.to_thread((await loaded(served, "shop.orders")).rows)) > count
    assert len(await asyncio.to_thread(version.queries)) == 1  # it has no moment, so there is one query


async def test_personal_data_and_unreadable_datasets_stay_hidden(served: ServedShop) -> None:
    reader = await served.http.token(Role.READER)
    frame = await loaded(served, "shop.orders", token=reader)
    (first, *_) = await asyncio.to_thread(frame.rows)
    assert "email" not in first
    with pytest.raises(TraceplaneError) as refused:
        await loaded(served, "shop.unknown", token=reader)
    assert refused.value.code == "dataset.unknown"
