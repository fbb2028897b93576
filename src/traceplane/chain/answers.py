"""Typed answers of a node, with only the fields that are used. Pure.

The structs are decoded directly from the response's bytes. Numbers stay hexadecimal text: the tables convert them
a column at a time, and the follower needs only three of them.

Fields that some chains leave out are None then; `doubts` decides whether that is believed. A transaction of a type that
the book does not have is also kept as the node sent it, since nobody knows which of its fields matter.
"""

from __future__ import annotations

import msgspec

STANDARD_TYPES = frozenset({None, "0x0", "0x1", "0x2", "0x3", "0x4"})
"""Of transactions; the oldest nodes send none."""


class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A block as the follower sees it."""

    number: str
    hash: str
    parent_hash: str


class ChainTransaction(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    hash: str
    block_hash: str
    block_number: str
    transaction_index: str
    from_: str = msgspec.field(name="from")
    nonce: str | None = None
    value: str | None = None
    gas: str | None = None
    input: str | None = None
    to: str | None = None
    gas_price: str | None = None
    max_fee_per_gas: str | None = None
    max_priority_fee_per_gas: str | None = None
    type: str | None = None
    raw: str | None = msgspec.field(default=None, name="(as sent)")
    """The whole object as JSON, for types that are not standard. Not sent by a node: see `keep_raw`."""

    @property
    def has_standard_type(self) -> bool:
        return self.type in STANDARD_TYPES


class Withdrawal(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    index: str
    validator_index: str
    address: str
    amount: str


class BlockFields(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    miner: str | None = None
    gas_limit: str | None = None
    gas_used: str | None = None
    state_root: str | None = None
    transactions_root: str | None = None
    receipts_root: str | None = None
    sha3_uncles: str | None = msgspec.field(default=None, name="sha3Uncles")
    extra_data: str | None = None
    size: str | None = None
    nonce: str | None = None
    difficulty: str | None = None
    total_difficulty: str | None = None
    base_fee_per_gas: str | None = None
    logs_bloom: str | None = None
    withdrawals_root: str | None = None
    withdrawals: list[Withdrawal] | None = None
    blob_gas_used: str | None = None
    excess_blob_gas: str | None = None


class FullBlock(BlockFields, frozen=True, gc=False, rename="camel", kw_only=True):
    """A block with its transactions."""

    transactions: list[ChainTransaction]


class SlimBlock(BlockFields, frozen=True, gc=False, rename="camel", kw_only=True):
    """A block with only the hashes of its transactions: enough to check receipts and logs against."""

    transactions: list[str]


class RawBlock(msgspec.Struct, frozen=True, gc=False):
    """The transactions of a block as they were sent."""

    transactions: list[msgspec.Raw]


class Log(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    block_hash: str
    block_number: str
    transaction_hash: str
    transaction_index: str
    log_index: str
    address: str
    topics: list[str]
    data: str


class Receipt(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    block_hash: str
    block_number: str
    transaction_hash: str
    transaction_index: str
    gas_used: str
    cumulative_gas_used: str
    logs: list[Log]
    contract_address: str | None = None
    status: str | None = None  # since Byzantium
    root: str | None = None  # before Byzantium
    effective_gas_price: str | None = None


AnyBlock = FullBlock | SlimBlock


def transaction_hashes(block: AnyBlock) -> list[str]:
    return block.transactions if isinstance(block, SlimBlock) else [one.hash for one in block.transactions]


def needs_raw(block: FullBlock) -> bool:
    return not STANDARD_TYPES.issuperset([one.type for one in block.transactions])


def keep_raw(block: FullBlock, sent: RawBlock) -> FullBlock:
    """The block with the raw JSON of its transactions of other types."""
    transactions = [
        one if one.has_standard_type else msgspec.structs.replace(one, raw=bytes(raw).decode())
        for one, raw in zip(block.transactions, sent.transactions, strict=True)
    ]
    return msgspec.structs.replace(block, transactions=transactions)
