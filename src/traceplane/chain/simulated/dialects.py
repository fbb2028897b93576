"""How nodes of other chains answer: each dialect deviates from the specification in one way, in all answers alike.

Dialects are armed like faults, usually forever: `sim_fault({"kind": "log_index_gaps", "requests": null})`.
Hashes, blooms and roots stay those of a chain that follows the specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from traceplane.chain.erc1155 import TRANSFER_BATCH, TRANSFER_SINGLE

SYSTEM_SENDER = "0x" + "00" * 20
NEW_TYPE = "0x76"
_OTHER_ROOT = "0x" + "cd" * 32

KINDS = {
    "log_index_restarts": "numbers the logs of each transaction from 0",
    "log_index_gaps": "uses every second number for logs",
    "new_type": "the last transaction has type 0x76, a field of its own, and no value",
    "no_value": "the last transaction has a standard type, but no value",
    "bare_header": "blocks without miner, sha3Uncles and extraData",
    "system_transaction": "adds a transaction of the zero address, which has no receipt",
    "own_receipt_fields": "receipts with fields of another chain",
    "withdrawals": "blocks with two withdrawals",
    "hidden_withdrawals": "blocks with a withdrawals root, but no withdrawals",
    "erc1155": "ERC-20 transfers become single transfers of ERC-1155, approvals become batches",
}


class _Dialect(NamedTuple):
    block: Callable[[Any], Any] | None = None
    receipt: Callable[[Any], Any] | None = None
    log: Callable[[Any, int], Any] | None = None
    """Also takes the log's position in its transaction."""


def speak(kind: str, answer: Any) -> Any:
    """The answer in this dialect; answers that are not affected are returned as they are."""
    dialect = _DIALECTS[kind]
    match answer:
        case {"transactions": _}:
            return dialect.block(answer) if dialect.block else answer
        case {"logs": logs}:
            receipt = {**answer, "logs": _logs(dialect, logs)}
            return dialect.receipt(receipt) if dialect.receipt else receipt
        case [{"logs": _}, *_]:
            return [speak(kind, receipt) for receipt in answer]
        case [{"topics": _}, *_]:
            return _logs(dialect, answer)
    return answer


def _logs(dialect: _Dialect, logs: list[Any]) -> list[Any]:
    if dialect.log is None:
        return logs
    positions: Counter[str] = Counter()
    changed = []
    for log in logs:
        changed.append(dialect.log(log, positions[log["transactionHash"]]))
        positions[log["transactionHash"]] += 1
    return changed


def _without(value: Any, *names: str) -> Any:
    return {name: field for name, field in value.items() if name not in names}


def _last_transaction(block: Any, change: Callable[[Any], Any]) -> Any:
    *others, last = block["transactions"] or [""]
    return block if isinstance(last, str) else {**block, "transactions": [*others, change(last)]}


def _with_system_transaction(block: Any) -> Any:
    transactions = block["transactions"]
    identity = "0x" + block["hash"][:1:-1]
    if not transactions or isinstance(transactions[0], str):
        return {**block, "transactions": [*transactions, identity]} if transactions else block
    own = {
        **transactions[-1],
        "hash": identity,
        "transactionIndex": hex(len(transactions)),
        "from": SYSTEM_SENDER,
        "to": SYSTEM_SENDER,
    }
    return {**block, "transactions": [*transactions, own]}


def _with_withdrawals(block: Any) -> Any:
    number = int(block["number"], 16)
    withdrawals = [
        {"index": hex(2 * number + i), "validatorIndex": hex(i), "address": block["miner"], "amount": "0x5"}
        for i in range(2)
    ]
    return {**block, "withdrawalsRoot": _OTHER_ROOT, "withdrawals": withdrawals}


def _erc1155(log: Any, _: int) -> Any:
    if len(log["topics"]) != 3:
        return log
    _, source, target = log["topics"]
    amount = log["data"][2:]
    if "8c5be1e5" in log["topics"][0]:  # an approval
        event, words = TRANSFER_BATCH, [f"{n:064x}" for n in (64, 160, 2, 7, 8, 2)] + [amount, f"{1:064x}"]
    else:
        event, words = TRANSFER_SINGLE, [f"{7:064x}", amount]
    return {**log, "topics": [event, source, source, target], "data": "0x" + "".join(words)}


_DIALECTS = {
    "log_index_restarts": _Dialect(log=lambda log, position: {**log, "logIndex": hex(position)}),
    "log_index_gaps": _Dialect(log=lambda log, _: {**log, "logIndex": hex(int(log["logIndex"], 16) * 2)}),
    "new_type": _Dialect(
        lambda block: _last_transaction(
            block, lambda one: {**_without(one, "value"), "type": NEW_TYPE, "calls": [{"to": one["to"]}]}
        )
    ),
    "no_value": _Dialect(lambda block: _last_transaction(block, lambda one: _without(one, "value"))),
    "bare_header": _Dialect(lambda block: _without(block, "miner", "sha3Uncles", "extraData")),
    "system_transaction": _Dialect(_with_system_transaction),
    "own_receipt_fields": _Dialect(receipt=lambda one: {**one, "l1Fee": "0x1", "depositNonce": {"a": []}}),
    "withdrawals": _Dialect(_with_withdrawals),
    "hidden_withdrawals": _Dialect(lambda block: {**block, "withdrawalsRoot": _OTHER_ROOT}),
    "erc1155": _Dialect(log=_erc1155),
}
