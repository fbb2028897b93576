"""Which files of a dataset are merged: a pure decision about its commits, in the order of their positions.

Commits that follow each other without a gap make a run, as far as their files are small, up to the size of one good
file. A run is merged if it has enough files, and if none of them is most of it: so a row is rewritten about as often as
its file doubles in size, however small the files are that arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceplane.model.positions import Range

_MOST_COMMITS = 2_000
"""Of one run."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The policy of a dataset."""

    enabled: bool = True
    target: int | None = None
    """Bytes of a good file; None: as the platform's settings say."""
    min_files: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """With all that a dataset leaves open."""

    target_bytes: int
    min_files: int


@dataclass(frozen=True, slots=True)
class ListedCommit:
    key: tuple[int, int]
    positions: Range
    files: int
    """Those with rows."""
    bytes: int
    stays: bool
    """Whether it is left as it is, whatever its size."""


@dataclass(frozen=True, slots=True)
class Run:
    """Commits that are merged."""

    positions: Range
    commits: int
    files: int
    bytes: int


def runs(commits: Sequence[ListedCommit], covered: Sequence[Range], policy: Policy) -> list[Run]:
    """`covered`: the positions that the dataset holds, as ranges in order: between two commits in one of them, there is
    nothing but scopes without rows."""
    stretches = _stretches(commits, covered, policy)
    return [run for stretch in stretches for run in _worthwhile(stretch.commits, policy)]


def open_from(
    commits: Sequence[ListedCommit], covered: Sequence[Range], policy: Policy
) -> ListedCommit | None:
    """The commit with which the last run begins, which commits after these may still join."""
    last = deque(_stretches(commits, covered, policy), maxlen=1)
    if not last or last[0].commits[-1] is not commits[-1] or last[0].is_full(policy):
        return None
    return last[0].commits[0]


class _Stretch:
    """Small commits without a gap between them."""

    def __init__(self, first: ListedCommit) -> None:
        self.commits = [first]
        self.end = first.positions[1]
        self.bytes = first.bytes

    def add(self, commit: ListedCommit) -> None:
        self.commits.append(commit)
        self.end = max(self.end, commit.positions[1])
        self.bytes += commit.bytes

    def is_full(self, policy: Policy) -> bool:
        return len(self.commits) >= _MOST_COMMITS or self.bytes >= policy.target_bytes

    def reaches(self, commit: ListedCommit, covered: Sequence[Range]) -> bool:
        first = commit.positions[0]
        return first <= self.end + 1 or _within_one(covered, self.end, first)


def _stretches(
    commits: Sequence[ListedCommit], covered: Sequence[Range], policy: Policy
) -> Iterator[_Stretch]:
    stretch: _Stretch | None = None
    for commit in commits:
        small = not commit.stays and commit.bytes * 4 <= policy.target_bytes * 3 * max(commit.files, 1)
        if stretch is not None and small and not stretch.is_full(policy) and stretch.reaches(commit, covered):
            stretch.add(commit)
            continue
        if stretch is not None:
            yield stretch
        stretch = _Stretch(commit) if small else None
    if stretch is not None:
        yield stretch


def _within_one(covered: Sequence[Range], first: int, last: int) -> bool:
    index = bisect_right(covered, first, key=lambda positions: positions[0]) - 1
    return index >= 0 and covered[index][1] >= last


def _worthwhile(stretch: Sequence[ListedCommit], policy: Policy) -> Iterator[Run]:
    """The stretch, or what is left of it on both sides of a file that is most of it."""
    files = sum(commit.files for commit in stretch)
    if files < policy.min_files:
        return
    total = sum(commit.bytes for commit in stretch)
    largest = max(range(len(stretch)), key=lambda n: stretch[n].bytes / max(stretch[n].files, 1))
    if stretch[largest].bytes / max(stretch[largest].files, 1) * 2 > total:
        yield from _worthwhile(stretch[:largest], policy)
        yield from _worthwhile(stretch[largest + 1 :], policy)
        return
    first = stretch[0].positions[0]
    yield Run((first, max(commit.positions[1] for commit in stretch)), len(stretch), files, total)
