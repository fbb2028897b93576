"""Seed → blocks. Pure: a block is a function of the seed, its branch, its number and its parent's hash.

Two levels of detail keep a long chain cheap. `sketch` draws only what the header needs (gas, bloom), so that hashes can
be computed without transactions; `build` makes the whole block and its JSON.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from sha3 import keccak_256

GENESIS_TIME = 1_700_000_000
SECONDS_PER_BLOCK = 12
TOTAL_DIFFICULTY = 58_750_003_716_598_352_816_469  # mainnet's, frozen at the merge
GAS_LIMIT = 30_000_000

# keccak of the event signatures; written out, so that readers can find them in logs.
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
APPROVAL = "0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925"

_EMPTY_UNCLES = bytes.fromhex("1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347")
_SHAPE_BYTES = 8  # per transaction, what the header needs
_BODY_BYTES = 158  # per transaction, the rest: signature, value, call data
_SEEDED_BYTES = 129  # three trie roots, the mix hash, the number of transactions


def keccak(data: bytes) -> bytes:
    digest: bytes = keccak_256(data).digest()
    return digest


# Recursive length prefix, the encoding that Ethereum hashes. Three flat functions rather than one that
# recurses over nested lists: encoding is most of the work of a block, and this halves it.


def rlp_bytes(data: bytes) -> bytes:
    size = len(data)
    if size == 1 and data[0] < 0x80:
        return data
    return (bytes((0x80 + size,)) if size < 56 else _long(size, 0xB7)) + data


def rlp_int(number: int) -> bytes:
    if 0 < number < 0x80:
        return bytes((number,))
    size = (number.bit_length() + 7) // 8
    return bytes((0x80 + size,)) + number.to_bytes(size, "big")


def rlp_list(*encoded: bytes) -> bytes:
    payload = b"".join(encoded)
    size = len(payload)
    return (bytes((0xC0 + size,)) if size < 56 else _long(size, 0xF7)) + payload


def _long(size: int, offset: int) -> bytes:
    width = (size.bit_length() + 7) // 8
    return bytes((offset + width,)) + size.to_bytes(width, "big")


class _Marked(NamedTuple):
    """A topic or address as text, with the bits it sets in a bloom."""

    text: str
    bloom: int

    @classmethod
    def of(cls, value: bytes) -> _Marked:
        return cls("0x" + value.hex(), bloom_bits(value))


class LogPlan(NamedTuple):
    """One log before it has a position: contract, topics, size of the amount in bytes, bloom bits."""

    address: str
    topics: str  # JSON array
    amount_bytes: int
    bloom: int


class TransactionPlan(NamedTuple):
    sender: int
    target: str | None  # None creates a contract
    gas_used: int
    succeeded: bool
    typed: bool  # EIP-1559 rather than legacy
    logs: tuple[LogPlan, ...]


class Sketch(NamedTuple):
    plans: list[TransactionPlan]
    roots: bytes
    gas_used: int
    bloom: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block and its answers, already encoded, so that serving it only splices bytes."""

    number: int
    hash: bytes
    header: bytes  # JSON object without its closing brace and its transactions
    transaction_hashes: tuple[str, ...]
    transactions: tuple[bytes, ...]
    receipts: tuple[bytes, ...]
    logs: tuple[bytes, ...]
    bloom: int

    def with_transactions(self) -> bytes:
        return self.header + b',"transactions":[' + b",".join(self.transactions) + b"]}"

    def with_hashes(self) -> bytes:
        hashes = ",".join([f'"{one}"' for one in self.transaction_hashes])
        return self.header + f',"transactions":[{hashes}]}}'.encode()

    def all_receipts(self) -> bytes:
        return b"[" + b",".join(self.receipts) + b"]"


