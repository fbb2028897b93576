"""The simulated chain is deterministic, hashed as a real one, and answers like a node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from sha3 import keccak_256

from traceplane.chain.simulated.faults import KINDS, Fault
from traceplane.chain.simulated.ledger import Ledger
from traceplane.chain.simulated.server import Simulator, serve, serve_in_process_of_its_own
from traceplane.chain.simulated.world import World
from traceplane.errors import InvalidInput


async def ask(url: str, method: str, *params: object) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) as response,
    ):
        body = await response.json()
    return body["result"] if "result" in body else body["error"]


def rlp(item: Any) -> bytes:
    """Written separately, from the yellow paper, to check the simulator's encoding."""
    if isinstance(item, list):
        payload = b"".join(map(rlp, item))
        return prefix(payload, 0xC0) + payload
    if len(item) == 1 and item[0] < 128:
        return bytes(item)
    return prefix(item, 0x80) + item


def prefix(payload: bytes, base: int) -> bytes:
    if len(payload) <= 55:
        return bytes([base + len(payload)])
    size = len(payload).to_bytes(8, "big").lstrip(b"\0")
    return bytes([base + 55 + len(size)]) + size


def keccak(data: bytes) -> str:
    return "0x" + keccak_256(data).hexdigest()


def data(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def quantity(text: str) -> bytes:
    number = int(text, 16)
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


HEADER = [
    *[(name, data) for name in ("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot")],
    *[(name, data) for name in ("receiptsRoot", "logsBloom")],
    *[(name, quantity) for name in ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")],
    *[(name, data) for name in ("extraData", "mixHash", "nonce")],
    ("baseFeePerGas", quantity),
]


def transaction_bytes(one: dict[str, Any]) -> bytes:
    to = data(one["to"]) if one["to"] else b""
    call = [quantity(one["gas"]), to, quantity(one["value"]), data(one["input"])]
    signature = [quantity(one[name]) for name in ("v", "r", "s")]
    if one["type"] == "0x2":
        fees = [quantity(one[name]) for name in ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas")]
        return b"\x02" + rlp([*fees, *call, [], *signature])
    return rlp([quantity(one["nonce"]), quantity(one["gasPrice"]), *call, *signature])


def bloom_of(values: list[bytes]) -> int:
    bits = 0
    for value in values:
        digest = keccak_256(value).digest()
        for at in (0, 2, 4):
            bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") % 2048)
    return bits


async def test_hashes_parents_gas_and_blooms_hold_when_recomputed_independently(node: Simulator) -> None:
    parent = "0x" + "00" * 32
    types = set()
    for number in range(41):
        block = await ask(node.url, "eth_getBlockByNumber", hex(number), True)
        receipts = await ask(node.url, "eth_getBlockReceipts", hex(number))
        assert block["hash"] == keccak(rlp([read(block[name]) for name, read in HEADER]))
        assert block["parentHash"] == parent
        parent = block["hash"]
        for one in block["transactions"]:
            assert one["hash"] == keccak(transaction_bytes(one))
            types.add(one["type"])
        assert [one["hash"] for one in block["transactions"]] == [one["transactionHash"] for one in receipts]
        assert sum(int(one["gasUsed"], 16) for one in receipts) == int(block["gasUsed"], 16)
        logs = [log for one in receipts for log in one["logs"]]
        assert [int(log["logIndex"], 16) for log in logs] == list(range(len(logs)))
        values = [data(value) for log in logs for value in (log["address"], *log["topics"])]
        assert bloom_of(values) == int(block["logsBloom"], 16)
    assert types == {"0x0", "0x2"}


def test_the_same_seed_gives_the_same_chain_and_forks() -> None:
    one, two, other = (Ledger(World(seed), 20) for seed in (1, 1, 2))
    assert one.hash(20) == two.hash(20) != other.hash(20)
    for ledger in (one, two):
        ledger.fork(5, 7)
    assert one.hash(22) == two.hash(22)
    assert one.block(22) == two.block(22)
    before = one.hash(22)
    one.fork(1, 1)
    assert one.hash(22) != before


def test_a_small_cache_changes_no_answer() -> None:
    small, large = Ledger(World(1), 30, cached_blocks=1), Ledger(World(1), 30)
    assert [small.block(n) for n in (30, 3, 30, 0)] == [large.block(n) for n in (30, 3, 30, 0)]


async def test_an_abandoned_block_is_still_served_by_its_hash(node: Simulator) -> None:
    old = await ask(node.url, "eth_getBlockByNumber", "latest", False)
    assert await ask(node.url, "sim_fork", 3, 5) == "0x2a"
    assert await ask(node.url, "eth_getBlockByHash", old["hash"], False) == old
    new = await ask(node.url, "eth_getBlockByNumber", old["number"], False)
    assert new["hash"] != old["hash"]
    assert await ask(node.url, "eth_getBlockByHash", new["hash"], False) == new
    receipts = await ask(node.url, "eth_getBlockReceipts", old["hash"])
    assert {one["blockHash"] for one in receipts} <= {old["hash"]}


async def test_receipts_by_transaction_are_those_of_the_block_in_any_order(node: Simulator) -> None:
    for number in (30, 2, 31, 40):
        for receipt in await ask(node.url, "eth_getBlockReceipts", hex(number)):
            assert await ask(node.url, "eth_getTransactionReceipt", receipt["transactionHash"]) == receipt
    abandoned = (await ask(node.url, "eth_getBlockReceipts", "latest"))[0]["transactionHash"]
    node.ledger.fork(1, 1)
    assert await ask(node.url, "eth_getTransactionReceipt", abandoned) is None
    assert await ask(node.url, "eth_getTransactionReceipt", "0x" + "00" * 32) is None


async def test_logs_are_filtered_by_range_address_topics_and_block(node: Simulator) -> None:
    every = await ask(node.url, "eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest"})
    sample = every[len(every) // 2]
    query = {"fromBlock": "0x0", "address": sample["address"], "topics": [None, [sample["topics"][1]]]}
    assert await ask(node.url, "eth_getLogs", query) == [
        log
        for log in every
        if log["address"] == sample["address"] and log["topics"][1] == sample["topics"][1]
    ]
    by_hash = await ask(node.url, "eth_getLogs", {"blockHash": sample["blockHash"]})
    assert by_hash == [log for log in every if log["blockHash"] == sample["blockHash"]]


async def test_tags_versions_and_absent_blocks(node: Simulator) -> None:
    node.ledger.mine(60)
    assert await ask(node.url, "eth_chainId") == "0x539"
    assert await ask(node.url, "net_version") == "1337"
    assert "simulated" in await ask(node.url, "web3_clientVersion")
    assert await ask(node.url, "sim_mine", 2) == await ask(node.url, "eth_blockNumber") == hex(102)
    assert (await ask(node.url, "eth_getBlockByNumber", "earliest", False))["number"] == "0x0"
    assert (await ask(node.url, "eth_getBlockByNumber", "finalized", False))["number"] == hex(102 - 64)
    assert await ask(node.url, "eth_getBlockByNumber", hex(103), False) is None
    assert await ask(node.url, "eth_getBlockByHash", "0x" + "00" * 32, False) is None
    assert await ask(node.url, "eth_getBlockReceipts", hex(103)) is None


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("eth_getBlockByNumber", ["12", True], -32602),
        ("eth_getBlockByNumber", ["0xzz", True], -32602),
        ("eth_getBlockByNumber", [], -32602),
        ("eth_getBlockByHash", ["0xqq"], -32602),
        ("eth_getLogs", [{"blockHash": "0x" + "00" * 32}], -32602),
        ("sim_fork", [41, 1], -32602),
        ("sim_mine", [-1], -32602),
        ("sim_fault", [{"kind": "nonsense"}], -32602),
        ("sim_fault", [{"kind": "stall", "often": 1}], -32602),
        ("eth_sendTransaction", [], -32601),
    ],
)
async def test_bad_input_is_answered_with_an_error(
    node: Simulator, method: str, params: list[object], code: int
) -> None:
    assert (await ask(node.url, method, *params))["code"] == code


async def test_a_body_that_is_not_json_is_answered_with_a_parse_error(node: Simulator) -> None:
    async with aiohttp.ClientSession() as session, session.post(node.url, data=b"{") as response:
        assert (await response.json())["error"]["code"] == -32700


async def test_random_faults_follow_the_seed_and_can_be_cleared() -> None:
    async def nulls() -> list[bool]:
        async with serve(seed=9, blocks=3) as node:
            node.faults.arm(Fault("null_result", requests=None, probability=0.5))
            found = [await ask(node.url, "eth_blockNumber") is None for _ in range(20)]
            await ask(node.url, "sim_fault", {"kind": "clear"})
            assert await ask(node.url, "eth_blockNumber") == "0x3"
            return found

    first = await nulls()
    assert first == await nulls()
    assert 0 < sum(first) < 20


def test_every_fault_says_what_it_does() -> None:
    assert all(KINDS.values())
    with pytest.raises(InvalidInput):
        Ledger(World(1), 3).fork(4, 1)


async def test_as_a_separate_process_it_prints_its_url_first() -> None:
    with serve_in_process_of_its_own(seed=3, blocks=40, transactions_per_block=2) as url:
        answers = await asyncio.gather(
            ask(url, "eth_blockNumber"), ask(url, "eth_getBlockByNumber", "0x5", True)
        )
    assert answers[0] == "0x28"
    assert answers[1]["number"] == "0x5"


def test_invalid_options_are_rejected() -> None:
    command = [sys.executable, "-m", "traceplane.chain.simulated", "--port", "no"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
