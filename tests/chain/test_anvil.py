"""The chain reader on a real node: every table, by the book's rules, and through reorgs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.anvil import Anvil, AnvilUnavailable
from tests.chain.conftest import patient
from traceplane.chain.erc1155 import TRANSFER_BATCH, TRANSFER_SINGLE
from traceplane.chain.extract import fetch_range
from traceplane.chain.follow import BlockRecord, Idle, Reorg, Step, poll
from traceplane.chain.rpc import RpcClient
from traceplane.chain.tables import SCHEMAS, TRANSFER_TOPIC

pytestmark = pytest.mark.chaos  # the node is a large download

# Logs what it is called with: four topics, then data.
RUNTIME = "608036038060805f376060356040356020355f35845fa400"
CREATION = f"60{len(RUNTIME) // 2:02x}600a5f3960{len(RUNTIME) // 2:02x}5ff3{RUNTIME}"


@pytest.fixture(scope="module")
def anvil() -> Iterator[Anvil]:
    try:
        node = Anvil.start("--chain-id", "1")
    except AnvilUnavailable as error:
        pytest.skip(str(error))
    yield node
    node.stop()


def word(number: int) -> str:
    return f"{number:064x}"


def emit(node: Anvil, contract: str, topics: tuple[str, ...], data: str) -> None:
    sender = node.call("eth_accounts")[0]
    payload = "0x" + "".join(topic.removeprefix("0x") for topic in topics) + data
    node.call("eth_sendTransaction", {"from": sender, "to": contract, "data": payload, "gas": "0x186a0"})


def deploy(node: Anvil) -> str:
    sender = node.call("eth_accounts")[0]
    sent = node.call("eth_sendTransaction", {"from": sender, "data": "0x" + CREATION, "gas": "0x30d40"})
    node.call("evm_mine")
    address = node.call("eth_getTransactionReceipt", sent)["contractAddress"]
    assert node.call("eth_getCode", address, "latest") == "0x" + RUNTIME
    return str(address)


async def rows(node: Anvil, first: int, last: int, *tables: str) -> dict[str, pa.Table]:
    async with RpcClient(patient(node.url, chain="ethereum")) as client:
        return await fetch_range(client, first, last, tables or tuple(SCHEMAS))


async def test_every_table_of_a_real_node_by_the_rules_of_ethereum(anvil: Anvil) -> None:
    contract = deploy(anvil)
    alice, bob, operator = (word(n) for n in (0xA, 0xB, 0xC))
    emit(anvil, contract, (TRANSFER_TOPIC, alice, bob, word(9)), "")
    emit(anvil, contract, (TRANSFER_SINGLE, operator, alice, bob), word(7) + word(2**200))
    batch = "".join(map(word, (64, 160, 2, 1, 2, 2, 10, 20)))
    emit(anvil, contract, (TRANSFER_BATCH, operator, alice, bob), batch)
    sender, receiver = anvil.call("eth_accounts")[:2]
    anvil.call("eth_sendTransaction", {"from": sender, "to": receiver, "value": hex(10**18)})
    anvil.call("evm_mine")
    head = int(anvil.call("eth_blockNumber"), 16)
    tables = await rows(anvil, 0, head)
    for name, table in tables.items():
        assert table.schema == SCHEMAS[name]
        table.validate(full=True)
    assert tables["blocks"]["quirks"].null_count == head + 1
    assert tables["transactions"].num_rows == tables["receipts"].num_rows == 5
    assert tables["transactions"]["raw"].null_count == 5
    assert tables["logs"].num_rows == 3
    assert [row["token_id_text"] for row in tables["token_transfers"].to_pylist()] == ["9"]
    assert [
        (row["log_index"], row["batch_index"], row["token_id_text"], row["value"], row["value_text"])
        for row in tables["erc1155_transfers"].to_pylist()
    ] == [(1, 0, "7", None, str(2**200)), (2, 0, "1", 10, "10"), (2, 1, "2", 20, "20")]
    assert {row["token_address"] for row in tables["erc1155_transfers"].to_pylist()} == {contract}


@pytest.mark.parametrize("depth", [1, 5])
async def test_a_reorg_of_a_real_node_is_followed(anvil: Anvil, depth: int) -> None:
    anvil.call("anvil_mine", "0x8")
    record = BlockRecord()
    async with RpcClient(patient(anvil.url, chain="ethereum")) as client:
        await advance(client, record)
        head = record.blocks[-1].number
        sender, receiver = anvil.call("eth_accounts")[:2]
        replacement = {"from": sender, "to": receiver, "value": "0x1"}
        anvil.call("anvil_reorg", depth, [[replacement, 0]])
        anvil.call("evm_mine")
        steps = await advance(client, record)
    assert any(isinstance(step, Reorg) and step.first_changed == head - depth + 1 for step in steps)
    blocks = (await rows(anvil, 0, head + 1, "blocks"))["blocks"]
    assert blocks["block_hash"].to_pylist() == [one.hash for one in record.blocks]
    changed = await rows(anvil, head - depth + 1, head - depth + 1, "transactions")
    assert changed["transactions"]["value_text"].to_pylist() == ["1"]


async def test_a_block_that_was_reverted_is_gone(anvil: Anvil) -> None:
    snapshot = anvil.call("evm_snapshot")
    record = BlockRecord()
    async with RpcClient(patient(anvil.url, chain="ethereum")) as client:
        anvil.call("anvil_mine", "0x2")
        await advance(client, record)
        anvil.call("evm_revert", snapshot)
        anvil.call("evm_increaseTime", 100)
        anvil.call("anvil_mine", "0x3")
        steps = await advance(client, record)
    assert any(isinstance(step, Reorg) for step in steps)
    assert record.blocks[-1].hash == anvil.call("eth_getBlockByNumber", "latest", False)["hash"]


async def advance(client: RpcClient, record: BlockRecord) -> list[Step]:
    """Polls until nothing is new, and keeps the record as a follower does."""
    steps: list[Step] = []
    while not isinstance(step := await poll(client, record, confirmations=0), Idle):
        record.apply(step, keep=1000)
        steps.append(step)
    return steps
