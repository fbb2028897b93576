"""What nodes do differently from the book is normal on their chain, or recorded, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.chain.conftest import patient
from traceplane.chain.answers import Log, SlimBlock
from traceplane.chain.doubts import doubt_logs
from traceplane.chain.errors import QuirkRefused, RpcInconsistent, WrongChain
from traceplane.chain.extract import ALL_TABLES, fetch_range
from traceplane.chain.rpc import RpcClient
from traceplane.chain.rules import CHAINS, LENIENT, Quirk
from traceplane.chain.simulated import dialects
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.errors import InvalidInput

QUIRKS = {
    "log_index_restarts": Quirk.LOG_INDEX_RESTARTS,
    "log_index_gaps": Quirk.LOG_INDEX_GAPS,
    "no_value": Quirk.TRANSACTION_FIELDS_MISSING,
    "bare_header": Quirk.BLOCK_FIELDS_MISSING,
    "system_transaction": Quirk.RECEIPTS_MISSING,
    "hidden_withdrawals": Quirk.WITHDRAWALS_MISSING,
}
HARMLESS = sorted(set(dialects.KINDS) - set(QUIRKS))


@pytest.fixture
async def node() -> AsyncIterator[Simulator]:
    async with serve(seed=3, blocks=40, chain_id=1) as simulator:
        yield simulator


async def read(
    node: Simulator, chain: str | None = None, tables: Collection[str] = ALL_TABLES
) -> dict[str, pa.Table]:
    if chain is not None:
        node.ledger.world.chain_id = CHAINS[chain].chain_id or 0
    async with RpcClient(patient(node.url, chain=chain)) as client:
        return await fetch_range(client, 1, 10, tables)


def speak(node: Simulator, dialect: str) -> None:
    node.faults.arm(Fault(dialect, requests=None))


def quirks(blocks: pa.Table) -> list[dict[str, str]]:
    return [msgspec.json.decode(text) if text else {} for text in blocks["quirks"].to_pylist()]


async def test_a_node_by_the_book_has_no_quirks(node: Simulator) -> None:
    assert not any(quirks((await read(node))["blocks"]))
    assert await read(node) == await read(node, "ethereum")


@pytest.mark.parametrize("dialect", QUIRKS)
async def test_without_a_chain_every_quirk_is_accepted_and_recorded(node: Simulator, dialect: str) -> None:
    expected = await read(node)
    speak(node, dialect)
    tables = await read(node)
    recorded = quirks(tables["blocks"])
    assert {quirk for block in recorded for quirk in block} == {QUIRKS[dialect]}
    assert all(value for block in recorded for value in block.values())
    for name in ("blocks", "receipts", "logs", "token_transfers"):
        assert tables[name].num_rows == expected[name].num_rows
        assert tables[name]["block_hash"] == expected[name]["block_hash"]
    for table in tables.values():
        table.validate(full=True)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dialect", QUIRKS)
async def test_on_a_chain_only_its_own_quirks_are_accepted(node: Simulator, chain: str, dialect: str) -> None:
    speak(node, dialect)
    if QUIRKS[dialect] in CHAINS[chain].allowed:
        assert any(quirks((await read(node, chain))["blocks"]))
        return
    with pytest.raises(QuirkRefused) as caught:
        await read(node, chain)
    assert caught.value.code == "chain.quirk_refused"
    assert QUIRKS[dialect] in caught.value.message
    assert caught.value.value
    assert "leave out `chain`" in (caught.value.next_step or "")


@pytest.mark.parametrize("dialect", HARMLESS)
@pytest.mark.parametrize("chain", [None, "ethereum"])
async def test_what_a_chain_adds_is_no_quirk(node: Simulator, chain: str | None, dialect: str) -> None:
    speak(node, dialect)
    assert not any(quirks((await read(node, chain))["blocks"]))


async def test_a_transaction_of_an_unknown_type_is_kept_as_it_was_sent(node: Simulator) -> None:
    before = (await read(node))["transactions"].to_pylist()
    speak(node, "new_type")
    rows = (await read(node, "ethereum"))["transactions"].to_pylist()
    last = {row["block_number"]: row for row in rows}
    for row, old in zip(rows, before, strict=True):
        if row is not last[row["block_number"]]:
            assert row == old
            continue
        assert (row["transaction_type"], row["value"], row["value_text"]) == (0x76, None, None)
        sent = msgspec.json.decode(row["raw"])
        assert sent["hash"] == row["transaction_hash"]
        assert sent["calls"] == [{"to": row["to_address"]}]


async def test_numbers_of_logs_stay_those_of_the_node(node: Simulator) -> None:
    speak(node, "log_index_restarts")
    logs = (await read(node))["logs"]
    keys = list(zip(logs["transaction_hash"].to_pylist(), logs["log_index"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)
    assert (await read(node, tables=["logs"]))["logs"] == logs


@pytest.mark.parametrize("tables", [ALL_TABLES, ("receipts",), ("receipts", "logs")])
@pytest.mark.parametrize("by_block", [True, False])
async def test_only_a_chains_own_transactions_may_lack_a_receipt(
    node: Simulator, tables: tuple[str, ...], by_block: bool
) -> None:
    expected = await read(node, tables=tables)
    if not by_block:
        node.faults.arm(Fault("method_missing", requests=None, methods=["eth_getBlockReceipts"]))
    speak(node, "system_transaction")
    for chain in (None, "polygon"):
        fetched = await read(node, chain, tables)
        assert fetched["receipts"] == expected["receipts"]
        assert fetched.get("logs") == expected.get("logs")
    node.faults.armed.clear()
    if by_block:
        node.faults.arm(Fault("missing_receipt", requests=None, methods=["eth_getBlockReceipts"]))
    else:
        node.faults.arm(Fault("method_missing", requests=None, methods=["eth_getBlockReceipts"]))
        node.faults.arm(Fault("null_result", requests=None, methods=["eth_getTransactionReceipt"]))
    for chain in (None, "polygon"):
        with pytest.raises(RpcInconsistent) as caught:
            await read(node, chain, tables)
        assert caught.value.code == "chain.rpc_inconsistent"
        assert "not the chain's own" in caught.value.message


async def test_logs_of_a_block_without_all_receipts_are_requested_separately(node: Simulator) -> None:
    speak(node, "system_transaction")
    await read(node, "polygon", ["receipts"])
    assert "eth_getLogs" not in node.calls
    await read(node, "polygon", ["receipts", "logs"])
    assert node.calls["eth_getLogs"] > 0


async def test_a_gap_is_believed_only_if_the_node_repeats_it(node: Simulator) -> None:
    expected = await read(node, tables=["logs"])
    assert node.calls["eth_getLogs"] == 10
    node.faults.arm(Fault("log_index_gaps", requests=4, methods=["eth_getLogs"]))
    assert await read(node, tables=["logs"]) == expected
    assert node.calls["eth_getLogs"] == 30
    speak(node, "log_index_gaps")
    await read(node, tables=["logs"])
    assert node.calls["eth_getLogs"] == 50


def log(transaction: str, index: str) -> Log:
    return Log("0xb", "0x1", transaction, "0x0", index, "0xa", [], "0x")


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([log("0x1", "0x0"), log("0x1", "0x0")], "not in order"),
        ([log("0x1", "0x2"), log("0x1", "0x1")], "not in order"),
        ([log("0x1", "0x0"), log("0x2", "0x1"), log("0x1", "0x2"), log("0x1", "0x4")], "not together"),
        ([log("0x1", "first")], "not hexadecimal"),
    ],
)
def test_logs_that_cannot_be_told_apart_are_refused_on_every_chain(logs: list[Log], reason: str) -> None:
    block = msgspec.convert(
        {"number": "0x1", "hash": "0xb", "parentHash": "0xa", "timestamp": "0x1", "transactions": []},
        SlimBlock,
    )
    for rules in (LENIENT, *CHAINS.values()):
        doubt = doubt_logs(rules, block, logs)
        assert doubt is not None
        assert reason in doubt.reason
        assert doubt.quirk is None


async def test_withdrawals_become_rows(node: Simulator) -> None:
    speak(node, "withdrawals")
    rows = (await read(node, "ethereum", ["withdrawals"]))["withdrawals"].to_pylist()
    assert len(rows) == 20
    assert [row["withdrawal_index"] for row in rows] == list(range(2, 22))
    assert {(row["validator_index"], row["amount"]) for row in rows} == {(0, 5), (1, 5)}
    assert "eth_getBlockReceipts" not in node.calls
    assert "eth_getLogs" not in node.calls


async def test_transfers_of_erc1155_become_a_row_per_token(node: Simulator) -> None:
    approvals_and_transfers = (await read(node))["logs"].to_pylist()
    speak(node, "erc1155")
    tables = await read(node, tables=["erc1155_transfers", "token_transfers"])
    rows = tables["erc1155_transfers"].to_pylist()
    batches = {row["log_index"] + 1000 * row["block_number"] for row in rows if row["batch_index"] == 1}
    expected = [one for one in approvals_and_transfers if one["topic3"] is None]
    assert 0 < len(batches) < len(expected)
    assert len(rows) == len(expected) + len(batches)
    amounts = {(one["transaction_hash"], one["log_index"]): str(int(one["data"], 16)) for one in expected}
    for row in rows:
        batched = row["log_index"] + 1000 * row["block_number"] in batches
        assert row["token_id_text"] == str(7 + row["batch_index"])
        if row["batch_index"] == 0:
            assert row["value_text"] == amounts[row["transaction_hash"], row["log_index"]]
        else:
            assert batched
            assert row["value_text"] == "1"
        assert row["operator_address"] == row["from_address"] != row["to_address"]
    assert set(tables["token_transfers"]["token_type"].to_pylist()) == {"erc721"}


async def test_the_name_of_a_chain_implies_its_id(node: Simulator) -> None:
    async with RpcClient(patient(node.url, chain="ethereum")) as client:
        assert await client.head() == 40
    async with RpcClient(patient(node.url, chain="polygon")) as client:
        with pytest.raises(WrongChain, match="chain 1, not 137"):
            await client.head()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"chain": "dogechain"}, "one of arbitrum, base"),
        ({"chain": "ethereum", "chain_id": 5}, "chain_id of ethereum must be 1"),
    ],
)
def test_a_chain_that_is_unknown_or_has_another_id_is_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        patient("http://node.example", **settings)
    assert caught.value.code == "chain.settings_invalid"
    assert part in caught.value.message
    assert caught.value.next_step
    patient("http://node.example", chain="ethereum", chain_id=1)
