"""Failures that users of other schedulers often report, one test each, on real processes.

The tests share a platform of two dispatchers, two gateways and two workers; each deploys its own DAG.
Only the test runs tasks of the runtime `held`: it calls the dispatchers as a worker would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from tests.platform import Platform, Process, free_port, until
from tests.process.effects import settle, stored_rows, watched
from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.postgres import events
from traceplane.postgres.database import SCHEMA, Database
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.events import NewEvent
from traceplane.postgres.migrate import migrate
from traceplane.wire.control import (
    EmitRequest,
    EmitResponse,
    ManualEvent,
    TaskChanges,
    TaskSelection,
    TasksResponse,
)
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
    ClaimedTask,
    ClaimRequest,
    Completion,
    Emission,
    EventOut,
    Heartbeat,
    JobPayload,
    OutputManifest,
    TakeRequest,
)
from traceplane.worker.dispatcher_client import DispatcherClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = """
[runtimes.held]
driver = "queue"
queue = "held"
capabilities = ["reactive"]
"""

# A wake-up is written by a transaction of its own; if its cause had not been committed by then, the sender
# could not see the task.
NOTE_WAKE_UPS = (
    "create table wake_ups_seen (task_id uuid not null, task_known boolean not null)",
    "create function note_wake_up() returns trigger language plpgsql as 'begin insert into wake_ups_seen"
    " select new.task_id, exists (select 1 from tasks where task_id = new.task_id); return null; end'",
    "create trigger note_wake_up after insert on wake_messages for each row execute function note_wake_up()",
)


def one_job(dag: str, entrypoint: str = "basic:copy", **fields: Any) -> str:
    """A manual source `<dag>.in` and one job `work` that reads it; JSON is YAML too."""
    has_code = fields.get("operator", "python") == "python"
    config = {**({"entrypoint": entrypoint} if has_code else {}), **fields.pop("config", {})}
    source = {"name": "numbers", "activation": "source", "source": {"kind": "manual"}}
    work = {
        "name": "work",
        "runtime": "python",
        "operator": "python",
        "inputs": [{"from": {"job": "numbers"}}],
        "outputs": [{"dataset": f"{dag}.out"}],
        "config": config,
        "retry": {"base": "50ms"},
        **fields,
    }
    return json.dumps(
        {"version": 1, "dag": dag, "jobs": [source | {"outputs": [{"dataset": f"{dag}.in"}]}, work]}
    )


@dataclass(frozen=True)
class LeasedTask:
    """A task whose lease the test holds."""

    task: ClaimedTask
    job: JobPayload
    token: str

    @property
    def fence(self) -> tuple[UUID, int, UUID]:
        return self.task.task_id, self.task.attempt, self.task.lease_token

    def completion(self, position: int = 0) -> Completion:
        assert self.task.scope is not None
        outputs = [
            OutputManifest(o.output_index, o.dataset_uuid, o.dataset_version, self.task.scope)
            for o in self.job.outputs
        ]
        return Completion(*self.fence, position, status="completed", outputs=outputs)

    def beat(self) -> Heartbeat:
        return Heartbeat(*self.fence)


@dataclass
class TwoDispatchers:
    platform: Platform
    gateways: list[Caller]
    dispatchers: list[DispatcherClient]

    # Processes -------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Process]:
        return [self.platform["worker-1"], self.platform["worker-2"]]

    async def revive(self) -> None:
        """Starts whatever the last test left dead."""
        dead = [p for p in self.platform.processes.values() if not p.alive]
        for process in dead:
            await process.start()
        if dead:
            await self.platform.ready(*(p.name for p in dead))

    async def worker_of(self, dag: str) -> Process:
        """The worker that runs the DAG's one task, once one does."""
        row = await until(lambda: self.task_row(dag, "state = 'running'"), what=f"{dag} runs")
        pid = int(row["worker_id"].rpartition(":")[2])
        (found,) = [w for w in self.workers if w.running is not None and w.running.pid == pid]
        return found

    # Work ------------------------------------------------------------------------------------------

    async def tasks(self, dag: str, condition: str = "true") -> list[asyncpg.Record]:
        return await self.platform.sql(
            "select t.* from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            f" where d.name = $1 and ({condition}) order by task_id",
            dag,
        )

    async def task_row(self, dag: str, condition: str = "true") -> asyncpg.Record | None:
        rows = await self.tasks(dag, condition)
        return rows[0] if rows else None

    async def count(self, dag: str, condition: str = "true") -> int:
        return len(await self.tasks(dag, condition))

    async def states(self, dag: str) -> Counter[str]:
        return Counter(row["state"] for row in await self.tasks(dag))

    async def commits(self, dag: str) -> list[asyncpg.Record]:
        return await self.platform.sql(
            "select c.*, t.attempt, t.state from dataset_commits c join tasks t using (task_id)"
            " join jobs j using (job_id) join dags d using (dag_id) where d.name = $1",
            dag,
        )

    async def emit(
        self, gateway: Caller, dataset: str, scopes: Iterable[Scope], emission: str = ""
    ) -> EmitResponse:
        request = EmitRequest([ManualEvent(dataset, scope, emission=emission) for scope in scopes])
        return await gateway.call("POST", "/api/v1/events", EmitResponse, request)

    async def cancel(self, *task_ids: UUID) -> dict[str, str]:
        answer = await self.platform.api.call(
            "POST", "/api/v1/tasks/cancel", TaskChanges, TaskSelection(list(task_ids))
        )
        return answer.changed

    async def take(self, client: DispatcherClient, limit: int, *, seconds: float = 60) -> list[LeasedTask]:
        """Up to `limit` tasks of the runtime `held`, as a worker gets them."""
        answer = await client.take(TakeRequest("test", "held", limit, seconds))
        return [LeasedTask(t, answer.jobs[str(t.job_id)], answer.tokens[t.token]) for t in answer.tasks]

    async def complete(self, client: DispatcherClient, held: list[LeasedTask]) -> list[str]:
        tokens = list(dict.fromkeys(h.token for h in held))
        completions = [h.completion(tokens.index(h.token)) for h in held]
        return [outcome.outcome for outcome in await client.complete(tokens, completions)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TwoDispatchers]:
    url = create_database(postgres_server, "reported_failures", template=template_database)
    folder: Path = tmp_path_factory.mktemp("reported_failures")
    (folder / "traceplane.toml").write_text(RUNTIMES)
    environment = {
        "TRACEPLANE_CONFIG": str(folder / "traceplane.toml"),
        "TRACEPLANE_REAP_GRACE_SECONDS": "3",
        "TRACEPLANE_WORKER_CONCURRENCY": "4",
    }
    async with Platform.start(url, folder, dispatchers=2, environment=environment) as platform:
        port = platform["dispatcher-2"].environment["TRACEPLANE_DISPATCHER_PORT"]
        second_dispatcher, second_gateway = f"http://127.0.0.1:{port}", str(free_port())
        platform.add_worker(2, TRACEPLANE_DISPATCHER_URL=second_dispatcher)
        platform.add("gateway-2", "gateway", TRACEPLANE_GATEWAY_PORT=second_gateway)
        for statement in NOTE_WAKE_UPS:
            await platform.sql(statement)
        world = TwoDispatchers(
            platform,
            [platform.api, Caller(f"http://127.0.0.1:{second_gateway}", platform.user_token)],
            [platform.worker_client(), DispatcherClient(second_dispatcher, platform.worker_token)],
        )
        await world.revive()
        yield world
        for gateway in world.gateways:
            await gateway.close()
        for dispatcher in world.dispatchers:
            await dispatcher.close()
    drop_database(postgres_server, "reported_failures")


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: TwoDispatchers) -> TwoDispatchers:
    await shared.revive()
    return shared


