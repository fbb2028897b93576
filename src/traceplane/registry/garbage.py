"""Garbage collection: deletes files that nobody can read any more.

Three kinds: all data of versions too old for a rollback, files of superseded commits, and leftovers of attempts that
can no longer commit. All wait for a grace period, since a running task or query may still be reading them.

Files are deleted before rows: a collection that dies half way leaves a row whose file is gone, which nobody reads,
and the next one resumes there. A file that any live commit names is never touched.
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
    """Collects all garbage; `found` is called with each file and its size. A dry run deletes nothing.

    `keep_versions`: how many versions before the active one are kept for rollbacks.
    """
    old = await _old_versions(database, store, grace, keep_versions, dry_run, found)
    superseded = await _superseded(database, store, grace, dry_run, found)
    leftovers = await _leftovers(database, store, grace, dry_run, found)
    return Collected(
        old.versions,
        old.commits + superseded.commits,
        leftovers.attempts,
        old.files + superseded.files + leftovers.files,
        old.bytes + superseded.bytes + leftovers.bytes,
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
        old_versions = await versions.old(tx, grace, keep)
        if not dry_run:
            await versions.give_up(tx, old_versions)  # from here on they cannot be rolled back to
        generations = await versions.forgotten_generations(tx, old_versions)
    count, files, size, after = 0, 0, 0, 0
    while generations:
        async with database.transaction() as tx:
            batch = await commits.of_generations(tx, list(generations), after, _COMMITS_AT_ONCE)
            tasks_of = sorted({commit.task_id for commit in batch})
            paths_in_use = (
                await commits.paths_elsewhere(tx, tasks_of, list(generations), grace) if batch else set()
            )
        if not batch:
            break
        stored_files = await store.sizes(
            sorted({path for commit in batch for path in commit.paths} - paths_in_use)
        )
        if not dry_run:
            await store.delete([f.path for f in stored_files])
            async with database.transaction() as tx:
                await commits.forget_of_generations(tx, [commit.commit_id for commit in batch])
        count, files, size = count + len(batch), files + len(stored_files), size + _told(stored_files, found)
        after = batch[-1].commit_id
    if generations and not dry_run:
        async with database.transaction() as tx:
            await coverage.forget(tx, list(generations))
    for generation_id, hot in generations.items():
        if hot and not dry_run:
            async with database.transaction() as tx:
                await hot_tables.drop(tx, generation_id)
    return Collected(versions=len(old_versions), commits=count, files=files, bytes=size)


async def _superseded(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Callable[[str, int], None]
) -> Collected:
    count, files, size = 0, 0, 0
    after: commits.Superseded | None = None
    while True:
        async with database.transaction() as tx:
            batch = await commits.superseded(tx, grace, after, _COMMITS_AT_ONCE)
            paths_in_use = (
                await commits.paths(tx, [c.task_id for c in batch], grace=grace) if batch else set()
            )
        if not batch:
            return Collected(commits=count, files=files, bytes=size)
        stored_files = await store.sizes(sorted({path for c in batch for path in c.paths} - paths_in_use))
        if not dry_run:
            await store.delete([f.path for f in stored_files])
            async with database.transaction() as tx:
                await commits.forget(tx, [c.commit_id for c in batch])
        count, files, size = count + len(batch), files + len(stored_files), size + _told(stored_files, found)
        after = batch[-1]


async def _leftovers(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Callable[[str, int], None]
) -> Collected:
    count, files, size = 0, 0, 0
    async for batch in store.staging_prefixes():
        attempts = sorted({(p.task_id, p.attempt) for p in batch})
        async with database.transaction() as tx:
            over = await tasks.attempts_over(tx, attempts, grace, close=not dry_run)
            committed_paths = (
                await commits.paths(tx, sorted({task_id for task_id, _ in over})) if over else set()
            )
        for prefix in batch:
            if (prefix.task_id, prefix.attempt) not in over:
                continue
            unused_files = [f for f in prefix.files if f.path not in committed_paths]
            if len(unused_files) < len(prefix.files) and not unused_files:
                continue  # nothing but committed files
            if not dry_run:
                await store.delete([f.path for f in unused_files])
                if len(unused_files) == len(prefix.files):
                    await store.delete_empty(prefix.path)
            count, files, size = count + 1, files + len(unused_files), size + _told(unused_files, found)
    return Collected(attempts=count, files=files, bytes=size)


def _told(files: Iterable[StoredFile], found: Callable[[str, int], None]) -> int:
    total = 0
    for file in files:
        found(file.path, file.bytes)
        total += file.bytes
    return total
