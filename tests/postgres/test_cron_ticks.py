"""Ticks of cron sources become events, each one once, whatever dispatchers, deploys and crashes do meanwhile.

Guarantee 12 of docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests import cron_year
from tests.control_plane import ControlPlane
from tests.dags import job
from traceplane.errors import DatabaseUnavailable
from traceplane.wire.control import ManualEvent

DAY, HOUR, MINUTE = 86_400, 3_600, 60
START = datetime(2030, 1, 1, tzinfo=UTC)
"""Where the database's clock starts in these tests."""


def ticking(
    schedule: str = "0 6 * * *",
    *more: str,
    by: str = "day",
    zone: str = "UTC",
    name: str = "ticks",
    start: str = "",
    jobs: str = "",
) -> str:
    fields = ", ".join((f"kind: cron, schedule: '{schedule}'", *more))
    start = f", start: {start}" if start else ""
    return (
        f"version: 1\ndag: main\ndatasets: {{in: {{partitions: {{by: {by}, time_zone: {zone}{start}}}}}}}\njobs:\n"
        f"- {{name: {name}, activation: source, source: {{{fields}}}, outputs: [{{dataset: in}}]}}\n{jobs}"
    )


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        yield opened


async def fire(plane: ControlPlane, seconds: float) -> tuple[int, int]:
    """Moves the clock, and lets a dispatcher look; how many ticks fired and were skipped."""
    await plane.set_clock(seconds)
    outcome = await plane.cron.run_once()
    return outcome.fired, outcome.skipped


async def emitted(plane: ControlPlane, dataset: str = "in") -> list[tuple[str, str]]:
    """Partition and emission of each event, oldest first."""
    rows = await plane.sql(
        "select partition_key, emission from events e join datasets d using (dataset_uuid)"
        " where dataset_id = $1 order by event_id",
        dataset,
    )
    return [(row["partition_key"], row["emission"]) for row in rows]


async def partitions(plane: ControlPlane) -> list[str]:
    return [partition for partition, _ in await emitted(plane)]


async def schedule(plane: ControlPlane) -> dict[str, datetime | None]:
    (row,) = await plane.sql("select settled_through, next_tick, last_tick, due_at from cron_schedules")
    return dict(row)


# Ticks ------------------------------------------------------------------------------------------------


async def test_a_daily_tick_is_an_event_of_its_day_and_runs_the_jobs_that_read_it(
    plane: ControlPlane,
) -> None:
    await plane.deploy(ticking(jobs=job("copy", "in", "out")))
    assert await fire(plane, 1) == (0, 0)
    assert await fire(plane, 6 * HOUR - 1) == (0, 0)
    assert await fire(plane, 6 * HOUR) == (1, 0)
    assert await fire(plane, 6 * HOUR + 1) == (0, 0)
    assert await emitted(plane) == [("2030-01-01", "tick 2030-01-01T06:00Z")]
    await plane.run_all()
    assert await plane.states("copy") == {"completed": 1}
    assert await fire(plane, DAY + 6 * HOUR + 20) == (1, 0)
    assert await partitions(plane) == ["2030-01-01", "2030-01-02"]
    seen = await schedule(plane)
    assert seen["last_tick"] == START + timedelta(days=1, hours=6)
    assert seen["next_tick"] == seen["due_at"] == START + timedelta(days=2, hours=6)


async def test_a_second_tick_of_a_period_runs_it_again(plane: ControlPlane) -> None:
    await plane.deploy(ticking("0 6,18 * * *", jobs=job("copy", "in", "out")))
    for hours in (6, 18):
        assert await fire(plane, hours * HOUR) == (1, 0)
        await plane.run_all()
    assert await emitted(plane) == [
        ("2030-01-01", "tick 2030-01-01T06:00Z"),
        ("2030-01-01", "tick 2030-01-01T18:00Z"),
    ]
    assert await plane.states("copy") == {"completed": 2}


async def test_the_period_is_that_of_the_dataset_in_its_own_time_zone(plane: ControlPlane) -> None:
    """At 06:00 in Tokyo it is still yesterday in New York."""
    await plane.deploy(ticking("0 6 * * *", "time_zone: Asia/Tokyo", zone="America/New_York"))
    assert await fire(plane, 21 * HOUR) == (1, 0)
    assert await emitted(plane) == [("2030-01-01", "tick 2030-01-01T21:00Z")]
    await plane.deploy(
        ticking("0 6 * * *", "time_zone: Asia/Tokyo", "period: previous", zone="America/New_York")
    )
    assert await fire(plane, DAY + 21 * HOUR) == (1, 0)
    assert await partitions(plane) == ["2030-01-01", "2030-01-01"]


