"""The rows of hot tables as files for one query, from the same snapshot as its pointers and file lists: a row that
compaction moves is either in the table or in a file, never in both or neither."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from traceplane.columnar.postgres_csv import as_parquet
from traceplane.errors import TooLarge
from traceplane.postgres import hot_tables
from traceplane.postgres.database import Transaction
from traceplane.query.wire import FileGroup

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 512 << 20
_LEAST, _MOST = -(2**63), 2**63 - 1


async def export(tx: Transaction, generation_id: UUID, folder: Path, schema: pa.Schema) -> FileGroup:
    """A Parquet file with all rows in the table of a generation."""
    table = (await hot_tables.load(tx, [generation_id]))[generation_id]
    received = folder / f"{generation_id}.csv"
    size = 0
    with received.open("wb") as file:

        async def push(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            if size > MOST_BYTES:
                raise TooLarge(
                    "query.hot_too_large",
                    f"a hot table has more than {MOST_BYTES >> 20} MB, the most that a query may read of it",
                    value=str(generation_id),
                    next_step="compact it into files, and query the compacted dataset instead",
                )
            file.write(piece)

        await hot_tables.read(tx, table, _LEAST, _MOST, push, columns=schema.names, where={})
    target = folder / f"{generation_id}.parquet"
    rows = await asyncio.to_thread(as_parquet, received, target, schema)
    received.unlink()
    target.chmod(0o644)
    return FileGroup([str(target)], rows=rows)