@contextlib.asynccontextmanager
async def sampled(platform: Platform, statement: str, *args: object) -> AsyncIterator[list[int]]:
    """The figures that a statement gives again and again while the body runs."""
    figures: list[int] = []

    async def sample() -> None:
        connection = await asyncpg.connect(platform.url, server_settings={"search_path": SCHEMA})
        try:
            while True:
                figures.append(await connection.fetchval(statement, *args))
                await asyncio.sleep(0.005)
        finally:
            connection.terminate()

    sampler = asyncio.create_task(sample())
    try:
        yield figures
        assert not sampler.done(), sampler.exception()
    finally:
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeats a call until it is answered, as a careful caller would."""
    while True:
        try:
            return await call()
        except PlatformError:
            await asyncio.sleep(0.05)


def cursors(positions: Iterable[int]) -> list[Scope]:
    return [Scope(cursor=p) for p in positions]


# Events -------------------------------------------------------------------------------------------------


async def test_events_lost_when_the_consumer_is_at_its_concurrency_limit(world: TwoDispatchers) -> None:
    await world.platform.deploy(one_job("limit", "basic:nothing", scaling={"max_concurrency": 1}))
    in_flight = (
        "select count(*)::int from tasks t join jobs j using (job_id) join dags d using (dag_id)"
        " where d.name = 'limit' and t.state in ('dispatched', 'running')"
    )
    async with sampled(world.platform, in_flight) as figures:
        await world.platform.emit("limit.in", range(50))
        await settle(world.platform)
    assert await world.states("limit") == {"completed": 50}
    assert len(await world.commits("limit")) == 50
    assert max(figures) == 1


async def test_concurrent_producers_of_which_only_one_is_seen(world: TwoDispatchers) -> None:
    """Eight callers on two gateways, each with its own events and, in its own order, the same ones."""
    dag: dict[str, Any] = {
        "outputs": [{"dataset": "producers.out"}],
        "runtime": "dispatcher",
        "operator": "pass",
    }
    await world.platform.deploy(one_job("producers", **dag))

    async def produce(caller: int) -> int:
        gateway = world.gateways[caller % 2]
        shared_by_all = [*range(caller * 3, 24), *range(caller * 3)][:: 1 if caller % 4 < 2 else -1]
        accepted = 0
        for own in range(1000 * (caller + 1), 1000 * (caller + 1) + 10):
            answer = await world.emit(gateway, "producers.in", cursors([own, *shared_by_all]))
            accepted += answer.accepted
        return accepted

    assert sum(await asyncio.gather(*(produce(caller) for caller in range(8)))) == 8 * 10 + 24
    await settle(world.platform)
    assert await world.states("producers") == {"completed": 8 * 10 + 24}
    told = "select count(*) from events join datasets using (dataset_uuid) where dataset_id = 'producers.out'"
    assert await world.platform.value(told) == 8 * 10 + 24


async def test_concurrent_tasks_of_one_producer_are_all_seen(world: TwoDispatchers) -> None:
    """Ten running tasks of one job emit at the same moment, through two dispatchers."""
    await world.platform.deploy(one_job("emitters", runtime="held"))
    reader: dict[str, Any] = {
        "inputs": [{"from": {"dataset": "emitters.out"}}],
        "runtime": "dispatcher",
        "operator": "pass",
    }
    await world.platform.deploy(one_job("listeners", **reader))
    await world.platform.emit("emitters.in", range(10))
    held = await take_all(world, 10)

    async def speak(h: LeasedTask, client: DispatcherClient) -> None:
        assert h.task.scope is not None
        first = 100 * (1 + h.task.scope.first)
        for position in range(first, first + 10):
            emission = Emission(*h.fence, events=[EventOut(0, Scope(cursor=position))])
            (outcome,) = await client.events([h.token], [emission])
            assert (outcome.outcome, outcome.accepted) == ("ok", 1)

    await asyncio.gather(*(speak(h, c) for h, c in zip(held, cycle(world.dispatchers), strict=False)))
    assert set(await world.complete(world.dispatchers[0], held)) == {"committed"}
    await settle(world.platform)
    assert await world.states("listeners") == {"completed": 10 * 10 + 10}


async def take_all(world: TwoDispatchers, count: int) -> list[LeasedTask]:
    held: list[LeasedTask] = []
    while len(held) < count:
        held += await world.take(world.dispatchers[len(held) % 2], count - len(held))
    return held


async def test_two_tasks_for_one_partition_a_millisecond_apart(world: TwoDispatchers) -> None:
    """Two producers, one of which emits twice, name the same partition at once: all processed, one by one."""
    dag = json.loads(one_job("partition", "basic:slow", config={"seconds": 0.05}))
    numbers, work = dag["jobs"]
    other = numbers | {"name": "others", "outputs": [{"dataset": "partition.other"}]}
    work["inputs"].append({"from": {"job": "others"}})
    work["when"] = "any"
    await world.platform.deploy(json.dumps(dag | {"jobs": [numbers, other, work]}))
    both_out = (
        "select count(*)::int from (select 1 from tasks t join jobs j using (job_id) join dags d using (dag_id)"
        " where d.name = 'partition' and t.state in ('dispatched', 'running')"
        " group by scope_key having count(*) > 1) doubled"
    )
    async with sampled(world.platform, both_out) as figures:
        for n in range(8):
            scope = [Scope(partition_key=f"{n}0-{n}9", start=n * 10, end=n * 10 + 9)]
            answers = await asyncio.gather(
                world.emit(world.gateways[0], "partition.in", scope, "first"),
                world.emit(world.gateways[1], "partition.in", scope, "second"),
                world.emit(world.gateways[1], "partition.other", scope),
            )
            assert [a.accepted for a in answers] == [1, 1, 1]
        await settle(world.platform)
    assert await world.states("partition") == {"completed": 24}
    assert max(figures) == 0
    overlaps = (
        "select count(*) from tasks a join tasks b using (job_id, scope_key) join jobs j using (job_id)"
        " join dags d using (dag_id) where d.name = 'partition' and a.task_id < b.task_id"
        " and (a.started_at, a.finished_at) overlaps (b.started_at, b.finished_at)"
    )
    assert await world.platform.value(overlaps) == 0


async def test_a_side_effect_published_before_its_transaction_commits(world: TwoDispatchers) -> None:
    """A transaction that drafts tasks and their wake-ups dies, or is aborted, before its commit."""
    await world.platform.deploy(one_job("premature"))
    reader: dict[str, Any] = {"inputs": [{"from": {"dataset": "premature.out"}}]}
    await world.platform.deploy(one_job("follower", **reader))
    await world.platform["dispatcher-2"].kill()
    await world.platform["dispatcher-1"].kill()
    await world.platform["dispatcher-1"].start(crash_at="complete.before_commit")
    await world.platform.emit("premature.in", range(3))
    assert await world.platform["dispatcher-1"].died() == -signal.SIGKILL
    assert await world.count("follower") == 0

    (target,) = await world.platform.sql(
        "select producer_id, generation_id from events join datasets using (dataset_uuid)"
        " where dataset_id = 'premature.in' limit 1"
    )
    database = await Database.connect(world.platform.url, connections=1)
    aborted: set[UUID] = set()
    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as tx:
            drafts = [
                NewEvent(target["producer_id"], target["generation_id"], "data", None, p, p) for p in (7, 8)
            ]
            assert (await events.accept(tx, drafts)).tasks_dispatched == 2
            rows = await tx.rows(
                "select task_id from tasks where range_start in (7, 8) and state = 'dispatched'"
            )
            aborted = {row["task_id"] for row in rows}
            raise ZeroDivisionError
    await database.close()
    assert len(aborted) == 2

    await world.revive()
    await settle(world.platform)
    assert await world.states("premature") == {"completed": 3}
    assert await world.states("follower") == {"completed": 3}
    seen = {row["task_id"] for row in await world.platform.sql("select task_id from wake_ups_seen")}
    assert not seen & aborted
    assert await world.platform.value("select count(*) from wake_ups_seen where not task_known") == 0


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
    (old,) = await world.take(client, 1)
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
    (held,) = await world.take(client, 1)
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
    assert await shared.platform.value("select count(*) from wake_ups_seen where not task_known") == 0
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await shared.platform.value(deadlocks) == 0
