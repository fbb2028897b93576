"""Positions become ranges, each once, and waiting for a full one holds nobody."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, batches, job
from traceplane import telemetry
from traceplane.errors import ConcurrentChange
from traceplane.wire.scalars import Scope


def aggregator(name: str, reads: str, size: int, more: str = "") -> str:
    return batches(name, reads, f"{name}.ranges", size, more)


def worker(name: str, reads: str, more: str = "") -> str:
    return job(name, reads, f"{name}.out", more)


TENS = SOURCE + aggregator("tens", "in", 10) + worker("load", "tens.ranges")


async def ranges(plane: ControlPlane, job: str = "load") -> list[tuple[str, str]]:
    """(partition, kind) of the tasks that the ranges made."""
    rows = await plane.sql(
        "select partition_key, kind::text from tasks join jobs using (job_id) where name = $1 order by task_id",
        job,
    )
    return [(row["partition_key"], row["kind"]) for row in rows]


async def test_tasks_are_counted_whatever_process_accepts_their_events(plane: ControlPlane) -> None:
    def created() -> float:
        (line,) = [
            line
            for line in telemetry.render_metrics().decode().splitlines()
            if line.startswith("traceplane_tasks_created_total ")
        ]
        return float(line.split()[1])

    telemetry.configure("test")
    await plane.deploy(TENS + worker("after", "load.out"))
    before = created()
    await plane.emit("in", range(10))
    assert created() == before + 10, "the gateway"
    await plane.meter()
    assert created() == before + 11, "the dispatcher's own jobs"
    (held,) = await plane.claim(await plane.send())
    await plane.complete(held)
    assert created() == before + 12, "reports"


async def test_a_full_range_is_emitted_once(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(9))
    await plane.meter()
    assert await ranges(plane) == []
    await plane.emit("in", [9])
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]
    assert await plane.states("tens") == {"completed": 10}


async def test_a_range_waits_until_it_is_final_and_is_emitted_again_if_it_was_not(
    plane: ControlPlane,
) -> None:
    await plane.deploy(TENS.replace("{size: 10}", "{size: 10, finality: 5}"))
    await plane.emit("in", [*range(3, 14)])
    await plane.meter()
    await plane.emit("in", [14])
    await plane.meter()
    assert await ranges(plane) == []  # final, and not full
    await plane.emit("in", [0, 1, 2])
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]
    await plane.emit("in", range(15, 24))
    await plane.emit("in", [12], emission="fork")
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]  # full, and not final
    await plane.emit("in", [24])
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data"), ("10-19", "data")]
    await plane.emit("in", [7], emission="fork")
    await plane.meter()
    assert (await ranges(plane))[2:] == [("0-9", "invalidation")]
    await plane.emit("in", [45])  # a gap: nothing is full there
    await plane.meter()
    assert len(await ranges(plane)) == 3


@pytest.mark.parametrize("seed", range(3))
async def test_order_repetition_and_lateness_change_nothing(plane: ControlPlane, seed: int) -> None:
    await plane.deploy(TENS)
    chance = random.Random(seed)
    positions = [*range(30), *range(30)]
    chance.shuffle(positions)
    for start in range(0, len(positions), 7):
        await plane.emit("in", positions[start : start + 7])
        await plane.meter()
    assert sorted(await ranges(plane)) == [("0-9", "data"), ("10-19", "data"), ("20-29", "data")]


async def test_news_about_a_full_range_is_an_invalidation_of_exactly_that_range(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(25))
    await plane.meter()
    await plane.emit("in", [13, 24], emission="fork-b")  # 24 lies in a range that still waits
    await plane.meter()
    assert (await ranges(plane))[2:] == [("10-19", "invalidation")]
    await plane.emit("in", [13], emission="fork-b")  # a repetition
    await plane.meter()
    assert len(await ranges(plane)) == 3
    await plane.emit("in", [13], emission="fork-c")
    await plane.meter()
    assert (await ranges(plane))[3:] == [("10-19", "invalidation")]
    await plane.emit("in", range(25, 30))
    await plane.meter()
    assert (await ranges(plane))[4:] == [("20-29", "data")]


async def test_much_news_about_a_range_in_one_pass_is_one_event(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(20))
    await plane.meter()
    await plane.emit("in", range(10), emission="fork-b")
    await plane.emit("in", [3, 4], kind="invalidation", emission="fork-b")
    await plane.emit("in", [Scope(partition_key="8-11", start=8, end=11)], kind="invalidation")
    await plane.in_process.run_once()
    assert (await ranges(plane))[2:] == [("0-9", "invalidation"), ("10-19", "invalidation")]


async def test_news_about_a_range_before_it_is_full_is_no_event_of_its_own(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(9))
    await plane.emit("in", [3], emission="fork-b")
    await plane.emit("in", [4], kind="invalidation")
    await plane.meter()
    assert await ranges(plane) == []
    await plane.emit("in", [9])
    await plane.emit("in", [5], emission="fork-b")
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]


async def test_a_pass_that_is_rolled_back_and_repeated_says_it_once(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(10))
    await plane.meter()
    await plane.emit("in", [5], emission="fork-b")
    finish = "create or replace function fail() returns trigger language plpgsql as 'begin raise unique_violation; end'"
    async with plane.database.transaction() as tx:
        await tx.run(finish)
        await tx.run(
            "create trigger fail before update on tasks for each row when (new.state = 'completed')"
            " execute function fail()"
        )
    with pytest.raises(ConcurrentChange):
        await plane.in_process.run_once()
    assert len(await ranges(plane)) == 1
    async with plane.database.transaction() as tx:
        await tx.run("drop trigger fail on tasks")
    await plane.meter()
    await plane.meter()
    assert (await ranges(plane))[1:] == [("0-9", "invalidation")]


async def test_a_rewritten_position_recomputes_its_range_through_the_aggregator(plane: ControlPlane) -> None:
    """From the source's second word to the leaf: the position, its range, and nothing else."""
    await plane.deploy(
        SOURCE + worker("fetch", "in") + aggregator("tens", "fetch.out", 10) + worker("load", "tens.ranges")
    )
    await plane.emit("in", range(30))
    assert await plane.run_all() == 33
    await plane.emit("in", [13, 17], emission="fork-b")
    assert await plane.run_all() == 3
    assert (await ranges(plane))[3:] == [("10-19", "invalidation")]
    rows = await plane.sql(
        "select scope_key, e.kind::text from events e join datasets using (dataset_uuid)"
        " where dataset_id = 'load.out' order by event_id"
    )
    assert [tuple(r) for r in rows][3:] == [("p:10-19", "invalidation")]
    live = "select count(*) from dataset_commits where superseded_by is null and generation_id ="
    assert (
        await plane.value(
            f"{live} (select current_generation_id from datasets where dataset_id = 'fetch.out')"
        )
        == 30
    )
    assert (
        await plane.value(
            f"{live} (select current_generation_id from datasets where dataset_id = 'load.out')"
        )
        == 3
    )


