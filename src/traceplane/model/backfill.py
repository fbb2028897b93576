"""How a range of history is divided into scopes."""

from __future__ import annotations

from traceplane.model.partitions import Partitions
from traceplane.model.scope import Cursor, Partition, Scope

MAX_SCOPES = 100_000
"""Per command; more would keep the dispatcher's queue busy for longer than anyone watches."""

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def scopes(
    start: int,
    end: int,
    *,
    partition_size: int | None,
    range_size: int | None,
    partitions: Partitions = Partitions(),
) -> list[Scope]:
    """The scopes of `start` to `end`, both included: the aligned ranges of `range_size` that feed the job; otherwise
    one per partition, if these have names; otherwise partitions of `partition_size`, counted from `start`; otherwise
    one per cursor.

    Raises ValueError if the range is invalid, or has more scopes than one command may create.
    """
    if end < start:
        raise ValueError("the range ends before it starts")
    if partitions.is_named:
        partition_size = None
    size = range_size or partition_size or 1
    first = start // size * size if range_size else start
    if (end - first) // size + 1 > MAX_SCOPES:
        raise ValueError(f"the range has more than {MAX_SCOPES} scopes")
    starts = range(first, end + 1, size)
    if range_size:
        if first < _LOWEST or starts[-1] + size - 1 > _HIGHEST:
            raise ValueError("a range that reaches beyond 64-bit positions can never be full")
        batches = [partitions.aligned_range(s, size) for s in starts]
        if partitions.is_time:
            return [Partition(partitions.written(batch), *batch) for batch in batches]
        return [Partition.of_range(*batch) for batch in batches]
    if partition_size:
        return [Partition.of_range(s, min(end, s + size - 1)) for s in starts]
    if partitions.is_named:
        return [Partition(partitions.name(s), s, s) for s in starts]
    return [Cursor(s) for s in starts]
