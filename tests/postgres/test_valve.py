"""The valve: what is let out, in which order, and what backpressure holds."""

from __future__ import annotations

import asyncio

from tests import dags
from tests.control_plane import ControlPlane
from tests.dags import SOURCE
from traceplane.postgres import events
from traceplane.postgres.events import NewEvent


def job(name: str, reads: str, more: str = "") -> str:
    return dags.job(name, reads, f"{name}.out", "retry: {base: 10s, max: 60s}", more)


LINE = (
    SOURCE
    + job("first", "in")
    + job("second", "first.out")
    + job("third", "second.out")
    + job("narrow", "third.out", "max_queue_depth: 10\n  scaling: {max_concurrency: 1}")
)
"""numbers → first → second → third → narrow, which trips at ten."""


async def accept(plane: ControlPlane, cursors: range, *, dataset: str = "in", backfill: bool = False) -> None:
    """Events as the platform writes them itself; a backfill's tasks have the lower priority."""
    rows = await plane.sql(
        "select d.current_generation_id, x.job_id from datasets d"
        " join job_outputs x on x.generation_id = d.current_generation_id where d.dataset_id = $1",
        dataset,
    )
    generation, producer = rows[0]
    async with plane.database.transaction() as tx:
        await events.accept(
            tx, [NewEvent(producer, generation, "data", None, c, c, backfill=backfill) for c in cursors]
        )


async def out(plane: ControlPlane, name: str) -> list[int]:
    """Positions of a job's tasks that are dispatched or running."""
    rows = await plane.sql(
        "select range_start from tasks join jobs using (job_id) where name = $1 and stage = 1 order by range_start",
        name,
    )
    return [row["range_start"] for row in rows]


async def flow(plane: ControlPlane, name: str, *, count: int = 1000) -> int:
    """A worker that serves one job only: its wake-ups are claimed and completed; how many."""
    ids = set(await plane.tasks(name, "dispatched"))
    held = await plane.claim(list(ids)[:count])
    if held:
        await plane.complete(*held)
    return len(held)


# Room -----------------------------------------------------------------------------------------------


async def test_no_more_tasks_are_out_than_max_concurrency(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 3}"))
    await plane.emit("in", range(10))
    assert await plane.states("metered") == {"queued": 10}
    done = 0
    while await plane.meter():
        assert await plane.value("select count(*) from tasks where stage = 1") <= 3
        assert await plane.meter() == 0
        done += await flow(plane, "metered", count=2)
    assert done + await flow(plane, "metered") == 10


async def test_two_dispatchers_never_count_the_same_free_slot_twice(
    database_url: str, plane: ControlPlane
) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 4}"))
    await plane.emit("in", range(60))
    async with ControlPlane.open(database_url, wake_ups=plane.wake_ups) as other:
        for _ in range(15):
            await asyncio.gather(*(p.valve.run_once() for p in (plane, other, plane, other)))
            assert len(await out(plane, "metered")) == 4
            await flow(plane, "metered")
    assert await plane.states("metered") == {"completed": 60}


async def test_a_task_is_let_out_by_one_dispatcher_and_woken_once(
    database_url: str, plane: ControlPlane
) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 100}"))
    await plane.emit("in", range(80))
    async with ControlPlane.open(database_url, wake_ups=plane.wake_ups) as other:
        passes = await asyncio.gather(*(p.valve.run_once() for p in (plane, other) for _ in range(3)))
    assert sum(p.dispatched for p in passes) == 80
    assert sorted(await plane.send()) == await plane.tasks("metered")


async def test_an_attempt_that_was_given_up_runs_on_only_where_there_is_room(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "lease: 30s\n  scaling: {max_concurrency: 2}"))
    await plane.set_clock(0)
    await plane.emit("in", range(4))
    await plane.meter()
    held = await plane.claim(await plane.send())
    await plane.set_clock(31)
    await plane.reaper.run_once()
    assert await plane.states("metered") == {"queued": 4}
    (waiting,) = [t for t in await plane.tasks("metered", "queued") if t not in {h.task_id for h in held}][:1]
    await plane.cancel(waiting)
    assert await plane.meter() == 1
    assert await plane.heartbeat(*held) == ["ok", "stale"], "one place is taken by then"
    assert len(await out(plane, "metered")) == 2


