"""What becomes of a commit: read, replaced by a later one of its scope, or refused for what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.control_plane import ControlPlane, Held, completed
from tests.dags import SOURCE, job
from traceplane.cli.coverage import contents
from traceplane.dispatcher.loops.source_monitor import SourceMonitor
from traceplane.postgres import commits, pinned, versions
from traceplane.postgres.tasks import LeaseFence
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ColumnSchema, ColumnStatistics, EventOut, InputFile, StagedFile

COPY = SOURCE + job("copy", "in", "mid") + job("after", "mid", "end")
APPEND = COPY.replace(
    'config: {entrypoint: "basic:copy"}',
    'config: {entrypoint: "basic:copy"}\n  update_strategy: append\n  unique_key: [position]',
    1,
)


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


def span(start: int, end: int) -> Scope:
    return Scope(partition_key=f"{start}-{end}", start=start, end=end)


async def held_for(plane: ControlPlane, *scopes: int | Scope, **fields: Any) -> list[Held]:
    """The tasks of the job `copy` for new events of these scopes, in their order."""
    await plane.emit("in", scopes, **fields)
    await plane.meter()
    sent, mine = await plane.send(), set(await plane.tasks("copy"))
    plane.wake_ups.sent += [task_id for task_id in sent if task_id not in mine]
    return sorted(await plane.claim([i for i in sent if i in mine]), key=lambda h: h.task_id)


async def commit(plane: ControlPlane, *scopes: int | Scope, **fields: Any) -> None:
    await plane.complete(*await held_for(plane, *scopes, **fields))


async def readers(plane: ControlPlane) -> list[tuple[str, str, int]]:
    """(scope, kind, files) of the tasks of `after`, which are claimed and completed."""
    await plane.meter()
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    found = [
        (str(h.task.scope.partition_key or h.task.scope.cursor), h.task.kind, len(h.task.input_files[0]))
        for h in held
        if h.task.scope is not None
    ]
    await plane.complete(*held)
    return found


async def live(plane: ControlPlane, dataset: str = "mid") -> list[str]:
    rows = await plane.sql(
        "select c.scope_key from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
        " where d.dataset_id = $1 and superseded_by is null order by commit_id",
        dataset,
    )
    return [row["scope_key"] for row in rows]


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
    status = await plane.api.status(plane._call(None))
    assert {d.dataset: (d.commits, d.rows) for d in status.datasets}["mid"] == (1, 1)


async def test_a_count_of_rows_that_are_partly_replaced_says_so(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, span(0, 9))
    (before,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    assert not before.at_most
    await commit(plane, 3)
    (after,) = [d for d in (await plane.status()).datasets if d.dataset == "mid"]
    listed = {d.dataset: d for d in (await plane.api.datasets(plane._call(None))).datasets}
    assert after.at_most
    assert listed["mid"].at_most
    assert "up to" in contents(after)


async def test_a_source_is_shown_with_its_events(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await plane.emit("in", [1, 2, 5, span(10, 19)])
    (view,) = [d for d in (await plane.status()).datasets if d.dataset == "in"]
    listed = {d.dataset: d for d in (await plane.api.datasets(plane._call(None))).datasets}
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


# Schemas --------------------------------------------------------------------------------------------


def with_schema(held: Held, **columns: str) -> tuple[Held, Any]:
    """A report whose files have these columns; `a="int64!"` is never null."""
    listed = [ColumnSchema(n, t.removesuffix("!"), not t.endswith("!")) for n, t in columns.items()]
    outputs = [msgspec.structs.replace(o, schema=listed) for o in held.outputs()]
    return held, completed(held, outputs=outputs)


async def merged(plane: ControlPlane, dataset: str = "mid") -> dict[str, str]:
    columns = await plane.value(
        "select columns from generation_schemas join datasets on current_generation_id = generation_id"
        " where dataset_id = $1",
        dataset,
    )
    return {c["name"]: c["type"] + ("" if c["nullable"] else "!") for c in columns or ()}


async def test_a_generation_knows_the_columns_of_all_its_commits(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    first, second, third = await held_for(plane, 1, 2, 3)
    assert await plane.report(with_schema(first, a="int32!", b="float")) == ["committed"]
    assert await plane.report(with_schema(second, a="int64!", c="string!"), (third, completed(third))) == [
        "committed",
        "committed",
    ]
    assert await merged(plane) == {"a": "int64!", "b": "float", "c": "string"}
    rows = await plane.sql("select columns from dataset_commits order by commit_id")
    assert [row["columns"] and [c["name"] for c in row["columns"]] for row in rows] == [
        ["a", "b"],
        ["a", "c"],
        None,
    ]


async def test_an_output_that_does_not_fit_is_refused_for_good_and_nothing_of_it_is_kept(
    plane: ControlPlane,
) -> None:
    await plane.deploy(COPY)
    first, bad, good = await held_for(plane, 1, 2, 3)
    await plane.report(with_schema(first, a="int64", b="string!"))
    reports = with_schema(bad, a="string", b="string!", c="int64"), with_schema(good, a="int64", b="string!")
    assert await plane.report(*reports) == ["dead", "committed"]
    assert await plane.report(*reports) == ["dead", "committed"]
    assert await live(plane) == ["c:1", "c:3"]
    assert await merged(plane) == {"a": "int64", "b": "string!"}
    rows = await plane.sql("select state::text, error from tasks where task_id = $1", bad.task_id)
    assert rows[0]["state"] == "dead"
    assert rows[0]["error"]["code"] == "commit.schema_incompatible"
    for word in ("mid", "column a", "int64", "string"):
        assert word in rows[0]["error"]["message"]
    assert rows[0]["error"]["next_step"]
    assert [scope for scope, _, _ in await readers(plane)] == ["1", "3"]
    # By hand it gets another chance.
    assert await plane.retry(bad.task_id) == {bad.task_id: "queued"}
    await plane.meter()
    (again,) = await plane.claim(await plane.send())
    assert await plane.report(with_schema(again, a="int64", b="string!")) == ["committed"]


async def refusal(
    plane: ControlPlane, held: Held, columns: dict[str, str], **statistics: ColumnStatistics
) -> tuple[str, str] | None:
    """Code and message if a commit with these columns and statistics is refused."""
    _, completion = with_schema(held, **columns)
    (output,) = completion.outputs
    (file,) = output.files
    output = msgspec.structs.replace(output, files=[msgspec.structs.replace(file, statistics=statistics)])
    if await plane.report((held, completed(held, outputs=[output]))) == ["committed"]:
        return None
    (error,) = [
        r["error"] for r in await plane.sql("select error from tasks where task_id = $1", held.task_id)
    ]
    return error["code"], error["message"]


async def test_rows_outside_the_tasks_scope_are_refused(plane: ControlPlane) -> None:
    await plane.deploy(COPY + "datasets:\n  mid: {position: at}\n")
    columns = {"at": "int64"}
    within, before, beyond, null = await held_for(plane, span(0, 9), span(10, 19), span(20, 29), 30)
    assert await refusal(plane, within, columns, at=ColumnStatistics(0, 9, 0)) is None
    expected = "commit.position_out_of_scope"
    problem = await refusal(plane, before, columns, at=ColumnStatistics(9, 19, 0))
    assert problem is not None
    assert problem[0] == expected
    assert "column at: a row has the position 9, which is not in the task's scope 10-19" in problem[1]
    problem = await refusal(plane, beyond, columns, at=ColumnStatistics(20, 30, 0))
    assert problem is not None
    assert problem[0] == expected
    assert "position 30" in problem[1]
    problem = await refusal(plane, null, columns, at=ColumnStatistics(30, 30, 2))
    assert problem is not None
    assert problem[0] == expected
    assert "position null, which is not in the task's scope 30" in problem[1]


async def test_column_names_that_differ_only_in_case_are_refused(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    first, together, later = await held_for(plane, 1, 2, 3)
    assert await refusal(plane, first, {"D": "int64"}) is None
    for held, columns in ((together, {"E": "int64", "e": "int64"}), (later, {"d": "int64"})):
        problem = await refusal(plane, held, columns)
        assert problem is not None
        assert problem[0] == "commit.duplicate_column"
        assert "which SQL cannot tell apart" in problem[1]
    assert await merged(plane) == {"D": "int64"}


async def test_two_dispatchers_that_extend_a_schema_at_once_both_count(
    database_url: str, plane: ControlPlane
) -> None:
    await plane.deploy(COPY)
    async with ControlPlane.open(database_url) as other:
        await other.authority.refresh()
        for turn in range(10):
            one, two = await held_for(plane, 2 * turn, 2 * turn + 1)
            answers = await asyncio.gather(
                plane.report(with_schema(one, **{f"one{turn}": "int64", "both": "int32"})),
                other.report(with_schema(two, **{f"two{turn}": "int64", "both": "int64"})),
            )
            assert [*answers] == [["committed"], ["committed"]]
            await plane.run_all()
    names = {f"{side}{turn}" for side in ("one", "two") for turn in range(10)}
    assert await merged(plane) == {"both": "int64"} | dict.fromkeys(names, "int64")


# What a claim is handed -----------------------------------------------------------------------------


async def test_a_task_is_handed_the_merged_schema_of_each_input(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    first, second = await held_for(plane, 1, 2)
    await plane.complete(first)
    (unknowing,) = await plane.claim(await plane.send())
    assert unknowing.task.input_schemas == [None]
    await plane.report(with_schema(second, a="int64!"))
    (knowing,) = await plane.claim(await plane.send())
    assert knowing.task.input_schemas == [[ColumnSchema("a", "int64", False)]]
    # A later commit shows in a later claim: nothing of it is cached with the job.
    (third,) = await held_for(plane, 3)
    await plane.report(with_schema(third, a="int64!", b="string"))
    (later,) = await plane.claim(await plane.send())
    assert later.task.input_schemas == [[ColumnSchema("a", "int64", False), ColumnSchema("b", "string")]]
    fetched = await plane.leases.claims.fetch(
        LeaseFence(later.task_id, later.task.attempt, later.task.lease_token)
    )
    assert fetched.task is not None
    assert fetched.task.input_schemas == later.task.input_schemas


async def test_ranges_bring_the_schema_of_what_they_aggregate(plane: ControlPlane) -> None:
    await plane.deploy(
        SOURCE
        + job("copy", "in", "mid")
        + job("after", "mid", "end", "execution_strategy: Bulk\n  batch: {size: 2}")
    )
    first, second = await held_for(plane, 0, 1)
    await plane.report(with_schema(first, a="int64"), with_schema(second, a="int64"))
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    assert held.task.input_schemas == [[ColumnSchema("a", "int64")]]
    assert len(held.task.input_files[0]) == 2


async def test_files_that_cannot_hold_what_an_input_asks_for_are_left_out(plane: ControlPlane) -> None:
    await plane.deploy(
        SOURCE
        + job("copy", "in", "mid")
        + job("after", "mid", "end").replace("dataset: mid}}]", "dataset: mid}, where: {token: usdt}}]")
    )
    (held,) = await held_for(plane, 1)
    prefix = held.task.write_prefixes[0]
    files = [
        StagedFile(f"{prefix}{n}.parquet", 1, 10, {"token": ColumnStatistics(low, high, 0)} if low else None)
        for n, (low, high) in enumerate([("a", "b"), ("t", "v"), ("x", "z"), (None, None)])
    ]
    columns = [ColumnSchema("token", "string")]
    (output,) = held.outputs()
    output = msgspec.structs.replace(output, files=files, schema=columns)
    assert await plane.report((held, completed(held, outputs=[output]))) == ["committed"]
    (reader,) = await plane.claim(await plane.send())
    handed = reader.task.input_files[0]
    assert [f.path.rpartition("/")[2] for f in handed] == ["1.parquet", "3.parquet"]
    assert all(set(msgspec.to_builtins(f)) == {"path", "rows", "bytes"} for f in handed)


async def test_no_task_is_handed_a_file_without_rows(plane: ControlPlane) -> None:
    await plane.deploy(APPEND)
    (held,) = await held_for(plane, 1)
    prefix = held.task.write_prefixes[0]
    files = [StagedFile(f"{prefix}{rows}.parquet", rows, 10) for rows in (0, 3)]
    (output,) = held.outputs()
    output = msgspec.structs.replace(output, files=files)
    assert await plane.report((held, completed(held, outputs=[output]))) == ["committed"]
    (reader,) = await plane.claim(await plane.send())
    (again,) = await held_for(plane, 1, emission="again")
    expected = [InputFile(f"{prefix}3.parquet", 3, 10)]
    assert (reader.task.input_files, again.task.output_files) == ([expected], [expected])


async def test_an_append_is_handed_what_its_output_holds_of_its_scope(plane: ControlPlane) -> None:
    await plane.deploy(APPEND)
    (first,) = await held_for(plane, 5)
    assert first.task.output_files == [[]]
    await plane.complete(first)
    await commit(plane, 7)
    again, wide = await held_for(plane, 5, span(0, 9), emission="again")
    assert again.task.output_files == [[InputFile(f"{first.task.write_prefixes[0]}part-0.parquet", 1, 10)]]
    assert len(wide.task.output_files[0]) == 2


async def test_a_replacing_job_is_handed_nothing_of_its_output(plane: ControlPlane) -> None:
    await plane.deploy(COPY)
    await commit(plane, 5)
    (again,) = await held_for(plane, 5, emission="again")
    assert again.task.output_files == []


FOLLOW = """
version: 1
dag: main
jobs:
- {name: follow, activation: source, source: {kind: always_on}, runtime: python, operator: python,
   config: {entrypoint: "basic:copy"}, outputs: [{dataset: blocks}, {dataset: more}]}
