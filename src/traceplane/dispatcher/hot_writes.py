"""Rows of completed tasks on their way into hot tables.

A task stages its output as Parquet, whatever the dataset's storage is. What belongs into a hot table is read, checked
against the table and turned into CSV before the transaction begins, so that inside it there is nothing left but to
delete and to copy. Rows that do not fit fail their own task and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

from traceplane.linux.plain_files import open_plain
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.hot_table import HotTable
from traceplane.postgres import hot_tables
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Database, Transaction

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 64 << 20
"""Of one output, as CSV: more would hold the transaction, and whoever waits for it, for seconds."""
_KEPT_IN_MEMORY = 4 << 20
_ROWS_AT_ONCE = 65_536
_AT_ONCE = 2


class Unfit(Exception):
    """Rows that a hot table cannot take, as the task's error."""

    def __init__(
        self, code: str, message: str, next_step: str, *, value: Any = None, retryable: bool = False
    ):
        super().__init__(message)
        self.error = {
            "code": code,
            "message": message,
            "value": value,
            "next_step": next_step,
            "retryable": retryable,
        }


@dataclass(frozen=True, slots=True)
class HotRows:
    """What one output puts into its table, ready to be copied."""

    table: HotTable
    start: int
    end: int
    csv: IO[bytes]
    count: int

    def close(self) -> None:
        self.csv.close()


class HotWrites:
    """`object_store`: where staged files lie."""

    def __init__(self, database: Database, object_store: Path | None) -> None:
        self._database = database
        self._object_store = object_store
        self._known: dict[UUID, HotTable | None] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def tables(
        self, generation_ids: Iterable[UUID], tx: Transaction | None = None
    ) -> dict[UUID, HotTable]:
        """Those of the generations that are hot. A generation is made so, or it never is."""
        wanted = set(generation_ids)
        if unknown := sorted(wanted - self._known.keys()):
            async with contextlib.nullcontext(tx) if tx else self._database.glance() as asked:
                found = await hot_tables.load(asked, unknown)
            self._known |= {generation: found.get(generation) for generation in unknown}
        return {g: table for g in wanted if (table := self._known[g]) is not None}

    async def prepare(self, table: HotTable, output: OutputCommit) -> HotRows:
        """Raises Unfit."""
        paths = [self._place(file["path"]) for file in output.files]
        async with self._turns:
            return await asyncio.to_thread(_encoded, table, paths, output.start, output.end)

    def _place(self, path: str) -> Path:
        if self._object_store is None:
            raise _unreadable(path, "the dispatcher has no object store")
        return self._object_store / path


def as_hot(output: OutputCommit, table: HotTable) -> OutputCommit:
    """What the catalog says of an output whose rows are in a table: no files, the table's own schema."""
    schema = tuple(SchemaColumn(c.name, c.arrow_type, c.nullable) for c in table.columns)
    return replace(output, files=[], schema=schema)


async def apply(tx: Transaction, rows: Sequence[HotRows]) -> None:
    """In the order of the calls: of two that write one position the later stays. Raises RowsRefused."""
    for one in rows:
        if one.table.replaces:
            await hot_tables.clear(tx, one.table, one.start, one.end)
        if one.count:
            one.csv.seek(0)
            await hot_tables.write(tx, one.table, one.csv, one.count)


def _encoded(table: HotTable, paths: Sequence[Path], start: int, end: int) -> HotRows:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    count = 0
    with contextlib.ExitStack() as undo:
        sink = undo.enter_context(tempfile.SpooledTemporaryFile(_KEPT_IN_MEMORY))
        for path in paths:
            try:
                with open_plain(path) as opened, parquet.ParquetFile(opened) as file:
                    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                        fitting = _fitted(pa.Table.from_batches([batch]), table, start, end)
                        csv.write_csv(fitting, sink, options)
                        count += batch.num_rows
                        _refuse_too_much(sink.tell())
            except (OSError, pa.ArrowException) as error:
                raise _unreadable(path.name, str(error)) from error
        undo.pop_all()
    return HotRows(table, start, end, sink, count)


