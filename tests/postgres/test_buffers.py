"""Buffered datasets: completions wait for a sink, which commits rows, cursor, events and the task's end together."""

from __future__ import annotations

import random
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.control_plane import ControlPlane, Held
from tests.hot_worker import HotWorker
from tests.postgres.hot_history import DAG, pairs, span, table
from traceplane.dispatcher.leases import hot_writes
from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.dispatcher.loops import sinks
from traceplane.dispatcher.loops.sinks import Written
from traceplane.errors import InvalidInput
from traceplane.postgres import buffers
from traceplane.wire.tasks import OutputManifest

BUFFERED = DAG.replace("write_mode: direct, ", "")


@pytest.fixture
async def worker(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HotWorker]:
    # Nobody renews the leases of sinks here, and on a busy machine rows may take longer to read than one lasts.
    monkeypatch.setattr(sinks, "_LEASE", timedelta(hours=1))
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


async def test_nothing_is_published_once_the_attempt_was_handed_over(worker: HotWorker) -> None:
    """It would never count."""
    [held] = await taken(worker, 1)
    first, late = (worker.manifest(held, table((1, n))) for n in (1, 2))
    assert await worker.plane.publish(held, 0, first) == "ok"
    assert await worker.plane.report((held, worker.done(held))) == ["buffered"]
    assert await worker.plane.publish(held, 1, late) == "stale"
    assert await worker.plane.publish(held, 0, first) == "stale"
    assert await worker.plane.value("select count(*) from buffered_batches") == 1


async def test_counts_of_batches_do_not_add_up_to_more_than_a_number_holds(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    batch = worker.manifest(held)
    await worker.plane.publish(held, 0, msgspec.structs.replace(batch, row_count=10**15, bytes=10**15))
    await worker.plane.sql(
        "insert into buffered_batches (task_id, attempt, batch, output)"
        " select task_id, attempt, n, output from buffered_batches, generate_series(1, 9300) n"
    )
    assert await worker.plane.report((held, worker.done(held))) == ["buffered"]
    assert await worker.plane.sink() == Written(reports=1)
    [commit] = await worker.plane.sql("select bytes from dataset_commits")
    assert commit["bytes"] == 2**63 - 1


@pytest.mark.parametrize(("field", "of_file"), [("row_count", "rows"), ("bytes", "bytes")])
async def test_more_than_anybody_writes_is_refused(worker: HotWorker, field: str, of_file: str) -> None:
    [held] = await taken(worker, 1)
    manifest = msgspec.to_builtins(worker.manifest(held, table((1, 1))))
    for wrong in (
        {**manifest, field: 10**15 + 1},
        {**manifest, "files": [{**manifest["files"][0], of_file: 2**63 - 1}]},
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(wrong), type=OutputManifest)


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


def meanwhile(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[None]]
) -> None:
    """Something happens between the moments in which the next sink has read rows and writes them."""
    reports = worker.plane.leases.reports
    read_rows = reports.with_rows

    async def read(calls: Sequence[CompletionCall]) -> list[CompletionCall]:
        monkeypatch.setattr(reports, "with_rows", read_rows)
        calls = await read_rows(calls)
        await happens()
        return list(calls)

    monkeypatch.setattr(reports, "with_rows", read)


@pytest.mark.parametrize("completes", [True, False])
async def test_a_late_sink_leaves_what_a_later_attempt_has_handed_over(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch, completes: bool
) -> None:
    """The lease of the first attempt had expired; its report counted until the second one was claimed."""
    plane = worker.plane
    (first,) = await taken(worker, 1)
    await plane.sql("update tasks set lease_expires_at = tp_now() - interval '1 second'")
    await plane.reaper.run_once()
    await plane.sql("update tasks set ready_at = tp_now()")
    assert await worker.store(first, table((1, 10))) == "buffered"
    second: list[Held] = []

    async def overtake() -> None:
        second.extend(await worker.take("store"))
        batch = worker.manifest(second[0], table((1, 20)))
        assert await plane.publish(second[0], 0, batch) == "ok"
        if completes:
            assert await worker.store(second[0]) == "buffered"

    meanwhile(worker, monkeypatch, overtake)
    await plane.sink()
    if not completes:
        assert await worker.store(second[0]) == "buffered"
    await plane.sink()
    assert await state(worker, first) == "completed"
    assert pairs(await worker.table("hot")) == [(1, 20)]


