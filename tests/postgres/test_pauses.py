"""A paused job: nothing of it starts, nothing of it is lost, and resuming it continues where it stopped."""

from __future__ import annotations

import asyncio

import pytest

from tests.control_plane import ControlPlane, canceled
from tests.dags import SOURCE, batches, dag, job, source
from traceplane.errors import NotFound
from traceplane.wire.deploys import DeleteRequest
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import EventOut

LINE = SOURCE + job("first", "in", "mid") + job("second", "mid", "out")
FOLLOWER = dag(
    "main",
    "- {name: follow, activation: source, source: {kind: always_on}, runtime: python, operator: python,"
    ' config: {entrypoint: "basic:copy"}, outputs: [{dataset: in}]}\n',
    job("copy", "in", "out"),
)


async def test_a_paused_job_keeps_its_events_and_runs_them_when_it_is_resumed(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    assert (await plane.pause("main", "second", "prices are wrong")).changed
    await plane.emit("in", range(5))
    assert await plane.run_all() == 5, "the job before it goes on"
    assert await plane.states("second") == {"queued": 5}
    assert (await plane.resume("main", "second")).changed
    assert await plane.run_all() == 5
    assert await plane.states("second") == {"completed": 5}


async def test_tasks_that_are_running_end_and_those_that_nobody_claimed_wait(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await plane.emit("in", range(4))
    woken = await plane.send()
    held = await plane.claim(woken[:2])
    await plane.pause("main", "first")
    claimed, refused = await plane.try_claim(woken[2:])
    assert (claimed, set(refused.values())) == ([], {"queued"})
    assert await plane.complete(*held) == ["committed", "committed"]
    assert await plane.states("first") == {"completed": 2, "queued": 2}
    await plane.resume("main", "first")
    await plane.run_all()
    assert await plane.states("second") == {"completed": 4}


async def test_no_task_starts_after_a_pause_whatever_happens_at_the_same_time(
    database_url: str, plane: ControlPlane
) -> None:
    await plane.deploy(LINE)
    async with ControlPlane.open(database_url, wake_ups=plane.wake_ups) as other:
        for number in range(10):

            async def emit(start: int = number * 100) -> None:
                for cursor in range(20):
                    await other.emit("in", [start + cursor])

            emitting = asyncio.create_task(emit())
            metering = asyncio.create_task(other.valve.run_once())
            await plane.pause("main", "first")
            assert (await plane.states("first")).keys() <= {"queued"}
            await asyncio.gather(emitting, metering)
            assert await plane.claim(await plane.send()) == []
            assert await plane.states("first") == {"queued": 20}
            await plane.resume("main", "first")
            await plane.run_all()
            await plane.sql("delete from tasks")


async def test_status_explain_and_the_list_of_dags_say_who_paused_a_job(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await plane.pause("main", "first", "prices are wrong")
    await plane.emit("in", range(3))
    await plane.meter()
    (pause,) = (await plane.status()).paused
    assert (pause.dag, pause.job, pause.paused_by, pause.reason, pause.waiting) == (
        "main",
        "first",
        "admin",
        "prices are wrong",
        3,
    )
    (waiting, *_) = await plane.tasks("first")
    reasons = (await plane.explain(waiting)).reasons
    assert reasons[0].code == "paused"
    assert "paused by admin since" in reasons[0].sentence
    assert "prices are wrong" in reasons[0].sentence
    (listed,) = (await plane.api.deploys.dags(plane._call(None))).dags
    assert {view.job for view in listed.jobs if view.paused} == {"first"}
    await plane.resume("main", "first")
    assert (await plane.status()).paused == []


async def test_pausing_and_resuming_twice_changes_nothing(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    first = await plane.pause("main", "first", "one")
    again = await plane.pause("main", "first", "two")
    assert (again.changed, again.pause) == (False, first.pause)
    assert (await plane.resume("main", "first")).pause == first.pause
    unchanged = await plane.resume("main", "first")
    assert (unchanged.changed, unchanged.pause) == (False, None)


async def test_a_pause_survives_a_deploy_in_place_a_rebuild_and_a_rollback(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await plane.pause("main", "second")
    await plane.deploy(LINE.replace("outputs: [{dataset: out}]", "outputs: [{dataset: out}]\n  timeout: 5m"))
    await plane.emit("in", range(2))
    await plane.run_all()
    assert await plane.states("second") == {"queued": 2}
    other = LINE.replace("name: second", "name: second\n  unique_key: [k]")
    assert (await plane.deploy(other)).building
    await plane.builds.run_once()
    await plane.run_all()
    assert "completed" not in await plane.states("second")
    await plane.resume("main", "second")
    await plane.builds.run_once()
    await plane.run_all()
    await plane.builds.run_once()
    newest, *_ = await plane.versions("main")
    assert newest.state == "active"
    await plane.pause("main", "second")
    await plane.rollback("main", drop_missing=True)
    await plane.emit("in", [7])
    await plane.run_all()
    assert "queued" in await plane.states("second")


async def test_a_deleted_dag_leaves_no_pause_behind(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await plane.pause("main", "first")
    await plane.api.deploys.delete(plane._call(DeleteRequest("main", force=False)))
    await plane.deploy(LINE)
    assert (await plane.status()).paused == []


async def test_an_always_on_source_stops_at_its_next_heartbeat_and_starts_again(plane: ControlPlane) -> None:
    await plane.deploy(FOLLOWER)
    await plane.sources.run_once()
    await plane.meter()
    (run,) = await plane.claim(await plane.send())
    assert await plane.emit_running(run, EventOut(0, Scope(cursor=1))) == ("ok", 1, 0)
    await plane.pause("main", "follow")
    assert await plane.heartbeat(run) == ["canceled"]
    assert await plane.report((run, canceled(run))) == ["canceled"]
    await plane.sources.run_once()
    await plane.meter()
    assert await plane.states("follow") == {"canceled": 1}
    assert "starts again when its job is resumed" in str((await plane.explain(run.task_id)).reasons)
    await plane.resume("main", "follow")
    await plane.meter()
    (again,) = [held for held in await plane.claim(await plane.send()) if held.job.name == "follow"]
    assert again.task_id == run.task_id, "its events are recognized as repetitions"
    assert await plane.emit_running(again, EventOut(0, Scope(cursor=1))) == ("ok", 0, 1)


async def test_a_source_that_is_resumed_before_it_has_stopped_starts_again(plane: ControlPlane) -> None:
    await plane.deploy(FOLLOWER)
    await plane.sources.run_once()
    await plane.meter()
    (run,) = await plane.claim(await plane.send())
    await plane.pause("main", "follow")
    assert await plane.heartbeat(run) == ["canceled"]
    await plane.resume("main", "follow")
    assert await plane.report((run, canceled(run))) == ["retrying"]
    await plane.meter()
    (again,) = await plane.claim(await plane.send())
    assert again.task_id == run.task_id


async def test_a_job_of_the_dispatcher_can_be_paused_too(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + batches("batch", "in", "in.batches", 5) + job("sum", "in.batches", "out"))
    await plane.pause("main", "batch")
    await plane.emit("in", range(5))
    assert await plane.run_all() == 0
    assert await plane.states("batch") == {"queued": 5}
    await plane.resume("main", "batch")
    assert await plane.run_all() == 1


async def test_a_job_that_is_not_deployed_cannot_be_paused(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    for name, code in (("main", "job.unknown"), ("mian", "dag.unknown")):
        with pytest.raises(NotFound) as refused:
            await plane.pause(name, "frist")
        assert refused.value.code == code
        with pytest.raises(NotFound):
            await plane.resume(name, "frist")


async def test_a_paused_cron_source_has_no_ticks(plane: ControlPlane) -> None:
    hourly = source("in", name="clock", kind="cron, schedule: '0 * * * *'")
    await plane.set_clock(0)
    text = dag("main", hourly, job("copy", "in", "out"))
    await plane.deploy(text.replace("jobs:", "datasets: {in: {partitions: {by: hour}}}\njobs:"))
    await plane.cron.run_once()
    await plane.pause("main", "clock")
    await plane.set_clock(3601)
    await plane.cron.run_once()
    assert await plane.states("copy") == {}
    await plane.resume("main", "clock")
    await plane.cron.run_once()
    assert sum((await plane.states("copy")).values()) == 1