async def test_a_commit_that_rewrote_a_part_of_its_scope_fills_the_rest(plane: ControlPlane) -> None:
    """Its one event is an invalidation, and yet it is the first word on most of its positions."""
    await plane.deploy(
        SOURCE + worker("fetch", "in") + aggregator("tens", "fetch.out", 10) + worker("load", "tens.ranges")
    )
    await plane.emit("in", [5])
    await plane.run_all()
    await plane.emit("in", [Scope(partition_key="0-12", start=0, end=12)])
    await plane.run_all()
    kinds = await plane.sql(
        "select distinct kind::text from tasks join jobs using (job_id) where name = 'tens'"
    )
    assert {row["kind"] for row in kinds} == {"data", "invalidation"}
    assert await ranges(plane) == [("0-9", "data")]


async def test_positions_below_zero_have_ranges_too(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(-15, 5))
    await plane.meter()
    assert await ranges(plane) == [("-10--1", "data")]


async def test_ranges_are_input_too_whole_or_in_part(plane: ControlPlane) -> None:
    twenties = aggregator("twenties", "fives.ranges", 20)
    await plane.deploy(SOURCE + aggregator("fives", "in", 5) + twenties + worker("load", "twenties.ranges"))
    await plane.emit("in", [*range(15), *range(16, 20)])
    await plane.meter()
    assert await ranges(plane) == []
    await plane.emit("in", [15])
    await plane.meter()
    assert await ranges(plane) == [("0-19", "data")]
    await plane.emit("in", [Scope(partition_key="x", start=20, end=62)])
    await plane.meter()
    assert await ranges(plane) == [("0-19", "data"), ("20-39", "data"), ("40-59", "data")]


