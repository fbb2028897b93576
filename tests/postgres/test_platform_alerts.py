"""The platform's own alerts begin with their condition, are told once, and are retracted when it is over."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.control_plane import ControlPlane
from traceplane.dispatcher.loops.freshness import Freshness
from traceplane.dispatcher.loops.platform_alerts import PlatformAlerts

DAG = """
version: 1
dag: d
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: in}]}
- name: work
  runtime: python
  operator: python
  max_attempts: 1
  inputs: [{from: {dataset: in}}]
  outputs: [{dataset: out}]
  config: {entrypoint: "a:b"}
- name: follow
  activation: source
  source: {kind: always_on}
  runtime: python
  operator: python
  retry: {base: 1h, max: 1h}
  outputs: [{dataset: head}]
  config: {entrypoint: "a:b"}
"""


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
async def plane(database_url: str, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.sql(
            "insert into channels (org_id, name, config, changed_by, platform_alerts)"
            " select org_id, name, '{}', 'test', name = 'ops' from orgs, (values ('ops'), ('other')) as c (name)"
        )
        await plane.deploy(DAG)
        yield plane


async def told(plane: ControlPlane) -> list[tuple[str, str]]:
    rows = await plane.sql(
        "select kind, message->>'title' as title, name from alert_deliveries join channels using (channel_id)"
        " order by number"
    )
    assert {row["name"] for row in rows} <= {"ops"}
    return [(row["kind"], row["title"]) for row in rows]


async def send(plane: ControlPlane) -> None:
    await plane.sql(
        "update alert_deliveries set state = 'delivered', tries = 1, ended_at = tp_now() where state = 'waiting'"
    )


async def test_dead_tasks_are_told_until_somebody_deals_with_them(plane: ControlPlane) -> None:
    alerts = PlatformAlerts(plane.database, [])
    await plane.emit("in", [1, 2])
    await plane.meter()
    held = await plane.claim([*await plane.send()])
    work = [h for h in held if h.job.name == "work"]
    await plane.fail(*work)
    # A pass that finds what was found before says nothing of it in the log.
    assert [(await alerts.run_once()).counts() for _ in range(3)] == [
        {"changed": 1},
        {"changed": 0},
        {"changed": 0},
    ]
    assert await told(plane) == [("alert", "d/work has dead tasks")]
    await send(plane)
    await plane.retry(*(h.task_id for h in work))
    assert (await alerts.run_once()).changed == 1
    assert await told(plane) == [("alert", "d/work has dead tasks"), ("retraction", "d/work has dead tasks")]


async def test_a_task_that_waits_too_long_is_told_unless_its_job_is_paused(plane: ControlPlane) -> None:
    alerts = PlatformAlerts(plane.database, [])
    await plane.emit("in", [1])
    await alerts.run_once()
    assert await told(plane) == []
    await plane.pass_time(960)
    await alerts.run_once()
    assert await told(plane) == [("alert", "A task of d/work has waited for 16 minutes")]
    await send(plane)
    await plane.pause("d", "work")
    await alerts.run_once()
    assert (await told(plane))[1:] == [("retraction", "A task of d/work has waited for 16 minutes")]


async def test_a_disk_that_fills_up_is_told(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_: Any) -> Usage:
        return Usage(1000 << 20, 950 << 20, 50 << 20)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    await PlatformAlerts(plane.database, [tmp_path, tmp_path / "gone"]).run_once()
    assert await told(plane) == [("alert", f"50 MB are free in {tmp_path}")]


async def test_messages_that_do_not_arrive_are_told_over_other_channels(plane: ControlPlane) -> None:
    await plane.sql(
        "insert into alert_deliveries"
        " (org_id, channel_id, key, incident, kind, message, state, tries, ended_at, failure)"
        " select org_id, channel_id, 'k', 'k', 'alert', '{}', 'dead', 20, tp_now(), '{\"code\": \"delivery.refused\"}'"
        " from channels where name = 'other'"
    )
    await PlatformAlerts(plane.database, []).run_once()
    rows = await plane.sql("select title, body from alert_events")
    assert [row["title"] for row in rows] == ["Messages do not reach the channel other"]
    assert "delivery.refused" in rows[0]["body"]


async def test_a_failed_check_is_told_until_its_output_is_replaced(plane: ControlPlane) -> None:
    alerts = PlatformAlerts(plane.database, [])

    async def work(emission: str, *, fails: bool, again: bool = False) -> None:
        await plane.emit("in", [1], emission=emission)
        await plane.meter()
        [held] = [h for h in await plane.claim(await plane.send()) if h.job.name == "work"]
        assert await plane.complete(held) == ["committed"]
        await plane.sql("update tasks set backfill = $2 where task_id = $1", held.task_id, again)
        if fails:
            await plane.sql(
                "insert into check_failures"
                " (dataset_uuid, generation_id, name, problem, rows, task_id, range_start, range_end)"
                " select dataset_uuid, current_generation_id, 'not_null_n', '2 rows', 2, $1, 1, 1 from datasets"
                " where dataset_id = 'out'",
                held.task_id,
            )
        await alerts.run_once()
        await send(plane)

    await work("history", fails=True, again=True)
    assert await told(plane) == []
    await work("a", fails=True)
    title = "out 1 does not meet the check not_null_n"
    assert await told(plane) == [("alert", title)]
    assert await plane.value("select dataset_id from alert_events") == "out"
    await work("computed again", fails=True, again=True)
    assert (await told(plane))[1:] == []
    await work("b", fails=False)
    assert (await told(plane))[1:] == [("retraction", title)]


async def test_a_dataset_without_rows_is_told_until_some_come(plane: ControlPlane) -> None:
    await plane.deploy(DAG.replace("jobs:", "datasets: {out: {checks: [{freshness: 1h}]}}\njobs:", 1))
    alerts, freshness = PlatformAlerts(plane.database, []), Freshness(plane.database)
    await plane.pass_time(3700)
    await freshness.run_once()
    await alerts.run_once()
    assert await told(plane) == [("alert", "out gets no rows")]


async def test_a_channel_that_is_set_later_is_told_of_what_lasts(plane: ControlPlane) -> None:
    alerts = PlatformAlerts(plane.database, [])
    await plane.sql("update channels set platform_alerts = false")
    await plane.emit("in", [1])
    await plane.pass_time(960)
    await alerts.run_once()
    assert await plane.value("select suppressed from alert_events") == "no_channel"
    await plane.sql("update channels set platform_alerts = name = 'ops'")
    for _ in range(2):
        await alerts.run_once()
    assert await told(plane) == [("alert", "A task of d/work has waited for 16 minutes")]
