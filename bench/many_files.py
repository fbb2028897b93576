"""A dataset of a million files: what planning tasks, queries and an Iceberg table over some or all of them takes.

Each measurement runs in a process of its own, so that its peak of memory is its own.

    python -m bench.many_files URL GENERATION WHAT
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

FILES = 1_000_000
FILL = """
insert into traceplane.dataset_commits (task_id, output_index, generation_id, range_start, range_end, files, row_count,
                                        bytes, schema_hash, committed_at)
select gen_random_uuid(), 0, $1::uuid, n, n,
  jsonb_build_array(jsonb_build_object(
    'path', 'o/' || $1::uuid || '/' || $1::uuid || '/staging/' || md5(n::text)::uuid || '/1/part-00000.parquet',
    'rows', 100, 'bytes', 12345, 'statistics', jsonb_build_object(
      'n', jsonb_build_object('min', n, 'max', n, 'null_count', 0),
      'v', jsonb_build_object('min', 'value ' || n * 100, 'max', 'value ' || n * 100 + 99, 'null_count', 0),
      'w', jsonb_build_object('min', n * 0.5, 'max', n * 0.5 + 100, 'null_count', 3)))),
  100, 12345, 'h', now() from generate_series($2::bigint, $3::bigint) n
"""

Measured = Callable[[Any, UUID], Awaitable[int]]
"""Of a database and a generation: does the work, and returns how many files were found."""


async def some_files(database: Any, generation: UUID, first: int = 500_000) -> int:
    """What a claim reads for a task over 100 files."""
    from traceplane.postgres import commits

    async with database.transaction() as tx:
        reads = [commits.ReadRange(generation, (first, first + 99))]
        [live] = await commits.read_by_tasks(tx, reads, most=10_000)
    return len(live or ())


async def all_files(database: Any, generation: UUID) -> int:
    """What the dispatcher reads and sends of the input of a task over all files."""
    import msgspec

    from traceplane.postgres import commits
    from traceplane.wire.tasks import InputFile

    read = commits.ReadRange(generation, (0, FILES))
    sent, piece = 0, []
    async with database.snapshot() as tx:
        assert await commits.read_by_tasks(tx, [read], most=10_000) == [None]
        async for commit in commits.streamed(tx, read):
            piece += [InputFile(f["path"], f["rows"], f["bytes"]) for f in commit.files]
            if len(piece) >= 5_000:
                msgspec.json.encode(piece)
                sent, piece = sent + len(piece), []
    return sent + len(piece)


async def selected_files(database: Any, generation: UUID) -> int:
    """What a claim reads for a task over all files of which it needs one, as their statistics show."""
    from traceplane.model import pruning
    from traceplane.model.comparisons import asked_columns
    from traceplane.postgres import commits

    asked = pruning.asked(asked_columns({"w": {"at_least": 400_000, "at_most": 400_000.25}}, {"w": "double"}))
    async with database.snapshot() as tx:
        [live] = await commits.read_by_tasks(
            tx, [commits.ReadRange(generation, (0, FILES), asked)], most=10_000
        )
    return len(live or ())


def _dataset(generation: UUID) -> Any:
    from traceplane.model.dataset_schema import SchemaColumn
    from traceplane.postgres.pinned import PinnedDataset

    return PinnedDataset(
        *(uuid4(), "bench.files", "bench", 1, generation, generation, "parquet", ""),
        columns=(SchemaColumn("n", "int64"), SchemaColumn("v", "string"), SchemaColumn("w", "double")),
        pii=frozenset(),
        position="n",
        cursor=FILES - 1,
        row_version="1",
        forgotten_until=None,
    )


async def _queried(database: Any, generation: UUID, column: str, value: Any) -> int:
    from traceplane.model.pruning import Condition
    from traceplane.query.catalog import Catalog, choose

    dataset, conditions = _dataset(generation), [Condition(column, ((value, value),))]
    async with database.snapshot() as tx:
        listed = await Catalog().files(tx, dataset, [conditions])
    return choose(listed, dataset, conditions).files


async def query_by_position(database: Any, generation: UUID) -> int:
    """What a query for one position reads, in a gateway that has just started."""
    return await _queried(database, generation, "n", 777_777)


async def query_by_value(database: Any, generation: UUID) -> int:
    """The same for a value of another column."""
    return await _queried(database, generation, "v", "value 77777700")


async def iceberg_table(database: Any, generation: UUID) -> int:
    """Loading an Iceberg table of all files, for the first time of the day."""
    from traceplane.adapters.object_store_folder import FolderObjectStore
    from traceplane.iceberg.derivation import Derivation, cut
    from traceplane.iceberg.derived_files import DerivedFiles
    from traceplane.postgres import pinned

    dataset = _dataset(generation)
    with tempfile.TemporaryDirectory() as folder:
        derived = DerivedFiles(lambda: FolderObjectStore(Path(folder)), Path(folder) / "scratch")
        derivation: Any = Derivation(None, derived)  # type: ignore[arg-type]  # no rows are hidden
        async with database.snapshot() as tx:
            cuts = await cut(dataset, pinned.listed(tx, generation))
        table = await derivation.table(
            database, None, dataset, cuts, org_id=uuid4(), today=date(2026, 11, 19)
        )
        [snapshot] = table.metadata["snapshots"]
        return int(snapshot["summary"]["total-data-files"])


WORK: dict[str, Measured] = {
    work.__name__: work
    for work in (some_files, all_files, selected_files, query_by_position, query_by_value, iceberg_table)
}


async def measure(url: str, generation: UUID, work: Measured) -> dict[str, float]:
    from traceplane.postgres.database import Database

    database = await Database.connect(url, connections=4)
    await some_files(database, generation, 0)  # what a service has done once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    files = await work(database, generation)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await database.close()
    return {"files": files, "ms": seconds * 1000, "before_mb": before / 1024, "peak_mb": peak / 1024}


if __name__ == "__main__":
    url, generation, what = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(url, UUID(generation), WORK[what]))))
