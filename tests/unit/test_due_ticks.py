"""Which missed ticks fire, by how much they are late, and which period each names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from traceplane.model.dag import CatchUpPolicy, Period, Source, SourceCatchUp, SourceKind
from traceplane.model.partitions import By, Partitions
from traceplane.schedule.due_ticks import DueTicks, delay_of, position, settle

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
HOURLY = "0 * * * *"


def at(hour: int, minute: int = 0, day: int = 16) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


def cron(schedule: str = HOURLY, policy: str = "latest", most: int = 100, **fields: object) -> Source:
    catch_up = SourceCatchUp(CatchUpPolicy(policy), most)
    return Source(SourceKind.CRON, schedule, catch_up=catch_up, **fields)  # type: ignore[arg-type]


def settled(source: Source, since: datetime, now: datetime, delay: timedelta = timedelta(0)) -> DueTicks:
    return settle(source, settled_through=since, now=now, delay=delay)


def test_a_tick_fires_once_it_is_due() -> None:
    assert settled(cron(), at(11), at(11, 59)) == DueTicks((), 0, at(11), at(12))
    assert settled(cron(), at(11), NOON) == DueTicks((NOON,), 0, NOON, at(13))
    assert settled(cron(), NOON, NOON) == DueTicks((), 0, NOON, at(13))


@pytest.mark.parametrize(
    ("policy", "most", "fired", "skipped"),
    [
        ("all", 100, [at(9), at(10), at(11), at(12)], 0),
        ("all", 2, [at(11), at(12)], 2),
        ("latest", 100, [at(12)], 3),
        ("none", 100, [], 4),
    ],
)
def test_missed_ticks_fire_as_the_policy_says(
    policy: str, most: int, fired: list[datetime], skipped: int
) -> None:
    due = settled(cron(policy=policy, most=most), at(8, 30), at(12, 20))
    assert due == DueTicks(tuple(fired), skipped, at(12), at(13))


def test_a_tick_that_is_less_than_a_minute_late_was_not_missed() -> None:
    assert settled(cron(policy="none"), at(11), NOON + timedelta(seconds=59)).fire == (NOON,)
    assert settled(cron(policy="none"), at(11), NOON + timedelta(seconds=60)).fire == ()


def test_many_missed_ticks_fire_in_several_passes_the_earliest_first() -> None:
    source, since, now = cron("* * * * *", "all", 250), at(0), at(6)
    fired: list[datetime] = []
    passes = []
    while (due := settled(source, since, now)).fire:
        assert due.next_tick == due.settled_through + timedelta(minutes=1)
        fired += due.fire
        passes.append((len(due.fire), due.skipped))
        since = due.settled_through
    assert passes == [(100, 110), (100, 0), (50, 0)]
    assert fired == [at(6) - timedelta(minutes=n) for n in reversed(range(250))]


def test_skipped_ticks_of_years_are_counted_up_to_a_thousand() -> None:
    due = settled(cron("* * * * *"), NOON - timedelta(days=2000), NOON)
    assert (due.fire, due.skipped, due.settled_through) == ((NOON,), 1000, NOON)


def test_a_schedule_without_further_ticks_is_not_looked_at_again() -> None:
    assert settled(cron("0 0 */31 2 MON#2"), NOON, NOON).next_tick is None


def test_jitter_delays_all_ticks_of_a_source_by_the_same_amount() -> None:
    source = cron(jitter_seconds=600.0)
    delays = {delay_of(source, f"default/dag/job{n}") for n in range(50)}
    assert len(delays) == 50
    assert all(timedelta(0) <= delay < timedelta(minutes=10) for delay in delays)
    assert max(delays) > timedelta(minutes=5)
    delay = delay_of(source, "default/dag/job")
    assert delay == delay_of(source, "default/dag/job")
    assert settled(source, at(11), NOON + delay - timedelta(seconds=1), delay).fire == ()
    assert settled(source, at(11), NOON + delay, delay).fire == (NOON,)
    assert delay_of(cron(), "default/dag/job") == timedelta(0)


@pytest.mark.parametrize(
    ("by", "time_zone", "tick", "this", "previous"),
    [
        ("day", "UTC", at(6), "2026-11-16", "2026-11-15"),
        ("day", "America/New_York", at(3), "2026-11-15", "2026-11-14"),
        ("hour", "Europe/Berlin", at(5, 10), "2026-11-16T06", "2026-11-16T05"),
        ("week", "UTC", at(0), "2026-W47", "2026-W46"),
        ("month", "UTC", at(0, day=1), "2026-11", "2026-10"),
    ],
)
def test_a_tick_names_the_period_of_the_dataset_that_it_is_in_or_the_one_before(
    by: str, time_zone: str, tick: datetime, this: str, previous: str
) -> None:
    partitions = Partitions(By(by), time_zone)
    names = []
    for period in Period:
        found = position(cron(period=period), partitions, tick)
        assert found is not None
        names.append(partitions.name(found))
    assert names == [this, previous]


def test_a_tick_before_the_first_period_of_the_dataset_names_none() -> None:
    start = Partitions(By.DAY).position("2026-11-16")
    partitions = Partitions(By.DAY, start=start)
    assert position(cron(), partitions, at(6)) == start
    assert position(cron(period=Period.PREVIOUS), partitions, at(6)) is None
