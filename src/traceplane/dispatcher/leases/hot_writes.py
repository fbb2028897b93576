"""Rows of completed tasks on their way into hot tables.

A task stages its output as Parquet, whatever the dataset's storage. Output for a hot table is read, checked against the
table and converted to CSV (by a decoder, since operators wrote it) before the transaction begins, so that the
transaction only has to delete and copy. Rows that do not fit fail only their own task.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from uuid import UUID

from traceplane.adapters.object_store import ObjectStore, StoredFile
from traceplane.decoding.decoder_pool import Budget, Decoders
from traceplane.decoding.messages import FileTooLarge, HotRowsWork, InvalidContents, Unreadable
from traceplane.errors import PlatformError
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.hot_table import HotTable
from traceplane.postgres import hot_tables
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction
from traceplane.wire.tasks import StagedFile, TaskError

MOST_BYTES = 64 << 20
"""Per output, as CSV: more would hold the transaction, and everyone waiting for it, for seconds."""
_KEPT_IN_MEMORY = 64 << 10
"""Per output; a group of calls has up to a thousand."""
_AT_ONCE = 2
_KNOWN_SECONDS = 5.0


class Unfit(Exception):
    """Rows that do not fit a hot table, as the task's error."""

    def __init__(
        self, code: str, message: str, next_step: str, *, value: str | None = None, retryable: bool = False
    ):
        super().__init__(message)
        self.error = TaskError(code, message, value=value, next_step=next_step, retryable=retryable)


@dataclass(frozen=True, slots=True)
class HotRows:
    """The rows of one output, ready to be copied into its table."""

    table: HotTable
    start: int
    end: int
    csv: IO[bytes]
    count: int

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
        self._turns_of_tables: dict[UUID, asyncio.Lock] = {}

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
        # One output per table at a time, so that a job with much to read delays itself first.
        own_turn = self._turns_of_tables.setdefault(output.generation_id, asyncio.Lock())
        async with own_turn, self._turns, self._at_hand(output.files) as paths:
            return await asyncio.to_thread(_encoded, self._decoders, org, table, paths, output)

    @contextlib.asynccontextmanager
    async def _at_hand(self, files: Sequence[StagedFile]) -> AsyncIterator[list[Path]]:
        """Local paths of the files, valid while they are read."""
        if isinstance(self._staged, Path):
            yield [self._staged / file.path for file in files]
            return
        if self._opened is None:
            self._opened = self._staged()
        if (size := sum(file.bytes for file in files)) > MOST_BYTES:
            raise _too_large(files[0].path, f"its files have {size} bytes")
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


async def apply(tx: Transaction, rows: Sequence[HotRows]) -> list[int]:
    """In the order of the calls: if two write the same position, the later one wins. Returns how many rows each added:
    an append skips keys that exist. Raises RowsRefused."""
    added = []
    for one in rows:
        if one.table.replaces:
            await hot_tables.clear(tx, one.table, one.start, one.end)
        one.csv.seek(0)
        added.append(await hot_tables.write(tx, one.table, one.csv, one.count) if one.count else 0)
    return added


def _encoded(
    decoders: Decoders, org: str, table: HotTable, paths: Sequence[Path], output: OutputCommit
) -> HotRows:
    work = HotRowsWork(table, table.position_column.values((output.start, output.end)))
    count, budget = 0, Budget(MOST_BYTES)
    with contextlib.ExitStack() as undo:
        sink = undo.enter_context(tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY))
        for path in paths:
            try:
                count += budget.decode(decoders, org, path, work, sink)
            except InvalidContents as invalid:
                raise Unfit(
                    "commit.rows_unfit", str(invalid), invalid.next_step or "", value=invalid.column
                ) from invalid
            except FileTooLarge as error:
                raise _too_large(path.name, str(error)) from error
            except Unreadable as error:
                raise _unreadable(path.name, str(error)) from error
        undo.pop_all()
    return HotRows(table, output.start, output.end, sink, count)


def _too_large(path: str, reason: str) -> Unfit:
    return Unfit(
        "commit.too_large",
        f"the output is larger than the {MOST_BYTES >> 20} MB that one commit puts into a hot table: {reason}",
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
