"""The statement that launches a batch: everything once, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.trigger.signals import Pipelines
from traceplane.postgres import trigger
from traceplane.postgres.database import Database
from traceplane.postgres.trigger import LaunchResult, OffsetMove


class Batches:
    """Batches of one consumer, as it would write them."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def begin(self, **offsets: int) -> None:
        async with self.database.transaction() as tx:
            await trigger.begin_partitions(tx, "g", "t", {int(n[1:]): o for n, o in offsets.items()})

    async def offsets(self) -> dict[int, int]:
        async with self.database.autocommit() as tx:
            return await trigger.stored_offsets(tx, "g", "t", range(10))

    async def launch(
        self, moved: list[tuple[int, int, int]], pairs: list[tuple[UUID, str]], *, exhaustive: bool = False
    ) -> LaunchResult:
        names = list(dict.fromkeys(name for _, name in pairs))
        bodies: list[Any] = [{"signal_id": name} for name in names]
        async with self.database.statement("launch") as tx:
            return await trigger.launch(
                tx,
                "g",
                "t",
                [OffsetMove(*m) for m in moved],
                [p for p, _ in pairs],
                [names.index(name) for _, name in pairs],
                bodies,
                exhaustive=exhaustive,
            )


@pytest.fixture
async def pipelines(database: Database) -> Pipelines:
    return await Pipelines.of(database)


@pytest.fixture
async def batches(database: Database) -> Batches:
    batches = Batches(database)
    await batches.begin(p0=0, p1=5)
    return batches


async def finish(pipelines: Pipelines) -> None:
    await pipelines.sql(
        "update executions set status = 'COMPLETED', finished_at = now() where finished_at is null"
    )


async def test_a_batch_whose_offsets_moved_launches_nothing_and_moves_nothing(
    pipelines: Pipelines, batches: Batches
) -> None:
    one = await pipelines.add("A")
    stale = await batches.launch([(0, 0, 3), (1, 4, 6)], [(one, "s")])
    assert not stale.holds
    assert (await batches.offsets(), await pipelines.launched()) == ({0: 0, 1: 5}, set())
    unknown = await batches.launch([(7, 0, 3)], [(one, "s")])
    assert not unknown.holds
    done = await batches.launch([(0, 0, 3), (1, 5, 6)], [(one, "s")])
    assert (done.holds, list(done.launched)) == (True, [one])
    assert await batches.offsets() == {0: 3, 1: 6}
    # The answer was lost, and the batch is written again: nothing happens.
    assert not (await batches.launch([(0, 0, 3), (1, 5, 6)], [(one, "s")])).holds


async def test_a_pipeline_never_runs_twice_at_once_however_many_instances_launch_it(
    pipelines: Pipelines, batches: Batches
) -> None:
    pipeline_ids = [await pipelines.add("A") for _ in range(20)]
    await batches.begin(p2=0, p3=0)
    result = await asyncio.gather(
        *(
            batches.launch([(n, 0, 1)], [(p, f"s{n}") for p in pipeline_ids[:: 1 if n else -1]])
            for n in (0, 2, 3)
        )
    )
    assert all(t.holds for t in result)
    assert sum(len(t.launched) for t in result) == 20
    rows = await pipelines.sql("select count(*) as n from executions where status = 'PENDING'")
    assert rows[0]["n"] == 20
    skipped = await batches.launch([(0, 1, 2)], [(p, "later") for p in pipeline_ids])
    assert (skipped.idle, list(skipped.launched)) == (0, [])


async def test_a_repeated_signal_launches_nothing_and_hides_no_other(
    pipelines: Pipelines, batches: Batches
) -> None:
    one, two = await pipelines.add("A"), await pipelines.add("A")
    await batches.launch([(0, 0, 1)], [(one, "s")])
    await finish(pipelines)
    result = await batches.launch([(0, 1, 3)], [(one, "s"), (two, "s")])
    assert (result.holds, list(result.repeated)) == (True, [one])
    assert (await batches.offsets())[0] == 1, "nothing was done yet"
    all_of_it = [(one, "s"), (one, "t"), (two, "s")]
    assert set((await batches.launch([(0, 1, 3)], all_of_it, exhaustive=True)).launched) == {one, two}
    assert await pipelines.launched() == {(one, "s"), (one, "t"), (two, "s")}
    await finish(pipelines)
    nothing_new = await batches.launch([(0, 3, 4)], [(one, "s")], exhaustive=True)
    assert (list(nothing_new.launched), (await batches.offsets())[0]) == ([], 4)


async def test_limits_of_pipelines_and_users_hold_launches_back(
    pipelines: Pipelines, batches: Batches
) -> None:
    slow = await pipelines.add("A", launches_per_hour=2)
    greedy = [await pipelines.add("A", user_id="bob") for _ in range(5)]
    await pipelines.sql(
        "insert into trigger_user_limits (org_id, user_id, launches_per_hour) values ($1, 'bob', 3)",
        pipelines.org_id,
    )
    launched: list[UUID] = []
    for n in range(4):
        result = await batches.launch([(0, n, n + 1)], [(slow, f"s{n}"), *((p, f"s{n}") for p in greedy)])
        assert result.holds
        launched += result.launched
        if n == 0:
            assert result.held_back == 2
        await finish(pipelines)
    assert launched.count(slow) == 2
    assert sum(p in greedy for p in launched) == 3
    await pipelines.sql("update trigger_user_limits set counted_at = now() - interval '41 minutes'")
    result = await batches.launch([(0, 4, 5)], [(p, "s9") for p in greedy])
    assert len(result.launched) == 2, "an hour's worth comes back in an hour, steadily"


async def test_a_pipeline_that_was_just_stopped_is_not_launched(
    pipelines: Pipelines, batches: Batches
) -> None:
    stopped, deleted, homeless = [await pipelines.add("A") for _ in range(3)]
    await pipelines.sql("update pipelines set is_active = false where pipeline_id = $1", stopped)
    await pipelines.sql("update pipelines set deleted_at = now() where pipeline_id = $1", deleted)
    await pipelines.sql("update pipelines set config = '{}' where pipeline_id = $1", homeless)
    result = await batches.launch([(0, 0, 1)], [(stopped, "s"), (deleted, "s"), (homeless, "s")])
    assert (result.holds, list(result.launched), result.held_back, result.without_job) == (True, [], 2, 1)
    assert (await batches.offsets())[0] == 1