def _refuse_too_much(size: int) -> None:
    if size > MOST_BYTES:
        raise Unfit(
            "commit.too_large",
            f"the output is larger than the {MOST_BYTES >> 20} MB that one commit puts into a hot table",
            "let the job work on smaller scopes, or make the dataset storage: parquet",
        )


def _unreadable(path: str, reason: str) -> Unfit:
    return Unfit(
        "commit.file_unreadable",
        f"a staged file cannot be read by the dispatcher: {reason}",
        "check that dispatcher and workers have the same object store",
        value=path,
        retryable=True,
    )


def _fitted(rows: pa.Table, table: HotTable, start: int, end: int) -> pa.Table:
    """The rows as the table has them: its columns, in its order, in its types, checked."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from traceplane.arrow_types import type_of

    names = [c.name for c in table.columns]
    if unknown := [name for name in rows.column_names if name not in names]:
        raise _misfit(unknown[0], "is not one of the dataset's columns", "declare it, or do not write it")
    columns = []
    for column in table.columns:
        type_ = type_of(column.arrow_type)
        if column.name not in rows.column_names:
            found = pa.chunked_array([pa.nulls(rows.num_rows, type_)])
        elif rows.column_names.count(column.name) > 1:
            raise _misfit(column.name, "is there twice", "write it once")
        else:
            found = _cast(rows[column.name], column.name, type_, column.type)
        if found.null_count and not (column.nullable and column.name != table.position):
            raise _misfit(column.name, "is null or missing", "write a value in every row")
        columns.append(_as_text(_storable(found, column.name)))
    fitted = pa.table(columns, names=names)
    if fitted.num_rows:
        low, high = pc.min_max(fitted[table.position]).as_py().values()
        if low < start or high > end:
            where = low if low < start else high
            raise _misfit(
                table.position,
                f"has {where}, which is outside of the task's scope {start} to {end}",
                "write rows of the task's own scope only",
            )
    return fitted


def _cast(found: pa.ChunkedArray, name: str, type_: pa.DataType, declared: str) -> pa.ChunkedArray:
    import pyarrow as pa

    try:
        found.validate(full=True)  # text may not be UTF-8, for one
        if found.type == type_:
            return found
        if pa.types.is_temporal(found.type) != pa.types.is_temporal(type_) or _is_text(
            found.type
        ) != _is_text(type_):
            raise pa.ArrowInvalid(f"{found.type} is not {declared}")
        return found.cast(type_)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0][:200]
        raise _misfit(
            name, f"is {declared} and cannot hold what was written: {reason}", "write it as declared"
        ) from None


def _is_text(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _storable(found: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Refuses what Arrow can hold and Postgres cannot, or CSV cannot spell."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(found.type) and pc.any(pc.match_substring(found, "\0")).as_py():
        raise _misfit(name, "has text with a NUL character, which Postgres cannot store", "remove it")
    if pa.types.is_date(found.type) or pa.types.is_timestamp(found.type):
        years = pc.min_max(pc.year(found)).as_py()
        if years["min"] is not None and not 1 <= years["min"] <= years["max"] <= 9999:
            raise _misfit(name, "has a time outside of the years 1 to 9999", "write times within them")
    return found


def _as_text(found: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes as Postgres reads them; Arrow has no such function, so this is by value."""
    import pyarrow as pa

    if not pa.types.is_binary(found.type):
        return found
    return pa.chunked_array(
        [pa.array([None if v is None else "\\x" + v.hex() for v in found.to_pylist()], pa.string())]
    )


def _misfit(column: str, what: str, next_step: str) -> Unfit:
    return Unfit("commit.rows_unfit", f"column {column} {what}", next_step, value=column)