async def test_two_given_up_attempts_of_one_scope_do_not_both_come_back(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("copy", "in", "lease: 30s"))
    held = []
    for second, emission in ((0, "a"), (31, "b")):
        await plane.set_clock(second)
        await plane.reaper.run_once()
        await plane.emit("in", [1], emission=emission)
        await plane.meter()
        held += await plane.claim(await plane.send())
    await plane.set_clock(62)
    await plane.reaper.run_once()
    assert await plane.states("copy") == {"queued": 2}
    assert sorted(await plane.heartbeat(*held)) == ["ok", "stale"]
    assert await plane.states("copy") == {"queued": 1, "running": 1}


# Order ----------------------------------------------------------------------------------------------


async def test_a_steady_job_keeps_slots_for_new_events_and_one_in_backfill_mode_does_not(
    plane: ControlPlane,
) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 8}"))
    await accept(plane, range(100, 120), backfill=True)
    await plane.meter()
    assert await out(plane, "metered") == [*range(100, 106)]
    (waiting, *_) = await plane.tasks("metered", "queued")
    assert "keeps the other of its 8 slots for new events" in str((await plane.explain(waiting)).reasons)
    await accept(plane, range(3))
    await plane.meter()
    assert await out(plane, "metered") == [0, 1, *range(100, 106)], "new events go out at once"
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 8, mode: backfill}"))
    await flow(plane, "metered")
    await plane.meter()
    assert await out(plane, "metered") == [2, *range(106, 113)], "all slots are used"


async def test_normal_work_goes_before_backfill(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 2}"))
    await accept(plane, range(100, 104), backfill=True)
    await accept(plane, range(4))
    order = []
    while await plane.meter():
        order.append(await out(plane, "metered"))
        await flow(plane, "metered")
    assert order == [[0, 1], [2, 3], [100, 101], [102, 103]]


async def test_a_job_of_backfill_priority_makes_backfill_tasks(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("history", "in", "priority: backfill"))
    await plane.emit("in", [1])
    assert await plane.value("select priority from tasks") == 1


async def test_a_retry_waits_for_its_time_and_lets_others_pass(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 1}"))
    await plane.set_clock(0)
    await plane.emit("in", [0, 1, 2])
    await plane.meter()
    held = await plane.claim(await plane.send())
    await plane.fail(*held)
    assert await plane.meter() == 1
    assert await out(plane, "metered") == [1]
    await flow(plane, "metered")
    await plane.meter()
    await flow(plane, "metered")
    await plane.set_clock(4.9)  # half of the pause of ten seconds is the least that jitter leaves
    assert await plane.meter() == 0
    await plane.set_clock(10.1)
    assert await plane.meter() == 1
    assert await out(plane, "metered") == [0]


async def test_a_crowd_on_one_scope_does_not_keep_others_waiting_for_ever(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("metered", "in", "scaling: {max_concurrency: 3}"))
    for emission in "abcdefgh":
        await plane.emit("in", [1], emission=emission)
    await plane.emit("in", [2, 3])
    await plane.meter()
    await plane.meter()
    await plane.meter()
    assert await out(plane, "metered") == [1, 2, 3]


# Backpressure ---------------------------------------------------------------------------------------


async def fill(plane: ControlPlane, name: str, depth: int) -> None:
    """Brings a job's queue to this depth, from the dataset it reads."""
    reads = await plane.value(
        "select d.dataset_id from job_inputs i join jobs j using (job_id) join datasets d using (dataset_uuid)"
        " where j.name = $1",
        name,
    )
    present = await plane.value(
        "select count(*) from tasks join jobs using (job_id) where name = $1 and state in ('queued', 'dispatched')",
        name,
    )
    start = await plane.value("select coalesce(max(range_end), 0) from events") + 1
    await accept(plane, range(start, start + depth - present), dataset=reads)


async def test_a_queue_that_trips_holds_its_producers_all_the_way_up_and_not_itself(
    plane: ControlPlane,
) -> None:
    await plane.deploy(LINE + job("aside", "second.out"))
    await fill(plane, "narrow", 10)
    held = await plane.backpressure.run_once()
    assert held.changed == 4
    assert await plane.holds() == {"third": 2, "second": 2, "first": 2, "numbers": 2}
    rows = await plane.sql("select name, path from job_holds join jobs using (job_id)")
    assert {r["name"]: r["path"] for r in rows}["first"] == ["first", "second", "third", "narrow"]