"""


async def test_a_restarted_source_gets_the_last_event_of_its_newest_cursors(
    plane: ControlPlane,
) -> None:
    await plane.deploy(FOLLOW)
    await plane.set_clock(0)
    await SourceMonitor(plane.database).run_once()
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    assert held.task.resume == []
    for n in range(100, 105):
        await plane.emit_running(held, EventOut(0, Scope(cursor=n), emission=f"a{n}"))
    await plane.emit_running(held, EventOut(0, Scope(cursor=104), "invalidation", emission="a104"))
    await plane.emit_running(held, EventOut(0, Scope(cursor=103), emission="b103"))
    await plane.emit_running(held, EventOut(0, span(1, 200)), EventOut(1, Scope(cursor=900)))
    await plane.set_clock(1000)
    await plane.reaper.run_once()
    await plane.set_clock(2000)
    await plane.meter()
    (again,) = await plane.claim(await plane.send())
    assert again.task_id == held.task_id
    assert again.task.resume == [
        (104, "a104", "invalidation"),
        (103, "b103", "data"),
        (102, "a102", "data"),
        (101, "a101", "data"),
        (100, "a100", "data"),
    ]


async def test_a_source_gets_a_limited_number_of_cursors(plane: ControlPlane) -> None:
    await plane.deploy(FOLLOW)
    await SourceMonitor(plane.database).run_once()
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    for start in range(0, 3000, 1000):
        await plane.emit_running(held, *(EventOut(0, Scope(cursor=n)) for n in range(start, start + 1000)))
    fetched = await plane.leases.claims.fetch(
        LeaseFence(held.task_id, held.task.attempt, held.task.lease_token)
    )
    assert fetched.task is not None
    assert [cursor for cursor, _, _ in fetched.task.resume] == list(range(2999, 2999 - 2048, -1))


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
