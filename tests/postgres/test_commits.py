"""What becomes of a commit: read, or replaced by a later one of its scope."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.control_plane import ControlPlane, Held, completed
from tests.postgres.copy_jobs import APPEND, COPY, commit, held_for, live, readers, with_schema
from traceplane.cli.coverage import contents
from traceplane.postgres import commits, pinned, versions
from traceplane.wire.queries import CatalogQuery
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import EventOut


def span(start: int, end: int) -> Scope:
    return Scope(partition_key=f"{start}-{end}", start=start, end=end)


# Append ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
async def test_scopes_that_overlap_add_their_rows_in_turns(plane: ControlPlane, together: bool) -> None:
    """Each drops duplicates by what it was told of at its claim: of two that knew nothing of each other, one runs
    again, and knows."""
    await plane.deploy(APPEND)
    wide, narrow, apart = await held_for(plane, span(1, 3), 2, 9)
    assert wide.task.output_files == [[]]
    calls = [(held, completed(held)) for held in (wide, narrow, apart)]
    outcomes = (
        await plane.report(*calls) if together else [o for call in calls for o in await plane.report(call)]
    )
    assert sorted(outcomes) == ["committed", "committed", "retrying"]
    assert outcomes[2] == "committed"
    (again,) = await plane.claim(await plane.tasks("copy", "queued")) or await claimed_again(plane)
    assert again.task.attempt == 2
    assert len(again.task.output_files[0]) == 1
    assert await plane.complete(again) == ["committed"]
    assert len(await live(plane)) == 3


async def claimed_again(plane: ControlPlane) -> list[Held]:
    await plane.meter()
    mine = set(await plane.tasks("copy"))
    return await plane.claim([task_id for task_id in await plane.send() if task_id in mine])


# Replace --------------------------------------------------------------------------------------------


async def test_a_commit_takes_the_place_of_the_earlier_one_of_its_scope(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, 5)
    assert await readers(plane) == [("5", "data", 1)]
    await commit(plane, 5, emission="again")
    assert await readers(plane) == [("5", "invalidation", 1)]
    assert await live(plane) == ["c:5"]
    rows = await plane.sql(
        "select superseded_by, superseded_at from dataset_commits order by commit_id limit 1"
    )
    newest = await plane.value("select max(commit_id) from dataset_commits join generations using (generation_id)"
                               " join datasets using (dataset_uuid) where dataset_id = 'mid'")  # fmt: skip
    assert rows[0]["superseded_by"] == newest
    assert rows[0]["superseded_at"] is not None


async def test_each_output_has_one_event_and_its_kind_tells_whether_something_was_rewritten(
    plane: ControlPlane,
) -> None:
    await plane.deploy(COPY)
    await commit(plane, 5)
    await commit(plane, 5, emission="again")
    rows = await plane.sql(
        "select e.kind::text from events e join datasets using (dataset_uuid) where dataset_id = 'mid'"
        " order by event_id"
    )
    assert [row["kind"] for row in rows] == ["data", "invalidation"]


async def test_what_lies_within_the_scope_is_replaced_and_what_only_touches_it_is_not(
    plane: ControlPlane,
) -> None:
    await plane.deploy(COPY)
    await commit(plane, span(3, 7), span(8, 12), 4, 5, 9, 10)
    await commit(plane, span(5, 10))
    assert await live(plane) == ["p:3-7", "p:8-12", "c:4", "p:5-10"]
    await commit(plane, span(0, 20))
    assert await live(plane) == ["p:0-20"]
    assert (await readers(plane))[-1] == ("0-20", "invalidation", 1)


async def test_a_late_report_does_not_undo_what_a_later_event_brought(plane: ControlPlane) -> None:
    """A task whose lease expired is not in flight, so one of a later event may be done before it reports."""
    await plane.deploy(COPY)
    late, later = await overtaken(plane)
    assert await plane.complete(later) == ["committed"]
    assert await plane.heartbeat(late) == ["stale"]
    assert await plane.complete(late) == ["retrying"]
    assert await made_by(plane) == [later.task_id]
    (again,) = await claimed_again(plane)
    assert (again.task_id, again.task.attempt) == (late.task_id, 2)
    assert await plane.complete(again) == ["committed"]


async def test_nor_does_one_that_comes_with_the_report_of_the_later_task(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    late, later = await overtaken(plane)
    assert await plane.complete(later, late) == ["committed", "retrying"]
    assert await made_by(plane) == [later.task_id]


async def test_a_late_report_counts_before_the_task_of_a_later_event(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    late, later = await overtaken(plane)
    assert await plane.complete(late) == ["committed"]
    assert await plane.complete(later) == ["committed"]
    assert await made_by(plane) == [later.task_id]


async def overtaken(plane: ControlPlane) -> tuple[Held, Held]:
    """A task whose worker was silent for too long, and one of a later event about its scope, which runs."""
    (late,) = await held_for(plane, 5)
    await plane.sql(
        "update tasks set lease_expires_at = tp_now() - interval '1 second' where state = 'running'"
    )
    await plane.reaper.run_once()
    await plane.sql(
        "update tasks set ready_at = tp_now() + interval '1 hour' where task_id = $1", late.task_id
    )
    await plane.emit("in", [5], emission="later")
    (later,) = await claimed_again(plane)
    await plane.sql("update tasks set ready_at = tp_now() where task_id = $1", late.task_id)
    return late, later


async def made_by(plane: ControlPlane) -> list[Any]:
    """The tasks whose commits readers see."""
    rows = await plane.sql(
        "select task_id from dataset_commits join datasets on current_generation_id = generation_id"
        " where dataset_id = 'mid' and superseded_by is null"
    )
    return [row["task_id"] for row in rows]


async def test_the_same_scope_under_another_name_is_replaced_too(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, 5)
    await commit(plane, Scope(partition_key="five", start=5, end=5))
    assert await live(plane) == ["p:five"]


async def test_of_two_commits_of_one_call_the_later_takes_the_place_of_the_earlier(
    plane: ControlPlane,
) -> None:
    await plane.deploy(COPY)
    (first,) = await held_for(plane, 5)
    second, third = await held_for(plane, span(0, 9), 7)
    assert await plane.complete(first, second, third) == ["committed"] * 3
    assert await live(plane) == ["p:0-9", "c:7"]
    kinds = {scope: kind for scope, kind, _ in await readers(plane)}
    assert kinds == {"5": "data", "0-9": "invalidation", "7": "invalidation"}


async def test_a_commit_hides_the_positions_that_newer_ones_take_over(plane: ControlPlane) -> None:
    await plane.deploy(COPY)

    async def hidden() -> dict[str, str | None]:
        found = await plane.value(
            "select jsonb_object_agg(scope_key, hidden::text) from dataset_commits"
            " join datasets on current_generation_id = generation_id"
            " where dataset_id = 'mid' and superseded_by is null"
        )
        return dict(found)

    await commit(plane, span(0, 9))
    await commit(plane, 3)
    await commit(plane, span(8, 12))
    assert await hidden() == {"p:0-9": "{[3,4),[8,13)}", "c:3": None, "p:8-12": None}
    await commit(plane, 3, emission="again")
    assert (await hidden())["p:0-9"] == "{[3,4),[8,13)}"
    await commit(plane, span(0, 2))
    await commit(plane, span(4, 7))
    assert set(await hidden()) == {"p:0-2", "c:3", "p:4-7", "p:8-12"}  # nothing of 0-9 is left


async def test_rows_without_a_position_cannot_be_cut(plane: ControlPlane) -> None:
    """A commit into the middle of a wider one would mix their rows, unless a column tells them apart."""
    await plane.deploy(COPY)
    (wide,) = await held_for(plane, span(0, 9))
    assert await plane.report(with_schema(wide, n="int64")) == ["committed"]
    (narrow,) = await held_for(plane, 5)
    assert await plane.report(with_schema(narrow, n="int64")) == ["dead"]
    error = await plane.value("select error from tasks where task_id = $1", narrow.task_id)
    assert error["code"] == "commit.scope_overlaps"
    assert await live(plane) == ["p:0-9"]
    (all_of_it,) = await held_for(plane, span(0, 9), emission="again")
    assert await plane.report(with_schema(all_of_it, n="int64")) == ["committed"]
    assert await live(plane) == ["p:0-9"]


async def test_an_append_adds_to_its_scope(plane: ControlPlane) -> None:
    await plane.deploy(APPEND)
    await commit(plane, 5)
    await commit(plane, 5, emission="again")
    await commit(plane, span(0, 9))
    assert await live(plane) == ["c:5", "c:5", "p:0-9"]
    assert [kind for _, kind, _ in await readers(plane)] == ["data", "data"]  # one scope is out once
    assert [kind for _, kind, _ in await readers(plane)] == ["data"]


async def test_a_jobs_own_events_stay_as_they_are(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, 5)
    (held,) = await held_for(plane, 5, emission="again")
    await plane.report(
        (held, completed(held, EventOut(0, Scope(cursor=8)), EventOut(0, Scope(cursor=9), "invalidation")))
    )
    rows = await plane.sql(
        "select scope_key, e.kind::text from events e join datasets using (dataset_uuid)"
        " where dataset_id = 'mid' order by event_id"
    )
    assert [tuple(r) for r in rows] == [
        ("c:5", "data"),
        ("c:5", "invalidation"),
        ("c:8", "data"),
        ("c:9", "invalidation"),
    ]


async def test_one_output_reported_twice_for_a_scope_replaces_nothing(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    (held,) = await held_for(plane, 5)
    await plane.report((held, completed(held, outputs=held.outputs() * 2)))
    assert await live(plane) == ["c:5"]


async def test_status_counts_what_readers_see(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, 5)
    await commit(plane, 5, emission="again")
    status = await plane.status()
    assert {d.dataset: (d.commits, d.rows) for d in status.datasets}["mid"] == (1, 1)


async def test_a_count_of_rows_that_are_partly_replaced_says_so(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, span(0, 9))
    (before,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    assert not before.at_most
    await commit(plane, 3)
    (after,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    listed = {
        d.dataset: d for d in (await plane.api.datasets(plane._call(None, query=CatalogQuery()))).datasets
    }
    assert after.at_most
    assert listed["mid"].at_most
    assert "up to" in contents(after)


async def test_a_source_is_shown_with_its_events(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await plane.emit("in", [1, 2, 5, span(10, 19)])
    (view,) = [d for d in (await plane.status()).datasets if d.dataset == "in"]
    listed = {
        d.dataset: d for d in (await plane.api.datasets(plane._call(None, query=CatalogQuery()))).datasets
    }
    assert (view.events, view.cursor) == (4, 19)
    assert (listed["in"].events, listed["in"].cursor) == (4, 19)
    assert contents(view) == "4 events, the last at 19"
    assert listed["mid"].events is None


async def test_a_repeated_report_replaces_nothing(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    (first,) = await held_for(plane, 5)
    await plane.complete(first)
    await commit(plane, 5, emission="again")
    before = await plane.sql("select * from dataset_commits order by commit_id")
    assert await plane.complete(first) == ["committed"]
    assert await plane.sql("select * from dataset_commits order by commit_id") == before


async def test_two_dispatchers_that_commit_overlapping_scopes_leave_one_of_each(
    database_url: str, plane: ControlPlane
) -> None:
    """Whichever comes first: a narrow commit is replaced by a wide one that comes later, and never lost."""
    await plane.deploy(COPY)
    async with ControlPlane.open(database_url) as other:
        await other.authority.refresh()
        for turn in range(12):
            base = turn * 100
            narrow = await held_for(plane, *range(base, base + 10))
            (wide,) = await held_for(plane, span(base, base + 9))
            await asyncio.gather(plane.complete(*narrow), other.complete(wide))
            left = set(await live(plane))
            told = await plane.value("select e.kind::text from events e where producer_id = $1", wide.task_id)
            # The wide one came last, or the narrow ones did, of which together nothing of the wide one is left.
            narrow_scopes, wide_scope = {f"c:{n}" for n in range(base, base + 10)}, f"p:{base}-{base + 9}"
            expected = {wide_scope} if told == "invalidation" else narrow_scopes
            assert left & (narrow_scopes | {wide_scope}) == expected
            await plane.run_all()


async def test_row_counts_that_no_number_holds_together_keep_nobody_from_listing_datasets(
    plane: ControlPlane,
) -> None:
    """Row counts are the operator's word."""
    await plane.deploy(COPY)
    most = 2**63 - 1
    held = await held_for(plane, 1, 2)
    for each in held:
        (output,) = each.outputs()
        files = [msgspec.structs.replace(file, rows=most) for file in output.files]
        told = msgspec.structs.replace(output, files=files, row_count=most)
        assert await plane.report((each, completed(each, outputs=[told]))) == ["committed"]
    generation = held[0].job.outputs[0].dataset_version
    async with plane.database.transaction() as tx:
        summary = {row.dataset_id: row.rows for row in await commits.summary(tx, "default")}
        sizes = await pinned.sizes(tx, [generation])
        (weight,) = await versions.weight(tx, "default", ["mid"])
    assert (summary["mid"], sizes[generation].rows, weight.rows) == (most, most, most)
