"""What a task is handed at its claim: its input files, their schemas, and where a source left off."""

from __future__ import annotations

import msgspec
import pytest

from tests.control_plane import ControlPlane, completed
from tests.dags import SOURCE, job
from tests.hot_worker import Client
from tests.postgres.copy_jobs import APPEND, COPY, commit, held_for, with_schema
from tests.postgres.test_commits import span
from traceplane.dispatcher.leases import claimed_data
from traceplane.dispatcher.loops.source_monitor import SourceMonitor
from traceplane.errors import Forbidden, PlatformError, TraceplaneError
from traceplane.postgres.tasks import LeaseFence
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
    ColumnSchema,
    ColumnStatistics,
    EventOut,
    Fence,
    FilesRequest,
    InputFile,
    StagedFile,
)
from traceplane.worker.long_inputs import with_all_files


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
        LeaseFence(later.task_id, later.task.attempt, later.task.lease_token), orgs=None
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


async def test_the_files_of_an_input_with_very_many_commits_are_sent_in_pieces(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimed_data, "MOST_COMMITS", 3)
    monkeypatch.setattr(claimed_data, "FILES_PER_PIECE", 2)
    reads = "inputs: [{from: {dataset: in}}, {name: whole, from: {dataset: mid}, read: all, where: {n: {at_most: 3}}}]"
    after = job("after", "in", "end").replace("inputs: [{from: {dataset: in}}]", reads)
    await plane.deploy(SOURCE + job("copy", "in", "mid") + after)
    written = await held_for(plane, 0, 1, 2, 3, 4)
    for held in written:
        (output,) = held.outputs()
        n = held.task.scope.first if held.task.scope is not None else 0
        file = StagedFile(
            f"{held.task.write_prefixes[0]}{n}.parquet", 1, 10, {"n": ColumnStatistics(n, n, 0)}
        )
        output = msgspec.structs.replace(output, files=[file], schema=[ColumnSchema("n", "int64")])
        assert await plane.report((held, completed(held, outputs=[output]))) == ["committed"]
    await plane.meter()
    await plane.send()
    (reader, *_) = await plane.claim(await plane.tasks("after"))
    assert (reader.task.long_inputs, reader.task.input_files) == ([1], [[], []])
    (read,) = await plane.sql("select commit_id from task_reads where task_id = $1", reader.task_id)
    assert read["commit_id"] == await newest_commit(plane), "although no file of it can hold what is asked"

    worker = Client(plane)
    task = await with_all_files(worker, reader.task, lambda: reader.capability_token)  # type: ignore[arg-type]
    assert worker.pieces_of_files == [2, 2, 0]
    assert sorted(f.path.rpartition("/")[2] for f in task.input_files[1]) == [
        f"{n}.parquet" for n in range(4)
    ]
    assert task.long_inputs == []
    with pytest.raises(TraceplaneError, match=r"task\.too_many_files.*more than 3 files"):
        await with_all_files(worker, reader.task, lambda: reader.capability_token, most=3)  # type: ignore[arg-type]
    with pytest.raises(Forbidden):
        [_ async for _ in worker.files(FilesRequest([reader.capability_token], Fence(**reader.fence), 2))]
    await plane.complete(reader)
    with pytest.raises(PlatformError):
        await with_all_files(worker, reader.task, lambda: reader.capability_token)  # type: ignore[arg-type]


async def newest_commit(plane: ControlPlane) -> int:
    (row,) = await plane.sql(
        "select max(commit_id) as commit_id from dataset_commits join datasets on generation_id = current_generation_id"
        " where dataset_id = 'mid'"
    )
    newest: int = row["commit_id"]
    return newest


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
        LeaseFence(held.task_id, held.task.attempt, held.task.lease_token), orgs=None
    )
    assert fetched.task is not None
    assert [cursor for cursor, _, _ in fetched.task.resume] == list(range(2999, 2999 - 2048, -1))
