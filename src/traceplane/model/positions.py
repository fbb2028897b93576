"""Ranges of positions: which of a commit a reader gets (those of its scope that no newer commit has replaced), and what
sets of ranges have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

Range = tuple[int, int]
"""First and last position, both included."""


def written(positions: Range) -> str:
    """In readable form, as commands take it."""
    first, last = positions
    if first == last:
        return str(first)
    return f"{first}-{last}" if first >= 0 else f"{first}..{last}"


def kept(commit: Range, scope: Range, hidden: Sequence[Range]) -> list[Range] | None:
    """The ranges to read of a commit that overlaps the scope, or None for all of it."""
    if not hidden and scope[0] <= commit[0] and commit[1] <= scope[1]:
        return None
    position, last = max(commit[0], scope[0]), min(commit[1], scope[1])
    ranges = []
    for start, end in sorted(hidden):
        if end < position:
            continue
        if start > last:
            break
        if start > position:
            ranges.append((position, start - 1))
        position = end + 1
    if position <= last:
        ranges.append((position, last))
    return ranges


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same positions as ordered ranges that do not touch."""
    one: list[Range] = []
    for first, last in sorted(ranges):
        if one and first <= one[-1][1] + 1:
            one[-1] = one[-1][0], max(one[-1][1], last)
        else:
            one.append((first, last))
    return one


def common(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    return merged((max(a, c), min(b, d)) for a, b in one for c, d in other if a <= d and c <= b)


def without(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    """Those of one that the other lacks."""
    left: list[Range] = []
    for positions in one:
        rest = kept(positions, positions, other)
        left += [positions] if rest is None else rest
    return left


def execution_position(execution_id: UUID) -> int:
    """An execution's place among all of them: the leading bits of its time-ordered id, without the version bits."""
    return (execution_id.int >> 80 << 12) | (execution_id.int >> 64 & 0xFFF)
