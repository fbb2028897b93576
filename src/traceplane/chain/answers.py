"""Typed answers of a node, with only the fields that are used, and the checks that make one unbelievable. Pure.

The structs are decoded directly from the response's bytes. Numbers stay hexadecimal text: the tables convert them
a column at a time, and the follower needs only three of them.

A doubt is a reason to retry, not an error: if retries do not help, the client turns it into an error with endpoint and
method.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec


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
    nonce: str
    from_: str = msgspec.field(name="from")
    value: str
    gas: str
    input: str
    to: str | None = None
    gas_price: str | None = None
    max_fee_per_gas: str | None = None
    max_priority_fee_per_gas: str | None = None
    type: str | None = None


class BlockFields(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    miner: str
    gas_limit: str
    gas_used: str
    state_root: str
    transactions_root: str
    receipts_root: str
    sha3_uncles: str = msgspec.field(name="sha3Uncles")
    extra_data: str
    size: str | None = None
    nonce: str | None = None
    difficulty: str | None = None
    total_difficulty: str | None = None
    base_fee_per_gas: str | None = None
    logs_bloom: str | None = None
    withdrawals_root: str | None = None
    blob_gas_used: str | None = None
    excess_blob_gas: str | None = None


class FullBlock(BlockFields, frozen=True, gc=False, rename="camel", kw_only=True):
    """A block with its transactions."""

    transactions: list[ChainTransaction]


class SlimBlock(BlockFields, frozen=True, gc=False, rename="camel", kw_only=True):
    """A block with only the hashes of its transactions: enough to check receipts and logs against."""

    transactions: list[str]


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


class Doubt(NamedTuple):
    """Why an answer is not believed, and the offending value."""

    reason: str
    value: object


def transaction_hashes(block: AnyBlock) -> list[str]:
    return block.transactions if isinstance(block, SlimBlock) else [one.hash for one in block.transactions]


def doubt_header(number: int, block: Header | AnyBlock) -> Doubt | None:
    try:
        answered = int(block.number, 16)
    except ValueError:
        return Doubt("the block's number is not hexadecimal", block.number)
    if answered != number:
        return Doubt(f"asked for block {number}, got another", answered)
    if len(block.hash) != 66 or len(block.parent_hash) != 66:
        return Doubt("a block hash is not 32 bytes long", block.hash)
    return None


def doubt_block(number: int, block: AnyBlock) -> Doubt | None:
    if (doubt := doubt_header(number, block)) is not None:
        return doubt
    if isinstance(block, SlimBlock):
        return None
    positions = _positions(len(block.transactions))
    if (
        {one.block_hash for one in block.transactions} <= {block.hash}
        and {one.block_number for one in block.transactions} <= {block.number}
        and tuple([one.transaction_index for one in block.transactions]) == positions
    ):
        return None
    for one, position in zip(block.transactions, positions, strict=True):  # to name it in the message
        if one.block_hash != block.hash or one.block_number != block.number:
            return Doubt(f"transaction {one.hash} of block {number} claims another block", one.block_hash)
        if one.transaction_index != position:
            return Doubt(f"the transactions of block {number} are not in order", one.transaction_index)
    return None


@functools.lru_cache(maxsize=512)
def _positions(count: int) -> tuple[str, ...]:
    """0x0, 0x1, …: the indexes of the first `count` transactions or logs of a block."""
    return tuple(map(hex, range(count)))


def doubt_receipts(block: AnyBlock, receipts: Sequence[Receipt]) -> Doubt | None:
    """Receipts must match the block's transactions, in order, with logs numbered without a gap."""
    number = int(block.number, 16)
    hashes = transaction_hashes(block)
    if len(receipts) != len(hashes):
        return Doubt(
            f"block {number} has {len(hashes)} transactionsbut a different number of receipts", len(receipts)
        )
    block_hash = block.hash
    for one, expected in zip(receipts, hashes, strict=True):
        if one.block_hash != block_hash:
            return Doubt(
                f"a receipt of block {number} ({block_hash}) belongs to another block", one.block_hash
            )
        if one.transaction_hash != expected:
            return Doubt(f"expected the receipt of transaction {expected}", one.transaction_hash)
        for log in one.logs:
            if log.transaction_hash != expected:
                return Doubt(f"a log of transaction {expected} belongs to another", log.transaction_hash)
    return doubt_logs(block, [log for one in receipts for log in one.logs])


def doubt_logs(block: AnyBlock, logs: Sequence[Log]) -> Doubt | None:
    block_hash = block.hash
    if not logs and block.logs_bloom is not None and block.logs_bloom.strip("0x"):
        # Not the other way round: some chains always have empty blooms.
        return Doubt(f"block {block.hash} has logs, but none were returned", block.logs_bloom)
    positions = _positions(len(logs))
    if (
        {log.block_hash for log in logs} <= {block_hash}
        and tuple([log.log_index for log in logs]) == positions
        and max([len(log.topics) for log in logs], default=0) <= 4
    ):
        return None
    for log, position in zip(logs, positions, strict=True):  # to name it in the message
        if log.block_hash != block_hash:
            return Doubt(f"a log of block {block.hash} belongs to another block", log.block_hash)
        if log.log_index != position:
            return Doubt(f"the logs of block {block.hash} are not numbered without a gap", log.log_index)
        if len(log.topics) > 4:
            return Doubt("a log has more than four topics", len(log.topics))
    return None


def doubt_links(blocks: Sequence[AnyBlock], parent_hash: str | None) -> Doubt | None:
    """Each block must name its predecessor as its parent; otherwise the chain moved between two answers."""
    expected = parent_hash
    for block in blocks:
        if expected is not None and block.parent_hash != expected:
            return Doubt(f"block {int(block.number, 16)} does not follow {expected}", block.parent_hash)
        expected = block.hash
    return None
