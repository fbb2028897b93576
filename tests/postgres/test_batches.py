"""Batches that a time, the end of the work before, or somebody closes: each position is in exactly one of them, and a
change recomputes exactly the batch that has it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, job
from traceplane.errors import Conflict, InvalidInput, SpecInvalid
from traceplane.wire.control import ManualEvent
from traceplane.wire.jobs import JobName
from traceplane.wire.scalars import Scope


def bulk(batch: str, *more: str) -> str:
    return SOURCE + job("sum", "in", "out", "execution_strategy: Bulk", f"batch: {batch}", *more)


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        yield opened


async def batches(plane: ControlPlane) -> list[str]:
    """The batches of the job's tasks, in the order of their creation; `!` marks an invalidation."""
    rows = await plane.sql(
        "select partition_key, kind::text from tasks join jobs using (job_id) where name = 'sum' order by task_id"
    )
    return [row["partition_key"] + ("!" if row["kind"] == "invalidation" else "") for row in rows]


async def settle(plane: ControlPlane) -> None:
    await plane.meter()
    await plane.batch_closer.run_once()
    await plane.meter()


async def close(plane: ControlPlane, job: str = "sum") -> list[tuple[int, int]]:
    answer = await plane.api.jobs.close_batches(plane._call(JobName("main", job)))
    await settle(plane)
    return [(one.first, one.last) for one in answer.closing]


async def test_every_closes_what_arrived_so_long_after_the_first_of_it(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ every: 5m }"))
    await plane.emit("in", [1, 2])
    await settle(plane)
    await plane.set_clock(200)
    await plane.emit("in", [3])
    await settle(plane)
    await plane.set_clock(299)
    await settle(plane)
    assert await batches(plane) == []
    await plane.set_clock(300)
    await settle(plane)
    assert await batches(plane) == ["1-3"]
    await plane.set_clock(1000)
    await settle(plane)
    await plane.emit("in", [4])
    await settle(plane)
    assert await batches(plane) == ["1-3"], "the next one begins with its first position"
    await plane.set_clock(1300)
    await settle(plane)
    assert await batches(plane) == ["1-3", "4-4"]


async def test_all_closes_what_arrived_while_the_batch_before_was_computed(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ all: true }"))
    await plane.emit("in", [1])
    await settle(plane)
    assert await batches(plane) == ["1-1"]
    (held,) = await plane.claim(await plane.send())
    for position in (2, 3, 4):
        await plane.emit("in", [position])
        await settle(plane)
    assert await batches(plane) == ["1-1"]
    await plane.complete(held)
    await settle(plane)
    assert await batches(plane) == ["1-1", "2-4"]


async def test_positions_between_batches_belong_to_one_and_a_change_recomputes_exactly_it(
    plane: ControlPlane,
) -> None:
    await plane.deploy(bulk("{ every: 5m }"))
    for clock, positions in ((0, [10, 20, 30]), (1000, [50, 70]), (2000, [5])):
        await plane.set_clock(clock)
        await plane.emit("in", positions)
        await settle(plane)
        await plane.set_clock(clock + 300)
        await settle(plane)
    assert await batches(plane) == ["10-30", "31-70", "5-9"]
    await plane.emit("in", [40])
    await plane.emit("in", [20], emission="again")
    await settle(plane)
    assert (await batches(plane))[3:] == ["10-30!", "31-70!"]
    await plane.emit("in", [Scope(partition_key="x", start=8, end=12)], kind="invalidation")
    await settle(plane)
    assert (await batches(plane))[5:] == ["5-9!", "10-30!"]


async def test_a_range_that_never_fills_is_closed_after_max_wait_and_its_rest_fills_on(
    plane: ControlPlane,
) -> None:
    await plane.deploy(bulk("{ size: 10, max_wait: 1h }"))
    await plane.emit("in", [0, 1, 4, *range(10, 20)])
    await settle(plane)
    assert await batches(plane) == ["10-19"]
    await plane.set_clock(3600)
    await settle(plane)
    assert await batches(plane) == ["10-19", "0-4"]
    await plane.emit("in", [2])
    await plane.emit("in", [5, 6, 7, 8])
    await settle(plane)
    assert (await batches(plane))[2:] == ["0-4!"]
    await plane.emit("in", [9])
    await settle(plane)
    assert (await batches(plane))[3:] == ["5-9"]
    assert await plane.value("select count(*) from open_batches") == 0


async def test_batches_are_closed_by_hand(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ size: 10 }"))
    await plane.emit("in", [0, 1, 2, 25])
    await settle(plane)
    assert await batches(plane) == []
    assert await close(plane) == [(0, 2), (20, 25)]
    assert await batches(plane) == ["0-2", "20-25"]
    assert await close(plane, "sum__batch") == []
    assert len(await batches(plane)) == 2
    await plane.emit("in", range(3, 10))
    await settle(plane)
    assert (await batches(plane))[2:] == ["3-9"]


