"""When a schedule last came due."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from traceplane.model import cron

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
    ],
)
def test_the_latest_time_at_or_before_now(schedule: str, latest: str) -> None:
    found = cron.parse(schedule).latest(NOW)
    assert found is not None
    assert f"{found:%Y-%m-%d %H:%M}" == latest


def test_a_day_that_never_comes_is_never_due() -> None:
    assert cron.parse("0 0 31 2 *").latest(NOW) is None


@pytest.mark.parametrize(
    "text", ["", "* * * *", "60 * * * *", "* 24 * * *", "5-1 * * * *", "*/0 * * * *", "a b c d e"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"five fields|not"):
        cron.parse(text)
