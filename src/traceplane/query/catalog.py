"""File lists of generations, kept between queries, and what is left of them for a query.

A commit's files never change, so they are read once. Which commits are live is asked anew whenever the generation
had a commit since (its `row_version`), in the query's own snapshot; so the list is always the snapshot's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from traceplane.model.positions import Range, kept
from traceplane.model.pruning import Condition, may_lie_within
from traceplane.postgres import pinned
from traceplane.postgres.database import Transaction
from traceplane.postgres.pinned import PinnedCommit, PinnedDataset

MOST_FILES = 500_000
"""Files that are kept in memory, over all generations; about 400 bytes each, and their statistics."""
_EVERYTHING = (-(2**63), 2**63 - 1)
_COMMITS_AT_ONCE = 20_000


class File(msgspec.Struct, frozen=True, gc=False):
    path: str
    rows: int = 0
    bytes: int = 0
    statistics: msgspec.Raw = msgspec.Raw(b"{}")
    """Decoded only for the columns that a query asks about."""


_files = msgspec.json.Decoder(list[File])


@dataclass(slots=True)
class FileList:
    """The files of a generation in one state of it."""

    row_version: str
    files: list[File]
    commits: list[PinnedCommit]
    """The commit of each file."""
    bounds: dict[str, list[Mapping[str, Any] | None]] = field(default_factory=dict)
    """Statistics of columns that were asked about, by file."""

    def statistics(self, column: str) -> list[Mapping[str, Any] | None]:
        if column not in self.bounds:
            wanted = msgspec.defstruct(
                "Wanted", [("found", dict[str, Any] | None, None)], rename={"found": column}
            )
            decode = msgspec.json.Decoder(wanted).decode
            self.bounds[column] = [decode(file.statistics).found for file in self.files]  # type: ignore[attr-defined]
        return self.bounds[column]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a query reads of a relation."""

    groups: list[tuple[list[str], list[Range]]]
    """Paths, and the ranges of positions to read of them; no ranges for all of it."""
    files: int
    of_files: int
    bytes: int


class Catalog:
    def __init__(self) -> None:
        self._lists: OrderedDict[UUID, FileList] = OrderedDict()

    async def files(self, tx: Transaction, dataset: PinnedDataset, at: datetime | None = None) -> FileList:
        """The file list of the rows' generation, as the transaction sees it."""
        generation = dataset.row_generation_id
        if generation is None or not dataset.row_version:
            return FileList("", [], [])  # nothing was ever committed
        known = self._lists.get(generation)
        if at is None and known is not None and known.row_version == dataset.row_version:
            self._lists.move_to_end(generation)
            return known
        commits = await pinned.commits(tx, generation, at)
        found = await self._files_of(tx, commits, known)
        listed = FileList(dataset.row_version, [], [])
        for commit in commits:
            for file in found.get(commit.commit_id, ()):
                listed.files.append(file)
                listed.commits.append(commit)
        if at is None:
            self._keep(generation, listed)
        return listed

    async def _files_of(
        self, tx: Transaction, commits: Sequence[PinnedCommit], known: FileList | None
    ) -> dict[int, list[File]]:
        found: dict[int, list[File]] = {}
        if known is not None:
            for commit, file in zip(known.commits, known.files, strict=True):
                found.setdefault(commit.commit_id, []).append(file)
        missing = [commit.commit_id for commit in commits if commit.commit_id not in found]
        for start in range(0, len(missing), _COMMITS_AT_ONCE):
            for commit_id, text in await pinned.files(tx, missing[start : start + _COMMITS_AT_ONCE]):
                found[commit_id] = _files.decode(text)
        return found

    def _keep(self, generation: UUID, listed: FileList) -> None:
        self._lists[generation] = listed
        self._lists.move_to_end(generation)
        while len(self._lists) > 1 and sum(len(kept.files) for kept in self._lists.values()) > MOST_FILES:
            self._lists.popitem(last=False)


def choose(listed: FileList, dataset: PinnedDataset, conditions: Sequence[Condition]) -> Chosen:
    """The files that can hold rows which meet all conditions."""
    types = {column.name: column.type for column in dataset.columns}
    names = _by_lower_case(types)
    candidates: Sequence[int] = range(len(listed.files))
    for condition in conditions:
        column = names.get(condition.column)
        if column is None:
            continue
        candidates = _narrowed(listed, dataset, candidates, column, types[column], condition)
    groups: dict[tuple[Range, ...], list[str]] = {}
    size = 0
    for index in candidates:
        file, commit = listed.files[index], listed.commits[index]
        ranges: list[Range] | None = None
        if commit.hidden and dataset.position is not None:
            ranges = kept(commit.positions, _EVERYTHING, commit.hidden)
            if not ranges:
                continue
        groups.setdefault(tuple(ranges or ()), []).append(file.path)
        size += file.bytes
    return Chosen(
        [(paths, list(ranges)) for ranges, paths in groups.items()],
        sum(map(len, groups.values())),
        len(listed.files),
        size,
    )


def _narrowed(
    listed: FileList,
    dataset: PinnedDataset,
    candidates: Sequence[int],
    column: str,
    type_: str,
    condition: Condition,
) -> list[int]:
    by_position = column == dataset.position
    statistics = listed.statistics(column)
    left = []
    for index in candidates:
        known = statistics[index]
        if known is None:
            if not by_position:
                left.append(index)
                continue
            first, last = listed.commits[index].positions
            known = {"min": first, "max": last}
        if may_lie_within(known, condition.spans, type_, listed.files[index].rows):
            left.append(index)
    return left


def _by_lower_case(names: Mapping[str, str]) -> dict[str, str]:
    """Columns as SQL finds them, which does not tell upper from lower case; without those that only differ in it."""
    found: dict[str, str] = {}
    twice = set()
    for name in names:
        if name.lower() in found:
            twice.add(name.lower())
        found[name.lower()] = name
    return {lower: name for lower, name in found.items() if lower not in twice}