async def test_the_range_in_which_a_dataset_starts_begins_there(plane: ControlPlane) -> None:
    starts = "datasets: {in: {partitions: {by: day, start: 2030-01-04}}}\n"
    await plane.deploy(bulk("{ size: 5 }") + starts)
    await plane.emit_events([ManualEvent("in", partition=f"2030-01-0{day}") for day in (4, 6, 7)])
    await settle(plane)
    assert await batches(plane) == []
    answer = await plane.explain_scope("out", "2030-01-04", "2030-01-04")
    assert ["It waits for 2030-01-05." in r.sentence for r in answer.reasons if r.code == "open_batch"] == [
        True
    ]
    await plane.emit_events([ManualEvent("in", partition="2030-01-05")])
    await settle(plane)
    assert await batches(plane) == ["2030-01-04..2030-01-05"]
    await close(plane)
    assert await batches(plane) == ["2030-01-04..2030-01-05", "2030-01-06..2030-01-07"]


async def test_a_range_that_begins_at_the_start_is_backfilled_and_rebuilt(plane: ControlPlane) -> None:
    starts = "datasets: {in: {partitions: {by: position, start: 3}}}\n"
    await plane.deploy(bulk("{ size: 5 }") + starts)
    await plane.backfill("out", 4, 7)
    assert await batches(plane) == ["3-4", "5-9"]
    await plane.run_all()
    await plane.deploy((bulk("{ size: 5 }") + starts).replace("basic:copy", "basic:nothing"))
    for _ in range(3):
        await plane.builds.run_once()
        await plane.run_all()
    await plane.builds.run_once()
    assert (await batches(plane))[2:] == ["3-4", "5-9"]
    newest, *_ = await plane.versions("main")
    assert newest.state == "active"


async def test_only_a_job_with_batches_has_some_to_close(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("sum", "in", "out"))
    with pytest.raises(Conflict, match=r"job\.no_batches"):
        await close(plane)


async def test_explain_names_the_manifest_of_a_batch(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ every: 5m }"))
    await plane.emit("in", [1, 2, 3, 7])
    await settle(plane)
    await plane.set_clock(300)
    await settle(plane)
    (task,) = await plane.tasks("sum")
    (reason,) = [r for r in (await plane.explain(task)).reasons if r.code == "batch"]
    assert reason.sentence == (
        "It is the batch 1-7 of in, closed at its time at 2030-01-01 00:05:00+00:00; it covers 1-3, 7."
    )


async def test_a_rebuild_does_not_compute_the_old_batches_beside_a_wider_one(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ all: true }"))
    for position in range(3):
        await plane.emit("in", [position])
        await settle(plane)
        await plane.run_all()
    assert await batches(plane) == ["0-0", "1-1", "2-2"]
    await plane.deploy(bulk("{ every: 5m }"))
    for clock in (0, 300):
        await plane.set_clock(clock)
        await plane.builds.run_once()
        await settle(plane)
    held = await plane.claim(await plane.send())
    assert [task.task.scope.partition_key for task in held if task.task.scope] == ["0-2"]
    for _ in range(2):
        await plane.builds.run_once()
        await plane.meter()
    await plane.complete(*held)
    await plane.builds.run_once()
    assert (await batches(plane))[3:] == ["0-2"]


@pytest.mark.parametrize(
    ("by", "partitions", "batch", "arrived"),
    [
        (
            "day",
            ["2030-01-01", "2030-01-02", "2030-01-05"],
            "2030-01-01..2030-01-05",
            "2030-01-01..2030-01-02, 2030-01-05",
        ),
        ("name", ["eu", "us"], "eu, us", "eu, us"),
    ],
)
async def test_what_is_in_a_batch_is_written_as_partitions(
    plane: ControlPlane, by: str, partitions: list[str], batch: str, arrived: str
) -> None:
    await plane.deploy(bulk("{ every: 5m }") + f"datasets: {{in: {{partitions: {{by: {by}}}}}}}\n")
    await plane.emit_events([ManualEvent("in", partition=name) for name in partitions])
    await plane.meter()
    answer = await plane.api.jobs.close_batches(plane._call(JobName("main", "sum")))
    assert [one.scope for one in answer.closing] == [batch]
    await settle(plane)
    (task,) = await plane.tasks("sum")
    (reason,) = [r for r in (await plane.explain(task)).reasons if r.code == "batch"]
    assert reason.sentence.endswith(f"it covers {arrived}.")


async def test_a_paused_or_held_aggregator_closes_nothing(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ every: 5m }"))
    await plane.emit("in", [1])
    await settle(plane)
    await plane.pause("main", "sum__batch")
    await plane.set_clock(300)
    await settle(plane)
    assert await batches(plane) == []
    await plane.resume("main", "sum__batch")
    await settle(plane)
    assert await batches(plane) == ["1-1"]


async def test_only_backfills_make_a_batch_a_backfill(plane: ControlPlane) -> None:
    copied = SOURCE + job("copy", "in", "mid")
    text = copied + job("sum", "mid", "out", "execution_strategy: Bulk", "batch: { every: 5m }")
    await plane.deploy(text)
    await plane.backfill("mid", 0, 2)
    await plane.run_all()
    await plane.set_clock(300)
    await settle(plane)
    assert await plane.value("select backfill from tasks join jobs using (job_id) where name = 'sum'")
    with pytest.raises(InvalidInput, match=r"backfill\.open_batches"):
        await plane.backfill("out", 0, 2)


