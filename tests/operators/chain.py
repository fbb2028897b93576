"""Sums per token over Arrow tables, for the cascade of tests/chain."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from traceplane.sdk import OperatorTask

VOLUMES = pa.schema(
    [
        pa.field("first_block", pa.int64(), nullable=False),
        pa.field("last_block", pa.int64(), nullable=False),
        pa.field("token_address", pa.string(), nullable=False),
        pa.field("transfers", pa.int64(), nullable=False),
        pa.field("volume_text", pa.string(), nullable=False),
    ]
)


def token_volumes(transfers: pa.Table, first: int, last: int, kind: str = "erc20") -> pa.Table:
    """Number and sum of the ERC-20 transfers of each token; sums have more digits than a decimal may hold."""
    sums: dict[str, tuple[int, int]] = {}
    columns = (transfers[name].to_pylist() for name in ("token_address", "token_type", "value_text"))
    for token, found, value in zip(*columns, strict=True):
        if found == kind:
            count, total = sums.get(token, (0, 0))
            sums[token] = (count + 1, total + int(value))
    rows: list[dict[str, Any]] = [
        {
            "first_block": first,
            "last_block": last,
            "token_address": token,
            "transfers": count,
            "volume_text": str(total),
        }
        for token, (count, total) in sorted(sums.items())
    ]
    return pa.Table.from_pylist(rows, schema=VOLUMES)


def volumes(task: OperatorTask) -> pa.Table:
    kind = task.config.get("kind", "erc20")
    return token_volumes(task.read("token_transfers"), task.scope.start, task.scope.end, kind)


def top_tokens(task: OperatorTask) -> pa.Table:
    """The five tokens that moved most often in the range."""
    return busiest(task.read("volumes"))


def busiest(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("transfers", "descending"), ("token_address", "ascending")]).slice(0, 5)
