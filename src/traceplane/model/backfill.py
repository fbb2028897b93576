"""Which scopes a range of history is worked off in."""

from __future__ import annotations

from traceplane.model.scope import Cursor, Partition, Scope

MAX_SCOPES = 100_000
"""In one command; more would keep the dispatcher's queue busy for longer than anybody watches."""

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def scopes(start: int, end: int, *, partition_size: int | None, range_size: int | None) -> list[Scope]:
    """The scopes of `start` to `end`, both included: the aligned ranges of `range_size` that the job is fed with;
    else partitions of `partition_size`, counted from the start; else one for each cursor.

    Raises ValueError if they cannot be counted, or are more than one command may ask for.
    """
    if end < start:
        raise ValueError("the range ends before it starts")
    size = range_size or partition_size or 1
    first = start // size * size if range_size else start
    if (end - first) // size + 1 > MAX_SCOPES:
        raise ValueError(f"these are more than {MAX_SCOPES} scopes")
    starts = range(first, end + 1, size)
    if range_size:
        if first < _LOWEST or starts[-1] + size - 1 > _HIGHEST:
            raise ValueError("a range at the end of the 64 bits is never full")
        return [Partition.of_range(s, s + size - 1) for s in starts]
    if partition_size:
        return [Partition.of_range(s, min(end, s + size - 1)) for s in starts]
    return [Cursor(s) for s in starts]
