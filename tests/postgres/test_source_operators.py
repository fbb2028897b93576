"""A source with an operator: each of its events is a task, which may write rows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.control_plane import ControlPlane
from tests.dags import job
from traceplane.errors import Conflict
from traceplane.wire.control import ManualEvent

HOUR, DAY = 3600, 86_400


def fetching(kind: str = "manual", *more: str, name: str = "fetch", jobs: str = "", config: str = "") -> str:
    fields = ", ".join((f"kind: {kind}", *more))
    return f"""\
version: 1
dag: main
datasets: {{orders: {{partitions: {{by: day}}}}}}
jobs:
- name: {name}
  activation: source
  source: {{{fields}}}
  runtime: python
  operator: python
  scaling: {{max_concurrency: 2}}
  outputs: [{{dataset: orders}}]
  config: {{entrypoint: "basic:copy"{config}}}
{jobs}"""


DAILY = ("cron", "schedule: '0 6 * * *'", "period: previous")
READER = job("report", "orders", "reports")


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        yield opened


async def emit(
    plane: ControlPlane, first: str, last: str | None = None, emission: str = ""
) -> tuple[int, int]:
    event = ManualEvent("orders", partition=first, through=last, emission=emission)
    answer = await plane.emit_events([event])
    return answer.accepted, answer.duplicates


async def days(plane: ControlPlane, dataset: str) -> list[str]:
    """The partitions that readers of a dataset see, in order."""
    rows = await plane.sql(
        "select c.partition_key from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
        " where dataset_id = $1 and superseded_by is null order by range_start",
        dataset,
    )
    return [row["partition_key"] for row in rows]


@pytest.mark.parametrize("kind", ["manual", "webhook"])
async def test_an_event_for_the_dataset_of_a_source_is_a_task_of_its_operator(
    plane: ControlPlane, kind: str
) -> None:
    deployed = await plane.deploy(fetching(kind, jobs=READER))
    assert "+ job fetch (python: python)" in deployed.text
    assert "+ job fetch__events (source generated for fetch)" in deployed.text
    assert await emit(plane, "2030-01-01", "2030-01-03") == (3, 0)
    assert await emit(plane, "2030-01-02") == (0, 1), "the same event again"
    await plane.meter()
    (first, second) = await plane.claim(await plane.send())
    assert (first.job.inputs, first.scope.partition_key) == ([], "2030-01-01")
    await plane.complete(first, second)
    await plane.run_all()
    assert await days(plane, "orders") == await days(plane, "reports") == [f"2030-01-0{n}" for n in (1, 2, 3)]
    assert await emit(plane, "2030-01-02", emission="again") == (1, 0)
    await plane.run_all()
    assert await plane.states("fetch") == {"completed": 4}
    assert await plane.states("report") == {"completed": 4}


async def test_a_tick_is_a_task_of_the_operator_and_missed_days_are_backfilled(plane: ControlPlane) -> None:
    planned = await plane.deploy(fetching(*DAILY, jobs=READER))
    assert "job fetch: next ticks 2030-01-01 06:00" in planned.text
    await plane.set_clock(6 * HOUR)
    assert (await plane.cron.run_once()).fired == 1
    await plane.run_all()
    assert await days(plane, "orders") == await days(plane, "reports") == ["2029-12-31"]
    (cron,) = (await plane.status()).cron
    assert (cron.job, cron.last_tick) == ("fetch", "2030-01-01T06:00:00+00:00")
    why = await plane.explain_scope("reports", "2030-01-01", "2030-01-01")
    assert "its next one is 2030-01-02T06:00:00+00:00" in why.reasons[-1].sentence
    assert (await plane.backfill("orders", "2029-12-01", "2029-12-31")).created == 30
    await plane.run_all()
    assert len(await days(plane, "reports")) == 31


async def test_changed_code_runs_again_for_every_event_and_a_changed_schedule_for_none(
    plane: ControlPlane,
) -> None:
    await plane.deploy(fetching(*DAILY))
    await emit(plane, "2030-01-01", "2030-01-03")
    await plane.run_all()
    changed = await plane.deploy(fetching("cron", "schedule: '0 7 * * *'"))
    assert not changed.building
    assert "Jobs: 0 to add, 1 to change in place, 0 to rebuild, 0 to remove, 1 unchanged." in changed.text
    assert (await plane.deploy(fetching("cron", "schedule: '0 7 * * *'", config=", version: 2"))).building
    await plane.builds.run_once()
    await plane.run_all()
    await plane.builds.run_once()
    assert [version.state for version in await plane.versions("main")] == ["active", "retired", "retired"]
    assert await days(plane, "orders") == [f"2030-01-0{n}" for n in (1, 2, 3)]
    assert await plane.states("fetch") == {"completed": 6}


async def test_a_renamed_source_keeps_its_events(plane: ControlPlane) -> None:
    await plane.deploy(fetching())
    await emit(plane, "2030-01-01", "2030-01-03")
    await plane.run_all()
    await plane.deploy(fetching(name="get"))
    await plane.builds.run_once()
    await plane.run_all()
    await plane.builds.run_once()
    assert await days(plane, "orders") == [f"2030-01-0{n}" for n in (1, 2, 3)]
    assert await emit(plane, "2030-01-02") == (0, 1), "it was emitted under the name before"


@pytest.mark.parametrize("kind", ["manual", "webhook"])
async def test_a_source_that_only_relays_events_has_nothing_to_pause(plane: ControlPlane, kind: str) -> None:
    relayed = (
        f"- {{name: days, activation: source, source: {{kind: {kind}}}, outputs: [{{dataset: days}}]}}\n"
    )
    await plane.deploy(fetching(kind, jobs=relayed))
    for name, instead in (("fetch__events", "pause fetch,"), ("days", "pause the jobs that read")):
        with pytest.raises(Conflict, match=instead) as refused:
            await plane.pause("main", name)
        assert refused.value.code == "job.relays_only"
        assert not (await plane.resume("main", name)).changed
    assert (await plane.status()).paused == []
    await plane.pause("main", "fetch")
    assert await emit(plane, "2030-01-01") == (1, 0)
    await plane.run_all()
    assert await plane.states("fetch") == {"queued": 1}


async def test_a_paused_operator_keeps_its_events_and_a_paused_source_gets_none(plane: ControlPlane) -> None:
    await plane.deploy(fetching(*DAILY))
    await plane.pause("main", "fetch")
    await plane.set_clock(6 * HOUR)
    assert (await plane.cron.run_once()).fired == 1
    await plane.run_all()
    assert await plane.states("fetch") == {"queued": 1}
    await plane.resume("main", "fetch")
    await plane.run_all()
    assert await plane.states("fetch") == {"completed": 1}
    await plane.pause("main", "fetch__events")
    await plane.set_clock(DAY + 6 * HOUR)
    assert (await plane.cron.run_once()).fired == 0
