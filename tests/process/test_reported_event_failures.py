"""Failures of events that users of other schedulers often report, one test each, on real processes.

Each test deploys its own DAG.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from itertools import cycle
from typing import Any
from uuid import UUID

import pytest

from tests.process.effects import settle
from tests.process.two_dispatchers import (
    LeasedTask,
    TwoDispatchers,
    cursors,
    no_wake_up_was_premature_and_nothing_deadlocked,
    one_job,
    sampled,
    take_all,
)
from traceplane.postgres import events
from traceplane.postgres.database import Database
from traceplane.postgres.events import NewEvent
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import Emission, EventOut
from traceplane.worker.dispatcher_client import DispatcherClient

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


async def test_no_wake_up_was_premature_and_nothing_deadlocked_in_any_of_these_tests(
    shared: TwoDispatchers,
) -> None:
    await no_wake_up_was_premature_and_nothing_deadlocked(shared.platform)
