"""The checks that make an answer unbelievable, and the quirks that an answer has. Pure.

A doubt is a reason to retry, not an error: if retries do not help, the client turns it into an error with endpoint and
method. A quirk (see `rules`) becomes a doubt on chains where it is not allowed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traceplane.chain.answers import AnyBlock, FullBlock, Header, Log, Receipt, transaction_hashes
from traceplane.chain.errors import QuirkRefused, RpcInconsistent
from traceplane.chain.rules import ChainRules, Quirk

ZERO_ADDRESS = "0x" + "00" * 20
_NO_WITHDRAWALS = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
"""The root of an empty trie."""


class Doubt(NamedTuple):
    """Why an answer is not believed, and the offending value."""

    reason: str
    value: object
    quirk: Quirk | None = None
    """If other rules would allow it."""

    def as_error(self, *, endpoint: str | None = None, method: str | None = None) -> RpcInconsistent:
        kind = RpcInconsistent if self.quirk is None else QuirkRefused
        return kind(self.reason, endpoint=endpoint, method=method, value=self.value)


class Oddity(NamedTuple):
    """A quirk of one block: what is odd, and the offending value."""

    quirk: Quirk
    reason: str
    value: str


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


def doubt_block(rules: ChainRules, number: int, block: AnyBlock) -> Doubt | None:
    if (doubt := doubt_header(number, block)) is not None:
        return doubt
    if isinstance(block, FullBlock) and (doubt := _doubt_transactions(number, block)) is not None:
        return doubt
    return _refused(rules, odd_block(block))


def _doubt_transactions(number: int, block: FullBlock) -> Doubt | None:
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


def odd_block(block: AnyBlock) -> Iterator[Oddity]:
    fields = {
        "miner": block.miner,
        "gasLimit": block.gas_limit,
        "gasUsed": block.gas_used,
        "stateRoot": block.state_root,
        "transactionsRoot": block.transactions_root,
        "receiptsRoot": block.receipts_root,
        "sha3Uncles": block.sha3_uncles,
        "extraData": block.extra_data,
    }
    if missing := [name for name, value in fields.items() if value is None]:
        yield Oddity(Quirk.BLOCK_FIELDS_MISSING, "a block lacks fields", ", ".join(missing))
    if not block.withdrawals and block.withdrawals_root not in (None, _NO_WITHDRAWALS):
        reason = "a block has a withdrawals root, but no withdrawals"
        yield Oddity(Quirk.WITHDRAWALS_MISSING, reason, str(block.withdrawals_root))
    if isinstance(block, FullBlock):
        yield from _odd_transactions(block)


def _odd_transactions(block: FullBlock) -> Iterator[Oddity]:
    incomplete = [
        one
        for one in block.transactions
        if (one.value is None or one.nonce is None or one.gas is None or one.input is None)
        and one.has_standard_type  # which fields other types have is not known
    ]
    for one in incomplete[:1]:
        fields = {"value": one.value, "nonce": one.nonce, "gas": one.gas, "input": one.input}
        missing = ", ".join([name for name, value in fields.items() if value is None])
        yield Oddity(
            Quirk.TRANSACTION_FIELDS_MISSING, "a transaction lacks fields", f"{missing} of {one.hash}"
        )


def doubt_receipts(rules: ChainRules, block: AnyBlock, receipts: Sequence[Receipt]) -> Doubt | None:
    """Receipts must match the block's transactions, in order; so must their logs."""
    number, block_hash = int(block.number, 16), block.hash
    missing = set(missing_receipts(block, receipts))
    expected = [one for one in transaction_hashes(block) if one not in missing]
    for one, transaction in zip(receipts, expected, strict=False):
        if one.block_hash != block_hash:
            return Doubt(
                f"a receipt of block {number} ({block_hash}) belongs to another block", one.block_hash
            )
        if one.transaction_hash != transaction:
            return Doubt(f"expected the receipt of transaction {transaction}", one.transaction_hash)
        for log in one.logs:
            if log.transaction_hash != transaction:
                return Doubt(f"a log of transaction {transaction} belongs to another", log.transaction_hash)
    if len(receipts) != len(expected):
        return Doubt(
            f"block {number} has {len(block.transactions)} transactions but a different number of receipts",
            len(receipts),
        )
    if isinstance(block, FullBlock) and (doubt := doubt_missing_receipts(block, receipts)) is not None:
        return doubt
    if (doubt := _refused(rules, odd_receipts(block, receipts))) is not None:
        return doubt
    # Without some receipts, the logs are incomplete: they are requested otherwise, and checked then.
    return None if missing else doubt_logs(rules, block, [log for one in receipts for log in one.logs])


