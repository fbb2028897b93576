"""Names of partitions and their positions: leap days, ISO weeks, daylight saving time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.model.partitions import BadPartition, By, Partitions

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
TIME = [By.HOUR, By.DAY, By.WEEK, By.MONTH]


@pytest.mark.parametrize(
    ("by", "name", "position"),
    [
        (By.DAY, "1970-01-01", 0),
        (By.DAY, "1969-12-31", -1),
        (By.DAY, "2024-02-29", 19782),
        (By.WEEK, "1970-W01", 0),
        (By.WEEK, "2026-W53", 2974),
        (By.WEEK, "2027-W01", 2975),
        (By.MONTH, "1970-01", 0),
        (By.MONTH, "1969-12", -1),
        (By.MONTH, "2026-11", 682),
        (By.HOUR, "1970-01-01T05", 5),
        (By.POSITION, "-7", -7),
    ],
)
def test_a_name_is_a_position_and_is_written_back(by: By, name: str, position: int) -> None:
    partitions = Partitions(by)
    assert partitions.position(name) == position
    assert partitions.name(position) == name


@pytest.mark.parametrize(
    ("by", "text"),
    [
        (By.DAY, "2026-02-29"),
        (By.DAY, "2026-2-9"),
        (By.DAY, "2026-11"),
        (By.DAY, "16.11.2026"),
        (By.WEEK, "2025-W53"),
        (By.WEEK, "2026-W00"),
        (By.MONTH, "2026-13"),
        (By.MONTH, "2026-11-16"),
        (By.HOUR, "2026-11-16T24"),
        (By.HOUR, "2026-11-16"),
        (By.POSITION, "1.5"),
        (By.POSITION, "2026-11-16"),
        (By.NAME, "mars"),
        (By.DAY, "٢٠٢٦-١١-١٦"),
        (By.HOUR, "0001-01-01T00Z"),
        (By.HOUR, "9999-12-31T23"),
        (By.DAY, "0999-12-31"),
        (By.WEEK, "9000-W01"),
        (By.MONTH, "9999-12"),
    ],
)
def test_what_names_no_partition_is_refused(by: By, text: str) -> None:
    with pytest.raises(BadPartition, match=r".+"):
        Partitions(by, names=("eu", "us")).with_names({"eu": 0, "mars": 1}).position(text)


def test_a_name_has_the_position_it_was_registered_under() -> None:
    regions = Partitions(By.NAME, names=("eu", "us", "apac")).with_names({"eu": 7, "us": 1})
    assert [regions.position(name) for name in ("us", "eu")] == [1, 7]
    assert [regions.name(position) for position in (1, 7, 3)] == ["us", "eu", "#3"]
    with pytest.raises(BadPartition, match="there is no partition 'apac'"):
        regions.position("apac")


def test_nothing_is_before_the_start() -> None:
    days = Partitions(By.DAY, start=Partitions(By.DAY).position("2026-01-01"))
    assert days.position("2026-01-01") == days.start
    with pytest.raises(BadPartition, match="2025-12-31 is before 2026-01-01"):
        days.position("2025-12-31")


def test_days_have_23_and_25_hours_when_clocks_change() -> None:
    days = Partitions(By.DAY, BERLIN)

    def hours(name: str) -> timedelta:
        position = days.position(name)
        return days.starts_at(position + 1) - days.starts_at(position)

    assert hours("2026-03-28") == timedelta(hours=24)
    assert hours("2026-03-29") == timedelta(hours=23)
    assert hours("2026-10-25") == timedelta(hours=25)


def test_a_moment_belongs_to_the_local_day() -> None:
    late = datetime(2026, 11, 16, 23, 30, tzinfo=UTC)
    assert Partitions(By.DAY).name(Partitions(By.DAY).of_time(late)) == "2026-11-16"
    berlin = Partitions(By.DAY, BERLIN)
    assert berlin.name(berlin.of_time(late)) == "2026-11-17"
    new_york = Partitions(By.MONTH, NEW_YORK)
    assert new_york.name(new_york.of_time(datetime(2026, 11, 1, 3, tzinfo=UTC))) == "2026-10"


def test_an_hour_that_occurs_twice_has_an_offset_and_one_that_does_not_exist_is_refused() -> None:
    hours = Partitions(By.HOUR, BERLIN)
    first, second = hours.position("2026-10-25T02+02:00"), hours.position("2026-10-25T02+01:00")
    assert second == first + 1
    assert [hours.name(p) for p in range(first - 1, second + 2)] == [
        "2026-10-25T01",
        "2026-10-25T02+02:00",
        "2026-10-25T02+01:00",
        "2026-10-25T03",
    ]
    with pytest.raises(BadPartition, match=r"occurs twice.*02\+02:00 or 2026-10-25T02\+01:00"):
        hours.position("2026-10-25T02")
    with pytest.raises(BadPartition, match="does not exist"):
        hours.position("2026-03-29T02")


@given(
    st.sampled_from(TIME),
    st.sampled_from(["UTC", BERLIN, NEW_YORK, "America/Sao_Paulo", "Pacific/Apia", "Australia/Lord_Howe"]),
    st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_each_moment_is_in_exactly_one_period_whose_name_leads_back(
    by: By, time_zone: str, moment: datetime
) -> None:
    if by is By.HOUR and time_zone == "Australia/Lord_Howe":
        time_zone = "UTC"  # hours of a zone with half hours are refused in DAG files
    partitions = Partitions(by, time_zone)
    position = partitions.of_time(moment)
    assert partitions.starts_at(position) <= moment < partitions.starts_at(position + 1)
    if by is not By.HOUR or partitions.name(position).count(":") or time_zone == "UTC":
        assert partitions.position(partitions.name(position)) == position


@given(st.dates(date(1900, 1, 1), date(2200, 1, 1)))
def test_iso_weeks_are_those_of_the_calendar(day: date) -> None:
    weeks = Partitions(By.WEEK)
    year, week, _ = day.isocalendar()
    assert weeks.name(weeks.of_date(day)) == f"{year}-W{week:02}"


@pytest.mark.parametrize(
    ("by", "text", "message"),
    [
        (By.HOUR, "noon", "'noon' does not name an hour, for example 2026-11-16T05"),
        (By.DAY, "today", "'today' does not name a day, for example 2026-11-16"),
        (
            By.NAME,
            "são-paulo",
            "'são-paulo' cannot be the name of a partition: a name has up to 100 ASCII letters",
        ),
        (By.NAME, "2go", "and begins with a letter or _"),
    ],
)
def test_a_text_that_names_no_partition_is_told_what_does(by: By, text: str, message: str) -> None:
    with pytest.raises(BadPartition) as refused:
        Partitions(by).with_names({}).position(text)
    assert message in str(refused.value)