class World:
    """The accounts of a chain and the rules by which its blocks are drawn. Holds no state but tables."""

    def __init__(self, seed: int, *, transactions_per_block: int = 10, chain_id: int = 1337) -> None:
        self.seed = seed
        self.chain_id = chain_id
        self._mean = transactions_per_block
        self._root = f"traceplane-simulated:{seed}:{chain_id}:{transactions_per_block}".encode()
        self._accounts = [self._named("account", i)[-20:] for i in range(256)]
        self._names = [_text(account) for account in self._accounts]
        # Topics and addresses are drawn from these tables with their bloom bits, so that a block header costs one
        # keccak and not one per topic.
        self._parties = [_Marked.of(bytes(12) + account) for account in self._accounts]
        self._erc20_contracts = [_Marked.of(self._named("erc20", i)[-20:]) for i in range(32)]
        self._erc721_contracts = [_Marked.of(self._named("erc721", i)[-20:]) for i in range(8)]
        self._items = [_Marked.of(self._named("item", i)) for i in range(256)]

    def _named(self, kind: str, index: int) -> bytes:
        return keccak(self._root + f":{kind}:{index}".encode())

    def _stream(self, purpose: bytes, branch: int, number: int, size: int) -> bytes:
        return hashlib.shake_128(self._root + purpose + b"%d:%d" % (branch, number)).digest(size)

    def header_hash(self, branch: int, number: int, parent: bytes) -> bytes:
        return keccak(self._header(number, parent, self.sketch(branch, number)))

    def sketch(self, branch: int, number: int) -> Sketch:
        """What the header needs: each transaction's gas and logs, without values, signatures or JSON."""
        most = self._mean + self._mean // 2
        drawn = self._stream(b":sketch:", branch, number, _SEEDED_BYTES + most * _SHAPE_BYTES)
        count = 0 if number == 0 else self._mean // 2 + drawn[_SEEDED_BYTES - 1] % (self._mean + 1)
        first = _SEEDED_BYTES
        plans = [
            self._plan(drawn[at : at + _SHAPE_BYTES])
            for at in range(first, first + min(count, most) * _SHAPE_BYTES, _SHAPE_BYTES)
        ]
        bloom = 0
        for plan in plans:
            for log in plan.logs:
                bloom |= log.bloom
        return Sketch(plans, drawn[: _SEEDED_BYTES - 1], sum([plan.gas_used for plan in plans]), bloom)

    def _plan(self, shape: bytes) -> TransactionPlan:
        kind, sender, receiver, token, other, extra, item, flavour = shape
        typed = flavour < 192
        wide = 32 if flavour % 16 == 0 else 9
        gas = 21_000 + extra * 100
        if kind < 80:  # a plain transfer of the chain's coin
            return TransactionPlan(sender, self._names[receiver], 21_000, True, typed, ())
        if kind < 90:  # fails: costs gas and leaves no log
            return TransactionPlan(sender, self._erc20_contracts[token % 32].text, gas, False, typed, ())
        if kind < 100:  # creates a contract
            return TransactionPlan(sender, None, gas + 500_000, True, typed, ())
        if kind < 180:
            logs: tuple[LogPlan, ...] = (self._erc20(token, sender, receiver, TRANSFER, wide),)
        elif kind < 230:  # a swap: an approval, one token in, another out
            logs = (
                self._erc20(token, sender, other, APPROVAL, 32),
                self._erc20(token, sender, other, TRANSFER, 9),
                self._erc20(item, other, sender, TRANSFER, wide),
            )
        else:
            logs = (self._erc721(token, sender, receiver, item),)
        return TransactionPlan(sender, logs[0].address, gas + 30_000 * len(logs), True, typed, logs)

    def _erc20(self, token: int, source: int, target: int, event: str, amount_bytes: int) -> LogPlan:
        contract, giver, taker = (
            self._erc20_contracts[token % 32],
            self._parties[source],
            self._parties[target],
        )
        topics = f'["{event}","{giver.text}","{taker.text}"]'
        bloom = contract.bloom | giver.bloom | taker.bloom | _EVENT_BLOOM[event]
        return LogPlan(contract.text, topics, amount_bytes, bloom)

    def _erc721(self, token: int, source: int, target: int, item: int) -> LogPlan:
        contract, giver, taker = (
            self._erc721_contracts[token % 8],
            self._parties[source],
            self._parties[target],
        )
        identity = self._items[item]
        topics = f'["{TRANSFER}","{giver.text}","{taker.text}","{identity.text}"]'
        bloom = contract.bloom | giver.bloom | taker.bloom | identity.bloom | _EVENT_BLOOM[TRANSFER]
        return LogPlan(contract.text, topics, 0, bloom)

    def _header(self, number: int, parent: bytes, sketch: Sketch) -> bytes:
        """RLP of a London header, the input of its hash."""
        roots = sketch.roots
        return rlp_list(
            b"\xa0" + parent,
            b"\xa0" + _EMPTY_UNCLES,
            b"\x94" + self._accounts[number % 256],
            b"\xa0" + roots[:32],
            b"\xa0" + roots[32:64],
            b"\xa0" + roots[64:96],
            b"\xb9\x01\x00" + sketch.bloom.to_bytes(256, "big"),
            rlp_int(0),  # difficulty
            rlp_int(number),
            rlp_int(GAS_LIMIT),
            rlp_int(sketch.gas_used),
            rlp_int(GENESIS_TIME + SECONDS_PER_BLOCK * number),
            rlp_bytes(b"simulated"),
            b"\xa0" + roots[96:128],
            rlp_bytes(bytes(8)),
            rlp_int(self._base_fee(number)),
        )

    def _base_fee(self, number: int) -> int:
        return 10_000_000_000 + (number * 7_919 + self.seed) % 5_000_000_000

    def build(self, branch: int, number: int, parent: bytes) -> Block:
        """The whole block with its transactions, receipts and logs, encoded as a node would answer them."""
        sketch = self.sketch(branch, number)
        header = self._header(number, parent, sketch)
        block_hash = keccak(header)
        drawn = self._stream(b":body:", branch, number, max(1, len(sketch.plans)) * _BODY_BYTES)
        place = f'"blockHash":"0x{block_hash.hex()}","blockNumber":"{number:#x}"'
        drafts = [
            self._transaction(plan, number, index, place, drawn[index * _BODY_BYTES :][:_BODY_BYTES])
            for index, plan in enumerate(sketch.plans)
        ]
        receipts, logs = self._receipts(number, place, sketch.plans, drafts)
        size = len(header) + sum([draft.size for draft in drafts])
        return Block(
            number=number,
            hash=block_hash,
            header=self._header_json(number, block_hash, parent, sketch, size),
            transaction_hashes=tuple([draft.hash for draft in drafts]),
            transactions=tuple([draft.json for draft in drafts]),
            receipts=receipts,
            logs=logs,
            bloom=sketch.bloom,
        )

    def _header_json(self, number: int, block_hash: bytes, parent: bytes, sketch: Sketch, size: int) -> bytes:
        roots = sketch.roots.hex()
        return (
            f'{{"number":"{number:#x}","hash":"0x{block_hash.hex()}","parentHash":"0x{parent.hex()}",'
            f'"sha3Uncles":"0x{_EMPTY_UNCLES.hex()}","miner":"0x{self._accounts[number % 256].hex()}",'
            f'"stateRoot":"0x{roots[:64]}","transactionsRoot":"0x{roots[64:128]}",'
            f'"receiptsRoot":"0x{roots[128:192]}","logsBloom":"0x{sketch.bloom:0512x}","difficulty":"0x0",'
            f'"totalDifficulty":"{TOTAL_DIFFICULTY:#x}","gasLimit":"{GAS_LIMIT:#x}",'
            f'"gasUsed":"{sketch.gas_used:#x}","timestamp":"{GENESIS_TIME + SECONDS_PER_BLOCK * number:#x}",'
            f'"extraData":"0x{b"simulated".hex()}","mixHash":"0x{roots[192:256]}",'
            f'"nonce":"0x0000000000000000","baseFeePerGas":"{self._base_fee(number):#x}",'
            f'"size":"{size:#x}","uncles":[]'
        ).encode()

    def _transaction(
        self, plan: TransactionPlan, number: int, index: int, place: str, drawn: bytes
    ) -> TransactionDraft:
        nonce = int.from_bytes(drawn[0:3], "big")
        width = 32 if drawn[3] % 16 == 0 else 8  # some values have more digits than a decimal column holds
        value = 0 if plan.logs else int.from_bytes(drawn[4 : 4 + width], "big")
        data = drawn[36:104] if plan.logs or plan.target is None else b""
        parity, signed = drawn[95] & 1, drawn[96:158]
        texts = signed.hex()
        target = b"\x80" if plan.target is None else b"\x94" + bytes.fromhex(plan.target[2:])
        gas, price = plan.gas_used + 5_000, self._base_fee(number) + drawn[94] * 1_000_000
        call = rlp_int(gas) + target + rlp_int(value) + rlp_bytes(data)
        # A leading 0x7f keeps both numbers 32 bytes wide, so that they are spliced and not computed.
        signature = b"\xa0\x7f" + signed[:31] + b"\xa0\x7f" + signed[31:]
        if plan.typed:
            tip, cap, v = drawn[94] * 1_000_000, price + 1_000_000_000, parity
            fees = rlp_int(tip) + rlp_int(cap)
            head = rlp_int(self.chain_id) + rlp_int(nonce)
            encoded = b"\x02" + rlp_list(head, fees, call, b"\xc0", rlp_int(v), signature)
            kind = (
                f'"type":"0x2","maxFeePerGas":"{cap:#x}","maxPriorityFeePerGas":"{tip:#x}","accessList":[],'
            )
        else:
            v = self.chain_id * 2 + 35 + parity
            encoded = rlp_list(rlp_int(nonce), rlp_int(price), call, rlp_int(v), signature)
            kind = '"type":"0x0",'
        identity = "0x" + keccak(encoded).hex()
        sender = self._names[plan.sender]
        to = "null" if plan.target is None else f'"{plan.target}"'
        text = (
            f'{{{place},"transactionIndex":"{index:#x}","hash":"{identity}","from":"{sender}","to":{to},'
            f'"nonce":"{nonce:#x}","value":"{value:#x}","gas":"{gas:#x}","gasPrice":"{price:#x}",{kind}'
            f'"chainId":"{self.chain_id:#x}","input":"0x{data.hex()}","v":"{v:#x}",'
            f'"r":"0x7f{texts[:62]}","s":"0x7f{texts[62:]}"}}'
        )
        created = self._created_by(plan.sender, nonce) if plan.target is None else None
        return TransactionDraft(identity, text.encode(), len(encoded), price, sender, to, created, drawn[:96])

    def _created_by(self, sender: int, nonce: int) -> str:
        return _text(keccak(rlp_list(b"\x94" + self._accounts[sender], rlp_int(nonce)))[-20:])

    def _receipts(
        self, number: int, place: str, plans: list[TransactionPlan], drafts: list[TransactionDraft]
    ) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        receipts: list[bytes] = []
        every_log: list[bytes] = []
        cumulative = 0
        for index, (plan, draft) in enumerate(zip(plans, drafts, strict=True)):
            cumulative += plan.gas_used
            where = f'{place},"transactionHash":"{draft.hash}","transactionIndex":"{index:#x}"'
            logs, bloom = [], 0
            for position, log in enumerate(plan.logs):
                at = position * 32
                amount = draft.amounts[at : at + log.amount_bytes].hex().rjust(64, "0")
                data = f"0x{amount}" if log.amount_bytes else "0x"
                logs.append(
                    f'{{{where},"logIndex":"{len(every_log) + position:#x}","address":"{log.address}",'
                    f'"topics":{log.topics},"data":"{data}","removed":false}}'.encode()
                )
                bloom |= log.bloom
            created = "null" if draft.created is None else f'"{draft.created}"'
            head = (
                f'{{{where},"from":"{draft.sender}","to":{draft.to},"contractAddress":{created},'
                f'"status":"{plan.succeeded:#x}","type":"{2 if plan.typed else 0:#x}",'
                f'"gasUsed":"{plan.gas_used:#x}","cumulativeGasUsed":"{cumulative:#x}",'
                f'"effectiveGasPrice":"{draft.price:#x}","logsBloom":"0x{bloom:0512x}","logs":['
            )
            receipts.append(head.encode() + b",".join(logs) + b"]}")
            every_log.extend(logs)
        return tuple(receipts), tuple(every_log)


class TransactionDraft(NamedTuple):
    hash: str
    json: bytes
    size: int
    price: int
    sender: str
    to: str
    created: str | None
    amounts: bytes


def bloom_bits(value: bytes) -> int:
    """The three bits that a value sets in the 2048-bit log bloom."""
    digest = keccak(value)
    bits = 0
    for at in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") & 2047)
    return bits


def _text(address: bytes) -> str:
    return "0x" + address.hex()


_EVENT_BLOOM = {topic: bloom_bits(bytes.fromhex(topic[2:])) for topic in (TRANSFER, APPROVAL)}
