"""File lists of generations, kept between queries, and what is left of them for a query.

A commit's files never change, so they are read once. Which commits are live is asked anew whenever the generation
had a commit since (its `row_version`), in the query's own snapshot; so the list is always the snapshot's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

import msgspec

from traceplane.model.positions import Range, kept
from traceplane.model.pruning import Bounds, Condition, bounds, narrowed
from traceplane.postgres import pinned
from traceplane.postgres.database import Transaction
from traceplane.postgres.pinned import PinnedDataset

MOST_COMMITS = 500_000
"""That are kept in memory, over all generations; about a kilobyte each."""
_EVERYTHING = (-(2**63), 2**63 - 1)
_DECODED_AT_ONCE = 10_000


class File(msgspec.Struct, frozen=True, gc=False):
    path: str
    rows: int = 0
    bytes: int = 0
    statistics: msgspec.Raw = msgspec.Raw(b"{}")
    """Decoded only for the columns that a query asks about."""


_files = msgspec.json.Decoder(list[File])


class Commit:
    """What a commit holds; it never changes."""

    __slots__ = ("_bounds", "commit_id", "files", "positions")

    def __init__(self, commit_id: int, first: int, last: int, files: str) -> None:
        self.commit_id, self.positions, self.files = commit_id, (first, last), _files.decode(files)
        self._bounds: dict[str, list[Bounds]] = {}

    def bounds(self, column: str, type_: str, decode: Callable[[msgspec.Raw], Any]) -> list[Bounds]:
        """The column's bounds in each file, which are decoded once."""
        key = f"{column}\0{type_}"
        if (found := self._bounds.get(key)) is None:
            found = self._bounds[key] = [
                bounds(decode(file.statistics).found, type_, file.rows) for file in self.files
            ]
        return found


class FileList:
    """The files of a generation in one state of it."""

    def __init__(self, row_version: str, commits: list[Commit], hidden: dict[int, list[Range]]) -> None:
        self.row_version = row_version
        self.commits = commits
        self.hidden = hidden
        """Positions that newer commits have taken over, by commit."""
        self.paths = [file.path for commit in commits for file in commit.files]
        self._bounds: dict[tuple[str, str], list[Bounds]] = {}

    @cached_property
    def commit_of_file(self) -> list[Commit]:
        return [commit for commit in self.commits for _ in commit.files]

    def bounds(self, column: str, type_: str) -> list[Bounds]:
        """Of each file."""
        if (found := self._bounds.get((column, type_))) is None:
            wanted = msgspec.defstruct(
                "Wanted", [("found", dict[str, Any] | None, None)], rename={"found": column}
            )
            decode = msgspec.json.Decoder(wanted).decode
            found = [b for commit in self.commits for b in commit.bounds(column, type_, decode)]
            self._bounds[column, type_] = found
        return found


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

    async def files(self, tx: Transaction, dataset: PinnedDataset, at: datetime | None = None) -> FileList:
        """The file list of the rows' generation, as the transaction sees it."""
        generation = dataset.row_generation_id
        if generation is None or not dataset.row_version:
            return FileList("", [], {})  # nothing was ever committed
        known = self._lists.get(generation)
        if at is None and known is not None and known.row_version == dataset.row_version:
            self._lists.move_to_end(generation)
            return known
        ids, hidden = await pinned.commits(tx, generation, at)
        held = {commit.commit_id: commit for commit in known.commits} if known is not None else {}
        missing = [commit_id for commit_id in ids if commit_id not in held]
        if at is None and len(missing) * 2 > len(ids):
            rows = await pinned.live_files(tx, generation)
        else:
            rows = await pinned.files(tx, missing) if missing else ()
        for start in range(0, len(rows), _DECODED_AT_ONCE):
            held |= {row[0]: Commit(*row) for row in rows[start : start + _DECODED_AT_ONCE]}
            await asyncio.sleep(0)  # others are served meanwhile
        listed = FileList(dataset.row_version, [held[commit_id] for commit_id in ids], hidden)
        if at is None:
            self._keep(generation, listed)
        return listed

    def _keep(self, generation: UUID, listed: FileList) -> None:
        self._lists[generation] = listed
        self._lists.move_to_end(generation)
        while len(self._lists) > 1 and sum(len(kept.commits) for kept in self._lists.values()) > MOST_COMMITS:
            self._lists.popitem(last=False)


def choose(listed: FileList, dataset: PinnedDataset, conditions: Sequence[Condition]) -> Chosen:
    """The files that can hold rows which meet all conditions."""
    types = {column.name: column.type for column in dataset.columns}
    names = _by_lower_case(types)
    left: Sequence[int] = range(len(listed.paths))
    for condition in conditions:
        if (column := names.get(condition.column)) is not None:
            left = narrowed(left, listed.bounds(column, types[column]), condition.spans, types[column])
            if column == dataset.position:
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
