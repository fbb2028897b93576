"""A dataset of a million files: what planning a task over some or all of them takes, and the memory that it needs.

Each measurement runs in a process of its own, so that its peak is its own.

    python -m bench.many_files URL GENERATION FIRST LAST
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from uuid import UUID

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


async def plan_task(url: str, generation: UUID, first: int, last: int) -> dict[str, float]:
    from traceplane.postgres import commits
    from traceplane.postgres.database import Database

    database = await Database.connect(url, connections=1)
    async with database.transaction() as tx:  # what a service has done once
        await commits.read_by_tasks(tx, [commits.ReadRange(generation, (first, first))], most=10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    async with database.transaction() as tx:
        [live] = await commits.read_by_tasks(tx, [commits.ReadRange(generation, (first, last))], most=10_000)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await database.close()
    return {"files": len(live), "ms": seconds * 1000, "before_mb": before / 1024, "peak_mb": peak / 1024}


if __name__ == "__main__":
    url, generation, first, last = sys.argv[1:]
    print(json.dumps(asyncio.run(plan_task(url, UUID(generation), int(first), int(last)))))
