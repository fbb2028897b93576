"""Garbage collection: files that nobody can read any more.

Three kinds: all data of versions that nobody will go back to, files of commits that a later one took the place of,
and what attempts left behind that can no longer commit. All wait for a grace period, since a running task or query
may still read what it was handed.

Files go first and rows after them: a collection that dies half way has left a row whose file is gone, which nobody
reads, and the next one goes on there. A file that any live commit names is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from traceplane.adapters.object_store import ObjectStore, StoredFile
from traceplane.postgres import commits, coverage, hot_tables, tasks, versions
from traceplane.postgres.database import Database

_COMMITS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Collected:
    versions: int = 0
    commits: int = 0
    attempts: int = 0
    files: int = 0
    bytes: int = 0


async def collect(
    database: Database,
    store: ObjectStore,
    *,
    grace: timedelta,
    keep_versions: int = 2,
    dry_run: bool = False,
    found: Callable[[str, int], None] = lambda path, size: None,
) -> Collected:
    """Collects all there is; `found` hears of every file and its size. A dry run only looks.

    `keep_versions`: so many of the versions that served before the active one can still be gone back to.
    """
    old = await _old_versions(database, store, grace, keep_versions, dry_run, found)
    replaced = await _superseded(database, store, grace, dry_run, found)
    left = await _leftovers(database, store, grace, dry_run, found)
    return Collected(
        old.versions,
        old.commits + replaced.commits,
        left.attempts,
        old.files + replaced.files + left.files,
        old.bytes + replaced.bytes + left.bytes,
    )


async def _old_versions(
    database: Database,
    store: ObjectStore,
    grace: timedelta,
    keep: int,
    dry_run: bool,
    found: Callable[[str, int], None],
) -> Collected:
    async with database.transaction() as tx:
        if not dry_run:
            await versions.expire_results(tx, grace)
        gone = await versions.old(tx, grace, keep)
        if not dry_run:
            await versions.give_up(tx, gone)  # nobody can go back to them from here on
        generations = await versions.forgotten_generations(tx, gone)
    count, files, size, after = 0, 0, 0, 0
    while generations:
        async with database.transaction() as tx:
            batch = await commits.of_generations(tx, list(generations), after, _COMMITS_AT_ONCE)
            tasks_of = sorted({commit.task_id for commit in batch})
            read = await commits.paths_elsewhere(tx, tasks_of, list(generations), grace) if batch else set()
        if not batch:
            break
        there = await store.sizes(sorted({path for commit in batch for path in commit.paths} - read))
        if not dry_run:
            await store.delete([f.path for f in there])
            async with database.transaction() as tx:
                await commits.forget_of_generations(tx, [commit.commit_id for commit in batch])
        count, files, size = count + len(batch), files + len(there), size + _told(there, found)
        after = batch[-1].commit_id
    if generations and not dry_run:
        async with database.transaction() as tx:
            await coverage.forget(tx, list(generations))
    for generation_id, hot in generations.items():
        if hot and not dry_run:
            async with database.transaction() as tx:
                await hot_tables.drop(tx, generation_id)
    return Collected(versions=len(gone), commits=count, files=files, bytes=size)


async def _superseded(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Callable[[str, int], None]
) -> Collected:
    count, files, size = 0, 0, 0
    after: commits.Superseded | None = None
    while True:
        async with database.transaction() as tx:
            batch = await commits.superseded(tx, grace, after, _COMMITS_AT_ONCE)
            read = await commits.paths(tx, [c.task_id for c in batch], grace=grace) if batch else set()
        if not batch:
            return Collected(commits=count, files=files, bytes=size)
        there = await store.sizes(sorted({path for c in batch for path in c.paths} - read))
        if not dry_run:
            await store.delete([f.path for f in there])
            async with database.transaction() as tx:
                await commits.forget(tx, [c.commit_id for c in batch])
        count, files, size = count + len(batch), files + len(there), size + _told(there, found)
        after = batch[-1]


async def _leftovers(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Callable[[str, int], None]
) -> Collected:
    count, files, size = 0, 0, 0
    async for batch in store.staging_prefixes():
        attempts = sorted({(p.task_id, p.attempt) for p in batch})
        async with database.transaction() as tx:
            over = await tasks.attempts_over(tx, attempts, grace, close=not dry_run)
            kept = await commits.paths(tx, sorted({task_id for task_id, _ in over})) if over else set()
        for prefix in batch:
            if (prefix.task_id, prefix.attempt) not in over:
                continue
            gone = [f for f in prefix.files if f.path not in kept]
            if len(gone) < len(prefix.files) and not gone:
                continue  # nothing but committed files
            if not dry_run:
                await store.delete([f.path for f in gone])
                if len(gone) == len(prefix.files):
                    await store.delete_empty(prefix.path)
            count, files, size = count + 1, files + len(gone), size + _told(gone, found)
    return Collected(attempts=count, files=files, bytes=size)


def _told(files: Iterable[StoredFile], found: Callable[[str, int], None]) -> int:
    total = 0
    for file in files:
        found(file.path, file.bytes)
        total += file.bytes
    return total