def missing_receipts(block: AnyBlock, receipts: Sequence[Receipt]) -> list[str]:
    hashes = transaction_hashes(block)
    if len(receipts) >= len(hashes):
        return []
    given = {one.transaction_hash for one in receipts}
    return [one for one in hashes if one not in given]


def odd_receipts(block: AnyBlock, receipts: Sequence[Receipt]) -> Iterator[Oddity]:
    if missing := missing_receipts(block, receipts):
        yield Oddity(Quirk.RECEIPTS_MISSING, "a transaction has no receipt", ", ".join(missing))


def doubt_missing_receipts(block: FullBlock, receipts: Sequence[Receipt]) -> Doubt | None:
    """Only the chain's own transactions may lack a receipt: of other types, or sent by nobody."""
    missing = set(missing_receipts(block, receipts))
    for one in block.transactions:
        if one.hash in missing and one.has_standard_type and one.from_ != ZERO_ADDRESS:
            return Doubt("a transaction that is not the chain's own has no receipt", one.hash)
    return None


def doubt_logs(rules: ChainRules, block: AnyBlock, logs: Sequence[Log]) -> Doubt | None:
    block_hash = block.hash
    if not logs and block.logs_bloom is not None and block.logs_bloom.strip("0x"):
        # Not the other way round: some chains always have empty blooms.
        return Doubt(f"block {block.hash} has logs, but none were returned", block.logs_bloom)
    if not {log.block_hash for log in logs} <= {block_hash}:
        other = next(log.block_hash for log in logs if log.block_hash != block_hash)
        return Doubt(f"a log of block {block.hash} belongs to another block", other)
    if (most := max([len(log.topics) for log in logs], default=0)) > 4:
        return Doubt("a log has more than four topics", most)
    if _are_numbered(logs):
        return None
    return _doubt_log_order(logs) or _refused(rules, odd_logs(logs))


def _are_numbered(logs: Sequence[Log]) -> bool:
    return tuple([log.log_index for log in logs]) == _positions(len(logs))


def _doubt_log_order(logs: Sequence[Log]) -> Doubt | None:
    """However logs are numbered, those of a transaction are together, and each has its own number."""
    finished: set[str] = set()
    previous: Log | None = None
    for log in logs:
        try:
            index = int(log.log_index, 16)
        except ValueError:
            return Doubt("a log index is not hexadecimal", log.log_index)
        if previous is not None and log.transaction_hash != previous.transaction_hash:
            finished.add(previous.transaction_hash)
        elif previous is not None and index <= int(previous.log_index, 16):
            return Doubt(f"the logs of transaction {log.transaction_hash} are not in order", log.log_index)
        if log.transaction_hash in finished:
            return Doubt("the logs of a transaction are not together", log.transaction_hash)
        previous = log
    return None


def odd_logs(logs: Sequence[Log]) -> Iterator[Oddity]:
    """Of logs in order. A transaction may go on with the block's numbers or start anew at 0; anything else is a gap."""
    if _are_numbered(logs):
        return
    restart = gap = None
    following, transaction = 0, ""
    for log in logs:
        index = int(log.log_index, 16)
        if index != following:
            if index == 0 and log.transaction_hash != transaction:
                restart = restart or log
            else:
                gap = gap or log
        following, transaction = index + 1, log.transaction_hash
    if restart is not None:
        value = f"{restart.log_index} of {restart.transaction_hash}"
        yield Oddity(Quirk.LOG_INDEX_RESTARTS, "the numbers of logs start anew within a block", value)
    if gap is not None:
        value = f"{gap.log_index} of {gap.transaction_hash}"
        yield Oddity(Quirk.LOG_INDEX_GAPS, "the logs of a block are not numbered without a gap", value)


def doubt_links(blocks: Sequence[AnyBlock], parent_hash: str | None) -> Doubt | None:
    """Each block must name its predecessor as its parent; otherwise the chain moved between two answers."""
    expected = parent_hash
    for block in blocks:
        if expected is not None and block.parent_hash != expected:
            return Doubt(f"block {int(block.number, 16)} does not follow {expected}", block.parent_hash)
        expected = block.hash
    return None


def _refused(rules: ChainRules, oddities: Iterator[Oddity]) -> Doubt | None:
    for oddity in oddities:
        if oddity.quirk not in rules.allowed:
            return Doubt(f"{oddity.reason} ({oddity.quirk})", oddity.value, oddity.quirk)
    return None


@functools.lru_cache(maxsize=512)
def _positions(count: int) -> tuple[str, ...]:
    """0x0, 0x1, …: the indexes of the first `count` transactions or logs of a block."""
    return tuple(map(hex, range(count)))
