"""A backfill splits a range of history into the scopes that the job would get."""

from __future__ import annotations

import pytest

from traceplane.model.backfill import MAX_SCOPES, scopes
from traceplane.model.partitions import Partitions


def keys(start: int, end: int, partition_size: int | None = None, range_size: int | None = None) -> list[str]:
    return [s.key for s in scopes(start, end, partition_size=partition_size, range_size=range_size)]


def test_scopes_of_a_range() -> None:
    assert keys(-1, 1) == ["c:-1", "c:0", "c:1"]
    assert keys(5, 14, partition_size=4) == ["p:5-8", "p:9-12", "p:13-14"]
    assert keys(5, 5, partition_size=4) == ["p:5-5"]
    assert keys(5, 14, range_size=10) == ["p:0-9", "p:10-19"]
    assert keys(-1, 0, range_size=10) == ["p:-10--1", "p:0-9"]
    assert len(keys(0, MAX_SCOPES - 1)) == MAX_SCOPES
    assert keys(2**63 - 1, 2**63 - 1) == [f"c:{2**63 - 1}"]


def test_the_range_in_which_a_dataset_starts_begins_there() -> None:
    starts = Partitions(start=13)
    cut = scopes(13, 25, partition_size=None, range_size=10, partitions=starts)
    assert [s.key for s in cut] == ["p:13-19", "p:20-29"]


@pytest.mark.parametrize(
    ("start", "end", "sizes"),
    [
        (1, 0, {}),
        (0, MAX_SCOPES, {}),
        (-(2**63), 2**63 - 1, {}),
        (-(2**63), 2**63 - 1, {"partition_size": 2**31}),
        (2**63 - 1, 2**63 - 1, {"range_size": 10}),
        (-(2**63), -(2**63), {"range_size": 10}),
    ],
)
def test_a_range_that_cannot_be_backfilled_is_refused(start: int, end: int, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"range|scopes"):
        keys(start, end, **sizes)
