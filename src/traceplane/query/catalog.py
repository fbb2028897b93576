"""File lists of generations, kept between queries, and what is left of them for a query.

A commit's files never change, so they are read once, and the bounds of a column when a query first asks for it. Which
commits are live is asked anew whenever the generation had a commit since (its `row_version`), in the query's own
snapshot; so the list is always the snapshot's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from uuid import UUID

from traceplane.model.positions import Range, kept
from traceplane.model.pruning import Bounds, Condition, bounds, narrowed
from traceplane.postgres import pinned
from traceplane.postgres.database import Transaction
from traceplane.postgres.pinned import LiveCommits, PinnedDataset

MOST_COMMITS = 500_000
"""That are kept in memory, over all generations; about half a kilobyte each."""
_EVERYTHING = (-(2**63), 2**63 - 1)
_MADE_AT_ONCE = 20_000


Column = tuple[str, str]
"""A column and its type."""


class Commit:
    """What a commit holds; it never changes."""

    __slots__ = ("bounds", "commit_id", "paths", "positions")

    def __init__(self, commit_id: int, first: int, last: int, paths: list[str]) -> None:
        self.commit_id, self.positions, self.paths = commit_id, (first, last), paths
        self.bounds: dict[Column, list[Bounds]] | None = None
        """Of columns that were asked about, in each file."""


class FileList:
    """The files of a generation in one state of it."""

    def __init__(self, row_version: str, commits: list[Commit], hidden: dict[int, list[Range]]) -> None:
        self.row_version = row_version
        self.commits = commits
        self.hidden = hidden
        """Positions that newer commits have taken over, by commit."""
        self.paths = [path for commit in commits for path in commit.paths]
        self.bounds: dict[Column, list[Bounds]] = {}
        """Of columns that were asked about, in each file."""

    @cached_property
    def commit_of_file(self) -> list[Commit]:
        return [commit for commit in self.commits for _ in commit.paths]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a query reads of a relation."""

    groups: list[tuple[list[str], list[Range]]]
    """Paths, and the ranges of positions to read of them; no ranges for all of it."""
    files: int
    of_files: int


class Catalog:
    def __init__(self) -> None:
        self._lists: OrderedDict[UUID, FileList] = OrderedDict()

    async def files(
        self,
        tx: Transaction,
        dataset: PinnedDataset,
        conditions: Iterable[Condition],
        at: datetime | None = None,
    ) -> FileList:
        """The file list of the rows' generation, as the transaction sees it, with what the conditions need to know."""
        generation = dataset.row_generation_id
        if generation is None or not dataset.row_version:
            return FileList("", [], {})  # nothing was ever committed
        listed = self._lists.get(generation)
        if at is not None or listed is None or listed.row_version != dataset.row_version:
            listed = await self._list(tx, dataset, generation, listed, at)
        if at is None:
            self._keep(generation, listed)
        for column in {column for column, _ in asked_of(dataset, conditions)}:
            if column not in listed.bounds:
                await _learn(tx, generation, listed, column, live=at is None)
        return listed

    async def _list(
        self,
        tx: Transaction,
        dataset: PinnedDataset,
        generation: UUID,
        known: FileList | None,
        at: datetime | None,
    ) -> FileList:
        if at is None and known is None:
            return await _made(dataset.row_version, await pinned.live(tx, generation))
        ids, hidden = await pinned.commits(tx, generation, at)
        held = {commit.commit_id: commit for commit in known.commits} if known is not None else {}
        missing = [commit_id for commit_id in ids if commit_id not in held]
        if missing:
            most = at is None and len(missing) * 2 > len(ids)
            rows = await pinned.paths(tx, generation, None if most else missing)
            for start in range(0, len(rows), _MADE_AT_ONCE):
                held |= {row[0]: Commit(*row) for row in rows[start : start + _MADE_AT_ONCE]}
                await asyncio.sleep(0)  # others are served meanwhile
        return FileList(dataset.row_version, [held[commit_id] for commit_id in ids], hidden)

    def _keep(self, generation: UUID, listed: FileList) -> None:
        self._lists[generation] = listed
        self._lists.move_to_end(generation)
        while len(self._lists) > 1 and sum(len(kept.commits) for kept in self._lists.values()) > MOST_COMMITS:
            self._lists.popitem(last=False)


