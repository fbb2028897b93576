"""Inputs that are read by a column of time: the two functions of the edge agree, and so do bounds and rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.model.extents import Extents, UnknownTimes, merged, misfit, of_files, periods_of, values
from traceplane.model.partitions import By, Partitions, zone
from traceplane.model.positions import Range

_RANGE = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1]))
_EXTENTS = st.dictionaries(st.integers(0, 40), st.lists(_RANGE, min_size=1, max_size=3)).map(Extents)
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"])
_PARTITIONS = st.builds(Partitions, st.sampled_from([By.HOUR, By.DAY, By.WEEK, By.MONTH]), _ZONES)
_MOMENTS = st.integers(-40_000_000, 1_900_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
INSTANT = "timestamp[us, tz=UTC]"


def _overlap(ranges: list[Range], other: Range) -> bool:
    return any(first <= other[1] and other[0] <= last for first, last in ranges)


@given(_EXTENTS, _RANGE, _RANGE)
def test_a_scope_is_concerned_exactly_when_it_reads_some_of_the_change(
    extents: Extents, scope: Range, change: Range
) -> None:
    per_period = [p for p in range(scope[0], scope[1] + 1) if _overlap(extents.reads((p, p)), change)]
    assert per_period == [
        p for p in range(scope[0], scope[1] + 1) if _overlap(extents.concerned(change), (p, p))
    ]


@given(st.lists(_RANGE))
def test_merged_ranges_hold_the_same_positions_and_do_not_touch(ranges: list[Range]) -> None:
    result = merged(ranges)
    assert {p for a, b in result for p in range(a, b + 1)} == {p for a, b in ranges for p in range(a, b + 1)}
    assert all(a[1] + 1 < b[0] for a, b in pairwise(result))


@given(_PARTITIONS, _MOMENTS, st.sampled_from([INSTANT, "int64", "timestamp[us]"]))
def test_a_file_concerns_the_period_that_reads_its_rows(
    partitions: Partitions, moment: datetime, type_: str
) -> None:
    value: int | str = moment.isoformat()
    if type_ == "int64":
        value = int(moment.timestamp())
    elif type_ == "timestamp[us]":
        value = moment.astimezone(zone(partitions.time_zone)).replace(tzinfo=None).isoformat()
    if misfit(type_, partitions) is not None:
        return
    found = periods_of(
        {"path": "f", "rows": 1, "bytes": 1, "statistics": {"at": {"min": value, "max": value}}},
        "at",
        partitions,
    )
    assert found is not None
    first, end = values(type_, partitions, found)
    assert first is not None
    assert end is not None
    if isinstance(value, int):
        assert isinstance(first, int)
        assert isinstance(end, int)
        assert first <= value < end
    else:
        at, begin, over = map(datetime.fromisoformat, (value, str(first), str(end)))
        assert begin <= at < over


def _file(low: datetime | None, high: datetime | None, rows: int = 2, nulls: int = 0) -> dict[str, object]:
    bounds = {"min": low and low.isoformat(), "max": high and high.isoformat(), "null_count": nulls}
    return {"path": "f", "rows": rows, "bytes": 1, "statistics": {"at": bounds}}


def test_files_say_in_which_periods_their_rows_are() -> None:
    hours = Partitions(By.HOUR)
    start = datetime(2026, 11, 16, tzinfo=UTC)
    hour = hours.of_time(start)
    files = [
        ((0, 9), _file(start, start + timedelta(minutes=61))),
        ((10, 10), _file(start + timedelta(minutes=70), start + timedelta(minutes=70))),
        ((11, 11), _file(None, None, rows=3, nulls=3)),
        ((12, 12), _file(None, None, rows=0)),
    ]
    extents = of_files(files, "at", hours, 100)  # type: ignore[arg-type]
    assert extents.positions == {hour: [(0, 9)], hour + 1: [(0, 10)]}


@pytest.mark.parametrize("most", [0, 100])
def test_files_that_do_not_say_it_are_refused(most: int) -> None:
    hours, start = Partitions(By.HOUR), datetime(2026, 11, 16, tzinfo=UTC)
    file = _file(start, start) if most == 0 else _file(None, None)
    with pytest.raises(UnknownTimes):
        of_files([((0, 0), file)], "at", hours, most)  # type: ignore[list-item]