async def test_an_invalidation_passes_on_for_exactly_the_full_ranges_it_touches(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(25))
    await plane.meter()
    await plane.emit("in", [Scope(partition_key="5-24", start=5, end=24)], kind="invalidation")
    await plane.meter()
    assert await ranges(plane) == [
        ("0-9", "data"),
        ("10-19", "data"),
        ("0-9", "invalidation"),
        ("10-19", "invalidation"),
    ]
    # A second invalidation of the same scope is news again.
    await plane.emit("in", [5], kind="invalidation", emission="fork-b")
    await plane.emit("in", [5], kind="invalidation", emission="fork-c")
    await plane.meter()
    assert (await ranges(plane))[4:] == [("0-9", "invalidation")]


async def test_an_invalidation_fills_no_range(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", range(9))
    await plane.emit("in", [9], kind="invalidation")
    await plane.meter()
    assert await ranges(plane) == []
    await plane.emit("in", [9])
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]


async def test_two_dispatchers_emit_a_range_once(database_url: str, plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    async with ControlPlane.open(database_url) as other:
        for start in range(0, 100, 10):
            await plane.emit("in", range(start, start + 10))
            await asyncio.gather(*(p.in_process.run_once() for p in (plane, other, plane, other)))
    assert len(await ranges(plane)) == 10
    assert await plane.states("tens") == {"completed": 100}


async def test_an_event_passed_on_by_the_dispatcher_keeps_scope_and_kind(plane: ControlPlane) -> None:
    joint = (
        aggregator("joint", "in", 1)
        .replace("operator: aggregator", "operator: pass")
        .replace("config: {size: 1}", "")
    )
    await plane.deploy(SOURCE + joint + worker("load", "joint.ranges"))
    await plane.emit("in", [3])
    await plane.emit("in", [Scope(partition_key="a", start=1, end=2)], kind="invalidation")
    await plane.meter()
    rows = await plane.sql(
        "select scope_key, kind::text from tasks join jobs using (job_id) where name = 'load' order by 1"
    )
    assert [tuple(row) for row in rows] == [("c:3", "data"), ("p:a", "invalidation")]


# Splitting ------------------------------------------------------------------------------------------


def splitter(name: str, reads: str) -> str:
    return (
        aggregator(name, reads, 1)
        .replace("operator: aggregator", "operator: splitter")
        .replace("config: {size: 1}", "")
        .replace(f"{name}.ranges", f"{name}.cursors")
    )


SPLIT = SOURCE + splitter("split", "in") + worker("load", "split.cursors")


async def cursors(plane: ControlPlane) -> list[tuple[int, str]]:
    rows = await plane.sql(
        "select range_start, partition_key, kind::text from tasks join jobs using (job_id)"
        " where name = 'load' order by task_id"
    )
    assert all(row["partition_key"] is None for row in rows)
    return [(row["range_start"], row["kind"]) for row in rows]


async def test_a_partition_is_split_into_its_positions(plane: ControlPlane) -> None:
    await plane.deploy(SPLIT)
    await plane.emit("in", [Scope(partition_key="3-6", start=3, end=6), 9])
    await plane.emit("in", [Scope(partition_key="4-5", start=4, end=5)], kind="invalidation")
    await plane.meter()
    assert sorted(await cursors(plane)) == [
        (3, "data"), (4, "data"), (4, "invalidation"), (5, "data"), (5, "invalidation"), (6, "data"), (9, "data"),
    ]  # fmt: skip
    assert await plane.states("split") == {"completed": 3}


async def test_a_wide_partition_is_split_over_several_passes_and_no_position_twice(
    plane: ControlPlane,
) -> None:
    await plane.deploy(SPLIT)
    await plane.emit("in", [Scope(partition_key="wide", start=0, end=4_999), 7_000])
    ran = await plane.in_process.run_once()
    assert (ran.completed, ran.emitted, ran.more) == (0, 2_000, True)
    ran = await plane.in_process.run_once()
    assert (ran.completed, ran.emitted, ran.more) == (0, 2_000, True)
    await plane.meter()
    assert sorted(n for n, _ in await cursors(plane)) == [*range(5_000), 7_000]
    assert await plane.states("split") == {"completed": 2}


async def test_positions_of_a_split_partition_read_the_rows_of_the_partition(plane: ControlPlane) -> None:
    await plane.deploy(
        SOURCE + worker("fetch", "in") + splitter("split", "fetch.out") + worker("load", "split.cursors")
    )
    await plane.emit("in", [Scope(partition_key="3-4", start=3, end=4)])
    await plane.complete(*await plane.claim(await plane.send()))
    await plane.meter()
    held = await plane.claim(await plane.send())
    assert [len(h.task.input_files[0]) for h in held] == [1, 1]


async def test_a_partition_too_wide_to_be_split_fails_alone(plane: ControlPlane) -> None:
    await plane.deploy(SPLIT)
    await plane.emit("in", [Scope(partition_key="all", start=0, end=10**15), 1])
    await plane.meter()
    assert await cursors(plane) == [(1, "data")]
    rows = await plane.sql(
        "select error from tasks join jobs using (job_id) where name = 'split' and error is not null"
    )
    assert [row["error"]["code"] for row in rows] == ["operator.range_too_wide"]


# What cannot be aggregated --------------------------------------------------------------------------


EDGES = [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("position", EDGES)
async def test_a_position_at_the_edge_of_what_can_be_counted_stops_nobody(
    plane: ControlPlane, position: int
) -> None:
    await plane.deploy(TENS + worker("other", "in"))
    await plane.emit("in", [position])
    await plane.emit("in", range(10))
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]
    rows = await plane.sql(
        "select error from tasks join jobs using (job_id) where name = 'tens' and state <> 'completed'"
    )
    assert [row["error"]["code"] for row in rows] == ["operator.range_too_wide"]


async def test_a_range_too_wide_to_be_counted_fails_alone(plane: ControlPlane) -> None:
    await plane.deploy(TENS)
    await plane.emit("in", [Scope(partition_key="all", start=0, end=10**15)])
    await plane.emit("in", range(10))
    await plane.meter()
    assert await ranges(plane) == [("0-9", "data")]
    assert await plane.states("tens") == {"completed": 10, "dead": 1}


async def test_many_wide_ranges_are_worked_off_a_share_at_a_time(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + aggregator("tens", "in", 10) + worker("load", "tens.ranges"))
    spans = [Scope(partition_key=str(n), start=n * 10_000, end=n * 10_000 + 9_999) for n in range(6)]
    await plane.emit("in", spans)
    ran = await plane.in_process.run_once()
    assert 0 < ran.completed < 6
    assert ran.more
    await plane.meter()
    assert len(await ranges(plane)) == 6_000


# Backpressure ---------------------------------------------------------------------------------------


async def test_an_aggregator_that_waits_for_a_full_range_never_holds_its_own_inputs(
    plane: ControlPlane,
) -> None:
    """Ninety-nine of a hundred have come, the job behind and the aggregator itself have thresholds far below
    that, and time passes: nothing is held, the hundredth gets through, and all of it flows on."""
    await plane.deploy(
        SOURCE
        + worker("fetch", "in")
        + aggregator("hundreds", "fetch.out", 100, "max_queue_depth: 5\n  max_queue_age: 10s")
        + worker(
            "load",
            "hundreds.ranges",
            "max_queue_depth: 1\n  max_queue_age: 10s\n  scaling: {max_concurrency: 1}",
        )
    )
    await plane.set_clock(0)
    await plane.emit("in", range(99))
    assert await plane.run_all() == 99
    await plane.set_clock(100_000)
    await plane.backpressure.run_once()
    assert await plane.holds() == {}
    assert await plane.states() == {"completed": 198}
    await plane.emit("in", [99])
    assert await plane.run_all() == 2
    assert await ranges(plane) == [("0-99", "data")]
    assert await plane.states("load") == {"completed": 1}
    await plane.backpressure.run_once()
    assert await plane.holds() == {}


async def test_a_job_behind_an_aggregator_holds_what_feeds_it_and_lets_go_again(plane: ControlPlane) -> None:
    await plane.deploy(
        SOURCE
        + worker("fetch", "in")
        + aggregator("fives", "fetch.out", 5)
        + worker("load", "fives.ranges", "max_queue_depth: 2\n  scaling: {max_concurrency: 1}")
    )
    await plane.emit("in", range(20))
    await plane.complete(*await plane.claim(await plane.send()))
    await plane.meter()
    await plane.backpressure.run_once()
    assert await plane.holds() == {"numbers": 2, "fetch": 2, "fives": 2}
    await plane.emit("in", range(20, 40))
    assert await plane.meter() == 0
    await plane.run_all()
    assert await plane.states("load") == {"completed": 8}