async def _made(row_version: str, live: LiveCommits) -> FileList:
    commits: list[Commit] = []
    for start in range(0, len(live.ids), _MADE_AT_ONCE):
        part = slice(start, start + _MADE_AT_ONCE)
        with _without_collecting():
            commits += [
                Commit(commit_id, first, last, [path] if path is not None else live.of_others[commit_id])
                for commit_id, first, last, path in zip(
                    live.ids[part], live.firsts[part], live.lasts[part], live.paths[part], strict=True
                )
            ]
        await asyncio.sleep(0)  # others are served meanwhile
    return FileList(row_version, commits, live.hidden)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Python looks for cycles each time so and so many objects were made; here all of them stay, and there are none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _learn(tx: Transaction, generation: UUID, listed: FileList, column: Column, *, live: bool) -> None:
    """Reads the bounds of a column, of those commits that were not asked about it before."""
    name, type_ = column
    missing = [commit for commit in listed.commits if commit.bounds is None or column not in commit.bounds]
    if missing:
        most = live and len(missing) * 2 > len(listed.commits)
        rows = await pinned.statistics(tx, generation, None if most else [c.commit_id for c in missing], name)
        found = {row[0]: row[1] for row in rows}
        for commit in missing:
            files = found.get(commit.commit_id) or [(0, None)] * len(commit.paths)
            commit.bounds = {**(commit.bounds or {}), column: [bounds(k, type_, rows) for rows, k in files]}
    listed.bounds[column] = [b for commit in listed.commits for b in (commit.bounds or {})[column]]


def asked_of(dataset: PinnedDataset, conditions: Iterable[Condition]) -> list[tuple[Column, Condition]]:
    """The conditions that are about columns of this dataset, with these columns and their types."""
    types = {column.name: column.type for column in dataset.columns}
    names = _by_lower_case(types)
    return [((name, types[name]), c) for c in conditions if (name := names.get(c.column)) is not None]


def choose(listed: FileList, dataset: PinnedDataset, conditions: Sequence[Condition]) -> Chosen:
    """The files that can hold rows which meet all conditions."""
    left: Sequence[int] = range(len(listed.paths))
    for (name, type_), condition in asked_of(dataset, conditions):
        if (known := listed.bounds.get((name, type_))) is not None:
            left = narrowed(left, known, condition.spans, type_)
        if name == dataset.position:
            left = _within_commits(listed, left, condition)
    return Chosen(_grouped(listed, dataset, left), len(left), len(listed.paths))


def _within_commits(listed: FileList, left: Sequence[int], condition: Condition) -> list[int]:
    """A row lies within the positions of its commit, also where a file tells nothing of the column."""
    positions = [listed.commit_of_file[index].positions for index in left]
    return [left[n] for n in narrowed(range(len(left)), positions, condition.spans, "int64")]


def _grouped(
    listed: FileList, dataset: PinnedDataset, left: Sequence[int]
) -> list[tuple[list[str], list[Range]]]:
    if not listed.hidden or dataset.position is None:
        whole = listed.paths if len(left) == len(listed.paths) else [listed.paths[index] for index in left]
        return [(whole, [])] if whole else []
    groups: dict[tuple[Range, ...], list[str]] = {}
    for index in left:
        commit = listed.commit_of_file[index]
        hidden = listed.hidden.get(commit.commit_id)
        ranges = kept(commit.positions, _EVERYTHING, hidden) if hidden else None
        if ranges is None or ranges:
            groups.setdefault(tuple(ranges or ()), []).append(listed.paths[index])
    return [(paths, list(ranges)) for ranges, paths in groups.items()]


def _by_lower_case(names: Mapping[str, str]) -> dict[str, str]:
    """Columns as SQL finds them, which does not tell upper from lower case; without those that only differ in it."""
    found: dict[str, str] = {}
    twice = set()
    for name in names:
        if name.lower() in found:
            twice.add(name.lower())
        found[name.lower()] = name
    return {lower: name for lower, name in found.items() if lower not in twice}
