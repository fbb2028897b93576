"""Compares committed rows of a scope with the node: one row per discrepancy, none if all is well.

For each input table and each block of the scope it compares the block hash of the rows, the number of rows and, for
blocks, the parent hash. Rows are read two or three columns at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from traceplane.chain.extract import Chunk, stream_range
from traceplane.chain.operators.config import CheckConfig, block_range, operator_errors, read
from traceplane.chain.rpc import RpcClient
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
    """What the node reports."""
    found: str | None
    """What is committed."""


@dataclass(slots=True)
class BlockSummary:
    """Hashes, parents and row counts of one table, per block."""

    counts: Counter[int] = field(default_factory=Counter)
    hashes: dict[int, set[str]] = field(default_factory=dict)
    parents: dict[int, set[str]] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        numbers = rows["block_number"].to_pylist()
        self.counts.update(numbers)
        for number, block_hash in set(zip(numbers, rows["block_hash"].to_pylist(), strict=True)):
            self.hashes.setdefault(number, set()).add(block_hash)
        if "parent_hash" in rows.column_names:
            for number, parent in set(zip(numbers, rows["parent_hash"].to_pylist(), strict=True)):
                self.parents.setdefault(number, set()).add(parent)

    def add_counted(self, number: int, block_hash: str, parent_hash: str | None, rows: int) -> None:
        """Rows of one block that have the same hashes."""
        self.counts[number] += rows
        self.hashes.setdefault(number, set()).add(block_hash)
        if parent_hash is not None:
            self.parents.setdefault(number, set()).add(parent_hash)


def run(task: OperatorTask) -> None:
    with operator_errors():
        settings, config = read(task.config, CheckConfig)
        first, last = block_range(task)
        committed = {name: _committed(task, name) for name in task.inputs}

        async def check() -> list[Discrepancy]:
            async with RpcClient(settings) as client:
                return await compare(client, config, committed, first, last)

        discrepancies = asyncio.run(check())
    write(task, discrepancies)


def write(task: OperatorTask, discrepancies: list[Discrepancy]) -> None:
    (output,) = task.outputs
    task.write(output, pa.Table.from_pylist([asdict(one) for one in discrepancies], schema=DISCREPANCIES))


def _committed(task: OperatorTask, table: str) -> BlockSummary:
    summary = BlockSummary()
    columns = ["block_number", "block_hash", *(["parent_hash"] if table == "blocks" else [])]
    summary.add(task.read(table, columns))
    return summary


async def compare(
    client: RpcClient, config: CheckConfig, committed: dict[str, BlockSummary], first: int, last: int
) -> list[Discrepancy]:
    """Ordered by block, then by table."""
    discrepancies: list[Discrepancy] = []
    head = min(last, await client.head())
    if head >= first:
        tables = tuple({"blocks": None, **dict.fromkeys(committed)})
        stream = stream_range(
            client, first, head, tables, chunk_blocks=config.chunk_blocks, cross_check=config.cross_check
        )
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                discrepancies += of_chunk(chunk, committed)
    for name, summary in committed.items():
        for number in sorted(summary.counts):
            if not first <= number <= head:
                discrepancies.append(of_other_block(number, name, summary.counts[number], first, last))
    return discrepancies


def of_chunk(chunk: Chunk, committed: Mapping[str, BlockSummary]) -> list[Discrepancy]:
    """Those of the blocks of a chunk, which has the table of blocks and the committed ones."""
    actual = {name: BlockSummary() for name in chunk.tables}
    for name, rows in chunk.tables.items():
        actual[name].add(rows)
    return [
        one
        for number in range(chunk.first, chunk.last + 1)
        for name, summary in committed.items()
        for one in _of_block(number, name, summary, actual)
    ]


def of_other_block(number: int, name: str, rows: int, first: int, last: int) -> Discrepancy:
    """That of a block that the node does not have, or that is not in the scope."""
    if not first <= number <= last:
        return Discrepancy(number, name, "outside_scope", None, str(rows))
    return Discrepancy(number, name, "beyond_head", "0", str(rows))


def _of_block(
    number: int, name: str, summary: BlockSummary, actual: dict[str, BlockSummary]
) -> Iterator[Discrepancy]:
    (block_hash,) = actual["blocks"].hashes[number]
    for other_hash in sorted(summary.hashes.get(number, set()) - {block_hash}):
        yield Discrepancy(number, name, "wrong_hash", block_hash, other_hash)
    (parent,) = actual["blocks"].parents[number]
    for other_parent in sorted(summary.parents.get(number, set()) - {parent}):
        yield Discrepancy(number, name, "wrong_parent", parent, other_parent)
    if summary.counts[number] != actual[name].counts[number]:
        yield Discrepancy(
            number, name, "wrong_count", str(actual[name].counts[number]), str(summary.counts[number])
        )
