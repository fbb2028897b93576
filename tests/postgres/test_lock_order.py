"""Whatever two dispatchers do to the same tasks at the same moment, in whatever order: no deadlock.

Each test runs calls against each other through two pools, with the ids in opposite or random order, and then
asks the server itself how many deadlocks it had to break.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from tests.control_plane import ControlPlane, Held, completed, failed
from tests.dags import dag, job, source
from tests.platform import until
from traceplane.dispatcher.leases.calls import Claim
from traceplane.postgres.database import SCHEMA
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import EventOut

OFTEN = ("max_attempts: 1000", "retry: {base: 1ms, max: 1ms}")
DAG = dag(
    "main",
    source("left", name="left"),
    source("right", name="right"),
    job("one", "left", "one.out", "lease: 30s", *OFTEN),
    job("two", "right", "two.out", *OFTEN),
    job("both", ("one.out", "two.out"), "end", "when: any"),
)
TASKS = 40
ROUNDS = 8


@pytest.fixture
async def planes(database_url: str) -> AsyncIterator[tuple[ControlPlane, ControlPlane]]:
    async with (
        ControlPlane.open(database_url) as a,
        ControlPlane.open(database_url, wake_ups=a.wake_ups) as b,
    ):
        await a.deploy(DAG)
        yield a, b
    assert await deadlocks(database_url) == 0


async def deadlocks(url: str) -> int:
    """How many the server broke; it counts them when the sessions that met them are closed."""
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    others = "select count(*) = 0 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    try:
        await until(lambda: connection.fetchval(others), what="all other sessions are closed")
        found: int = await connection.fetchval(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
        return found
    finally:
        await connection.close()


async def together(*calls: Awaitable[object]) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*calls)


async def running(plane: ControlPlane, dataset: str, start: int, count: int = TASKS) -> list[Held]:
    await plane.emit(dataset, range(start, start + count))
    await plane.valve.run_once()
    return await plane.claim(await plane.send())


async def test_claims_of_the_same_tasks_in_opposite_order(planes: tuple[ControlPlane, ControlPlane]) -> None:
    a, b = planes
    for round_ in range(ROUNDS):
        await a.emit("left", range(round_ * TASKS, (round_ + 1) * TASKS))
        ids = await a.send()
        given: list[UUID] = []

        async def claim(plane: ControlPlane, *shares: list[UUID], given: list[UUID] = given) -> None:
            claims = [Claim(f"w{n}", "python", tuple(share)) for n, share in enumerate(shares)]
            given.extend(
                t.task_id for answer in await plane.leases.claims.claim(claims) for t in answer.tasks
            )

        half = len(ids) // 2
        await together(
            claim(a, ids),
            claim(b, ids[::-1]),
            claim(a, ids[:half], ids[half:]),
            claim(b, ids[half:], ids[:half]),
            claim(b, ids[half:][::-1], ids[:half][::-1]),
        )
        assert sorted(given) == sorted(ids), "each was given once"


async def test_reports_heartbeats_events_and_cancellations_of_the_same_tasks(
    planes: tuple[ControlPlane, ControlPlane],
) -> None:
    a, b = planes
    for round_ in range(ROUNDS):
        held = await running(a, "left", round_ * TASKS)
        back = held[::-1]
        ids = [h.task_id for h in held]
        await together(
            a.heartbeat(*held),
            b.heartbeat(*back),
            b.complete(*back[::2]),
            a.fail(*held),
            a.cancel(*ids[::3]),
            b.cancel(*ids[::-1][::3]),
            a.emit_running(
                held[0], *(EventOut(0, Scope(cursor=round_ * 1000 + n), emission="x") for n in range(20))
            ),
            b.emit_running(
                back[0], *(EventOut(0, Scope(cursor=round_ * 1000 + 19 - n), emission="x") for n in range(20))
            ),
        )
        await together(a.retry(*ids), b.retry(*ids[::-1]), a.cancel(*ids), b.cancel(*ids[::-1]))


async def test_the_valve_against_reports_cancellations_and_retries(
    planes: tuple[ControlPlane, ControlPlane],
) -> None:
    a, b = planes
    for round_ in range(ROUNDS):
        held = await running(a, "left", round_ * TASKS)
        ids = [h.task_id for h in held]
        shuffled = random.sample(ids, len(ids))
        await a.fail(*held)
        await asyncio.sleep(0.002)  # the retries' pause
        await together(
            a.valve.run_once(),
            b.valve.run_once(),
            a.cancel(*ids),
            b.cancel(*ids[::-1]),
            b.retry(*shuffled),
            b.heartbeat(*held[::-1]),
            a.fail(*held[::-1]),
        )
        ids = await a.tasks("one")
        await together(a.cancel(*ids), b.cancel(*ids[::-1]))


async def test_two_producers_that_wake_one_consumer_for_the_same_scopes(
    planes: tuple[ControlPlane, ControlPlane],
) -> None:
    """Both want to send out the same scopes of the same job; one of each goes out, the other waits."""
    a, b = planes
    for round_ in range(ROUNDS):
        first = await running(a, "left", round_ * TASKS)
        second = await running(b, "right", round_ * TASKS)
        await together(a.complete(*first), b.complete(*second[::-1]))
        assert len(await a.tasks("both")) == 2 * TASKS * (round_ + 1)
        rows = await a.sql(
            "select scope_key from tasks join jobs using (job_id) where name = 'both' and stage = 1"
            " group by scope_key having count(*) > 1"
        )
        assert not rows
        await a.run_all()
    assert await a.states("both") == {"completed": 2 * TASKS * ROUNDS}


async def test_the_same_events_in_opposite_order(planes: tuple[ControlPlane, ControlPlane]) -> None:
    a, b = planes
    for round_ in range(ROUNDS):
        scopes = list(range(round_ * TASKS, (round_ + 1) * TASKS))
        shuffled = random.sample(scopes, len(scopes))
        await together(a.emit("left", scopes), b.emit("left", scopes[::-1]), b.emit("left", shuffled))
    assert len(await a.tasks("one")) == TASKS * ROUNDS


async def test_anything_against_anything(planes: tuple[ControlPlane, ControlPlane]) -> None:
    chance = random.Random()
    held: dict[UUID, Held] = {}
    scope = iter(range(10**9))

    def some() -> list[Held]:
        return chance.sample(list(held.values()), min(len(held), 25))

    async def claim(plane: ControlPlane) -> None:
        ids = await plane.send()
        # A queue may repeat and reorder.
        ids = chance.sample(ids * 2, 2 * len(ids))[: 3 * len(ids) // 2]
        for lease in await plane.claim(ids):
            held[lease.task_id] = lease

    async def emit(plane: ControlPlane) -> None:
        dataset = chance.choice(["left", "right"])
        scopes = [next(scope) for _ in range(10)]
        await plane.emit(dataset, chance.sample(scopes + [chance.randrange(50) for _ in range(5)], 15))

    async def report(plane: ControlPlane) -> None:
        reports = [(h, chance.choice([completed, failed])(h)) for h in some()]
        await plane.report(*reports)

    actions: list[Callable[[ControlPlane], Awaitable[object]]] = [
        claim,
        emit,
        report,
        lambda plane: plane.heartbeat(*some()),
        lambda plane: plane.cancel(*[h.task_id for h in some()[:5]]),
        lambda plane: plane.retry(*[h.task_id for h in some()]),
        lambda plane: plane.valve.run_once(),
        lambda plane: plane.relay.run_once(),
        lambda plane: plane.reaper.run_once(),
        lambda plane: plane.reconciler.run_once(),
        lambda plane: plane.backpressure.run_once(),
    ]

    async def act(plane: ControlPlane, steps: int) -> None:
        for _ in range(steps):
            await chance.choice(actions)(plane)

    await emit(planes[0])
    await claim(planes[0])
    await together(*(act(plane, 30) for plane in planes for _ in range(3)))


async def test_ticks_fire_while_their_sources_are_deployed_rebuilt_and_rolled_back(
    planes: tuple[ControlPlane, ControlPlane],
) -> None:
    a, b = planes

    def clock(version: int) -> str:
        """Every version changes the schedule in place, and every other one rebuilds the job that reads it."""
        ticks = (
            "- {name: ticks, activation: source, outputs: [{dataset: hours}],"
            f" source: {{kind: cron, schedule: '0 * * * *', catch_up: all, jitter: {version + 1}ms}}}}\n"
        )
        text = dag("clock", ticks, job("copy", "hours", "copies", config=f"version: {version // 2}"))
        return text.replace("jobs:", "datasets: {hours: {partitions: {by: hour}}}\njobs:", 1)

    async def fire(plane: ControlPlane) -> None:
        for _ in range(10):
            await plane.pass_time(3600)
            await plane.cron.run_once()
            await plane.run_all()

    async def deploy(plane: ControlPlane) -> None:
        for version in range(1, 7):
            await plane.deploy(clock(version))
            for _ in range(3):
                await plane.builds.run_once()
                await plane.run_all()
            if not any(listed.state == "building" for listed in await plane.versions("clock")):
                await plane.rollback("clock", drop_missing=True)

    await a.deploy(clock(0))
    await a.cron.run_once()
    began = await a.value("select tp_now()")
    await together(fire(a), deploy(b))
    await a.cron.run_once()
    hours = await a.value("select (extract(epoch from tp_now() - $1) / 3600)::int", began)
    ((fired, different),) = await a.sql(
        "select count(*), count(distinct range_start) from events join datasets using (dataset_uuid)"
        " where dataset_id = 'hours'"
    )
    assert fired == different
    assert hours <= fired <= hours + 1
