"""Committed rows of a scope against the node: one row per discrepancy, none if all is well.

Compared are, for each table that is an input and each block of the scope: the hash that its rows name, how many
rows there are, and, for blocks, the parent that each names. Rows are read two or three columns at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from traceplane.chain.extract import stream_range
from traceplane.chain.operators.config import CheckConfig, read, told_to_the_platform
from traceplane.chain.rpc import RpcClient
from traceplane.errors import InvalidInput
from traceplane.sdk import OperatorTask

DISCREPANCIES = pa.schema(
    [
        pa.field("block_number", pa.int64(), nullable=False),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("problem", pa.string(), nullable=False),
        pa.field("expected", pa.string()),
        pa.field("found", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Discrepancy:
    block_number: int
    table_name: str
    problem: str
    """wrong_hash | wrong_parent | wrong_count | beyond_head | outside_scope"""
    expected: str | None
    """What the node says."""
    found: str | None
    """What is committed."""


@dataclass(slots=True)
class Seen:
    """What some rows of one table say, per block."""

    counts: Counter[int] = field(default_factory=Counter)
    hashes: dict[int, set[str]] = field(default_factory=dict)
    parents: dict[int, str] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        numbers = rows["block_number"].to_pylist()
        self.counts.update(numbers)
        for number, block_hash in set(zip(numbers, rows["block_hash"].to_pylist(), strict=True)):
            self.hashes.setdefault(number, set()).add(block_hash)
        if "parent_hash" in rows.column_names:
            self.parents.update(zip(numbers, rows["parent_hash"].to_pylist(), strict=True))


def run(task: OperatorTask) -> None:
    with told_to_the_platform():
        settings, config = read(task.config, CheckConfig)
        if task.scope is None or task.scope.start < 0:
            raise InvalidInput("chain.range_invalid", "the scope is not a range of blocks", value=task.scope)
        committed = {name: _committed(task, name) for name in task.inputs}

        async def check() -> list[Discrepancy]:
            async with RpcClient(settings) as client:
                return await compare(client, config, committed, task.scope.start, task.scope.end)  # type: ignore[union-attr]

        found = asyncio.run(check())
    (output,) = task.outputs
    task.write(output, pa.Table.from_pylist([asdict(one) for one in found], schema=DISCREPANCIES))


def _committed(task: OperatorTask, table: str) -> Seen:
    seen = Seen()
    columns = ["block_number", "block_hash", *(["parent_hash"] if table == "blocks" else [])]
    seen.add(task.read(table, columns))
    return seen


async def compare(
    client: RpcClient, config: CheckConfig, committed: dict[str, Seen], first: int, last: int
) -> list[Discrepancy]:
    """In the order of the blocks, and of the tables within one."""
    found: list[Discrepancy] = []
    head = min(last, await client.head())
    if head >= first:
        wanted = tuple({"blocks": None, **dict.fromkeys(committed)})
        stream = stream_range(
            client, first, head, wanted, chunk_blocks=config.chunk_blocks, cross_check=config.cross_check
        )
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                actual = {name: Seen() for name in wanted}
                for name, rows in chunk.tables.items():
                    actual[name].add(rows)
                for number in range(chunk.first, chunk.last + 1):
                    for name, seen in committed.items():
                        found += _of_block(number, name, seen, actual)
    for name, seen in committed.items():
        for number in sorted(seen.counts):
            if not first <= number <= last:
                found.append(Discrepancy(number, name, "outside_scope", None, str(seen.counts[number])))
            elif number > head:
                found.append(Discrepancy(number, name, "beyond_head", "0", str(seen.counts[number])))
    return found


def _of_block(number: int, name: str, seen: Seen, actual: dict[str, Seen]) -> Iterator[Discrepancy]:
    (block_hash,) = actual["blocks"].hashes[number]
    for named in sorted(seen.hashes.get(number, set()) - {block_hash}):
        yield Discrepancy(number, name, "wrong_hash", block_hash, named)
    parent = actual["blocks"].parents[number]
    if seen.parents.get(number, parent) != parent:
        yield Discrepancy(number, name, "wrong_parent", parent, seen.parents[number])
    if seen.counts[number] != actual[name].counts[number]:
        yield Discrepancy(
            number, name, "wrong_count", str(actual[name].counts[number]), str(seen.counts[number])
        )
