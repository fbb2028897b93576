"""Whether every effect happened exactly once, read from the tables and the object store.

Completed task, commit, event and cursor have to agree in every snapshot, however short. `watched` looks all
the time while processes die; `settle` waits for the end and looks at everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pyarrow.parquet as parquet

from tests.platform import Platform
from traceplane.postgres.database import SCHEMA

HALF_DONE = """
with work as (
  select t.task_id, t.state = 'completed' as completed, o.output_index, o.generation_id, t.scope_key
  from tasks t join jobs j using (job_id) join job_outputs o using (job_id)
  where j.activation = 'reactive' and j.runtime <> 'dispatcher'
), pieces as (
  select w.task_id, w.completed, c.commit_id is not null as committed, e.event_id is not null as told
  from work w
  left join dataset_commits c using (task_id, output_index, scope_key)
  left join events e on e.producer_id = w.task_id and e.generation_id = w.generation_id
    and e.scope_key = w.scope_key
), reached as (
  select generation_id, max(range_end) as position from dataset_commits group by generation_id
)
select 'task ' || task_id || ': completed ' || completed || ', committed ' || committed || ', told ' || told
from pieces where completed <> committed or committed <> told
union all
select 'commit ' || commit_id || ' of no completed task' from dataset_commits c
where not exists (select 1 from work w where w.task_id = c.task_id and w.completed)
  and not exists (select 1 from job_outputs o join jobs j using (job_id)  -- deliveries to a source, or its files
                  where o.generation_id = c.generation_id and j.activation = 'source')
union all
select 'cursor of ' || generation_id || ' at ' || coalesce(c.position::text, 'none') || ', not '
       || coalesce(r.position::text, 'none')
from reached r full join generation_cursors c using (generation_id) where r.position is distinct from c.position
"""
"""What is visible without all that belongs to it; no row, ever."""

FORGOTTEN = """
select e.event_id, j.name from events e join job_inputs i using (generation_id) join jobs j using (job_id)
where j.routed and j.activation = 'reactive' and i.role <> 'reads'
  and not exists (select 1 from task_inputs x where x.event_id = e.event_id and x.job_id = j.job_id)
"""
"""Accepted events that some dependent job has no task for."""

LEFT = """
select format('%s %s: %s, attempt %s', j.name, t.scope_key, t.state, t.attempt)
from tasks t join jobs j using (job_id) where t.stage in (0, 1)
union all
select 'outbox ' || outbox_id from outbox
limit 10
"""
"""What there is still to do."""

DOUBLED = """
select 'commit', task_id::text, scope_key from dataset_commits
group by task_id, output_index, scope_key having count(*) > 1
union all
select 'event', producer_id::text, scope_key from events where producer_id in (select task_id from tasks)
group by producer_id, generation_id, scope_key, kind having count(*) > 1
"""


@contextlib.asynccontextmanager
async def watched(platform: Platform) -> AsyncIterator[None]:
    """Looks for half-done work in one snapshot after another while the body runs."""
    found: list[str] = []

    async def watch() -> None:
        connection = await asyncpg.connect(platform.url, server_settings={"search_path": SCHEMA})
        try:
            while not found:
                found.extend(row[0] for row in await connection.fetch(HALF_DONE))
                await asyncio.sleep(0.1)
        finally:
            connection.terminate()

    watcher = asyncio.create_task(watch())
    try:
        yield
        assert not watcher.done() or found, watcher.exception()
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        assert not found, f"seen half done: {found[:5]}"


async def settle(platform: Platform, *, seconds: float = 240.0) -> Counter[str]:
    """Waits until nothing is left to do, checks that all of it was done once; the final states."""

    deadline = time.monotonic() + seconds
    while left := await platform.sql(LEFT):
        assert time.monotonic() < deadline, f"stuck after {seconds} s: {[row[0] for row in left]}"
        await asyncio.sleep(0.1)
    assert not await platform.sql(FORGOTTEN)
    assert not await platform.sql(HALF_DONE)
    assert not await platform.sql(DOUBLED)
    return Counter(await platform.states())


async def stored_rows(platform: Platform, dataset: str, first: int, last: int) -> list[dict]:
    """The rows of the committed files within a range, as a reader would find them; sorted by position, if
    they have one."""
    commits = await platform.sql(
        "select c.files, c.row_count from dataset_commits c"
        " join datasets d on d.current_generation_id = c.generation_id"
        " where d.dataset_id = $1 and range_start between $2 and $3 and superseded_by is null",
        dataset,
        first,
        last,
    )
    rows: list[dict] = []
    for commit in commits:
        found = [
            row
            for file in json.loads(commit["files"])
            for row in parquet.read_table(platform.folder / "objects" / file["path"]).to_pylist()
        ]
        assert len(found) == commit["row_count"]
        rows += found
    return sorted(rows, key=lambda row: row.get("position", 0))
