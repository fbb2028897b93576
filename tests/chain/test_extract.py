"""A range comes back complete, linked and of one fork, or not at all."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.chain.conftest import patient
from traceplane.chain.answers import Log, SlimBlock
from traceplane.chain.doubts import doubt_logs
from traceplane.chain.errors import BeyondHead, EndpointsDisagree, RpcError, RpcInconsistent
from traceplane.chain.extract import (
    ALL_TABLES,
    fetch_range,
    fetch_range_sync,
    stream_range,
    stream_range_sync,
)
from traceplane.chain.rpc import RpcCall, RpcClient
from traceplane.chain.rules import LENIENT
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.server import Simulator, serve, serve_in_process_of_its_own
from traceplane.chain.tables import SCHEMAS
from traceplane.errors import InvalidInput


def expect(node: Simulator, first: int, last: int) -> dict[str, int]:
    blocks = [block for number in range(first, last + 1) if (block := node.ledger.block(number))]
    return {
        "blocks": len(blocks),
        "transactions": sum(len(block.transactions) for block in blocks),
        "receipts": sum(len(block.receipts) for block in blocks),
        "logs": sum(len(block.logs) for block in blocks),
    }


def counts(fetched: dict[str, pa.Table]) -> dict[str, int]:
    derived = {"token_transfers", "erc1155_transfers", "withdrawals"}
    return {name: table.num_rows for name, table in fetched.items() if name not in derived}


async def test_all_tables_of_a_range(node: Simulator) -> None:
    async with RpcClient(patient(node.url, batch_size=7)) as client:
        fetched = await fetch_range(client, 0, 40)
    assert counts(fetched) == expect(node, 0, 40)
    assert fetched["blocks"]["block_hash"].to_pylist() == [
        "0x" + node.ledger.hash(n).hex() for n in range(41)
    ]
    assert 0 < fetched["token_transfers"].num_rows < fetched["logs"].num_rows
    wide = fetched["token_transfers"].filter(pc.is_null(fetched["token_transfers"]["value"]))
    assert wide.num_rows > 0
    for name, table in fetched.items():
        assert table.schema == SCHEMAS[name]
        table.validate(full=True)


async def test_only_the_data_that_the_tables_need_is_fetched(node: Simulator) -> None:
    async with RpcClient(patient(node.url)) as client:
        fetched = await fetch_range(client, 3, 9, ["blocks"])
        assert list(fetched) == ["blocks"]
        assert "eth_getBlockReceipts" not in node.calls
        assert (await fetch_range(client, 3, 9, ["logs"]))["logs"].num_rows == expect(node, 3, 9)["logs"]
        assert "eth_getBlockReceipts" not in node.calls


async def test_a_block_that_has_logs_is_not_believed_without_them(node: Simulator) -> None:
    async with RpcClient(patient(node.url)) as client:
        blocks = await client.batch(
            [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in range(41)], SlimBlock
        )
        logs = await client.batch(
            [RpcCall("eth_getLogs", ({"blockHash": block.hash},)) for block in blocks], list[Log]
        )
    assert any(logs)
    for block, fetched in zip(blocks, logs, strict=True):
        assert doubt_logs(LENIENT, block, fetched) is None
        doubt = doubt_logs(LENIENT, block, [])
        assert (doubt is not None) == bool(fetched)
        assert doubt_logs(LENIENT, msgspec.structs.replace(block, logs_bloom=None), []) is None


async def test_chunks_are_consecutive_and_linked(node: Simulator) -> None:
    async with RpcClient(patient(node.url)) as client:
        chunks = [chunk async for chunk in stream_range(client, 5, 40, ["blocks"], chunk_blocks=10)]
    assert [(chunk.first, chunk.last) for chunk in chunks] == [(5, 14), (15, 24), (25, 34), (35, 40)]
    assert [chunk.parent_hash for chunk in chunks[1:]] == [chunk.last_hash for chunk in chunks[:-1]]


@pytest.mark.parametrize("tables", [ALL_TABLES, ("logs",), ("token_transfers",), ("receipts",)])
async def test_a_node_without_block_receipts_gives_the_same_rows(
    node: Simulator, tables: tuple[str, ...]
) -> None:
    async with RpcClient(patient(node.url)) as client:
        expected = await fetch_range(client, 1, 20, tables)
        node.faults.arm(Fault("method_missing", requests=None, methods=["eth_getBlockReceipts"]))
        assert await fetch_range(client, 1, 20, tables) == expected
    fallback = "eth_getTransactionReceipt" if "receipts" in tables else "eth_getLogs"
    assert node.calls[fallback] > 0


LIES = ["missing_receipt", "foreign_receipt", "foreign_log", "missing_log", "wrong_parent", "wrong_hash"]


@pytest.mark.parametrize("kind", LIES)
async def test_a_temporary_lie_changes_no_row(node: Simulator, kind: str) -> None:
    async with RpcClient(patient(node.url)) as client:
        expected = await fetch_range(client, 10, 20)
        method = "eth_getBlockReceipts" if kind in LIES[:4] else "eth_getBlockByNumber"
        node.faults.arm(Fault(kind, methods=[method], requests=3))
        assert await fetch_range(client, 10, 20) == expected


@pytest.mark.parametrize("kind", LIES)
async def test_a_permanent_lie_gives_no_row(node: Simulator, kind: str) -> None:
    method = "eth_getBlockReceipts" if kind in LIES[:4] else "eth_getBlockByNumber"
    node.faults.arm(Fault(kind, methods=[method], requests=None))
    node.ledger.world.chain_id = 1
    async with RpcClient(patient(node.url, chain="ethereum")) as client:
        with pytest.raises(RpcInconsistent) as caught:
            await fetch_range(client, 10, 20)
    expected = "chain.quirk_refused" if kind == "missing_log" else "chain.rpc_inconsistent"
    assert caught.value.code == expected


async def test_a_reorg_between_two_chunks_is_not_hidden(node: Simulator) -> None:
    async with RpcClient(patient(node.url)) as client:
        stream = stream_range(client, 1, 40, ["blocks"], chunk_blocks=10)
        assert (await anext(stream)).last == 10
        node.ledger.fork(35, 40)
        with pytest.raises(RpcInconsistent, match="does not follow"):
            [chunk async for chunk in stream]
        assert counts(await fetch_range(client, 1, 40, ["blocks"])) == {"blocks": 40}


async def test_blocks_beyond_the_head_are_an_error(node: Simulator) -> None:
    async with RpcClient(patient(node.url)) as client:
        with pytest.raises(BeyondHead) as caught:
            await fetch_range(client, 30, 41)
    assert caught.value.value == 40


async def test_a_null_below_the_head_is_not_an_empty_block(node: Simulator) -> None:
    node.faults.arm(Fault("null_result", methods=["eth_getBlockByNumber"], requests=None))
    async with RpcClient(patient(node.url)) as client:
        with pytest.raises(RpcInconsistent, match="null"):
            await fetch_range(client, 1, 2)


async def test_cross_check_rejects_a_range_on_which_endpoints_differ(node: Simulator) -> None:
    async with serve(seed=3, blocks=40) as other, RpcClient(patient(node.url, other.url)) as client:
        await fetch_range(client, 1, 40, ["blocks"], cross_check=True)
        other.ledger.fork(10, 12)
        await fetch_range(client, 1, 30, ["blocks"], cross_check=True)
        with pytest.raises(EndpointsDisagree):
            await fetch_range(client, 1, 40, ["blocks"], cross_check=True)


async def test_random_faults_together_give_the_right_rows_or_an_error() -> None:
    async with (
        serve(seed=11, blocks=60) as node,
        RpcClient(patient(node.url, attempts=12, batch_size=5)) as client,
    ):
        expected = await fetch_range(client, 1, 60)
        for kind in ("http_error", "truncate", "drop_answer", "duplicate_id", "null_result", "foreign_log"):
            node.faults.arm(Fault(kind, requests=None, probability=0.03))
        survived = 0
        for _ in range(5):
            try:
                assert await fetch_range(client, 1, 60) == expected
                survived += 1
            except RpcError:
                continue
        assert survived > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((5, 4), "chain.range_invalid"),
        ((-1, 4), "chain.range_invalid"),
        ((1, 2, ["uncles"]), "chain.table_unknown"),
        ((1, 2, []), "chain.table_unknown"),
    ],
)
async def test_invalid_requests_are_rejected(node: Simulator, arguments: tuple[Any, ...], code: str) -> None:
    async with RpcClient(patient(node.url)) as client:
        with pytest.raises(InvalidInput) as caught:
            await fetch_range(client, *arguments)
    assert caught.value.code == code
    assert node.requests == 0


def test_sync_callers_get_the_same_whole_or_in_chunks() -> None:
    with serve_in_process_of_its_own(seed=3, blocks=40) as url:
        whole = fetch_range_sync(patient(url), 1, 40)
        chunks = list(stream_range_sync(patient(url), 1, 40, chunk_blocks=15))
        early = stream_range_sync(patient(url), 1, 40, chunk_blocks=15)
        assert next(early).last == 15
        assert isinstance(early, Generator)
        early.close()
    assert [chunk.last for chunk in chunks] == [15, 30, 40]
    for name, table in whole.items():
        assert pa.concat_tables([chunk.tables[name] for chunk in chunks]) == table
