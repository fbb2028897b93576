"""Rows of completed tasks on their way into hot tables.

A task stages its output as Parquet, whatever the dataset's storage. Output for a hot table is read, checked against the
table and converted to CSV (by a decoder, since operators wrote it) before the transaction begins, so that the
transaction only has to delete and copy. Rows that do not fit fail only their own task.

Outputs of one transaction that have no position in common are written together, so that many small tasks do not need
several statements each.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import IO
from uuid import UUID

from traceplane.adapters.object_store import ObjectStore, StoredFile
from traceplane.decoding.decoder_pool import Budget, Decoders
from traceplane.decoding.messages import FileTooLarge, HotRowsWork, InvalidContents, Unreadable
from traceplane.errors import PlatformError
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.hot_table import HotTable, Interval, united
from traceplane.postgres import hot_tables
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Readable, Transaction
from traceplane.wire.tasks import RefusedRow, StagedFile, TaskError

MOST_BYTES = 64 << 20
"""Per output, as CSV: more would hold the transaction, and everyone waiting for it, for seconds."""
MOST_BUFFERED_BYTES = 256 << 20
"""The same for a buffered dataset, where only the dataset's own sink waits; but a statement has 30 seconds."""
_SECONDS_TO_READ, _BUFFERED_SECONDS_TO_READ = 10.0, 40.0
"""Of processor time."""
_KEPT_IN_MEMORY = 64 << 10
"""Per output; a group of calls has up to a thousand."""
_MOST_TOGETHER = 16 << 20
"""Of CSV that one statement writes for several outputs: a statement has 30 seconds."""
_AT_ONCE, _AT_ONCE_PER_TABLE = 3, 2
"""Outputs that are read: never all for one table, so that a job with much to read delays itself first."""
_KNOWN_SECONDS = 5.0


class Unfit(Exception):
    """Rows that do not fit a hot table, as the task's error."""

    def __init__(
        self,
        code: str,
        message: str,
        next_step: str,
        *,
        value: str | None = None,
        retryable: bool = False,
        row: RefusedRow | None = None,
    ):
        super().__init__(message)
        self.error = TaskError(code, message, value=value, next_step=next_step, retryable=retryable, row=row)


@dataclass(frozen=True, slots=True)
class HotRows:
    """The rows of one output, ready to be copied into its table."""

    task_id: UUID
    table: HotTable
    start: int
    end: int
    csv: IO[bytes]
    size: int
    """In bytes."""
    count: int

    @property
    def range(self) -> hot_tables.Range:
        return self.table.generation_id, self.start, self.end

    def close(self) -> None:
        self.csv.close()


OpenStore = Callable[[], ObjectStore]


class HotWrites:
    """`staged`: the folder of staged files, or a function that opens the store they are downloaded from; without hot
    datasets it is never called."""

    def __init__(self, database: Database, staged: Path | OpenStore, decoders: Decoders) -> None:
        self._database = database
        self._decoders = decoders
        self._staged = staged
        self._opened: ObjectStore | None = None
        self._known: dict[UUID, HotTable | None] = {}
        self._read_at: dict[UUID, float] = {}
        """When a table was read: how it is written can change."""
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._turns_of_tables: dict[UUID, asyncio.Semaphore] = {}

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def tables(
        self, generation_ids: Iterable[UUID], tx: Transaction | None = None
    ) -> dict[UUID, HotTable]:
        """The tables of those generations that are hot. Cached: whether a generation is hot never changes."""
        generations, now = set(generation_ids), time.monotonic()
        old = {g for g in generations if now - self._read_at.get(g, now) > _KNOWN_SECONDS}
        if unknown := sorted(generations - (self._known.keys() - old)):
            async with contextlib.nullcontext(tx) if tx else self._database.autocommit() as reading:
                loaded = await hot_tables.load(reading, unknown)
            self._known |= {generation: loaded.get(generation) for generation in unknown}
            self._read_at |= dict.fromkeys(loaded, now)
        return {g: table for g in generations if (table := self._known[g]) is not None}

    async def prepare(self, org: str, table: HotTable, output: OutputCommit) -> HotRows:
        """Raises Unfit."""
        own_turn = self._turns_of_tables.setdefault(
            output.generation_id, asyncio.Semaphore(_AT_ONCE_PER_TABLE)
        )
        async with own_turn, self._turns, self._at_hand(table, output.files) as paths:
            return await asyncio.to_thread(_encoded, self._decoders, org, table, paths, output)

    @contextlib.asynccontextmanager
    async def _at_hand(self, table: HotTable, files: Sequence[StagedFile]) -> AsyncIterator[list[Path]]:
        """Local paths of the files, valid while they are read."""
        if isinstance(self._staged, Path):
            yield [self._staged / file.path for file in files]
            return
        if self._opened is None:
            self._opened = self._staged()
        if (size := sum(file.bytes for file in files)) > _most_bytes(table):
            raise _too_large(table, files[0].path, f"its files have {size} bytes")
        with tempfile.TemporaryDirectory(prefix="traceplane-hot-") as folder:
            copies = [Path(folder, str(number)) for number in range(len(files))]
            for file, copy in zip(files, copies, strict=True):
                try:
                    await self._opened.get(StoredFile(file.path, file.bytes), copy)
                except PlatformError as error:
                    raise _unreadable(file.path, error.message) from error
            yield copies