async def test_a_tick_before_the_start_of_the_dataset_has_no_event(plane: ControlPlane) -> None:
    await plane.deploy(ticking(start="2030-01-02"))
    assert await fire(plane, 7 * HOUR) == (1, 0)
    assert await fire(plane, DAY + 7 * HOUR) == (1, 0)
    assert await partitions(plane) == ["2030-01-02"]


async def test_jitter_delays_the_tick_but_not_its_time(plane: ControlPlane) -> None:
    await plane.deploy(ticking("0 6 * * *", "jitter: 1h"))
    await fire(plane, 1)
    due = (await schedule(plane))["due_at"]
    assert due is not None
    late = (due - START).total_seconds()
    assert 6 * HOUR < late < 7 * HOUR
    assert await fire(plane, late - 1) == (0, 0)
    assert await fire(plane, late) == (1, 0)
    assert await emitted(plane) == [("2030-01-01", "tick 2030-01-01T06:00Z")]


async def test_a_source_of_several_datasets_emits_an_event_of_each(plane: ControlPlane) -> None:
    text = ticking().replace("{in: {", "{more: {partitions: {by: day}}, in: {")
    await plane.deploy(text.replace("{dataset: in}", "{dataset: in}, {dataset: more}"))
    assert await fire(plane, 6 * HOUR) == (1, 0)
    assert await emitted(plane) == await emitted(plane, "more") == [("2030-01-01", "tick 2030-01-01T06:00Z")]


# Missed ticks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "fired", "skipped", "days"),
    [
        ("all", 5, 0, ["01", "02", "03", "04", "05"]),
        ("{policy: all, most: 2}", 2, 3, ["04", "05"]),
        ("latest", 1, 4, ["05"]),
        ("none", 0, 5, []),
    ],
)
async def test_ticks_missed_while_no_dispatcher_ran_fire_as_the_policy_says(
    plane: ControlPlane, catch_up: str, fired: int, skipped: int, days: list[str]
) -> None:
    await plane.deploy(ticking("0 6 * * *", f"catch_up: {catch_up}"))
    assert await fire(plane, 5 * DAY) == (fired, skipped)
    assert await partitions(plane) == [f"2030-01-{day}" for day in days]
    assert await fire(plane, 5 * DAY + 6 * HOUR) == (1, 0), "the next one is on time"


async def test_more_missed_ticks_than_one_pass_fires(plane: ControlPlane) -> None:
    await plane.deploy(ticking("*/5 * * * *", "catch_up: {policy: all, most: 1000}"))
    fired = [(await fire(plane, DAY))[0] for _ in range(4)]
    assert fired == [100, 100, 88, 0]
    emissions = [emission for _, emission in await emitted(plane)]
    assert len(set(emissions)) == 288
    assert emissions == sorted(emissions)


# Deploys ----------------------------------------------------------------------------------------------


async def test_a_changed_schedule_takes_effect_in_place_and_does_not_reach_back(plane: ControlPlane) -> None:
    await plane.deploy(ticking("0 6 * * *"))
    assert await fire(plane, 6 * HOUR) == (1, 0)
    await plane.set_clock(12 * HOUR)
    changed = await plane.deploy(ticking("0 9,15 * * *", "time_zone: UTC", "catch_up: all"))
    assert not changed.building
    assert "~ job ticks" in changed.text
    assert '      source.schedule: "0 6 * * *" → "0 9,15 * * *"' in changed.text
    assert "job ticks: next ticks 2030-01-01 15:00, 2030-01-02 09:00, 2030-01-02 15:00 (UTC)" in changed.text
    assert await fire(plane, 12 * HOUR + 1) == (0, 0), "09:00 was over when it was deployed"
    assert await fire(plane, 15 * HOUR) == (1, 0)
    assert [emission for _, emission in await emitted(plane)] == [
        "tick 2030-01-01T06:00Z",
        "tick 2030-01-01T15:00Z",
    ]


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "no_dispatcher"])
async def test_a_schedule_that_is_changed_while_ticks_are_missed_does_not_reach_back(
    plane: ControlPlane, paused: bool
) -> None:
    await plane.deploy(ticking("0 6 * * *", "catch_up: all"))
    assert await fire(plane, 7 * HOUR) == (1, 0)
    if paused:
        await plane.pause("main", "ticks")
        assert await fire(plane, 9 * DAY) == (0, 0)
    await plane.set_clock(10 * DAY + 90)
    await plane.deploy(ticking("0 6 * * *", "catch_up: all", "jitter: 1ms"))
    await plane.deploy(ticking("0 * * * *", "catch_up: all"))
    if paused:
        assert await fire(plane, 10 * DAY + 2 * HOUR) == (0, 0)
        await plane.resume("main", "ticks")
    assert await fire(plane, 10 * DAY + 2 * HOUR) == (2, 0), "those after the deploy"
    assert [emission for _, emission in await emitted(plane)][1:] == [
        "tick 2030-01-11T01:00Z",
        "tick 2030-01-11T02:00Z",
    ]


