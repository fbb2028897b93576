"""File lists of generations, cached between queries, and the files of them that a query reads.

A commit's files never change, so they are read once, and the bounds of a column when a query first needs them. The live
commits are read again, in the query's own snapshot, whenever the generation has had a commit since (its `row_version`),
so the list is always that of the snapshot.

Of a generation with very many commits no list is kept. The database chooses what a query needs of it, each time, by
the positions of commits and the statistics of their files (`pruning.asked`); a query that would still read too many
files is not for this engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from uuid import UUID

from traceplane.model import pruning
from traceplane.model.positions import Range, kept
from traceplane.model.pruning import AskedColumn, Bounds, Condition, bounds, narrowed
from traceplane.model.row_positions import ValueRange
from traceplane.postgres import commits, pinned
from traceplane.postgres.commits import ReadRange
from traceplane.postgres.database import Transaction
from traceplane.postgres.pinned import FileStatistics, LiveCommits, PinnedDataset
from traceplane.query.wire import FileGroup

MOST_COMMITS = 500_000
"""Cached commits of all generations; about half a kilobyte each."""
LARGE = 200_000
"""Of a generation with more commits, no list is kept."""
MOST_FILES = 200_000
"""That a query may read of such a generation: opening more takes longer than queries last."""
_COUNTED_SECONDS = 60.0
_EVERYTHING = (-(2**63), 2**63 - 1)
_MADE_AT_ONCE = 20_000


Column = tuple[str, str]
"""A column and its type."""


class Commit:
    """The contents of a commit; they never change."""

    __slots__ = ("bounds", "bytes", "commit_id", "paths", "positions", "rows")

    def __init__(
        self, commit_id: int, first: int, last: int, bytes_: int, rows: int, paths: list[str]
    ) -> None:
        self.commit_id, self.positions, self.paths = commit_id, (first, last), paths
        self.bytes, self.rows = bytes_, rows
        self.bounds: dict[Column, list[Bounds]] | None = None
        """Bounds of columns that queries have asked about, for each file."""


class FileList:
    """The files of a generation at one row version."""

    def __init__(
        self,
        row_version: str,
        commits: list[Commit],
        hidden: dict[int, list[Range]],
        *,
        of_commits: int | None = None,
    ) -> None:
        self.row_version = row_version
        self.commits = commits
        self.of_commits = of_commits
        """How many there are, if these were chosen among them; None: these are all."""
        self.chosen: dict[tuple[Condition, ...], frozenset[str]] = {}
        """If they were chosen: the paths that a relation with these conditions may read."""
        self.hidden = hidden
        """Positions that newer commits have replaced, by commit."""
        self.paths = [path for commit in commits for path in commit.paths]
        self.bounds: dict[Column, list[Bounds]] = {}
        """Bounds of columns that queries have asked about, for each file."""

    @property
    def of_files(self) -> int:
        """About how many there are, if these were chosen among them."""
        return len(self.paths) if self.of_commits is None else max(len(self.paths), self.of_commits)

    @cached_property
    def bytes(self) -> int:
        return sum(commit.bytes for commit in self.commits if commit.paths)

    @cached_property
    def rows(self) -> int:
        return sum(commit.rows for commit in self.commits if commit.paths)

    @cached_property
    def commit_of_file(self) -> list[Commit]:
        return [commit for commit in self.commits for _ in commit.paths]


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The files that a query reads of a relation."""

    groups: list[FileGroup]
    """With paths as in the object store."""
    files: int
    of_files: int
    bytes: int = 0
    """About how many these files have."""


class TooManyFiles(Exception):
    """A query would read more than `MOST_FILES` files; `commits` is how many its dataset has."""

    def __init__(self, generation_id: UUID, commits: int) -> None:
        super().__init__(f"more than {MOST_FILES} files")
        self.generation_id, self.commits = generation_id, commits


