"""The two functions of an input agree: a scope is affected by a change exactly when it reads some of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traceplane.model.edges import EVERYTHING, Edge, OnChange, Read, What
from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range

DAYS, MONTHS, WEEKS = Partitions(By.DAY), Partitions(By.MONTH), Partitions(By.WEEK)
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"])
_PARTITIONS = st.builds(Partitions, st.sampled_from([By.HOUR, By.DAY, By.WEEK, By.MONTH]), _ZONES)
_YEARS = {By.HOUR: 20_000, By.DAY: 800, By.WEEK: 100, By.MONTH: 24}


def _range(partitions: Partitions) -> st.SearchStrategy[Range]:
    most = _YEARS[partitions.by]
    return st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda r: (min(r), max(r)))


def _overlap(a: Range, b: Range) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


@given(st.data(), _PARTITIONS, _PARTITIONS, st.integers(0, 30), st.integers(0, 30))
def test_a_scope_is_affected_exactly_when_it_reads_some_of_the_change(
    data: st.DataObject, read: Partitions, job: Partitions, before: int, after: int
) -> None:
    edge = Edge(Read(before=before, after=after), read, job)
    scope, change = data.draw(_range(job)), data.draw(_range(read))
    affected = edge.affected(change)
    assert affected is not None
    assert _overlap(edge.reads(scope), change) == _overlap(scope, affected)


def test_a_window_reads_before_and_affects_after() -> None:
    edge = Edge(Read(before=20, after=1), Partitions(), Partitions())
    assert edge.reads((100, 100)) == (80, 101)
    assert edge.affected((100, 100)) == (99, 120)


def test_a_month_reads_its_days_and_a_day_affects_its_month() -> None:
    edge = Edge(Read(), DAYS, MONTHS)
    november = MONTHS.position("2026-11")
    first, last = edge.reads((november, november))
    assert (DAYS.name(first), DAYS.name(last)) == ("2026-11-01", "2026-11-30")
    day = DAYS.position("2026-11-16")
    assert edge.affected((day, day)) == (november, november)


def test_a_week_across_two_months_affects_both() -> None:
    edge = Edge(Read(), WEEKS, MONTHS)
    week = WEEKS.position("2026-W27")  # 29 June to 5 July
    assert edge.affected((week, week)) == (MONTHS.position("2026-06"), MONTHS.position("2026-07"))


def test_a_reference_table_is_read_as_a_whole_and_changes_everything_or_nothing() -> None:
    recompute = Edge(Read(What.ALL), Partitions(), DAYS)
    assert recompute.reads((5, 5)) == EVERYTHING
    assert recompute.affected((1, 1)) == EVERYTHING
    ignore = Edge(Read(What.ALL, on_change=OnChange.IGNORE), Partitions(), DAYS)
    assert ignore.affected((1, 1)) is None


def test_what_reads_everything_reads_all_partitions_whatever_they_are() -> None:
    """A query on Spark has no partitions, and reads datasets of days."""
    assert Edge(Read(), DAYS, Partitions()).reads(EVERYTHING) == EVERYTHING
    assert Edge(Read(), Partitions(), DAYS).reads(EVERYTHING) == EVERYTHING
