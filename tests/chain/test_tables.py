"""Hand-made answers become exactly these rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from traceplane.chain import tables
from traceplane.chain.answers import FullBlock, Log, Receipt
from traceplane.chain.doubts import doubt_block, doubt_links, doubt_logs, doubt_receipts
from traceplane.chain.errors import RpcInvalid
from traceplane.chain.rules import CHAINS, LENIENT

HASH, PARENT, SENT = "0x" + "11" * 32, "0x" + "22" * 32, "0x" + "33" * 32
ALICE, BOB, TOKEN = "0x" + "aa" * 20, "0x" + "bb" * 20, "0x" + "cc" * 20
LARGEST = 2**256 - 1


def topic(address: str) -> str:
    return "0x" + "0" * 24 + address[2:]


def transaction(**changes: Any) -> dict[str, Any]:
    return {
        "hash": SENT,
        "blockHash": HASH,
        "blockNumber": "0x64",
        "transactionIndex": "0x0",
        "nonce": "0x7",
        "from": ALICE.upper().replace("0X", "0x"),
        "to": BOB,
        "value": "0xde0b6b3a7640000",
        "gas": "0x5208",
        "gasPrice": "0x3b9aca00",
        "input": "0x",
        **changes,
    }


def block(*transactions: dict[str, Any], **changes: Any) -> FullBlock:
    fields = {
        "number": "0x64",
        "hash": HASH,
        "parentHash": PARENT,
        "timestamp": "0x65536480",
        "miner": BOB,
        "gasLimit": "0x1c9c380",
        "gasUsed": "0x5208",
        "stateRoot": PARENT,
        "transactionsRoot": PARENT,
        "receiptsRoot": PARENT,
        "sha3Uncles": PARENT,
        "extraData": "0x",
        "difficulty": "0x2",
        "unknownToUs": [1, 2, 3],
        "transactions": list(transactions),
        **changes,
    }
    return msgspec.json.decode(msgspec.json.encode(fields), type=FullBlock)


def log(*topics: str, data: str = "0x", **changes: Any) -> dict[str, Any]:
    return {
        "blockHash": HASH,
        "blockNumber": "0x64",
        "transactionHash": SENT,
        "transactionIndex": "0x0",
        "logIndex": "0x0",
        "address": TOKEN,
        "topics": list(topics),
        "data": data,
        **changes,
    }


def receipt(*logs: dict[str, Any], **changes: Any) -> Receipt:
    fields = {
        "blockHash": HASH,
        "blockNumber": "0x64",
        "transactionHash": SENT,
        "transactionIndex": "0x0",
        "gasUsed": "0x5208",
        "cumulativeGasUsed": "0x5209",
        "contractAddress": None,
        "status": "0x1",
        "logs": list(logs),
        **changes,
    }
    return msgspec.json.decode(msgspec.json.encode(fields), type=Receipt)


def logs_table(*logs: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([tables.logs_batch([msgspec.convert(one, Log) for one in logs])])


def test_a_block_becomes_a_row_and_fields_that_a_node_omits_are_null() -> None:
    [row] = tables.blocks_batch([block(transaction())]).to_pylist()
    assert row == {
        **dict.fromkeys(tables.BLOCKS.names),
        "block_number": 100,
        "block_hash": HASH,
        "parent_hash": PARENT,
        "timestamp": 0x65536480,
        "miner": BOB,
        "gas_limit": 30_000_000,
        "gas_used": 21_000,
        "transaction_count": 1,
        "difficulty": Decimal(2),
        "difficulty_text": "2",
        "sha3_uncles": PARENT,
        "state_root": PARENT,
        "transactions_root": PARENT,
        "receipts_root": PARENT,
        "extra_data": "0x",
    }


def test_transactions_carry_their_block_and_lower_case_addresses() -> None:
    empty = block(number="0x63")
    creation = transaction(to=None, transactionIndex="0x1", value="0x0", type="0x2", maxFeePerGas="0x5")
    rows = tables.transactions_batch([empty, block(transaction(), creation)]).to_pylist()
    assert [row["block_number"] for row in rows] == [100, 100]
    assert rows[0] == {
        **dict.fromkeys(tables.TRANSACTIONS.names),
        "block_number": 100,
        "block_hash": HASH,
        "block_timestamp": 0x65536480,
        "transaction_hash": SENT,
        "transaction_index": 0,
        "nonce": 7,
        "from_address": ALICE,
        "to_address": BOB,
        "value": Decimal(10**18),
        "value_text": str(10**18),
        "gas": 21_000,
        "gas_price": 10**9,
        "input": "0x",
    }
    assert (rows[1]["to_address"], rows[1]["transaction_type"], rows[1]["max_fee_per_gas"]) == (None, 2, 5)


@pytest.mark.parametrize("value", [0, 1, 2**64, 10**38 - 1, 10**38, 2**128, LARGEST])
def test_a_value_is_a_decimal_where_it_fits_and_always_a_text(value: int) -> None:
    batch = tables.transactions_batch([block(transaction(value=hex(value)), transaction())])
    batch.validate(full=True)
    row, other = batch.to_pylist()
    assert row["value"] == (Decimal(value) if value < 10**38 else None)
    assert row["value_text"] == str(value)
    assert other["value"] == Decimal(10**18)


def test_receipts_before_and_after_byzantium() -> None:
    rows = tables.receipts_batch(
        [receipt(), receipt(status=None, root=PARENT, contractAddress=TOKEN)]
    ).to_pylist()
    assert [(row["status"], row["root"], row["contract_address"]) for row in rows] == [
        (1, None, None),
        (None, PARENT, TOKEN),
    ]
    assert rows[0]["cumulative_gas_used"] == 21_001


def test_logs_have_a_column_for_each_of_four_topics() -> None:
    rows = logs_table(log(), log("0x1", "0x2", "0x3", "0x4", data="0xff")).to_pylist()
    assert [[row[f"topic{i}"] for i in range(4)] for row in rows] == [
        [None] * 4,
        ["0x1", "0x2", "0x3", "0x4"],
    ]


def test_both_token_standards_are_recognized_and_other_shapes_are_left_out() -> None:
    parties = (tables.TRANSFER_TOPIC, topic(ALICE), topic(BOB))
    amount = f"0x{5:064x}"
    moved = tables.token_transfers(
        logs_table(
            log(*parties, data=amount),
            log(*parties, data=f"0x{LARGEST:064x}"),
            log(*parties, f"0x{9:064x}"),
            log(*parties, f"0x{LARGEST:064x}"),
            log(*parties, data="0x"),  # no amount
            log(*parties, data=amount + "00"),  # more than an amount
            log(tables.TRANSFER_TOPIC, data="0x" + "00" * 96),  # unindexed parties
            log(topic(ALICE), *parties[1:], data=amount),  # another event
            log(),
        )
    )
    assert moved.schema == tables.TOKEN_TRANSFERS
    moved.validate(full=True)
    assert [
        (row["token_type"], row["value"], row["value_text"], row["token_id"], row["token_id_text"])
        for row in moved.to_pylist()
    ] == [
        ("erc20", Decimal(5), "5", None, None),
        ("erc20", None, str(LARGEST), None, None),
        ("erc721", Decimal(1), "1", Decimal(9), "9"),
        ("erc721", Decimal(1), "1", None, str(LARGEST)),
    ]
    assert {(row["token_address"], row["from_address"], row["to_address"]) for row in moved.to_pylist()} == {
        (TOKEN, ALICE, BOB)
    }


def test_no_answers_give_empty_tables_of_the_right_schema() -> None:
    assert tables.blocks_batch([]).schema == tables.BLOCKS
    assert tables.transactions_batch([]).schema == tables.TRANSACTIONS
    assert tables.receipts_batch([]).schema == tables.RECEIPTS
    assert tables.token_transfers(tables.empty("logs")).schema == tables.TOKEN_TRANSFERS


def test_every_table_has_the_block_first() -> None:
    for schema in tables.SCHEMAS.values():
        assert schema.names[:2] == ["block_number", "block_hash"]
        assert schema.field("block_number").type == pa.int64()


@pytest.mark.parametrize(
    "changes", [{"nonce": "0xzz"}, {"nonce": ""}, {"value": "-0x1"}, {"gas": hex(2**63)}, {"gasPrice": "1.5"}]
)
def test_impossible_numbers_are_the_nodes_error(changes: dict[str, str]) -> None:
    with pytest.raises(RpcInvalid) as caught:
        tables.transactions_batch([block(transaction(**changes))])
    assert caught.value.code == "chain.rpc_invalid"
    assert next(iter(changes)) in str(caught.value)


def test_believable_answers_raise_no_doubt() -> None:
    full = block(transaction())
    assert doubt_block(CHAINS["ethereum"], 100, full) is None
    assert doubt_receipts(CHAINS["ethereum"], full, [receipt(log("0x1"))]) is None
    assert doubt_links([full], PARENT) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (block(number="0x65"), "got another"),
        (block(number="hundred"), "not hexadecimal"),
        (block(hash="0x11"), "32 bytes"),
        (block(transaction(blockHash=PARENT)), "claims another block"),
        (block(transaction(transactionIndex="0x1")), "not in order"),
    ],
)
def test_doubts_about_blocks(answer: FullBlock, reason: str) -> None:
    doubt = doubt_block(CHAINS["ethereum"], 100, answer)
    assert doubt is not None
    assert reason in doubt.reason


@pytest.mark.parametrize(
    ("receipts", "reason"),
    [
        ([], "has no receipt"),
        ([receipt(), receipt()], "different number of receipts"),
        ([receipt(blockHash=PARENT)], "to another block"),
        ([receipt(transactionHash=PARENT)], "expected the receipt"),
        ([receipt(log("0x1", transactionHash=PARENT))], "belongs to another"),
        ([receipt(log("0x1", blockHash=PARENT))], "belongs to another block"),
        ([receipt(log("0x1", logIndex="0x1"))], "without a gap"),
        ([receipt(log(*["0x1"] * 5))], "four topics"),
    ],
)
def test_doubts_about_receipts(receipts: list[Receipt], reason: str) -> None:
    doubt = doubt_receipts(CHAINS["ethereum"], block(transaction()), receipts)
    assert doubt is not None
    assert reason in doubt.reason


def test_a_block_that_does_not_follow_is_doubted() -> None:
    doubt = doubt_links([block(), block(parentHash=PARENT)], None)
    assert doubt is not None
    assert doubt.value == PARENT
    assert doubt_logs(LENIENT, block(), []) is None