async def test_a_late_sink_leaves_the_dead_letter_that_another_has_made(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch, database_url: str, tmp_path: Path
) -> None:
    plane = worker.plane
    (bad,) = await taken(worker, 1)
    assert await worker.store(bad, table((7, 70))) == "buffered"
    async with ControlPlane.open(database_url, home=tmp_path) as other:

        async def overtake() -> None:
            await plane.sql("update sink_leases set expires_at = tp_now() - interval '1 second'")
            assert (await other.sink()).dead == 1

        meanwhile(worker, monkeypatch, overtake)
        await plane.sink()
    assert await state(worker, bad) == "dead"
    assert await plane.value("select count(*) from buffered_reports where failed_at is not null") == 1


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
    await worker.store(bad, table((2, 20), (2, 20), (2, 20), (2, 21), (2, 21), (2, 22)))
    assert await worker.plane.sink() == Written(reports=1, dead=1)
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11)]
    error = await worker.error(bad)
    assert error["message"] == (
        "3 rows have the same unique_key (block = 2, n = 20), and 1 other key is repeated too"
    )
    assert "write one row for each key" in error["next_step"]


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


UPSERTED = KEYED.replace(
    "outputs: [{dataset: hot}]",
    "outputs: [{dataset: hot}]\n  update_strategy: append\n  unique_key: [block, n]",
)


def named(name: str, *rows: tuple[int, int]) -> pa.Table:
    return table(*rows).set_column(2, "name", pa.array([name] * len(rows)))


async def upserting(worker: HotWorker) -> None:
    await worker.plane.deploy(UPSERTED)
    await worker.plane.builds.run_once()


@pytest.mark.parametrize("known", [False, True], ids=["new keys", "known keys"])
async def test_rows_that_postgres_refuses_end_their_own_task_and_no_other(
    worker: HotWorker, known: bool
) -> None:
    await upserting(worker)
    if known:
        for held in await taken(worker, 1, 2, 3, emission="a"):
            await worker.store(held, table((held.scope.first, 1)))
        await worker.plane.sink()
    one, bad, three = await taken(worker, 1, 2, 3, emission="b")
    await worker.store(one, named("b", (1, 1)))
    await worker.store(bad, named("b", (2, 1), (2, 1)))
    await worker.store(three, named("b", (3, 1)))
    assert await worker.plane.sink() == Written(reports=2, dead=1)
    assert await state(worker, bad) == "dead"
    error = await worker.error(bad)
    assert error["code"] == "commit.rows_unfit"
    assert error["message"] == "2 rows have the same unique_key (block = 2, n = 1)"
    rows = {row["block"]: row["name"] for row in await worker.table("hot")}
    assert rows == {1: "b", 3: "b"} | ({2: "n1"} if known else {})


@pytest.mark.parametrize("deployed", [KEYED, UPSERTED], ids=["replace", "upsert"])
async def test_a_value_too_long_for_an_index_ends_its_own_task_at_once(
    worker: HotWorker, deployed: str
) -> None:
    await worker.plane.deploy(deployed)
    await worker.plane.builds.run_once()
    one, bad = await taken(worker, 1, 2)
    await worker.store(one, named("a", (1, 1)))
    await worker.store(bad, named("".join(random.choices(string.printable[:90], k=9000)), (2, 1)))
    assert await worker.plane.sink() == Written(reports=1, dead=1)
    error = await worker.error(bad)
    assert error["code"] == "commit.rows_unfit"
    assert "shorten the value" in error["message"]
    assert pairs(await worker.table("hot")) == [(1, 1)]


