"""The values of a position column say which partition a row belongs to, in each type and through changes of clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.columnar.row_filters import meets
from traceplane.model.comparisons import of_ranges
from traceplane.model.edges import EVERYTHING
from traceplane.model.partitions import By, Partitions
from traceplane.model.row_positions import PositionColumn

TYPES = {
    "date32[day]": pa.date32(),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "timestamp[us]": pa.timestamp("us"),
}
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Australia/Lord_Howe",
]
MOMENTS = st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
NEAR = st.sampled_from(
    [
        datetime(2026, 3, 28, 22, tzinfo=UTC),  # Berlin: forward
        datetime(2026, 10, 24, 22, tzinfo=UTC),  # and back
        datetime(2018, 11, 4, 3, tzinfo=UTC),  # São Paulo: forward at midnight
        datetime(2018, 2, 18, 2, tzinfo=UTC),  # back at midnight
        datetime(2011, 12, 30, 10, tzinfo=UTC),  # Apia left out a day
        datetime(2026, 4, 4, 15, tzinfo=UTC),  # Lord Howe: half an hour back
    ]
).flatmap(lambda m: st.integers(-180, 180).map(lambda minutes: m + timedelta(minutes=minutes)))


@given(st.sampled_from(list(TYPES)), st.sampled_from([By.HOUR, By.DAY, By.WEEK, By.MONTH]), st.sampled_from(ZONES),
       MOMENTS | NEAR, st.integers(0, 3), st.integers(0, 3))  # fmt: skip
def test_a_row_is_at_the_position_of_the_period_that_contains_its_value(
    type_: str, by: By, zone: str, moment: datetime, before: int, after: int
) -> None:
    partitions = Partitions(by, zone if by is not By.HOUR else "UTC")
    column = PositionColumn("at", type_, partitions)
    if column.misfit is not None:
        assert (by, type_) == (By.HOUR, "date32[day]")
        return
    local = moment.astimezone(ZoneInfo(partitions.time_zone))
    values: dict[str, date] = {
        "date32[day]": local.date(),
        "timestamp[us, tz=UTC]": moment,
        "timestamp[us]": local.replace(tzinfo=None),
    }
    value = values[type_]
    position = partitions.of_time(moment)
    around = (position - before, position + after)
    rows = pa.table({"at": pa.array([value, None], TYPES[type_])})
    for positions, inside in [
        (around, True),
        ((position + 1, position + 3), False),
        ((position - 3, position - 1), False),
        (EVERYTHING, True),
    ]:
        assert column.has(positions, value.isoformat()) is inside
        assert (
            rows.filter(meets("at", TYPES[type_], of_ranges([column.values(positions)]))).num_rows == inside
        )


def test_numbers_are_positions() -> None:
    column = PositionColumn("block", "int32", Partitions(By.DAY))
    assert column.values((3, 5)) == (3, 6)
    assert column.values(EVERYTHING) == (None, None)
    assert [column.has((3, 5), n) for n in (2, 3, 5, 6)] == [False, True, True, False]


def test_periods_beyond_the_calendar_have_no_bounds() -> None:
    days = PositionColumn("day", "date32[day]", Partitions(By.DAY))
    assert days.values((-(2**40), 0)) == (None, "1970-01-02")
    assert days.values((Partitions(By.DAY).of_date(date(9999, 12, 31)), 2**40)) == ("9999-12-31", None)


@pytest.mark.parametrize(
    ("type_", "partitions", "reason"),
    [
        ("date32[day]", Partitions(), "not periods of time"),
        ("timestamp[us]", Partitions(By.NAME), "not periods of time"),
        ("date32[day]", Partitions(By.HOUR), "which hour"),
        ("timestamp[us]", Partitions(By.HOUR, "Europe/Berlin"), "which of the two"),
        ("timestamp[us, tz=UTC]", Partitions(By.HOUR, "Europe/Berlin"), None),
        ("timestamp[us]", Partitions(By.HOUR), None),
        ("date32[day]", Partitions(By.MONTH, "Europe/Berlin"), None),
        ("int64", Partitions(By.NAME), None),
    ],
)
def test_a_column_must_say_which_partition_a_row_is_in(
    type_: str, partitions: Partitions, reason: str | None
) -> None:
    misfit = PositionColumn("at", type_, partitions).misfit
    assert misfit is None if reason is None else misfit is not None and reason in misfit


def test_what_is_no_value_of_the_column_is_outside() -> None:
    days = PositionColumn("day", "date32[day]", Partitions(By.DAY))
    assert not any(days.has((0, 9), value) for value in (3, "soon", ""))
