"""Buffered datasets: completions wait for a sink, which commits rows, cursor, events and the task's end together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane, Held
from tests.hot_worker import HotWorker
from tests.postgres.hot_history import DAG, pairs, table
from traceplane.dispatcher.loops.sinks import Written
from traceplane.postgres import buffers

BUFFERED = DAG.replace("write_mode: direct, ", "")


@pytest.fixture
async def worker(database_url: str, tmp_path: Path) -> AsyncIterator[HotWorker]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.deploy(BUFFERED)
        yield HotWorker(plane, tmp_path / "objects")


async def taken(worker: HotWorker, *cursors: int, emission: str = "") -> list[Held]:
    await worker.plane.emit("in", cursors, emission=emission)
    return await worker.take("store")


async def state(worker: HotWorker, held: Held) -> str:
    return str(await worker.plane.value("select state from tasks where task_id = $1", held.task_id))


async def events(worker: HotWorker) -> list[tuple[str, str]]:
    rows = await worker.plane.sql(
        "select e.kind::text, e.scope_key from events e join datasets using (dataset_uuid)"
        " where dataset_id = 'hot' order by event_id"
    )
    return [(row["scope_key"], row["kind"]) for row in rows]


async def test_a_sink_commits_rows_events_and_the_end_of_the_task(worker: HotWorker) -> None:
    one, two = await taken(worker, 1, 2)
    done = worker.done(one, table((1, 10), (1, 11)), table((1, 12)))
    assert await worker.plane.report((one, done)) == ["buffered"]
    assert await worker.plane.report((one, done)) == ["buffered"]  # said again: nothing changes
    assert await worker.store(two, table((2, 20))) == "buffered"
    assert await worker.table("hot") == []
    assert await events(worker) == []
    assert await state(worker, one) == "running"
    assert (await worker.plane.sink()).reports == 2
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11), (1, 12), (2, 20)]
    assert await events(worker) == [("c:1", "data"), ("c:2", "data")]
    assert await state(worker, one) == "completed"
    assert await worker.plane.report((one, done)) == ["committed"]
    assert await worker.plane.value("select count(*) from buffered_reports") == 0


async def test_a_reorganization_goes_through_the_buffer(worker: HotWorker) -> None:
    for emission, n in (("a", 10), ("b", 20)):
        [held] = await taken(worker, 1, emission=emission)
        assert await worker.store(held, table((1, n))) == "buffered"
        await worker.plane.sink()
    assert pairs(await worker.table("hot")) == [(1, 20)]
    assert await events(worker) == [("c:1", "data"), ("c:1", "invalidation")]


async def test_a_scope_stays_busy_until_its_rows_are_written(worker: HotWorker) -> None:
    [held] = await taken(worker, 1, emission="a")
    await worker.store(held, table((1, 10)))
    assert await taken(worker, 1, emission="b") == []
    await worker.plane.sink()
    [held] = await worker.take("store")
    await worker.store(held, table((1, 20)))
    await worker.plane.sink()
    assert pairs(await worker.table("hot")) == [(1, 20)]


async def test_what_was_published_counts_when_the_attempt_completes_and_not_before(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    first = worker.manifest(held, table((1, 1)), table((1, 2)))
    assert await worker.plane.publish(held, 0, first) == "ok"
    assert await worker.plane.publish(held, 0, first) == "ok"  # once, however often it is said
    assert (await worker.plane.sink()).reports == 0
    last = worker.done(held)
    assert await worker.plane.report((held, last)) == ["buffered"]
    await worker.plane.sink()
    assert pairs(await worker.table("hot")) == [(1, 1), (1, 2)]
    assert await worker.plane.value("select count(*) from buffered_batches") == 0


async def test_a_stale_attempt_publishes_and_completes_nothing(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    assert await worker.plane.fail(held) == ["retrying"]
    await worker.plane.sql("update tasks set ready_at = tp_now()")
    [again] = await worker.take("store")
    assert await worker.plane.publish(held, 0, worker.manifest(held, table((1, 1)))) == "stale"
    assert await worker.store(held, table((1, 1))) == "stale"
    assert await worker.store(again, table((1, 2))) == "buffered"
    await worker.plane.sink()
    assert pairs(await worker.table("hot")) == [(1, 2)]


async def test_rows_that_do_not_fit_become_a_dead_letter_and_others_go_on(worker: HotWorker) -> None:
    good, bad, late = await taken(worker, 1, 2, 3)
    await worker.store(good, table((1, 10)))
    await worker.store(bad, table((99, 1)))
    await worker.store(late, table((3, 30)))
    assert await worker.plane.sink() == Written(reports=2, dead=1)
    assert pairs(await worker.table("hot")) == [(1, 10), (3, 30)]
    assert await state(worker, bad) == "dead"
    assert (await worker.error(bad))["code"] == "commit.rows_unfit"
    [letter] = await worker.plane.sql("select failure, failed_at from buffered_reports")
    assert "outside the task's scope" in letter["failure"]["message"]
    assert letter["failed_at"] is not None


async def test_a_retried_task_replaces_its_dead_letter(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    await worker.store(held, table((99, 1)))
    await worker.plane.sink()
    assert await worker.plane.retry(held.task_id)
    [again] = await worker.take("store")
    assert await worker.store(again, table((1, 1))) == "buffered"
    await worker.plane.sink()
    assert pairs(await worker.table("hot")) == [(1, 1)]
    assert await worker.plane.value("select count(*) from buffered_reports") == 0


async def test_a_file_that_cannot_be_read_now_is_tried_again_later(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    done = worker.done(held, table((1, 1)))
    [file] = done.outputs[0].files
    path = worker.objects / file.path
    hidden = path.rename(path.with_suffix(".hidden"))
    await worker.plane.report((held, done))
    assert (await worker.plane.sink()).postponed == 1
    assert await state(worker, held) == "running"
    hidden.rename(path)
    assert (await worker.plane.sink()).reports == 0  # not before its time
    await worker.plane.sql("update buffered_reports set ready_at = tp_now()")
    assert (await worker.plane.sink()).reports == 1
    assert pairs(await worker.table("hot")) == [(1, 1)]


async def test_a_canceled_task_leaves_the_buffer(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    await worker.store(held, table((1, 1)))
    await worker.plane.cancel(held.task_id)
    await worker.plane.sink()
    assert await state(worker, held) == "canceled"
    assert await worker.table("hot") == []
    assert await worker.plane.value("select count(*) from buffered_reports") == 0


async def test_one_sink_at_a_time_writes_a_dataset(
    worker: HotWorker, database_url: str, tmp_path: Path
) -> None:
    [held] = await taken(worker, 1)
    await worker.store(held, table((1, 1)))
    async with ControlPlane.open(database_url, home=tmp_path) as other:
        async with other.database.autocommit() as tx:
            assert len(await buffers.lease(tx, other.sinks._holder, timedelta(seconds=60))) == 1
        assert (await worker.plane.sink()).reports == 0
        await other.sinks.finish()
        assert (await worker.plane.sink()).reports == 1


async def test_the_platform_ends_the_order_of_publication(worker: HotWorker) -> None:
    held = await taken(worker, *range(20))
    for one in held:
        assert one.task.scope is not None
        await worker.store(one, table((one.task.scope.first, 1)))
    assert (await worker.plane.sink()).reports == 20
    assert [scope for scope, _ in await events(worker)] == [f"c:{n}" for n in range(20)]


KEYED = BUFFERED.replace("position: block,", "position: block, unique_key: [block, n], indexes: [[name]],")


async def test_a_key_that_is_written_twice_is_refused_by_its_name(worker: HotWorker) -> None:
    await worker.plane.deploy(KEYED)
    await worker.plane.builds.run_once()
    good, bad = await taken(worker, 1, 2)
    await worker.store(good, table((1, 10), (1, 11)))
    await worker.store(bad, table((2, 20), (2, 20)))
    assert await worker.plane.sink() == Written(reports=1, dead=1)
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11)]
    assert "(block, n)=(2, 20)" in (await worker.error(bad))["message"]


async def test_an_append_takes_the_place_of_rows_with_the_same_key(worker: HotWorker) -> None:
    append = "outputs: [{dataset: hot}]\n  update_strategy: append\n  unique_key: [block, n]"
    await worker.plane.deploy(KEYED.replace("outputs: [{dataset: hot}]", append))
    await worker.plane.builds.run_once()
    for emission, name in (("a", "first"), ("b", "second")):
        [held] = await taken(worker, 1, emission=emission)
        rows = table((1, 10), (1, 20))
        await worker.store(held, rows.set_column(2, "name", [[name] * 2]))
        await worker.plane.sink()
    assert [(row["n"], row["name"]) for row in await worker.table("hot")] == [(10, "second"), (20, "second")]


async def test_a_task_in_a_buffer_is_explained(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    await worker.store(held, table((1, 1)))
    [reason] = (await worker.plane.explain(held.task_id)).reasons
    assert (reason.code, reason.sentence) == ("buffered", "Attempt 1 is done; its rows wait for a sink.")
