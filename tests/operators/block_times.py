"""Blocks half an hour apart, from an evening on, with transactions as `range_ingest` writes them."""

from decimal import Decimal

from traceplane.sdk import OperatorTask

GENESIS = 1_699_995_600  # 14 November 2023, 21:00 UTC
FORKED = 3


def transactions(task: OperatorTask) -> list[dict]:
    return transactions_of(task.scope.start, fork=task.kind == "invalidation")


def transactions_of(block: int, *, fork: bool = False) -> list[dict]:
    extra = 1000 if fork and block == FORKED else 0
    return [
        {
            "block_number": block,
            "block_timestamp": GENESIS + 1800 * block,
            "from_address": f"0x{n:040x}",
            "value": Decimal(block * 10 + n + extra),
        }
        for n in range(block % 3 + 1)
    ]