async def test_a_rebuild_covers_what_serves_however_its_batches_are_cut(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ all: true }"))
    for position in (1, 4, 9):
        await plane.emit("in", [position])
        await settle(plane)
        await plane.run_all()
    assert await batches(plane) == ["1-1", "2-4", "5-9"]
    await plane.deploy(bulk("{ every: 5m }"))
    for clock in (0, 300, 600):
        await plane.set_clock(clock)
        await plane.builds.run_once()
        await settle(plane)
        await plane.run_all()
    await plane.builds.run_once()
    assert await batches(plane) == ["1-1", "2-4", "5-9", "1-9"]
    newest, *_ = await plane.versions("main")
    assert newest.state == "active"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch", ["{ every: 5m }", "{ all: true }", "{ size: 7, max_wait: 5m }"])
async def test_whatever_arrives_each_position_is_in_one_batch(
    plane: ControlPlane, batch: str, seed: int
) -> None:
    await plane.deploy(bulk(batch))
    chance, clock, arrived = random.Random(seed), 0.0, set()
    for _ in range(12):
        first = chance.randrange(-20, 60)
        last = first + chance.choice([0, 0, 3, 9])
        scope = Scope(partition_key=f"{first}-{last}", start=first, end=last) if last > first else first
        await plane.emit("in", [scope], emission=str(clock))
        arrived |= {*range(first, last + 1)}
        clock += chance.choice([0, 100, 301])
        await plane.set_clock(clock)
        await settle(plane)
        if chance.random() < 0.5:
            await plane.run_all()
    for _ in range(3):
        clock += 301
        await plane.set_clock(clock)
        await settle(plane)
        await plane.run_all()
    rows = await plane.sql("select range_start, range_end from known_scopes")
    covered = [p for r in rows for p in range(r["range_start"], r["range_end"] + 1)]
    assert len(covered) == len(set(covered)), "batches do not overlap"
    assert arrived <= set(covered)
    assert await plane.states("sum") == {"completed": len(await batches(plane))}


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        ("{}", "spec.bad_batch"),
        ("{ size: 10, every: 5m }", "spec.bad_batch"),
        ("{ all: false }", "spec.bad_batch"),
        ("{ every: 5m, max_wait: 1h }", "spec.batch_needs_size"),
        ("{ all: true, finality: 3 }", "spec.batch_needs_size"),
    ],
)
async def test_a_batch_is_cut_in_one_way(plane: ControlPlane, batch: str, code: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(bulk(batch), file="sums.yaml")
    assert [problem.code for problem in refused.value.problems] == [code]
    assert "sums.yaml:12:10" in str(refused.value.problems[0])


async def test_changing_a_time_rebuilds_nothing(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ every: 5m }"))
    assert not (await plane.deploy(bulk("{ every: 10m }"))).building


async def test_a_batch_that_a_build_collects_too_is_named_once(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ every: 5m }"))
    await plane.emit("in", [1, 2])
    await settle(plane)
    await plane.deploy(bulk("{ every: 5m }").replace("basic:copy", "basic:nothing"), manual_cutover=True)
    await plane.builds.run_once()
    await settle(plane)
    assert await close(plane) == [(1, 2)]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ("{ size: 10 }", "an open batch of in has 2-4, 7. It waits for 0-1, 5-6, 8-9."),
        (
            "{ size: 10, max_wait: 1h }",
            "an open batch of in has 2-4, 7. It waits for 0-1, 5-6, 8-9, and is closed as it is at "
            "2030-01-01 01:00:00 UTC.",
        ),
        (
            "{ every: 5m }",
            "an open batch of in has 2-4, 7. It is closed at 2030-01-01 00:05:00 UTC.",
        ),
        (
            "{ size: 3, finality: 2 }",
            "an open batch of in has 7. It waits for 6, 8.",
        ),
        ("{ all: true }", "an open batch of in has 2-4, 7. It is closed when sum has done the batch before."),
    ],
)
async def test_explain_says_what_an_open_batch_has_and_waits_for(
    plane: ControlPlane, batch: str, expected: str
) -> None:
    await plane.deploy(bulk(batch))
    await plane.emit("in", [2, 3, 4, 7])
    await plane.meter()
    answer = await plane.explain_scope("out", 7, 7)
    assert [r.sentence for r in answer.reasons if r.code == "open_batch"] == [
        f"in#sum.batches lacks 7: {expected} `traceplane batch close main sum` closes it at once."
    ]


async def test_a_full_batch_that_waits_for_finality_says_so(plane: ControlPlane) -> None:
    await plane.deploy(bulk("{ size: 3, finality: 2 }"))
    await plane.emit("in", [0, 1, 2])
    await plane.meter()
    reasons = (await plane.explain_scope("out", 0, 2)).reasons
    (sentence,) = [r.sentence for r in reasons if r.code == "open_batch"]
    assert "has 0-2. It waits for a position 2 beyond its end." in sentence
