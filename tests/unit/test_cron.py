"""When a schedule last came due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

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
    with pytest.raises(ValueError, match="day-of-month"):
        cron.check("0 0 31 2 *")
    assert cron.latest("0 0 31 2 *", NOW) is None


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "0 * * * * *", "60 * * * *", "* 24 * * *", "5-1 * * * *", "*/0 * * * *", "a b c d e"],
)
def test_an_invalid_schedule_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"five fields|bad (minute|hour)"):
        cron.check(text)
