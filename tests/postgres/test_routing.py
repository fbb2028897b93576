"""Events become tasks: each event once, for every job that reads it, and for no other."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from tests.control_plane import ControlPlane, completed
from tests.dags import SOURCE, dag, job
from traceplane.errors import InvalidInput, NotFound
from traceplane.postgres import events
from traceplane.postgres.events import NewEvent
from traceplane.wire.control import ManualEvent
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import EventOut

COPY = job("copy", "in", "mid")


def reader(name: str, *datasets: str, more: str = "") -> str:
    return job(name, datasets, f"out.{name}", more)


async def accepted(plane: ControlPlane, *scopes: int | Scope, **fields: str) -> tuple[int, int]:
    answer = await plane.emit("in", scopes, **fields)
    return answer.accepted, answer.duplicates


# Which events count ---------------------------------------------------------------------------------


async def test_a_repeated_event_is_accepted_once(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    assert await accepted(plane, 1, 2, 3) == (3, 0)
    assert await accepted(plane, 2, 3, 4) == (1, 2)
    assert await accepted(plane, 9, 9, 9) == (1, 2)
    assert len(await plane.tasks("copy")) == 5
    assert await plane.value("select count(*) from events") == 5


async def test_a_second_event_of_a_scope_is_distinguished_from_a_duplicate_by_its_emission(
    plane: ControlPlane,
) -> None:
    await plane.deploy(SOURCE + COPY)
    assert await accepted(plane, 1) == (1, 0)
    assert await accepted(plane, 1, emission="fork-b") == (1, 0)
    assert await accepted(plane, 1, emission="fork-b") == (0, 1)
    assert await accepted(plane, 1, emission="fork-c") == (1, 0)
    assert len(await plane.tasks("copy")) == 3


async def test_data_and_invalidation_of_a_scope_are_two_events(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    assert await accepted(plane, 1) == (1, 0)
    assert await accepted(plane, 1, kind="invalidation") == (1, 0)
    assert await accepted(plane, 1, kind="invalidation") == (0, 1)
    rows = await plane.sql("select kind::text from tasks order by task_id")
    assert [row["kind"] for row in rows] == ["data", "invalidation"]


async def test_a_cursor_and_a_partition_of_that_name_are_two_scopes(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    partition = Scope(partition_key="5", start=5, end=5)
    assert await accepted(plane, 5, partition) == (2, 0)
    assert await accepted(plane, 5, partition) == (0, 2)
    assert await plane.states("copy") == {"dispatched": 2}


async def test_the_same_scope_from_another_producer_is_another_event(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    await plane.emit("in", [1])
    generation = await plane.value("select current_generation_id from datasets where dataset_id = 'in'")
    async with plane.database.transaction() as tx:
        drafts = [NewEvent(uuid4(), generation, "data", None, 1, 1) for _ in range(2)]
        assert None not in (await events.accept(tx, drafts)).event_ids
    assert len(await plane.tasks("copy")) == 3


async def test_gateways_that_accept_the_same_events_together_keep_one_of_each(
    database_url: str, plane: ControlPlane
) -> None:
    await plane.deploy(SOURCE + COPY)
    async with ControlPlane.open(database_url) as other:
        for start in range(0, 300, 30):
            scopes = list(range(start, start + 30))
            answers = await asyncio.gather(
                plane.emit("in", scopes), other.emit("in", scopes[::-1]), other.emit("in", scopes[10:20])
            )
            assert sum(a.accepted for a in answers) == 30
    assert await plane.value("select count(*) from events") == 300
    assert len(await plane.tasks("copy")) == 300


# Who gets a task ------------------------------------------------------------------------------------


async def test_every_consumer_gets_its_own_task(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + reader("a", "in") + reader("b", "in"))
    await plane.emit("in", range(4))
    assert {job: await plane.states(job) for job in "ab"} == {"a": {"dispatched": 4}, "b": {"dispatched": 4}}
    rows = await plane.sql("select event_id, count(*), count(distinct task_id) from task_inputs group by 1")
    assert [tuple(row)[1:] for row in rows] == [(2, 2)] * 4


async def test_a_job_that_reads_a_dataset_twice_gets_one_task(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + reader("twice", "in", "in"))
    await plane.emit("in", range(3))
    assert len(await plane.tasks("twice")) == 3


async def test_an_event_that_nobody_reads_is_kept_and_makes_no_task(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE)
    assert await accepted(plane, 1, 2) == (2, 0)
    assert await plane.value("select count(*) from tasks") == 0
    assert await plane.value("select count(*) from outbox") == 0


async def test_an_unrelated_job_hears_nothing(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY + reader("after", "mid"))
    await plane.emit("in", [1])
    assert await plane.tasks("after") == []


async def test_a_retired_job_gets_nothing_more_and_its_waiting_tasks_are_canceled(
    plane: ControlPlane,
) -> None:
    await plane.deploy(SOURCE + reader("stays", "in") + reader("goes", "in"))
    await plane.emit("in", [1])
    await plane.deploy(SOURCE + reader("stays", "in"))
    await plane.emit("in", [2])
    assert await plane.states("goes") == {"canceled": 1}
    assert await plane.states("stays") == {"dispatched": 2}
    assert await plane.retry(*await plane.tasks("goes")) == {}, "its job is no longer deployed"
    assert await plane.states("goes") == {"canceled": 1}


async def test_a_job_of_another_dag_reads_along(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    await plane.deploy(dag("other", reader("along", "in"), reader("behind", "mid")))
    await plane.emit("in", [7])
    assert await plane.states("along") == {"dispatched": 1}
    held = await plane.claim(await plane.tasks("copy"))
    assert await plane.complete(*held) == ["committed"]
    assert await plane.states("behind") == {"dispatched": 1}


async def test_a_completion_wakes_what_reads_its_output(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY + reader("after", "mid"))
    await plane.emit("in", [7])
    (held,) = await plane.claim(await plane.send())
    also = EventOut(0, Scope(cursor=8), kind="invalidation")
    assert await plane.report((held, completed(held, also))) == ["committed"]
    rows = await plane.sql(
        "select kind::text, range_start from tasks join jobs using (job_id) where name = 'after' order by task_id"
    )
    assert sorted(map(tuple, rows)) == [("data", 7), ("invalidation", 8)]
    assert len(await plane.send()) == 2


async def test_a_task_is_handed_the_files_of_all_that_overlaps_its_scope(plane: ControlPlane) -> None:
    """However far before it the overlapping commit starts, and at the ends of what can be counted too."""
    await plane.deploy(SOURCE + COPY + reader("after", "mid"))
    lowest, highest = -(2**63), 2**63 - 1
    spans = {"wide": (0, 99), "tail": (95, 120), "low": (lowest, lowest + 5), "high": (highest - 5, highest)}
    scopes = [Scope(partition_key=name, start=start, end=end) for name, (start, end) in spans.items()]
    await plane.emit("in", [*scopes, 50, 97, 500, lowest, highest])
    await plane.complete(*await plane.claim(await plane.send()))
    found = {}
    for held in await plane.claim(await plane.send()):
        (files,) = held.task.input_files
        found[str(held.scope.cursor or held.scope.partition_key)] = len(files)
    assert found == {
        "wide": 4,  # itself, 50, 97, and the tail that begins in it
        "tail": 3,
        "50": 2,
        "97": 3,
        "500": 1,
        "low": 2,
        "high": 2,
        str(lowest): 2,
        str(highest): 2,
    }


async def test_lineage_names_the_event_that_fed_each_task(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    await plane.emit("in", range(5))
    rows = await plane.sql(
        "select e.scope_key = t.scope_key as same from task_inputs i join events e using (event_id)"
        " join tasks t using (task_id)"
    )
    assert [row["same"] for row in rows] == [True] * 5


# Where a task starts --------------------------------------------------------------------------------


async def test_a_full_window_leads_to_the_queue_and_empties_in_order(database_url: str) -> None:
    async with ControlPlane.open(database_url, dispatch_window=3) as plane:
        await plane.deploy(SOURCE + COPY)
        await plane.emit("in", range(5))
        assert await plane.states("copy") == {"dispatched": 3, "queued": 2}
        assert await plane.meter() == 0
        held = await plane.claim(await plane.send())
        await plane.complete(held[0], held[1])
        assert await plane.meter() == 2
        assert await plane.states("copy") == {"completed": 2, "dispatched": 2, "running": 1}


async def test_a_new_task_never_overtakes_one_that_waits(database_url: str) -> None:
    async with ControlPlane.open(database_url, dispatch_window=2) as plane:
        await plane.deploy(SOURCE + COPY)
        await plane.emit("in", range(4))
        await plane.complete(*await plane.claim(await plane.send()))
        await plane.emit("in", [100])
        assert await plane.states("copy") == {"completed": 2, "queued": 3}
        order = []
        while await plane.meter():
            held = await plane.claim(await plane.send())
            order += [h.scope.cursor for h in held]
            await plane.complete(*held)
        assert order == [2, 3, 100]


async def test_a_batch_waits_in_the_order_in_which_it_was_emitted(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + reader("one_by_one", "in", more="scaling: {max_concurrency: 1}"))
    emitted = [3, 12, 1, 20, 2, 11, 10]
    await plane.emit("in", emitted)
    order = []
    while await plane.meter():
        (held,) = await plane.claim(await plane.send())
        order.append(held.scope.cursor)
        await plane.complete(held)
    assert order == emitted


async def test_of_one_scope_one_task_is_out_at_a_time_in_the_order_of_its_events(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    await plane.emit_events(
        [ManualEvent("in", Scope(cursor=1), emission=e) for e in ("a", "b", "c")]
        + [ManualEvent("in", Scope(cursor=2))]
    )
    assert await plane.states("copy") == {"dispatched": 2, "queued": 2}
    order = []
    for _ in range(3):
        held = await plane.claim(await plane.send())
        order += [h.task_id for h in held if h.scope.cursor == 1]
        await plane.complete(*held)
        assert await plane.value("select count(*) from tasks where stage = 1") == 0
        await plane.meter()
    rows = await plane.sql(
        "select task_id from task_inputs join events e using (event_id) where e.range_start = 1 order by e.event_id"
    )
    assert order == [row["task_id"] for row in rows]


async def test_a_wake_up_is_written_with_every_task_that_goes_out(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    await plane.emit("in", range(10))
    rows = await plane.sql("select task_ids from outbox")
    assert sorted(t for row in rows for t in row["task_ids"]) == sorted(
        await plane.tasks("copy", "dispatched")
    )


# What is refused ------------------------------------------------------------------------------------


async def test_only_a_source_takes_events_by_hand(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    with pytest.raises(InvalidInput) as refused:
        await plane.emit("mid", [1])
    assert refused.value.code == "dataset.not_a_source"
    with pytest.raises(NotFound) as unknown:
        await plane.emit("nowhere", [1])
    assert unknown.value.code == "dataset.unknown"
    assert await plane.value("select count(*) from events") == 0


async def test_a_batch_with_one_bad_event_is_refused_whole(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    with pytest.raises(NotFound):
        await plane.emit_events([ManualEvent("in", Scope(cursor=1)), ManualEvent("nowhere", Scope(cursor=1))])
    assert await plane.value("select count(*) from events") == 0


async def test_a_grouped_call_with_a_bad_event_takes_no_other_with_it(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + COPY)
    answers = await asyncio.gather(
        plane.emit("in", [1]), plane.emit("nowhere", [1]), plane.emit("in", [2]), return_exceptions=True
    )
    assert [type(answer).__name__ for answer in answers] == ["EmitResponse", "NotFound", "EmitResponse"]
    assert await plane.value("select count(*) from events") == 2


async def test_an_event_of_a_generation_that_does_not_exist_leaves_nothing(plane: ControlPlane) -> None:
    async with plane.database.transaction() as tx:
        answer = await events.accept(tx, [NewEvent(uuid4(), UUID(int=7), "data", None, 1, 1)])
    assert answer.event_ids == (None,)
    assert await plane.value("select count(*) from events") == 0