def as_hot(output: OutputCommit, table: HotTable) -> OutputCommit:
    """The catalog entry of an output whose rows are in a table: no files, and the table's schema."""
    schema = tuple(SchemaColumn(c.name, c.arrow_type, c.nullable) for c in table.columns)
    return replace(output, files=[], schema=schema)


@dataclass(slots=True)
class Write:
    """What one COPY writes. No two of its outputs have a position in common, so their order does not matter."""

    table: HotTable
    keys_are_new: bool
    outputs: list[HotRows] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.outputs)


def planned(
    rows: Iterable[HotRows], empty: Collection[hot_tables.Range], *, one_by_one: bool = False
) -> list[Write]:
    """As few writes as possible. Outputs that overlap keep their order, so the later one wins. An output that skips
    rows whose keys exist is written alone: its rows are counted when they are written. `empty`: ranges without rows,
    where no key can exist."""
    writes: list[Write] = []
    started: dict[tuple[UUID, bool], Write] = {}
    written: dict[UUID, list[Interval]] = {}
    for one in rows:
        table, before = one.table, written.get(one.table.generation_id, [])
        again = any(first <= one.end and one.start <= last for first, last in before)
        written[table.generation_id] = united(before, (one.start, one.end))
        kind = table.generation_id, table.upserts and one.range in empty and not again
        write = started.get(kind)
        alone = one_by_one or again or not (table.replaces or table.upserts)
        if write is None or alone or write.size + one.size > _MOST_TOGETHER:
            if again:
                started = {other: w for other, w in started.items() if other[0] != table.generation_id}
            write = started[kind] = Write(table, keys_are_new=kind[1])
            writes.append(write)
        write.outputs.append(one)
    return writes


async def apply(tx: Transaction, write: Write) -> list[int]:
    """Returns how many rows each of its outputs added. Raises RowsRefused."""
    if write.table.replaces:
        for start, end in reduce(united, ((one.start, one.end) for one in write.outputs), list[Interval]()):
            await hot_tables.clear(tx, write.table, start, end)
    counts = [one.count for one in write.outputs]
    if not any(counts):
        return counts
    rows = joined(write.outputs)
    added = await hot_tables.write(tx, write.table, rows, sum(counts), keys_are_new=write.keys_are_new)
    return [added] if len(counts) == 1 else counts


def joined(outputs: Iterable[HotRows]) -> Readable:
    """The rows of all of them, from the first on."""
    return _Joined([one.csv for one in outputs])


class _Joined:
    """Several files as one."""

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        for file in files:
            file.seek(0)
        self._rest = deque(files)

    def read(self, size: int, /) -> bytes:
        pieces: list[bytes] = []
        while self._rest and size > 0:
            if piece := self._rest[0].read(size):
                pieces.append(piece)
                size -= len(piece)
            else:
                self._rest.popleft()
        return b"".join(pieces)


def _encoded(
    decoders: Decoders, org: str, table: HotTable, paths: Sequence[Path], output: OutputCommit
) -> HotRows:
    work = HotRowsWork(table, table.position_column.values((output.start, output.end)))
    seconds = _BUFFERED_SECONDS_TO_READ if table.buffered else _SECONDS_TO_READ
    count, budget = 0, Budget(_most_bytes(table), seconds)
    with contextlib.ExitStack() as undo:
        sink = undo.enter_context(tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY))
        for path, file in zip(paths, output.files, strict=True):
            try:
                count += budget.decode(decoders, org, path, work, sink)
            except InvalidContents as invalid:
                raise _unfit(file.path, invalid) from invalid
            except FileTooLarge as error:
                raise _too_large(table, path.name, str(error)) from error
            except Unreadable as error:
                raise _unreadable(path.name, str(error)) from error
        undo.pop_all()
    return HotRows(output.task_id, table, output.start, output.end, sink, sink.tell(), count)


def _unfit(path: str, invalid: InvalidContents) -> Unfit:
    """What the decoder says is cut to what an error may hold: a hostile file may have taken it over."""
    where = f"row {invalid.row} of {path.rpartition('/')[2]}: " if invalid.row is not None else ""
    return Unfit(
        "commit.rows_unfit",
        f"{where}{invalid}",
        invalid.next_step or "",
        value=invalid.column,
        row=RefusedRow(
            path,
            invalid.row,
            invalid.column and invalid.column[:512],
            invalid.value and invalid.value[:200],
            invalid.expected and invalid.expected[:2048],
        ),
    )


def _most_bytes(table: HotTable) -> int:
    return MOST_BUFFERED_BYTES if table.buffered else MOST_BYTES


def _too_large(table: HotTable, path: str, reason: str) -> Unfit:
    return Unfit(
        "commit.too_large",
        f"the output is larger than the {_most_bytes(table) >> 20} MB that one commit puts into a hot table: {reason}",
        "make the job work on smaller scopes, or make the dataset storage: parquet",
        value=path,
    )


def _unreadable(path: str, reason: str) -> Unfit:
    return Unfit(
        "commit.file_unreadable",
        f"the dispatcher cannot read a staged file: {reason}",
        "check that dispatcher and workers use the same object store",
        value=path,
        retryable=True,
    )