async def test_a_tick_that_both_schedules_have_fires_though_the_deploy_is_faster(plane: ControlPlane) -> None:
    await plane.deploy(ticking("0 6 * * *"))
    await fire(plane, 1)
    await plane.set_clock(6 * HOUR + 1)
    await plane.deploy(ticking("0 6,18 * * *"))
    assert await fire(plane, 6 * HOUR + 2) == (1, 0)


async def test_ticks_that_are_due_when_the_source_is_renamed_rebuilt_or_rolled_back_still_fire(
    plane: ControlPlane,
) -> None:
    hourly = ticking("0 * * * *", "catch_up: all", by="hour")
    await plane.deploy(hourly)
    await fire(plane, 1)
    changes = [
        hourly.replace("name: ticks", "name: clock"),
        hourly.replace("in: {part", "in: {columns: [{name: a, type: int}], part"),
        hourly.replace("catch_up: all", "catch_up: all, jitter: 1ms"),
    ]
    for number, text in enumerate(changes, start=1):
        await plane.set_clock(number * HOUR + 1)
        await plane.deploy(text)
    await plane.set_clock(4 * HOUR + 1)
    await plane.rollback("main")
    assert await fire(plane, 4 * HOUR + 2) == (4, 0)
    assert await partitions(plane) == [f"2030-01-01T0{hour}" for hour in (1, 2, 3, 4)]


async def test_a_source_that_is_removed_or_deleted_has_no_more_ticks(plane: ControlPlane) -> None:
    await plane.deploy(ticking())
    await plane.deploy(
        "version: 1\ndag: main\njobs:\n"
        "- {name: other, activation: source, source: {kind: manual}, outputs: [{dataset: other}]}\n",
        drop_missing=True,
    )
    assert await fire(plane, 6 * HOUR) == (0, 0)
    assert await plane.value("select count(*) from cron_schedules") == 0
    await plane.rollback("main", drop_missing=True)
    assert await fire(plane, 7 * HOUR) == (0, 0), "ticks from before the rollback do not fire"
    assert await fire(plane, DAY + 6 * HOUR) == (1, 0)


async def test_a_source_becomes_a_cron_source_and_keeps_its_events(plane: ControlPlane) -> None:
    manual = ticking().replace("kind: cron, schedule: '0 6 * * *'", "kind: manual")
    await plane.deploy(manual + job("copy", "in", "out"))
    await plane.emit_events([ManualEvent("in", partition="2029-12-30", through="2029-12-31")])
    await plane.run_all()
    await plane.deploy(ticking() + job("copy", "in", "out"))
    assert await fire(plane, 6 * HOUR) == (1, 0)
    await plane.run_all()
    assert await partitions(plane) == ["2029-12-30", "2029-12-31", "2030-01-01"]
    assert await plane.states("copy") == {"completed": 3}


# By hand ----------------------------------------------------------------------------------------------


async def test_a_tick_is_run_again_and_a_range_of_ticks_made_up_for_by_hand(plane: ControlPlane) -> None:
    await plane.deploy(ticking(jobs=job("copy", "in", "out")))
    assert await fire(plane, 6 * HOUR) == (1, 0)
    await plane.run_all()
    again = await plane.emit_events([ManualEvent("in", partition="2030-01-01")])
    assert (again.accepted, again.duplicates) == (1, 0)
    before = await plane.emit_events([ManualEvent("in", partition="2029-12-01", through="2029-12-31")])
    assert before.accepted == 31
    await plane.run_all()
    assert await plane.states("copy") == {"completed": 33}
    assert await fire(plane, DAY + 6 * HOUR) == (1, 0)


