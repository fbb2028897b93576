"""Garbage collection: deletes what nobody can read any more, and history that has ended.

Files are of three kinds: all data of versions too old for a rollback, files of superseded commits, and leftovers of
attempts that can no longer commit. All wait for a grace period, since a running task or query may still be reading
them. History is rows of the catalog: finished tasks, replaced events, lineage, executions, code, refused queries,
the audit log.

The dispatcher does this in the background (`dispatcher.loops.retention`), and `traceplane gc` by hand: both go through
the same batches, each a bounded piece of work. Two of them at once do no harm.

Files are deleted before rows: a collection that dies half way leaves a row whose file is gone, which nobody reads,
and the next one resumes there. A file that any live commit names is never touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from traceplane.adapters.object_store import DERIVED, ObjectStore, StoredFile, derived_on
from traceplane.postgres import (
    commits,
    coverage,
    dataset_retention,
    history,
    hot_tables,
    pinned,
    source_files,
    tasks,
    versions,
)
from traceplane.postgres.database import Database
from traceplane.postgres.history import Kind
from traceplane.runtime.process import Outcome

_COMMITS_AT_ONCE = 200
_ROWS_AT_ONCE = 2_000
_COUNTED_AT_MOST = 1_000_000

Found = Callable[[str, int], None]
"""Called with each file that goes, and its size."""


@dataclass(frozen=True, slots=True)
class Collected(Outcome):
    """What was deleted; in a dry run, what would be."""

    versions: int = 0
    commits: int = 0
    attempts: int = 0
    files: int = 0
    bytes: int = 0
    tasks: int = 0
    events: int = 0
    executions: int = 0
    code: int = 0
    audit: int = 0
    dead_letters: int = 0
    check_failures: int = 0
    deliveries: int = 0
    alerts: int = 0
    job_memory: int = 0
    partitions: int = 0

    def __add__(self, other: Collected) -> Collected:
        return Collected(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Collected)))


@dataclass(frozen=True, slots=True)
class Policy:
    """How long things are kept."""

    grace: timedelta
    """Files that nobody can read any more."""
    history: timedelta | None = None
    """What happened; None: forever."""
    keep_versions: int = 2
    """How many versions before the active one are kept for rollbacks."""


class Round(StrEnum):
    FILES = "files"
    """Of old versions and superseded commits, which the catalog knows."""
    LEFTOVERS = "leftovers"
    """Of attempts, and what was derived from the catalog; found by listing the store."""
    DATASETS = "datasets"
    """Partitions that are older than the retention of their dataset."""
    HISTORY = "history"


async def collect(
    database: Database,
    store: ObjectStore,
    policy: Policy,
    *,
    dry_run: bool = False,
    found: Found = lambda path, size: None,
) -> Collected:
    """Collects all garbage. A dry run deletes nothing."""
    total = Collected()
    for round_ in Round:
        async for batch in batches(round_, database, store, policy, dry_run=dry_run, found=found):
            total += batch
    return total


def batches(
    round_: Round,
    database: Database,
    store: ObjectStore,
    policy: Policy,
    *,
    dry_run: bool = False,
    found: Found = lambda path, size: None,
) -> AsyncIterator[Collected]:
    """The work of one round, a batch at a time."""
    match round_:
        case Round.FILES:
            return _files(database, store, policy, dry_run, found)
        case Round.LEFTOVERS:
            return _unnamed(database, store, policy.grace, dry_run, found)
        case Round.DATASETS:
            return _datasets(database, dry_run)
        case Round.HISTORY:
            return _history(database, policy.history, dry_run)
    assert_never(round_)


async def _files(
    database: Database, store: ObjectStore, policy: Policy, dry_run: bool, found: Found
) -> AsyncIterator[Collected]:
    async for batch in _old_versions(database, store, policy.grace, policy.keep_versions, dry_run, found):
        yield batch
    async for batch in _superseded(database, store, policy.grace, dry_run, found):
        yield batch


async def _datasets(database: Database, dry_run: bool) -> AsyncIterator[Collected]:
    async with database.autocommit() as tx:
        datasets = await dataset_retention.kept_for_a_time(tx)
    for dataset in datasets:
        more = True
        while more:
            async with database.transaction("retention") as tx:
                limit = _ROWS_AT_ONCE if not dry_run else _COUNTED_AT_MOST
                dropped = await dataset_retention.drop_expired(tx, dataset, limit, dry_run=dry_run)
            yield Collected(partitions=dropped)
            more = dropped == limit and not dry_run


async def _history(database: Database, age: timedelta | None, dry_run: bool) -> AsyncIterator[Collected]:
    for kind in Kind if age is not None else ():
        assert age is not None
        after: history.Key | None = None
        while True:
            async with database.transaction("retention") as tx:
                page = await history.end(tx, kind, age, after, _ROWS_AT_ONCE, dry_run=dry_run)
            yield _ended(kind, page.ended)
            after = page.after
            if after is None:
                break


def _ended(kind: Kind, rows: int) -> Collected:
    match kind:
        case Kind.DEAD_TASKS | Kind.TASKS:
            return Collected(tasks=rows)
        case Kind.EVENTS:
            return Collected(events=rows)
        case Kind.EXECUTIONS:
            return Collected(executions=rows)
        case Kind.CODE:
            return Collected(code=rows)
        case Kind.AUDIT:
            return Collected(audit=rows)
        case Kind.DEAD_LETTERS:
            return Collected(dead_letters=rows)
        case Kind.CHECK_FAILURES:
            return Collected(check_failures=rows)
        case Kind.DELIVERIES:
            return Collected(deliveries=rows)
        case Kind.ALERTS:
            return Collected(alerts=rows)
        case Kind.JOB_MEMORY:
            return Collected(job_memory=rows)
    assert_never(kind)


async def _old_versions(
    database: Database,
    store: ObjectStore,
    grace: timedelta,
    keep: int,
    dry_run: bool,
    found: Found,
) -> AsyncIterator[Collected]:
    async with database.transaction() as tx:
        if not dry_run:
            await versions.expire_results(tx, grace)
        old_versions = await versions.old(tx, grace, keep)
        if not dry_run:
            await versions.give_up(tx, old_versions)  # from here on they cannot be rolled back to
        generations = await versions.forgotten_generations(tx, old_versions)
    yield Collected(versions=len(old_versions))
    after = 0
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
        yield Collected(commits=len(batch), files=len(stored_files), bytes=_told(stored_files, found))
        after = batch[-1].commit_id
    if generations and not dry_run:
        async with database.transaction() as tx:
            await coverage.forget(tx, list(generations))
    for generation_id, hot in generations.items():
        if hot and not dry_run:
            async with database.transaction() as tx:
                await hot_tables.drop(tx, generation_id)
                await source_files.forget(tx, generation_id)


async def _superseded(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Found
) -> AsyncIterator[Collected]:
    after: commits.Superseded | None = None
    while True:
        async with database.transaction() as tx:
            batch = await commits.superseded(tx, grace, after, _COMMITS_AT_ONCE)
            paths_in_use = (
                await commits.paths(tx, [c.task_id for c in batch], grace=grace) if batch else set()
            )
        if not batch:
            return
        stored_files = await store.sizes(sorted({path for c in batch for path in c.paths} - paths_in_use))
        if not dry_run:
            await store.delete([f.path for f in stored_files])
            async with database.transaction() as tx:
                await commits.forget(tx, [c.commit_id for c in batch])
        yield Collected(commits=len(batch), files=len(stored_files), bytes=_told(stored_files, found))
        after = batch[-1]


async def _unnamed(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Found
) -> AsyncIterator[Collected]:
    async for batch in _leftovers(database, store, grace, dry_run, found):
        yield batch
    async for batch in _derived(database, store, grace, dry_run, found):
        yield batch


async def _leftovers(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Found
) -> AsyncIterator[Collected]:
    async for batch in store.staging_prefixes():
        attempts = sorted({(p.task_id, p.attempt, p.generation_id) for p in batch})
        async with database.transaction() as tx:
            over = await tasks.attempts_over(tx, attempts, grace, close=not dry_run)
            committed_paths = (
                await commits.paths(tx, sorted({task_id for task_id, _ in over})) if over else set()
            )
        count, files, size = 0, 0, 0
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
        yield Collected(attempts=count, files=files, bytes=size)


async def _derived(
    database: Database, store: ObjectStore, grace: timedelta, dry_run: bool, found: Found
) -> AsyncIterator[Collected]:
    """Metadata of Iceberg tables: whoever loads one gets files of that day, and reads them within the grace period."""
    async with database.autocommit() as tx:
        kept_since = await pinned.today(tx, grace)
    async for batch in store.below(DERIVED):
        days = ((file, derived_on(file.path)) for file in batch)
        over = [file for file, day in days if day is not None and day < kept_since]
        if not dry_run:
            await store.delete([file.path for file in over])
        yield Collected(files=len(over), bytes=_told(over, found))


def _told(files: Iterable[StoredFile], found: Found) -> int:
    total = 0
    for file in files:
        found(file.path, file.bytes)
        total += file.bytes
    return total
