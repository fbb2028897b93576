"""The ways in which the server fails or lies, and for how long.

`sim_fault({"kind": "null_result", "requests": 3})` arms a fault for the next three times it applies (default 1; `null`
means forever); `"probability": 0.2` applies it at random, by the seed; `"methods": [...]` restricts it. Some faults
change the whole HTTP answer, others one call's result; `KINDS` says what each does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from traceplane.chain.simulated import dialects
from traceplane.errors import InvalidInput

KINDS = {
    # the whole HTTP answer
    "http_error": "answers with `status` (503)",
    "rate_limit": "answers 429 with Retry-After `seconds` (0; absent if negative) or `retry_date`",
    "stall": "answers after `seconds` (1)",
    "disconnect": "closes the connection without an answer",
    "truncate": "sends the first half of the body",
    "not_json": "sends an HTML page with status 200",
    "refuse_batch": "rejects bodies of more than `size` (1) calls with one error object",
    "too_large": "answers 413 to bodies of more than `size` (1) calls",
    "answer_limit": "answers the first `size` (1) calls of a batch, the others with error -32003",
    "drop_answer": "leaves out the last answer of a batch",
    "duplicate_id": "answers the last call of a batch under the first one's id",
    "unknown_id": "answers the last call under an id that nobody used",
    # one call's result
    "rpc_error": "a JSON-RPC error with `code` (-32000) and `message`",
    "method_missing": "a JSON-RPC error -32601, as if the node lacked the method",
    "null_result": "null",
    "wrong_type": "a number where an object, list or string belongs",
    "bad_hex": "a block number that is not hexadecimal",
    "wrong_number": "a block that claims to be the next one",
    "wrong_hash": "a block with an invented hash",
    "wrong_parent": "a block whose parent does not exist",
    "foreign_transaction": "a transaction that claims another block",
    "missing_receipt": "all receipts of a block but one",
    "foreign_receipt": "a receipt of another block, as in a reorg between two calls",
    "foreign_log": "a log whose block hash differs from its receipt's",
    "missing_log": "logs without one in the middle",
    "stale_head": "a head `blocks` (5) below the actual one",
    **dialects.KINDS,
}


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    requests: int | None = 1
    probability: float = 1.0
    methods: list[str] | None = None
    status: int = 503
    seconds: float | None = None
    retry_date: str | None = None
    size: int = 1
    blocks: int = 5
    code: int = -32000
    message: str = "simulated failure"


@dataclass(slots=True)
class Faults:
    """The faults that are armed now. Randomness is seeded, so that a run can be repeated."""

    seed: int
    armed: list[Fault] = field(default_factory=list)
    _dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)  # noqa: S311 -- a seed repeats it

    def arm(self, fault: Fault) -> None:
        if fault.kind == "clear":
            self.armed.clear()
            return
        if fault.kind not in KINDS:
            raise InvalidInput(
                "chain.simulated_invalid",
                f"unknown fault; the faults are {', '.join(KINDS)}",
                value=fault.kind,
            )
        self.armed.append(fault)

    def strike(self, kinds: frozenset[str], methods: list[str], calls: int = 1) -> Fault | None:
        """The first armed fault of these kinds that applies now; uses it up."""
        for fault in self.armed:
            if fault.kind not in kinds or (fault.methods and not set(fault.methods) & set(methods)):
                continue
            if fault.kind in _BY_SIZE and calls <= fault.size:
                continue
            if fault.probability < 1.0 and self._dice.random() >= fault.probability:
                continue
            if fault.requests is not None:
                fault.requests -= 1
                if fault.requests <= 0:
                    self.armed.remove(fault)
            return fault
        return None


_BY_SIZE = frozenset({"refuse_batch", "too_large"})
OF_CONNECTION = frozenset({"http_error", "rate_limit", "stall", "disconnect", "refuse_batch", "too_large"})
OF_BODY = frozenset({"answer_limit", "truncate", "not_json", "drop_answer", "duplicate_id", "unknown_id"})
OF_RESULT = frozenset(KINDS) - OF_CONNECTION - OF_BODY


def lie(fault: Fault, result: bytes) -> bytes:
    """The result with the fault applied. Faults are rare, so decoding and encoding again is cheap enough."""
    if fault.kind == "null_result":
        return b"null"
    if fault.kind == "wrong_type":
        return b"7"
    value = msgspec.json.decode(result)
    if value in (None, []):
        return result
    if fault.kind in dialects.KINDS:
        return msgspec.json.encode(dialects.speak(fault.kind, value))
    return msgspec.json.encode(_LIES[fault.kind](value, fault))


def _changed(value: Any, **fields: object) -> Any:
    return {**value, **fields}


def _next_number(text: str) -> str:
    return hex(int(text, 16) + 1)


def _with_log(receipts: list[Any], change: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Changes the logs of the receipt that has most of them; a plain list of logs is changed directly."""
    if "logs" not in receipts[0]:
        return change(receipts)
    at = max(range(len(receipts)), key=lambda i: len(receipts[i]["logs"]))
    if not receipts[at]["logs"]:
        return receipts
    return [*receipts[:at], _changed(receipts[at], logs=change(receipts[at]["logs"])), *receipts[at + 1 :]]


_OTHER_HASH = "0x" + "ab" * 32

_LIES: dict[str, Callable[[Any, Fault], Any]] = {
    "bad_hex": lambda block, _: _changed(block, number="0xnope"),
    "wrong_number": lambda block, _: _changed(block, number=_next_number(block["number"])),
    "wrong_hash": lambda block, _: _changed(
        block,
        hash=_OTHER_HASH,
        transactions=[
            one if isinstance(one, str) else _changed(one, blockHash=_OTHER_HASH)
            for one in block["transactions"]
        ],
    ),
    "wrong_parent": lambda block, _: _changed(block, parentHash=_OTHER_HASH),
    "foreign_transaction": lambda block, _: _changed(
        block, transactions=[_changed(one, blockHash=_OTHER_HASH) for one in block["transactions"]]
    ),
    "missing_receipt": lambda receipts, _: receipts[:-1],
    "foreign_receipt": lambda receipts, _: [_changed(one, blockHash=_OTHER_HASH) for one in receipts],
    "foreign_log": lambda receipts, _: _with_log(
        receipts, lambda logs: [_changed(logs[0], blockHash=_OTHER_HASH), *logs[1:]]
    ),
    "missing_log": lambda receipts, _: _with_log(receipts, lambda logs: logs[1:]),
    "stale_head": lambda head, fault: hex(max(0, int(head, 16) - fault.blocks)),
}
