"""What a chain's nodes do differently from the book, and what is made of it. Data, and no more logic than it needs.

By the book, a node answers as the Ethereum JSON-RPC specification says. A quirk is a departure from it that leaves the
rows usable. Each chain in `CHAINS` has the quirks that are normal there; any other quirk is refused. Without a chain
(`LENIENT`) every quirk passes. Whatever passes is recorded in the column `quirks` of the blocks table.

What is refused on every chain is in `doubts`: answers that contradict themselves, the request or each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Quirk(StrEnum):
    BLOCK_FIELDS_MISSING = "block_fields_missing"
    TRANSACTION_FIELDS_MISSING = "transaction_fields_missing"
    RECEIPTS_MISSING = "receipts_missing"
    LOG_INDEX_RESTARTS = "log_index_restarts"
    LOG_INDEX_GAPS = "log_index_gaps"
    WITHDRAWALS_MISSING = "withdrawals_missing"


@dataclass(frozen=True, slots=True)
class ChainRules:
    chain_id: int | None
    allowed: frozenset[Quirk] = frozenset()
    repeated: frozenset[Quirk] = frozenset()
    """Allowed only if a second answer has them too, since a fault of the node would look the same and lose rows."""
    reason: str = ""
    """Why the allowed quirks are normal there."""


LENIENT = ChainRules(
    chain_id=None,
    allowed=frozenset(Quirk),
    repeated=frozenset({Quirk.RECEIPTS_MISSING, Quirk.LOG_INDEX_GAPS}),
)

_L2_ROOT = "since Isthmus the withdrawals root of a header is the root of a contract's storage"

CHAINS = {
    "arbitrum": ChainRules(42161),
    "base": ChainRules(8453, frozenset({Quirk.WITHDRAWALS_MISSING}), reason=_L2_ROOT),
    "cronos": ChainRules(
        25,
        frozenset({Quirk.LOG_INDEX_RESTARTS}),
        reason="early Ethermint nodes numbered the logs of each transaction from 0",
    ),
    "ethereum": ChainRules(1),
    "optimism": ChainRules(10, frozenset({Quirk.WITHDRAWALS_MISSING}), reason=_L2_ROOT),
    "polygon": ChainRules(
        137,
        frozenset({Quirk.RECEIPTS_MISSING}),
        reason="many nodes have no receipts for state sync transactions",
    ),
    "sepolia": ChainRules(11155111),
}


def rules_of(chain: str | None) -> ChainRules:
    return LENIENT if chain is None else CHAINS[chain]
