"""When a schedule last came due, and when it is due in time zones whose clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane.schedule import cron

NOW = datetime(2026, 11, 16, 10, 7, 30, tzinfo=UTC)  # a Monday


@pytest.mark.parametrize(
    ("schedule", "latest"),
    [
        ("* * * * *", "2026-11-16 10:07"),
        ("*/5 * * * *", "2026-11-16 10:05"),
        ("30 9-16 * * 1-5", "2026-11-16 09:30"),
        ("0 18 * * 1-5", "2026-11-13 18:00"),
        ("15,45 0 * * *", "2026-11-16 00:45"),
        ("0 0 1 * *", "2026-11-01 00:00"),
        ("0 0 29 2 *", "2024-02-29 00:00"),
        ("0 12 * * 7", "2026-11-15 12:00"),
        ("0 12 * * 0", "2026-11-15 12:00"),
        ("0 0 13 * 5", "2026-11-13 00:00"),
        ("0 0 10 * 6", "2026-11-14 00:00"),
        ("7 10 16 11 *", "2026-11-16 10:07"),
        ("8 10 16 11 *", "2025-11-16 10:08"),
        ("9-30/7 * * * *", "2026-11-16 09:30"),
        ("0 18 * * MON-FRI", "2026-11-13 18:00"),
        ("0 0 1 jan *", "2026-01-01 00:00"),
        ("0 0 L * *", "2026-10-31 00:00"),
        ("0 0 * * FRI#3", "2026-10-16 00:00"),
    ],
)
def test_the_latest_time_at_or_before_now(schedule: str, latest: str) -> None:
    cron.check(schedule)
    assert cron.latest(schedule, NOW) == datetime.fromisoformat(f"{latest}+00:00")


def test_a_time_is_due_from_its_first_moment() -> None:
    time = datetime(2026, 11, 16, 10, 5, tzinfo=UTC)
    assert cron.latest("*/5 * * * *", time) == time
    assert cron.latest("*/5 * * * *", time - timedelta(microseconds=1)) == time - timedelta(minutes=5)


def test_a_day_that_never_comes_is_rejected_and_a_stored_one_is_never_due() -> None:
    with pytest.raises(ValueError, match="never occurs"):
        cron.check("0 0 31 2 *")
    assert cron.latest("0 0 31 2 *", NOW) is None


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "0 * * * * *", "60 * * * *", "* 24 * * *", "5-1 * * * *", "*/0 * * * *", "a b c d e"],
)
def test_an_invalid_schedule_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"five fields|bad (minute|hour)"):
        cron.check(text)


# Time zones ------------------------------------------------------------------------------------------

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Cairo")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def between(schedule: str, time_zone: str, first: str, last: str) -> list[str]:
    """The ticks after `first` up to and including `last`, in UTC; found in both directions."""
    start, end = moment(first), moment(last)
    ticks = list(takewhile(lambda tick: tick <= end, cron.ticks_after(schedule, time_zone, start)))
    back = list(takewhile(lambda tick: tick > start, cron.ticks_back(schedule, time_zone, end)))
    assert ticks == back[::-1]
    return [tick.strftime("%d %H:%M") for tick in ticks]


@pytest.mark.parametrize(
    ("schedule", "time_zone", "first", "last", "ticks"),
    [
        # Clocks go forward: a fixed time in the gap fires when the gap ends, and each schedule once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00Z", "2026-03-31T00:00Z", ["28 01:30", "29 01:00", "30 00:30"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T12:00Z", ["29 01:00"]),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T12:00Z", ["29 01:00"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00Z", "2026-03-09T12:00Z", ["08 07:00", "09 06:30"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", "2026-10-04T23:00Z", ["03 15:30", "04 15:15"]),
        # Clocks go back: of a time that occurs twice the first counts.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", "2026-10-26T12:00Z", ["25 00:30", "26 01:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00Z", "2026-11-02T12:00Z", ["01 05:30", "02 06:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z", "2026-04-05T23:00Z", ["04 14:45", "05 15:15"]),
        # Schedules with * follow real time.
        ("0 * * * *", "Europe/Berlin", "2026-03-28T23:30Z", "2026-03-29T02:00Z", ["29 00:00", "29 01:00", "29 02:00"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-24T23:30Z", "2026-10-25T02:00Z", ["25 00:00", "25 01:00", "25 02:00"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T12:00Z", []),
        ("*/40 2 * * *", "Europe/Berlin", "2026-10-25T00:40Z", "2026-10-25T05:00Z", ["25 01:00", "25 01:40"]),
        ("30 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30Z", "2026-04-04T16:30Z", ["04 15:00", "04 16:00"]),
        # A day that begins in a gap.
        ("0 0 * * *", "Africa/Cairo", "2026-04-22T23:00Z", "2026-04-25T12:00Z", ["23 22:00", "24 21:00"]),
    ],
)  # fmt: skip
def test_clocks_that_change(schedule: str, time_zone: str, first: str, last: str, ticks: list[str]) -> None:
    assert between(schedule, time_zone, first, last) == ticks


@pytest.mark.parametrize(
    ("schedule", "first", "ticks"),
    [
        ("0 12 29 2 *", "2024-03-01", ["2028-02-29", "2032-02-29"]),
        ("0 12 L * *", "2027-12-31T13:00", ["2028-01-31", "2028-02-29", "2028-03-31", "2028-04-30"]),
        ("0 12 31 * *", "2026-01-31T13:00", ["2026-03-31", "2026-05-31", "2026-07-31", "2026-08-31"]),
        ("0 12 LW * *", "2026-01-01", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 12 * 2 MON#5", "2026-01-01", ["2044-02-29"]),
    ],
)
def test_leap_days_and_ends_of_months(schedule: str, first: str, ticks: list[str]) -> None:
    start = moment(first).replace(tzinfo=UTC)
    found = list(islice(cron.ticks_after(schedule, "UTC", start), len(ticks)))
    assert [f"{tick:%Y-%m-%d}" for tick in found] == ticks


fields = st.sampled_from(["*", "0", "30", "*/15", "7,37", "20-40/10"])
hours = st.sampled_from(["*", "0", "1", "2", "1-3", "*/2", "23"])
days = st.sampled_from(["* * *", "1 * *", "* * 0", "25-31 * *", "L * *", "* 3,10 SUN"])


@settings(max_examples=150, deadline=None)
@given(
    minute=fields,
    hour=hours,
    day=days,
    time_zone=st.sampled_from(ZONES),
    minutes=st.integers(0, 365 * 24 * 60),
    split=st.integers(0, 20),
)
def test_ticks_do_not_depend_on_where_one_begins_to_count(
    minute: str, hour: str, day: str, time_zone: str, minutes: int, split: int
) -> None:
    """Beginning again at any tick, or between two, gives the same ticks; and going back gives them too."""
    schedule = f"{minute} {hour} {day}"
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    ticks = list(islice(cron.ticks_after(schedule, time_zone, start), 40))
    assert ticks == sorted(set(ticks))
    assert ticks[0] > start
    part = ticks[split:]
    for again in (ticks[split], ticks[split] + (ticks[split + 1] - ticks[split]) / 2):
        assert list(islice(cron.ticks_after(schedule, time_zone, again), len(part) - 1)) == part[1:]
    back = takewhile(lambda tick: tick > start, cron.ticks_back(schedule, time_zone, ticks[-1]))
    assert list(back) == ticks[::-1]
