"""Failures of slots, leases, workers and dispatchers that users of other schedulers often report, on real processes.

Each test deploys its own DAG.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.platform import Platform, until
from tests.process.effects import settle, stored_rows, watched
from tests.process.two_dispatchers import (
    LeasedTask,
    TwoDispatchers,
    cursors,
    no_wake_up_was_premature_and_nothing_deadlocked,
    one_job,
    patiently,
    take_all,
)
from traceplane.errors import PlatformError
from traceplane.postgres.database import SCHEMA
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate
from traceplane.wire.control import TaskChanges, TaskSelection, TasksResponse
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ClaimRequest, Completion, Emission, EventOut
from traceplane.worker.dispatcher_client import DispatcherClient

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Slots, leases, heartbeats ------------------------------------------------------------------------------


async def test_a_slot_leaked_by_a_canceled_run(world: TwoDispatchers) -> None:
    await world.platform.deploy(
        one_job("leak", "recovery:long_first", lease="1s", scaling={"max_concurrency": 1})
    )
    await world.platform.emit("leak.in", [0])
    running = await until(lambda: world.task_row("leak", "state = 'running'"))
    await world.platform.emit("leak.in", [1])
    assert await world.cancel(running["task_id"]) == {str(running["task_id"]): "canceling"}
    await settle(world.platform)
    assert await world.states("leak") == {"canceled": 1, "completed": 1}
    assert [row["range_start"] for row in await world.commits("leak")] == [1]


async def test_a_cpu_bound_operator_that_loses_its_heartbeat(world: TwoDispatchers) -> None:
    await world.platform.deploy(one_job("burn", "basic:burn_cpu", lease="2s", config={"seconds": 6.0}))
    await world.platform.emit("burn.in", [1])
    await settle(world.platform)
    (task,) = await world.tasks("burn")
    assert (task["state"], task["attempt"]) == ("completed", 1)


async def test_a_reaper_that_fires_on_a_live_task_after_the_dispatcher_was_down(
    world: TwoDispatchers,
) -> None:
    """A machine that is too busy for a heartbeat within the grace may cost an attempt, but not each time."""
    attempts = []
    for name in ("away", "away-again", "away-once-more"):
        await world.platform.deploy(one_job(name, "basic:slow", lease="1s", config={"seconds": 4.0}))
        await world.platform.emit(f"{name}.in", [1])
        await until(partial(world.task_row, name, "state = 'running'"))
        for dispatcher in ("dispatcher-1", "dispatcher-2"):
            await world.platform[dispatcher].kill()
        await until(partial(world.task_row, name, "lease_expires_at < now() - interval '500 ms'"))
        await world.revive()
        await settle(world.platform)
        (task,) = await world.tasks(name)
        assert task["state"] == "completed"
        assert len(await world.commits(name)) == 1
        attempts.append(task["attempt"])
        if task["attempt"] == 1:
            return
    raise AssertionError(f"the reaper took the task from its worker each time: {attempts}")


async def test_a_stalled_worker_that_resumes_changes_nothing(world: TwoDispatchers) -> None:
    """It sends no heartbeats for longer than its lease; another worker has done its task when it resumes."""
    await world.platform.deploy(one_job("stall", "basic:slow", lease="1s", config={"seconds": 1.0}))
    await world.platform.emit("stall.in", [1])
    stalled = await world.worker_of("stall")
    assert stalled.running is not None
    stalled.running.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: world.task_row("stall", "state = 'completed' and attempt > 1"))
        before = (await world.tasks("stall"), await world.commits("stall"))
        said_before = len(stalled.log.read_text())
    finally:
        stalled.running.send_signal(signal.SIGCONT)

    async def told_so() -> bool:
        return '"stale"' in stalled.log.read_text()[said_before:]

    await until(told_so, what="the stalled worker was told that it is stale")
    assert (await world.tasks("stall"), await world.commits("stall")) == before
    (commit,) = before[1]
    assert f"/{commit['attempt']}/" in commit["files"], "the files are those of the later attempt"
    await settle(world.platform)


async def test_a_stale_attempt_changes_nothing(world: TwoDispatchers) -> None:
    """Its lease expired and another worker holds the task, or has done it: every call gets `stale`."""
    await world.platform.deploy(one_job("stale", runtime="held", lease="2s"))
    await world.platform.emit("stale.in", [1])
    client, other = world.dispatchers
    (old,) = await take_all(world, 1)
    (new,) = await take_all(world, 1)
    assert new.task.task_id == old.task.task_id
    assert new.task.attempt > old.task.attempt
    told = "select count(*) from events join datasets using (dataset_uuid) where dataset_id = 'stale.out'"

    async def seen() -> tuple[Any, ...]:
        rows = [dict(row) | {"lease_expires_at": None} for row in await world.tasks("stale")]
        return rows, await world.commits("stale"), await world.platform.value(told)

    async def insist() -> None:
        before = await seen()
        emission = Emission(*old.fence, events=[EventOut(0, Scope(cursor=5))])
        failure = Completion(*old.fence, status="failed")
        assert [o.outcome for o in await client.heartbeat([old.token], [old.beat()])] == ["stale"]
        assert [o.outcome for o in await client.events([old.token], [emission])] == ["stale"]
        assert [o.outcome for o in await client.complete([old.token], [failure])] == ["stale"]
        assert await world.complete(client, [old]) == ["stale"]
        assert await seen() == before

    async def stay_alive() -> None:
        while True:
            await other.heartbeat([new.token], [new.beat()])
            await asyncio.sleep(0.2)

    alive = asyncio.create_task(stay_alive())
    await insist()
    alive.cancel()
    assert await world.complete(other, [new]) == ["committed"]
    await insist()
    await settle(world.platform)


async def test_heartbeats_of_500_workers_contending_for_locks(
    world: TwoDispatchers, capsys: pytest.CaptureFixture[str]
) -> None:
    """500 workers send heartbeats one by one through two dispatchers, while others claim and complete."""
    await world.platform.deploy(one_job("beats", runtime="held", outputs=[], lease="60s"))
    await world.platform.emit("beats.in", range(500))
    held = await take_all(world, 500)
    before = {row["task_id"]: row["lease_expires_at"] for row in await world.tasks("beats")}
    await world.platform.deploy(one_job("churn", runtime="held", lease="60s"))
    await world.platform.emit("churn.in", range(300))

    async def churn(client: DispatcherClient) -> int:
        done = 0
        while some := await world.take(client, 20, seconds=2):
            assert set(await world.complete(client, some)) == {"committed"}
            done += len(some)
        return done

    async def beat(h: LeasedTask, client: DispatcherClient) -> str:
        (outcome,) = await client.heartbeat([h.token], [h.beat()])
        return outcome.outcome

    churning = asyncio.gather(*(churn(client) for client in world.dispatchers * 2))
    started, rounds = time.monotonic(), 0
    while not churning.done() or rounds < 3:
        by = cycle(world.dispatchers)
        outcomes = await asyncio.gather(*(beat(h, next(by)) for h in held))
        assert set(outcomes) == {"ok"}
        rounds += 1
    seconds = time.monotonic() - started
    assert sum(await churning) == 300
    after = {row["task_id"]: row["lease_expires_at"] for row in await world.tasks("beats")}
    assert all(after[task_id] > before[task_id] for task_id in before)
    assert set(await world.complete(world.dispatchers[0], held)) == {"committed"}
    await settle(world.platform)
    with capsys.disabled():
        print(f"\n500 workers: {rounds} rounds of heartbeats beside 300 tasks in {seconds:.2f} s")


async def test_the_queue_table_under_a_long_open_snapshot(
    world: TwoDispatchers, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.platform.deploy(
        one_job("snapshot", runtime="held", outputs=[], lease="60s", scaling={"max_concurrency": 500})
    )
    passed = 0

    async def pass_through(count: int) -> float:
        """Tasks per second from the event to the completed task."""
        nonlocal passed
        started, end = time.monotonic(), passed + count

        async def work(client: DispatcherClient) -> None:
            nonlocal passed
            while passed < end:
                held = await world.take(client, 100, seconds=0.5)
                if held:
                    assert set(await world.complete(client, held)) == {"committed"}
                    passed += len(held)

        for first in range(passed, end, 1000):
            await world.platform.emit("snapshot.in", range(first, min(first + 1000, end)))
        await asyncio.gather(*(work(client) for client in world.dispatchers))
        return count / (time.monotonic() - started)

    await pass_through(1000)  # plans, statistics, caches
    rates = [await pass_through(2500)]
    reader = await asyncpg.connect(world.platform.url, server_settings={"search_path": SCHEMA})
    await reader.execute("begin isolation level repeatable read")
    seen = await reader.fetchval("select count(*) from tasks where state = 'completed'")
    rates += [await pass_through(2500), await pass_through(2500), await pass_through(2500)]
    assert await reader.fetchval("select count(*) from tasks where state = 'completed'") == seen
    await reader.close()
    assert await world.states("snapshot") == {"completed": 11_000}
    await settle(world.platform)
    with capsys.disabled():
        print("\ntasks per second before the snapshot and under it: " + ", ".join(f"{r:.0f}" for r in rates))


# Workers, tasks, dispatchers ----------------------------------------------------------------------------


async def test_a_worker_killed_in_the_middle_of_a_task_is_replaced_by_another(world: TwoDispatchers) -> None:
    await world.platform.deploy(one_job("killed", "basic:slow", lease="1s", config={"seconds": 1.0}))
    async with watched(world.platform):
        await world.platform.emit("killed.in", [1])
        await (await world.worker_of("killed")).kill()
        await settle(world.platform)
    (task,) = await world.tasks("killed")
    assert task["state"] == "completed"
    assert task["attempt"] > 1
    assert await stored_rows(world.platform, "killed.out", 0, 9) == [{"position": 1}]


async def test_a_worker_that_is_told_to_stop_finishes_its_task(world: TwoDispatchers) -> None:
    await world.platform.deploy(one_job("drain", "basic:slow", config={"seconds": 2.5}))
    await world.platform.emit("drain.in", [1])
    worker = await world.worker_of("drain")
    assert worker.running is not None
    pid = worker.running.pid
    assert await worker.stop() == 0
    (task,) = await world.tasks("drain")
    assert (task["state"], task["attempt"]) == ("completed", 1)
    assert task["worker_id"].endswith(f":{pid}")
    await settle(world.platform)


async def test_cancellation_of_queued_dispatched_and_running_tasks(world: TwoDispatchers) -> None:
    await world.platform.deploy(one_job("cancel", runtime="held", scaling={"max_concurrency": 2}))
    await world.platform.emit("cancel.in", range(3))
    client = world.dispatchers[0]
    (held,) = await take_all(world, 1)
    by_state = {row["state"]: row["task_id"] for row in await world.tasks("cancel")}
    assert set(by_state) == {"queued", "dispatched", "running"}

    assert await world.cancel(*by_state.values()) == {
        str(by_state["queued"]): "canceled",
        str(by_state["dispatched"]): "canceled",
        str(by_state["running"]): "canceling",
    }
    refused = (await client.claim(ClaimRequest("test", "held", [by_state["dispatched"]]))).refused
    assert [r.reason for r in refused] == ["canceled"]
    (beat,) = await client.heartbeat([held.token], [held.beat()])
    assert beat.outcome == "canceled"
    (emitted,) = await client.events(
        [held.token], [Emission(*held.fence, events=[EventOut(0, Scope(cursor=5))])]
    )
    assert (emitted.outcome, emitted.accepted) == ("canceled", 0)
    assert await world.complete(client, [held]) == ["canceled"]
    assert await world.complete(client, [held]) == ["canceled"]
    assert await world.states("cancel") == {"canceled": 3}
    assert await world.commits("cancel") == []
    await settle(world.platform)


async def test_a_dead_task_is_visible_and_runs_again_by_hand(world: TwoDispatchers) -> None:
    fields = {"config": {"attempt": 3}, "max_attempts": 2}
    await world.platform.deploy(one_job("dead", "recovery:fail_until", **fields))
    await world.platform.emit("dead.in", [1])
    await until(lambda: world.task_row("dead", "state = 'dead'"))
    query = {"dag": "dead", "state": "dead"}
    (seen,) = (await world.platform.api.call("GET", "/api/v1/tasks", TasksResponse, query=query)).tasks
    assert (seen.attempt, seen.max_attempts) == (2, 2)
    assert seen.error is not None
    assert "attempt 2 fails" in seen.error["message"]
    answer = await world.platform.api.call(
        "POST", "/api/v1/tasks/retry", TaskChanges, TaskSelection([seen.task_id])
    )
    assert answer.changed == {str(seen.task_id): "queued"}
    await settle(world.platform)
    (task,) = await world.tasks("dead")
    assert (task["state"], task["attempt"]) == ("completed", 3)
    assert len(await world.commits("dead")) == 1


async def test_a_poisonous_task_does_not_stop_the_others(world: TwoDispatchers) -> None:
    fields = {"config": {"position": 3}, "max_attempts": 2, "scaling": {"max_concurrency": 2}}
    await world.platform.deploy(one_job("poison", "recovery:poison", **fields))
    pids = [w.running.pid for w in world.workers if w.running is not None]
    await world.platform.emit("poison.in", range(10))
    await settle(world.platform)
    assert await world.states("poison") == {"completed": 9, "dead": 1}
    dead = await world.task_row("poison", "state = 'dead'")
    assert dead is not None
    assert (dead["range_start"], dead["attempt"]) == (3, 2)
    assert json.loads(dead["error"])["code"] == "operator.killed"
    assert all(w.alive for w in world.workers)
    assert [w.running.pid for w in world.workers if w.running is not None] == pids


async def test_a_dispatcher_stopped_gracefully_while_calls_are_in_flight(
    world: TwoDispatchers, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.platform.deploy(one_job("graceful", runtime="held", lease="60s"))
    await world.platform.emit("graceful.in", range(200))
    held = await take_all(world, 200)
    client, dispatcher = world.dispatchers[0], world.platform["dispatcher-1"]
    answered: asyncio.Queue[None] = asyncio.Queue()

    async def report(h: LeasedTask) -> str:
        await patiently(lambda: client.heartbeat([h.token], [h.beat()]))
        answered.put_nowait(None)
        (outcome,) = await patiently(lambda: world.complete(client, [h]))
        return outcome

    async with watched(world.platform):
        reports = [asyncio.create_task(report(h)) for h in held]
        await answered.get()
        started = time.monotonic()
        assert await dispatcher.stop() == 0
        seconds = time.monotonic() - started
        early = len(await world.commits("graceful"))
        await dispatcher.start()
        assert Counter(await asyncio.gather(*reports)) == {"committed": 200}
    assert len(await world.commits("graceful")) == 200
    await settle(world.platform)
    with capsys.disabled():
        print(f"\na dispatcher stopped in {seconds:.1f} s; {early} of 200 reports were in by then")


async def test_two_dispatchers_on_one_database_process_each_event_once(world: TwoDispatchers) -> None:
    await world.platform.deploy(one_job("pair", "basic:nothing"))
    await asyncio.gather(
        *(
            world.emit(gateway, "pair.in", cursors(range(first, first + 20)))
            for first, gateway in zip(range(0, 200, 20), cycle(world.gateways), strict=False)
        )
    )
    await settle(world.platform)
    tasks = await world.tasks("pair")
    assert Counter((t["state"], t["attempt"]) for t in tasks) == {("completed", 1): 200}
    assert sorted(row["range_start"] for row in await world.commits("pair")) == list(range(200))


@pytest.mark.parametrize("call", ["complete", "events", "heartbeat"])
async def test_a_call_that_got_no_answer_is_repeated_and_answered_the_same(
    world: TwoDispatchers, call: str
) -> None:
    """The dispatcher dies between its commit and its answer; the other one answers the repeated call."""
    dag = f"repeat-{call}"
    await world.platform.deploy(one_job(dag, runtime="held"))
    await world.platform.emit(f"{dag}.in", [1])
    first, second = world.dispatchers
    (held,) = await world.take(second, 1)
    emission = Emission(*held.fence, events=[EventOut(0, Scope(cursor=7))])

    async def make(client: DispatcherClient) -> Any:
        match call:
            case "complete":
                return await world.complete(client, [held])
            case "events":
                return [outcome.outcome for outcome in await client.events([held.token], [emission])]
            case _:
                return [b.outcome for b in await client.heartbeat([held.token], [held.beat()])]

    await world.platform["dispatcher-1"].kill()
    await world.platform["dispatcher-1"].start(crash_at=f"{call}.after_commit")
    await world.platform.ready("dispatcher-1")
    with pytest.raises(PlatformError):
        await make(first)
    assert await world.platform["dispatcher-1"].died() == -signal.SIGKILL
    told = (
        "select e.event_id, e.range_start from events e join tasks t on t.task_id = e.producer_id"
        " join jobs j using (job_id) join dags d using (dag_id) where d.name = $1 order by 1"
    )
    before = (await world.tasks(dag), await world.commits(dag), await world.platform.sql(told, dag))
    answer = await make(second)
    assert answer == (["committed"] if call == "complete" else ["ok"])
    after = (await world.tasks(dag), await world.commits(dag), await world.platform.sql(told, dag))
    if call == "heartbeat":
        assert after[0][0]["lease_expires_at"] > before[0][0]["lease_expires_at"]
        assert after[1:] == before[1:]
    else:
        assert after == before
    await world.complete(second, [held])
    await settle(world.platform)


async def test_a_restart_and_a_crash_of_postgres_in_the_middle_of_the_work(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder: Path = tmp_path_factory.mktemp("restarts")
    server = EmbeddedPostgres.ensure(folder / "postgres", settings={"fsync": "off"}, die_with_parent=True)
    try:
        await migrate(server.state_url)
        async with Platform.start(server.state_url, folder / "home") as platform:
            await platform.deploy(one_job("restarts", "basic:slow", lease="2s", config={"seconds": 0.1}))

            async def some_done(count: int) -> bool:
                return (await platform.states("work")).get("completed", 0) >= count

            await platform.emit("restarts.in", range(40))
            await until(lambda: some_done(5))
            await asyncio.to_thread(server.restart)
            await platform.emit("restarts.in", range(40, 60), patient=True)
            await until(lambda: some_done(20))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(
                EmbeddedPostgres.ensure, folder / "postgres", settings={"fsync": "off"}, die_with_parent=True
            )
            await platform.emit("restarts.in", range(60, 80), patient=True)
            async with watched(platform):
                assert await settle(platform) == {"completed": 80}
            rows = await stored_rows(platform, "restarts.out", 0, 100)
            assert rows == [{"position": p} for p in range(80)]
            assert all(process.alive for process in platform.processes.values())
    finally:
        server.destroy()


async def test_no_wake_up_was_premature_and_nothing_deadlocked_in_any_of_these_tests(
    shared: TwoDispatchers,
) -> None:
    await no_wake_up_was_premature_and_nothing_deadlocked(shared.platform)