async def test_a_held_job_lets_nothing_out_while_events_are_still_accepted(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await fill(plane, "narrow", 10)
    await plane.backpressure.run_once()
    assert (await plane.emit("in", range(1000, 1005))).accepted == 5
    assert await plane.states("first") == {"queued": 5}
    await plane.valve.run_once()
    assert await plane.states("first") == {"queued": 5}
    assert len(await out(plane, "narrow")) == 1, "the job under pressure itself goes on"


async def test_the_first_level_holds_backfill_only_and_the_second_all(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await fill(plane, "narrow", 8)
    await plane.backpressure.run_once()
    assert set((await plane.holds()).values()) == {1}
    await accept(plane, range(1000, 1002))
    await accept(plane, range(2000, 2002), backfill=True)
    await plane.valve.run_once()
    assert await out(plane, "first") == [1000, 1001]
    await fill(plane, "narrow", 10)
    await plane.backpressure.run_once()
    assert set((await plane.holds()).values()) == {2}
    await accept(plane, range(1002, 1004))
    await plane.valve.run_once()
    assert await out(plane, "first") == [1000, 1001]


async def test_a_hold_ends_with_hysteresis(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await fill(plane, "narrow", 10)
    levels = []
    for _ in range(10):
        await plane.backpressure.run_once()
        levels.append((await plane.holds()).get("first", 0))
        await plane.valve.run_once()
        await flow(plane, "narrow")
    #          depth: 10 9  8  7  6  5 …
    assert levels == [2, 2, 2, 1, 1, 0, 0, 0, 0, 0]


async def test_backpressure_by_age(plane: ControlPlane) -> None:
    await plane.deploy(
        SOURCE
        + job("first", "in")
        + job("slow", "first.out", "max_queue_age: 100s\n  scaling: {max_concurrency: 1}")
    )
    await plane.set_clock(0)
    await fill(plane, "slow", 2)
    await plane.valve.run_once()
    for seconds, level in ((79, 0), (81, 1), (101, 2)):
        await plane.set_clock(seconds)
        await plane.backpressure.run_once()
        assert (await plane.holds()).get("first", 0) == level
    await flow(plane, "slow")
    await plane.valve.run_once()
    await plane.backpressure.run_once()
    assert await plane.holds() == {}


async def test_explain_names_edge_threshold_and_figure(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await fill(plane, "narrow", 12)
    await plane.backpressure.run_once()
    await plane.emit("in", [5000])
    (waiting,) = await plane.tasks("first", "queued")
    answer = await plane.explain(waiting)
    assert answer.reasons[0].code == "held"
    for said in ("narrow", "queue_depth 12", "threshold of 10", "first → second → third → narrow"):
        assert said in answer.reasons[0].sentence


async def test_a_threshold_as_large_as_a_file_may_say_is_no_trouble(plane: ControlPlane) -> None:
    await plane.deploy(
        SOURCE + job("first", "in") + job("wide", "first.out", f"max_queue_depth: {2**31 - 1}")
    )
    await fill(plane, "wide", 3)
    await plane.backpressure.run_once()
    assert await plane.holds() == {}


async def test_a_retired_job_holds_nobody(plane: ControlPlane) -> None:
    await plane.deploy(LINE)
    await fill(plane, "narrow", 20)
    await plane.backpressure.run_once()
    await plane.deploy(LINE[: LINE.index("\n- name: narrow")])
    assert await plane.holds() == {}
    await plane.emit("in", [7000])
    await plane.run_all()
    assert await plane.states("third") == {"completed": 1}


async def test_backpressure_bounds_the_queue_and_never_deadlocks(database_url: str) -> None:
    """A flood at the source and a narrow end: the queue in front of it stays at its threshold plus what was
    under way, the rest waits where it is held, and all of it arrives."""
    window, flood = 4, 80
    async with ControlPlane.open(database_url, dispatch_window=window) as plane:
        await plane.deploy(LINE)
        await plane.emit("in", range(flood))
        deepest = 0
        for _ in range(1000):
            await plane.backpressure.run_once()
            await plane.meter()
            held = await plane.claim(await plane.send())
            if held:
                await plane.complete(*held)
            states = await plane.states("narrow")
            deepest = max(deepest, states.get("queued", 0) + states.get("dispatched", 0))
            if states.get("completed") == flood:
                break
        assert await plane.states() == {"completed": 4 * flood}
        assert 10 <= deepest <= 10 + 3 * window
        await plane.backpressure.run_once()
        assert await plane.holds() == {}
