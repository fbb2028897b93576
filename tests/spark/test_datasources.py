"""Chains are read by any Spark as a data source: one table, from one chain, and only the blocks that are needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.chain.conftest import hash_of, patient
from tests.gateway_http import GatewayHttp
from tests.iceberg.served_shop import ServedShop
from tests.query.published import Shop
from traceplane.auth.roles import Role
from traceplane.chain.errors import RpcInconsistent
from traceplane.chain.extract import fetch_range
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.datasources import EvmDataSource, TraceplaneDataSource
from traceplane.datasources.evm import EvmOptions, EvmReader, EvmStreamReader
from traceplane.errors import InvalidInput
from traceplane.testing import local_spark

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with local_spark() as spark:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        spark.dataSource.register(EvmDataSource)
        spark.dataSource.register(TraceplaneDataSource)
        yield spark


@pytest.fixture
async def node() -> AsyncIterator[Simulator]:
    async with serve(seed=3, blocks=40) as simulator:
        yield simulator


def options(node: Simulator, **more: object) -> EvmOptions:
    return EvmOptions(endpoints=(node.url,), chunk_blocks=4, parts=3, **more)  # type: ignore[arg-type]


async def test_spark_reads_every_table_and_asks_only_for_the_blocks_of_a_filter(
    session: Any, node: Simulator
) -> None:
    reader = session.read.format("evm").option("endpoint", node.url).option("chunk_blocks", "4")

    def read(table: str) -> pa.Table:
        return reader.option("table", table).load().orderBy("block_number").toArrow()

    async with RpcClient(patient(node.url)) as client:
        chain = await fetch_range(client, 0, 40)
    for table in ("blocks", "token_transfers"):
        rows = await asyncio.to_thread(read, table)
        key = "block_hash" if table == "blocks" else "value_text"
        assert sorted(rows.to_pylist(), key=lambda row: (row["block_number"], row[key])) == sorted(
            chain[table].to_pylist(), key=lambda row: (row["block_number"], row[key])
        )
    node.calls.clear()

    def few() -> list[Any]:
        frame = reader.option("table", "logs").option("columns", "block_number, address").load()
        assert frame.columns == ["block_number", "address"]
        return frame.filter("block_number between 10 and 12").collect()

    rows_of_three = await asyncio.to_thread(few)
    assert len(rows_of_three) == len(chain["logs"].filter(pc.field("block_number").isin([10, 11, 12])))
    assert node.calls["eth_getLogs"] < 10


async def test_parts_of_a_read_belong_to_one_chain(node: Simulator) -> None:
    reader = EvmReader(options(node, table="blocks"), ["block_number", "block_hash"])
    parts = await asyncio.to_thread(reader.partitions)
    assert [part.value for part in parts] == [(0, 15), (16, 31), (32, 40)]

    def read(part: Any) -> pa.Table:
        return pa.Table.from_batches(list(reader.read(part)))

    first = await asyncio.to_thread(read, parts[0])
    assert first["block_number"].to_pylist() == list(range(16))
    node.ledger.fork(20, 20)
    for part in parts[1:]:
        with pytest.raises(RpcInconsistent):
            await asyncio.to_thread(read, part)


async def test_a_stream_reads_each_block_once_and_stops_when_the_chain_leaves_what_it_read(
    node: Simulator,
) -> None:
    reader = EvmStreamReader(options(node, table="blocks", confirmations=2, max_blocks=30), ["block_number"])

    def step(start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        end = reader.latestOffset(start, None)
        batches = [b for part in reader.partitions(start, end) for b in reader.read(part)]
        return end, [n for batch in batches for n in batch["block_number"].to_pylist()]

    start = reader.initialOffset()
    first, numbers = await asyncio.to_thread(step, start)
    second, more = await asyncio.to_thread(step, first)
    assert numbers + more == list(range(39))
    assert await asyncio.to_thread(step, second) == (second, [])
    node.ledger.fork(2, 3)  # above what was read
    third, more = await asyncio.to_thread(step, second)
    assert (more, third["hash"]) == ([39], hash_of(node, 39))
    node.ledger.fork(3, 8)
    with pytest.raises(RpcInconsistent, match="confirmations"):
        await asyncio.to_thread(step, third)


async def test_a_stream_of_spark_continues_from_its_checkpoint(
    session: Any, node: Simulator, tmp_path: Path
) -> None:
    def run() -> list[int]:
        stream = session.readStream.format("evm").options(
            endpoint=node.url, table="blocks", columns="block_number", from_block="30", max_blocks="4"
        )
        writer = (
            stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
        )
        writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
        rows = session.read.schema("block_number long").parquet(str(tmp_path / "rows")).collect()
        return sorted(row.block_number for row in rows)

    assert await asyncio.to_thread(run) == list(range(30, 41))
    node.ledger.mine(3)
    assert await asyncio.to_thread(run) == list(range(30, 44))


async def test_spark_reads_a_dataset_of_a_gateway_side_by_side(
    session: Any, database_url: str, tmp_path: Path
) -> None:
    async with Shop.open(database_url, tmp_path / "objects") as shop, GatewayHttp.open(shop.plane) as http:
        served = ServedShop(shop, http, await http.token(Role.ADMIN))
        expected = await served.query('select id, customer, day from "shop.orders" where id > 30 order by id')

        def read() -> pa.Table:
            reader = session.read.format("traceplane").options(url=served.url, token=served.token, parts="3")
            frame = reader.load("shop.orders").filter("id > 30")
            assert frame.rdd.getNumPartitions() == 3
            return frame.select("id", "customer", "day").orderBy("id").toArrow()

        assert (await asyncio.to_thread(read)).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "logs"}, "endpoints"),
        ({"endpoint": "http://a", "table": "uncles"}, "table"),
        ({"endpoint": "http://a", "table": "logs", "colums": "a"}, "colums"),
        ({"endpoint": "http://a", "table": "logs", "parts": "many"}, "parts"),
        ({"endpoint": "ftp://a", "table": "logs"}, "http or https"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        EvmDataSource(given)
    assert refused.value.code == "datasource.bad_option"


def test_an_unknown_column_is_named() -> None:
    source = EvmDataSource({"endpoint": "http://a", "table": "logs", "columns": "address,size"})
    with pytest.raises(InvalidInput, match="size"):
        source.schema()