class Catalog:
    def __init__(self) -> None:
        self._lists: OrderedDict[UUID, FileList] = OrderedDict()
        self._large: dict[UUID, tuple[int, float]] = {}
        """How many commits generations with very many of them have, and when they were counted."""

    async def files(
        self,
        tx: Transaction,
        dataset: PinnedDataset,
        relations: Sequence[Sequence[Condition]],
        at: datetime | None = None,
    ) -> FileList:
        """The file list of the generation, as the transaction sees it, with the bounds that the conditions need; of one
        with very many commits, the files that one of the relations, which have conditions each, may read. Raises
        `TooManyFiles`."""
        generation = dataset.row_generation_id
        if generation is None or not dataset.row_version:
            return FileList("", [], {})  # nothing has been committed
        listed = self._lists.get(generation)
        if listed is None or len(listed.commits) > LARGE:
            count = await self._count(tx, generation)
            if count > LARGE:
                self._lists.pop(generation, None)
                return await _chosen(tx, dataset, generation, relations, at, count)
        if at is not None or listed is None or listed.row_version != dataset.row_version:
            listed = await self._list(tx, dataset, generation, listed, at)
        if at is None:
            self._keep(generation, listed)
        conditions = [condition for relation in relations for condition in relation]
        for column in {column for column, _ in asked_of(dataset, conditions)}:
            if column not in listed.bounds:
                await _learn(tx, generation, listed, column, live=at is None)
        return listed

    async def _count(self, tx: Transaction, generation: UUID) -> int:
        count, counted_at = self._large.get(generation, (0, 0.0))
        if not count or time.monotonic() - counted_at > _COUNTED_SECONDS:
            self._large.pop(generation, None)
            count = await pinned.live_count(tx, generation)
            if count > LARGE:
                self._large[generation] = count, time.monotonic()
        return count

    async def _list(
        self,
        tx: Transaction,
        dataset: PinnedDataset,
        generation: UUID,
        cached: FileList | None,
        at: datetime | None,
    ) -> FileList:
        if at is None and cached is None:
            return await _made(dataset.row_version, await pinned.live(tx, generation))
        ids, hidden = await pinned.commits(tx, generation, at)
        by_id = {commit.commit_id: commit for commit in cached.commits} if cached is not None else {}
        missing = [commit_id for commit_id in ids if commit_id not in by_id]
        if missing:
            most = at is None and len(missing) * 2 > len(ids)
            commits = await pinned.paths(tx, generation, None if most else missing)
            for start in range(0, len(commits), _MADE_AT_ONCE):
                by_id |= {
                    c.commit_id: Commit(c.commit_id, c.first, c.last, c.bytes, c.rows, c.paths)
                    for c in commits[start : start + _MADE_AT_ONCE]
                }
                await asyncio.sleep(0)  # lets other queries run
        return FileList(dataset.row_version, [by_id[commit_id] for commit_id in ids], hidden)

    def _keep(self, generation: UUID, listed: FileList) -> None:
        self._lists[generation] = listed
        self._lists.move_to_end(generation)
        while len(self._lists) > 1 and sum(len(kept.commits) for kept in self._lists.values()) > MOST_COMMITS:
            self._lists.popitem(last=False)


async def _chosen(
    tx: Transaction,
    dataset: PinnedDataset,
    generation: UUID,
    relations: Sequence[Sequence[Condition]],
    at: datetime | None,
    count: int,
) -> FileList:
    files: dict[int, dict[str, tuple[int, int]]] = {}
    """Of each commit, their bytes and rows."""
    positions: dict[int, Range] = {}
    hidden: dict[int, list[Range]] = {}
    by_conditions: dict[tuple[Condition, ...], frozenset[str]] = {}
    for conditions in relations:
        asked = pruning.asked(
            AskedColumn(name, type_, condition.spans)
            for (name, type_), condition in asked_of(dataset, conditions)
        )
        read = ReadRange(generation, _span_of(dataset, conditions), asked)
        if at is None:
            [live] = await commits.read_by_tasks(tx, [read], most=MOST_FILES)
        else:
            live = await commits.read_at(tx, read, at, most=MOST_FILES)
        if live is None:
            raise TooManyFiles(generation, count)
        by_conditions[tuple(conditions)] = frozenset(f["path"] for commit in live for f in commit.files)
        for commit in live:
            files.setdefault(commit.commit_id, {}).update(
                {f["path"]: (f["bytes"], f["rows"]) for f in commit.files}
            )
            positions[commit.commit_id] = commit.positions
            if commit.hidden:
                hidden[commit.commit_id] = commit.hidden
    chosen = [
        Commit(
            commit_id,
            *positions[commit_id],
            sum(size for size, _ in sizes.values()),
            sum(rows for _, rows in sizes.values()),
            list(sizes),
        )
        for commit_id, sizes in files.items()
    ]
    chosen.sort(key=lambda commit: (commit.positions, commit.commit_id))
    if sum(len(commit.paths) for commit in chosen) > MOST_FILES:
        raise TooManyFiles(generation, count)
    listed = FileList(dataset.row_version, chosen, hidden, of_commits=count)
    listed.chosen = by_conditions
    return listed


def _span_of(dataset: PinnedDataset, conditions: Sequence[Condition]) -> Range:
    """Positions outside of which no row meets the conditions."""
    column = dataset.position_column
    first, last = _EVERYTHING
    if column is None or column.is_time:
        return first, last
    for (name, _), condition in asked_of(dataset, conditions):
        if name == column.name and condition.spans:
            lows = [_whole(low, first) for low, _ in condition.spans]
            highs = [_whole(high, last) for _, high in condition.spans]
            first, last = max(first, min(lows)), min(last, max(highs))
    return first, max(first, last)


def _whole(value: object, otherwise: int) -> int:
    """A bound of positions, if it is one."""
    is_position = type(value) is int and _EVERYTHING[0] <= value <= _EVERYTHING[1]
    return value if is_position else otherwise  # type: ignore[return-value]


