"""A range of blocks in parts, which run in parallel in Spark's Python processes.

The chunks of a range are dealt to the parts in turn, so that all parts take about as long. A part fetches, checks and
uses one chunk after another, and returns a row for each: its ends, their hashes, and what became of it. Whoever started
the parts checks that each chunk follows the one before (`linked`), since parts know nothing of each other. The parts
together keep to the limits of the task: each has its share of the requests at once and of the calls per second.

An error in a part ends all of them. Spark only passes on its text, so the text holds code and message (`as_error`).
"""

from __future__ import annotations

import itertools
import re
import secrets
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from traceplane.chain.errors import RpcInconsistent
from traceplane.chain.extract import Chunk, Span, spans, stream_spans_sync
from traceplane.chain.operators.config import operator_errors
from traceplane.chain.operators.integrity_check import BlockSummary, Discrepancy, of_chunk
from traceplane.chain.rpc import RpcSettings
from traceplane.model.task_payload import DeclaredOutput, TaskPayload
from traceplane.sdk import OperatorError, OperatorTask

RESULT = pa.schema(
    [
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("parent_hash", pa.string()),
        pa.field("last_hash", pa.string()),
        pa.field("made", pa.string()),
    ]
)
RESULT_COLUMNS = "first bigint, last bigint, parent_hash string, last_hash string, made string"
"""The same for Spark."""
_MARK = "TRACEPLANE_PART_FAILED "
_ERROR = re.compile(_MARK + r"(\{.*\})")