async def test_status_explain_and_plan_say_when_a_source_fires(plane: ControlPlane) -> None:
    text = ticking("30 2 * * *", "time_zone: Europe/Berlin", jobs=job("copy", "in", "out"))
    planned = await plane.plan(text)
    assert (
        "job ticks: next ticks 2030-01-01 02:30, 2030-01-02 02:30, 2030-01-03 02:30 (Europe/Berlin)"
        in planned.text
    )
    assert planned.steps is not None
    assert planned.steps.ticks[0].ticks[0] == "2030-01-01T01:30:00+00:00"
    await plane.deploy(text)
    assert "next ticks" not in (await plane.plan(text)).text
    await fire(plane, 2 * HOUR)
    (cron,) = (await plane.status()).cron
    assert (cron.dag, cron.job, cron.schedule, cron.time_zone) == (
        "main",
        "ticks",
        "30 2 * * *",
        "Europe/Berlin",
    )
    assert (cron.last_tick, cron.next_tick) == ("2030-01-01T01:30:00+00:00", "2030-01-02T01:30:00+00:00")
    why = await plane.explain_scope("out", "2030-01-02", "2030-01-02")
    assert any("its next one is 2030-01-02T01:30:00+00:00" in reason.sentence for reason in why.reasons)


# Several dispatchers ----------------------------------------------------------------------------------


async def test_dispatchers_that_look_at_the_same_time_fire_each_tick_once(database_url: str) -> None:
    sources = "".join(
        f"- {{name: s{n}, activation: source, source: {{kind: cron, schedule: '0 * * * *', catch_up: all}},"
        f" outputs: [{{dataset: d{n}}}]}}\n"
        for n in range(40)
    )
    datasets = ", ".join(f"d{n}: {{partitions: {{by: hour}}}}" for n in range(40))
    async with contextlib.AsyncExitStack() as opened:
        planes = [await opened.enter_async_context(ControlPlane.open(database_url)) for _ in range(3)]
        await planes[0].set_clock(0)
        await planes[0].deploy(f"version: 1\ndag: many\ndatasets: {{{datasets}}}\njobs:\n{sources}")
        for hour in range(1, 13):
            await planes[0].set_clock(hour * HOUR)
            outcomes = await asyncio.gather(*(plane.cron.run_once() for plane in planes))
            assert sum(outcome.fired for outcome in outcomes) == 40
        assert await planes[0].value("select count(*) from events") == 40 * 12


@pytest.mark.timeout(600)
async def test_in_a_year_with_clock_changes_and_lost_connections_three_dispatchers_fire_each_tick_once(
    database_url: str,
) -> None:
    """A connection is killed at a random moment of every third day: the pass dies before or after its commit."""
    draw = random.Random(12)
    lost = 0

    async def passes(plane: ControlPlane) -> None:
        nonlocal lost
        for _ in range(2):
            try:
                await plane.cron.run_once()
            except DatabaseUnavailable:
                lost += 1

    async def kill_one(plane: ControlPlane) -> None:
        await asyncio.sleep(draw.uniform(0, 0.01))
        await plane.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and state = 'active' and pid <> pg_backend_pid() limit 1"
        )

    async with contextlib.AsyncExitStack() as opened:
        clock, *planes = [await opened.enter_async_context(ControlPlane.open(database_url)) for _ in range(4)]
        await clock.set_clock(0)
        await clock.deploy(cron_year.DAG)
        for day in range(1, 367):
            await clock.set_clock(day * DAY)
            killing = [kill_one(clock)] if day % 3 == 0 else []
            await asyncio.gather(*(passes(plane) for plane in planes), *killing)
        await passes(clock)
        found = await cron_year.emitted(clock.sql)
    assert lost > 0
    assert found == cron_year.expected(366)


async def test_a_paused_source_has_no_next_tick(plane: ControlPlane) -> None:
    await plane.deploy(ticking(zone="Europe/Berlin"))
    await fire(plane, 60)
    (cron,) = (await plane.status()).cron
    assert (cron.next_tick is None, cron.paused) == (False, False)
    (dag,) = (await plane.api.deploys.dags(plane._call(None))).dags
    assert dag.jobs[0].time_zone == "UTC"
    await plane.pause("main", "ticks")
    (cron,) = (await plane.status()).cron
    assert (cron.next_tick, cron.paused) == (None, True)
    (dag,) = (await plane.api.deploys.dags(plane._call(None))).dags
    assert dag.jobs[0].next_tick is None