async def _made(row_version: str, live: LiveCommits) -> FileList:
    commits: list[Commit] = []
    for start in range(0, len(live.ids), _MADE_AT_ONCE):
        part = slice(start, start + _MADE_AT_ONCE)
        with _without_collecting():
            commits += [
                Commit(
                    commit_id,
                    first,
                    last,
                    size,
                    rows,
                    [path] if path is not None else live.of_others[commit_id],
                )
                for commit_id, first, last, size, rows, path in zip(
                    live.ids[part],
                    live.firsts[part],
                    live.lasts[part],
                    live.bytes[part],
                    live.rows[part],
                    live.paths[part],
                    strict=True,
                )
            ]
        await asyncio.sleep(0)  # lets other queries run
    return FileList(row_version, commits, live.hidden)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Pauses garbage collection: all these objects stay, and they have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _learn(tx: Transaction, generation: UUID, listed: FileList, column: Column, *, live: bool) -> None:
    """Reads the bounds of a column for commits that do not have them yet."""
    name, type_ = column
    missing = [commit for commit in listed.commits if commit.bounds is None or column not in commit.bounds]
    if missing:
        most = live and len(missing) * 2 > len(listed.commits)
        statistics = await pinned.statistics(
            tx, generation, None if most else [c.commit_id for c in missing], name
        )
        for commit in missing:
            files = statistics.get(commit.commit_id) or [FileStatistics(0, None)] * len(commit.paths)
            commit.bounds = {
                **(commit.bounds or {}),
                column: [bounds(file.values, type_, file.rows) for file in files],
            }
    listed.bounds[column] = [b for commit in listed.commits for b in (commit.bounds or {})[column]]


def asked_of(dataset: PinnedDataset, conditions: Iterable[Condition]) -> list[tuple[Column, Condition]]:
    """The conditions on columns of this dataset, with these columns and their types."""
    types = {column.name: column.type for column in dataset.columns}
    names = _by_lower_case(types)
    return [((name, types[name]), c) for c in conditions if (name := names.get(c.column)) is not None]


def choose(listed: FileList, dataset: PinnedDataset, conditions: Sequence[Condition]) -> ChosenFiles:
    """The files that can hold rows which meet all conditions."""
    remaining: Sequence[int] = range(len(listed.paths))
    if (chosen := listed.chosen.get(tuple(conditions))) is not None and len(chosen) < len(listed.paths):
        remaining = [index for index in remaining if listed.paths[index] in chosen]
    for (name, type_), condition in asked_of(dataset, conditions):
        if (bounds := listed.bounds.get((name, type_))) is not None:
            remaining = narrowed(remaining, bounds, condition.spans, type_)
        if name == dataset.position:
            remaining = _within_commits(listed, dataset, remaining, condition)
    return ChosenFiles(
        _grouped(listed, dataset, remaining),
        len(remaining),
        listed.of_files,
        listed.bytes
        if len(remaining) == len(listed.paths)
        else sum(_bytes_of_one(listed.commit_of_file[index]) for index in remaining),
    )


def _bytes_of_one(commit: Commit) -> int:
    """Commits know the size of all their files together."""
    return commit.bytes // len(commit.paths)


def _within_commits(
    listed: FileList, dataset: PinnedDataset, remaining: Sequence[int], condition: Condition
) -> Sequence[int]:
    """A row lies within the positions of its commit, even if a file has no bounds for the column."""
    column = dataset.position_column
    if column is None or column.is_time:  # whose bounds files have, if there are any
        return remaining
    positions = [listed.commit_of_file[index].positions for index in remaining]
    return [remaining[n] for n in narrowed(range(len(remaining)), positions, condition.spans, "int64")]


def _grouped(listed: FileList, dataset: PinnedDataset, remaining: Sequence[int]) -> list[FileGroup]:
    column = dataset.position_column
    if not listed.hidden or column is None:
        if len(remaining) == len(listed.paths):
            return [FileGroup(listed.paths, rows=listed.rows)] if listed.paths else []
        return [_group(listed, remaining)] if remaining else []
    groups: dict[tuple[Range, ...], list[int]] = {}
    for index in remaining:
        ranges = kept_of(listed, listed.commit_of_file[index])
        if ranges is None or ranges:
            groups.setdefault(tuple(ranges or ()), []).append(index)
    return [_group(listed, files, column.all_values(ranges)) for ranges, files in groups.items()]


def _group(listed: FileList, files: Sequence[int], kept: Sequence[ValueRange] = ()) -> FileGroup:
    """Commits know the rows of all their files together."""
    commits = [listed.commit_of_file[index] for index in files]
    rows = sum(commit.rows // len(commit.paths) for commit in commits)
    return FileGroup([listed.paths[index] for index in files], list(kept), rows)


def kept_of(listed: FileList, commit: Commit) -> list[Range] | None:
    """The positions to read of a commit, if newer ones have replaced some of them; None for all."""
    hidden = listed.hidden.get(commit.commit_id)
    return kept(commit.positions, _EVERYTHING, hidden) if hidden else None


def _by_lower_case(names: Mapping[str, str]) -> dict[str, str]:
    """Columns by lower-case name, as SQL ignores case; without those that differ only in case."""
    by_lower: dict[str, str] = {}
    twice = set()
    for name in names:
        if name.lower() in by_lower:
            twice.add(name.lower())
        by_lower[name.lower()] = name
    return {lower: name for lower, name in by_lower.items() if lower not in twice}