@pytest.mark.parametrize("deployed", [BUFFERED, UPSERTED], ids=["replace", "upsert"])
async def test_where_scopes_overlap_the_task_that_completed_last_wins(
    worker: HotWorker, deployed: str
) -> None:
    await worker.plane.deploy(deployed)
    await worker.plane.builds.run_once()
    await worker.plane.emit("in", [span(1, 3), span(3, 5), span(5, 6), 9])
    held = {h.scope.first: h for h in await worker.take("store")}
    for first in (3, 9, 1, 5):
        one = held[first]
        await worker.store(
            one, named(f"from {first}", *((p, 1) for p in range(one.scope.first, one.scope.last + 1)))
        )
    assert (await worker.plane.sink()).reports == 4
    rows = {row["block"]: row["name"] for row in await worker.table("hot")}
    assert rows == {1: "from 1", 2: "from 1", 3: "from 1", 4: "from 3", 5: "from 5", 6: "from 5", 9: "from 9"}


async def test_batches_commit_in_their_order_though_the_next_is_read_ahead(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_MOST_REPORTS", 2)
    held = await taken(worker, *range(7))
    for one in held:
        await worker.store(one, table((99 if one.scope.first == 3 else one.scope.first, 1)))
    assert await worker.plane.sink() == Written(reports=6, dead=1)
    assert [scope for scope, _ in await events(worker)] == [f"c:{n}" for n in (0, 1, 2, 4, 5, 6)]


async def test_a_task_in_a_buffer_is_explained(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    await worker.store(held, table((1, 1)))
    [reason] = (await worker.plane.explain(held.task_id)).reasons
    assert (reason.code, reason.sentence) == ("buffered", "Attempt 1 is done; its rows wait for a sink.")


async def made_direct(worker: HotWorker) -> None:
    """The dataset stays the same, but its rows are written with the commit from now on."""
    await worker.plane.deploy(DAG)
    await worker.plane.builds.run_once()
    worker.plane.leases._hot._known.clear()


async def test_rows_are_published_only_where_a_sink_looks_for_them(worker: HotWorker) -> None:
    await made_direct(worker)
    [held] = await taken(worker, 1)
    with pytest.raises(InvalidInput, match=r"task\.output_not_buffered"):
        await worker.plane.publish(held, 0, worker.manifest(held, table((1, 1))))
    assert await worker.store(held, table((1, 2))) == "committed"


async def test_what_was_published_counts_although_a_deploy_made_the_output_direct(worker: HotWorker) -> None:
    publishes, other = await taken(worker, 1, 2)
    assert await worker.plane.publish(publishes, 0, worker.manifest(publishes, table((1, 1)))) == "ok"
    await made_direct(worker)
    done = worker.done(publishes)
    assert await worker.plane.report((other, worker.done(other, table((2, 2)))), (publishes, done)) == [
        "committed",
        "buffered",
    ]
    assert (await worker.plane.sink()).reports == 1
    assert pairs(await worker.table("hot")) == [(1, 1), (2, 2)]
    assert await state(worker, publishes) == "completed"
    assert await worker.plane.report((publishes, done)) == ["committed"]
    assert await worker.plane.value("select count(*) from buffered_batches") == 0


async def test_a_failed_try_is_explained_by_its_code(worker: HotWorker) -> None:
    [held] = await taken(worker, 1)
    done = worker.done(held, table((1, 1)))
    (worker.objects / done.outputs[0].files[0].path).unlink()
    await worker.plane.report((held, done))
    await worker.plane.sink()
    [reason] = (await worker.plane.explain(held.task_id)).reasons
    assert reason.sentence.endswith("The last try failed with commit.file_unreadable.")


async def test_a_buffer_takes_more_at_once_than_a_commit_would(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_writes, "MOST_BYTES", 20)
    monkeypatch.setattr(hot_writes, "MOST_BUFFERED_BYTES", 2000)
    one, two = await taken(worker, 1, 2)
    await worker.store(one, table(*((1, n) for n in range(10, 30))))
    await worker.store(two, table(*((2, n) for n in range(1000, 2000))))
    assert await worker.plane.sink() == Written(reports=1, dead=1)
    assert (await worker.error(two))["code"] == "commit.too_large"