@dataclass(frozen=True, slots=True)
class Range:
    """Blocks that are read in parts."""

    settings: RpcSettings
    first: int
    last: int
    tables: tuple[str, ...]
    chunk_blocks: int
    cross_check: bool
    parts: int
    """At most one for each chunk."""

    @classmethod
    def of(
        cls,
        settings: RpcSettings,
        first: int,
        last: int,
        tables: Iterable[str],
        *,
        chunk_blocks: int,
        cross_check: bool,
        most_parts: int,
    ) -> Range:
        chunks = -(-(last - first + 1) // chunk_blocks)
        parts = max(1, min(most_parts, chunks))
        return cls(shared(settings, parts), first, last, tuple(tables), chunk_blocks, cross_check, parts)

    def chunks_of(self, part: int) -> list[Span]:
        return spans(self.first, self.last, self.chunk_blocks)[part :: self.parts]

    def read(self, part: int) -> closing[Generator[Chunk, None, None]]:
        return closing(
            stream_spans_sync(self.settings, self.chunks_of(part), self.tables, cross_check=self.cross_check)
        )


def shared(settings: RpcSettings, parts: int) -> RpcSettings:
    """What each of several clients may do so that all of them together keep to the settings."""
    per_second = settings.calls_per_second
    return replace(
        settings,
        concurrency=max(1, settings.concurrency // parts),
        calls_per_second=None if per_second is None else per_second / parts,
    )


@dataclass(frozen=True, slots=True)
class Done:
    """A chunk that a part is through with."""

    first: int
    last: int
    parent_hash: str
    last_hash: str
    made: str
    """What it made of the chunk, as JSON."""


def linked(done: Iterable[Done], blocks: Range) -> list[Done]:
    """In order; raises RpcInconsistent unless they are all chunks of the range, and of one chain."""
    ordered = sorted(done, key=lambda one: one.first)
    expected = spans(blocks.first, blocks.last, blocks.chunk_blocks)
    if [(one.first, one.last) for one in ordered] != expected:
        raise OperatorError(
            "operator.result_invalid", f"Spark returned {len(ordered)} of {len(expected)} chunks"
        )
    for before, after in itertools.pairwise(ordered):
        if after.parent_hash != before.last_hash:
            raise RpcInconsistent(
                f"block {after.first} does not follow {before.last_hash}", value=after.parent_hash
            )
    return ordered


Work = Callable[[Iterator[pa.RecordBatch]], Iterator[Done]]
"""What a part does with its chunks."""


def run(work: Work, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a Python process of Spark."""
    try:
        with operator_errors():
            for done in work(batches):
                yield pa.RecordBatch.from_pylist([asdict(done)], RESULT)
    except OperatorError as error:
        told = msgspec.json.encode({"code": error.code, "message": str(error)}).decode()
        raise RuntimeError(_MARK + told) from None  # Spark repeats this line, too


def as_error(text: str) -> OperatorError | None:
    """The error of a part in what Spark says of it; None if there is none."""
    match = _ERROR.search(text)
    if match is None:
        return None
    try:
        told = msgspec.json.decode(match[1], type=dict[str, str])
        return OperatorError(told["code"], told["message"])
    except (msgspec.DecodeError, KeyError):
        return None


Write = Callable[[Chunk], dict[str, list[Any]]]
"""Writes the tables of a chunk. What it made of each is JSON that whoever started the parts understands."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """Writes each chunk; `made` lists its files by output."""

    blocks: Range
    write: Write

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Done]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                with self.blocks.read(part) as chunks:
                    for chunk in chunks:
                        made = msgspec.json.encode(self.write(chunk)).decode()
                        yield Done(chunk.first, chunk.last, chunk.parent_hash, chunk.last_hash, made)


@dataclass(frozen=True, slots=True)
class InFolders:
    """One file per output in its folder, which this process shares with whoever started it; lists their names."""

    outputs: tuple[DeclaredOutput, ...]
    unique_key: tuple[str, ...]

    def __call__(self, chunk: Chunk) -> dict[str, list[Any]]:
        task = written(chunk, self.outputs, self.unique_key)
        return {name: [file.name for file in one.files] for name, one in task.written.items()}


def written(
    chunk: Chunk, outputs: tuple[DeclaredOutput, ...], unique_key: tuple[str, ...], *, in_memory: bool = False
) -> OperatorTask:
    """A task that has written nothing but this chunk, to the outputs' folders or to memory."""
    task = OperatorTask(
        task_id="",
        attempt=0,
        payload=TaskPayload(outputs=outputs, unique_key=unique_key),
        output_folders={output.name: str(output.folder) for output in outputs},
        temp_dir=".",
        inline_bytes=sys.maxsize if in_memory else 0,
        # Spark may run a part twice, at the same time even: no two write to one file.
        mark=f"{chunk.first}-{secrets.token_hex(8)}-",
    )
    for name, table in chunk.tables.items():
        task.write(name, table)
    return task


@dataclass(frozen=True, slots=True)
class Check:
    """Compares each chunk with the committed rows of its blocks; `made` lists the discrepancies.

    It is given one row for each block hash of each table, and one without a table for each chunk, sorted by chunk.
    """

    blocks: Range
    committed: tuple[str, ...]
    """The tables that are compared."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Done]:
        rows = (row for batch in batches for row in batch.to_pylist())
        by_chunk = itertools.groupby(rows, key=lambda row: row["chunk"])
        first = next(by_chunk, None)
        if first is None:
            return
        with self.blocks.read(first[0] % self.blocks.parts) as chunks:
            for (_, of_blocks), chunk in zip(_chained(first, by_chunk), chunks, strict=True):
                found = of_chunk(chunk, self._summaries(of_blocks))
                made = msgspec.json.encode([asdict(one) for one in found]).decode()
                yield Done(chunk.first, chunk.last, chunk.parent_hash, chunk.last_hash, made)

    def _summaries(self, rows: Iterable[dict[str, Any]]) -> dict[str, BlockSummary]:
        summaries = {name: BlockSummary() for name in self.committed}
        for row in rows:
            if row["table_name"] is not None:
                summaries[row["table_name"]].add_counted(
                    row["block_number"], row["block_hash"], row["parent_hash"], row["rows"]
                )
        return summaries


def _chained(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    """`itertools.chain`, which would ask for the next group before the first one is read."""
    yield first
    yield from others


def discrepancies(done: Sequence[Done]) -> list[Discrepancy]:
    return [one for each in done for one in msgspec.json.decode(each.made, type=list[Discrepancy])]
