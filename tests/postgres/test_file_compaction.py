"""Small files end by themselves: which are merged, and what readers, tasks and later commits see of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import structs

from tests.control_plane import ControlPlane, Held
from tests.postgres.copy_jobs import COPY, held_for, live, with_schema
from traceplane.dispatcher.loops.file_compaction import FileCompaction
from traceplane.model.compaction import Policy
from traceplane.wire.scalars import Scope

MIB = 1 << 20
POSITIONED = COPY + "datasets:\n  mid: {position: n, columns: [{name: n, type: bigint}]}\n"


def compaction(plane: ControlPlane, *, min_files: int = 3, **fields: Any) -> FileCompaction:
    return FileCompaction(
        plane.database, Policy(128 * MIB, min_files), age=fields.pop("age", timedelta(0)), **fields
    )


async def with_worker(plane: ControlPlane) -> None:
    await plane.sql(
        "insert into workers (worker_id, runtime, offers, seen_at) values ('s', 'spark', '{}', tp_now())"
    )


async def merging(plane: ControlPlane) -> list[Held]:
    """The tasks that merge files, claimed."""
    await plane.meter()
    mine = {
        row["task_id"]
        for row in await plane.sql(
            "select task_id from compactions join tasks using (task_id) where stage = 1"
        )
    }
    sent = await plane.send()
    plane.wake_ups.sent += [task_id for task_id in sent if task_id not in mine]
    return await plane.claim([task_id for task_id in sent if task_id in mine], runtime="spark")


async def merged(plane: ControlPlane, held: Held, rows: int | None = None) -> list[str]:
    """Completes a task that merges files, with as many rows as it read."""
    count = sum(file.rows for file in held.task.input_files[0]) if rows is None else rows
    _, report = with_schema(held, n="int64")
    outputs = [
        structs.replace(o, row_count=count, files=[structs.replace(f, rows=count) for f in o.files])
        for o in report.outputs
    ]
    return await plane.report((held, structs.replace(report, outputs=outputs)))


async def written(plane: ControlPlane, *scopes: int | Scope, **fields: Any) -> None:
    """Commits with a schema."""
    await plane.report(*(with_schema(held, n="int64") for held in await held_for(plane, *scopes, **fields)))


async def test_small_files_are_merged_without_an_event(plane: ControlPlane) -> None:
    await plane.deploy(POSITIONED)
    await written(plane, *range(5))
    await with_worker(plane)
    events = await plane.value("select count(*) from events")
    assert (await compaction(plane).run_once()).tasks == 1
    (held,) = await merging(plane)
    assert (held.scope.start, held.scope.end, len(held.task.input_files[0])) == (0, 4, 5)
    assert held.job.operator == "compact"
    assert held.job.config["sort"] == ["n"]
    assert (await plane.explain(held.task_id)).state == "running"
    assert (await plane.status()).counts["~compaction/mid"] == {"running": 1}
    assert await merged(plane, held) == ["committed"]
    assert await live(plane) == ["p:0-4"]
    assert await plane.value("select count(*) from events") == events
    assert (await compaction(plane).run_once()).tasks == 0


async def one_merge(plane: ControlPlane) -> Held:
    """Of positions 0 to 4."""
    await plane.deploy(POSITIONED)
    await written(plane, *range(5))
    await with_worker(plane)
    await compaction(plane).run_once()
    (held,) = await merging(plane)
    return held


async def seen(plane: ControlPlane) -> dict[str, Any]:
    """What readers see: scopes, and what is hidden of them."""
    rows = await plane.sql(
        "select c.scope_key, c.hidden::text from dataset_commits c"
        " join datasets d on d.current_generation_id = c.generation_id"
        " where d.dataset_id = 'mid' and superseded_by is null order by commit_id"
    )
    return {row["scope_key"]: row["hidden"] for row in rows}


async def test_what_is_committed_meanwhile_wins(plane: ControlPlane) -> None:
    held = await one_merge(plane)
    await written(plane, 2, emission="again")
    assert await merged(plane, held) == ["committed"]
    assert await live(plane) == ["c:0", "c:1", "c:3", "c:4", "c:2"]
    assert (await compaction(plane).run_once()).tasks == 1, "it is planned again"
    (again,) = await merging(plane)
    assert await merged(plane, again) == ["committed"]
    assert await seen(plane) == {"p:0-4": None}


async def test_a_correction_replaces_its_scope_of_a_merged_file(plane: ControlPlane) -> None:
    await merged(plane, await one_merge(plane))
    await written(plane, 2, emission="again")
    assert await seen(plane) == {"p:0-4": "{[2,3)}", "c:2": None}
    last = (await plane.sql("select kind::text, scope_key from events order by event_id desc limit 1"))[0]
    assert (last["kind"], last["scope_key"]) == ("invalidation", "c:2")
    await compaction(plane, min_files=2).run_once()
    (again,) = await merging(plane)
    assert {file.path.split("/")[-3]: file.kept for file in again.task.input_files[0]}.keys()
    assert await merged(plane, again, rows=5) == ["committed"]
    assert await seen(plane) == {"p:0-4": None}


async def test_a_rebuilt_reader_gets_the_scopes_that_were_written(plane: ControlPlane) -> None:
    await merged(plane, await one_merge(plane))
    await plane.sql("delete from dataset_commits where superseded_by is not null")
    before, _, after = POSITIONED.rpartition("basic:copy")
    await plane.deploy(f"{before}basic:other{after}")
    await plane.builds.run_once()
    scopes = await plane.sql(
        "select distinct scope_key from tasks join jobs using (job_id) where jobs.name = 'after' and state = 'queued'"
        " order by 1"
    )
    assert [row["scope_key"] for row in scopes] == [f"c:{n}" for n in range(5)]


async def test_a_report_that_is_repeated_changes_nothing(plane: ControlPlane) -> None:
    """As after a crash between the commit and its answer."""
    held = await one_merge(plane)
    assert [await merged(plane, held), await merged(plane, held)] == [["committed"], ["committed"]]
    assert await seen(plane) == {"p:0-4": None}
    assert await plane.value("select count(*) from compacted_scopes") == 5


async def test_a_merge_that_loses_rows_is_not_committed(plane: ControlPlane) -> None:
    held = await one_merge(plane)
    assert await merged(plane, held, rows=4) == ["retrying"]
    assert len(await live(plane)) == 5
    assert await plane.value("select error->>'code' from tasks where task_id = $1", held.task_id) == (
        "compact.rows_differ"
    )


async def test_a_dataset_whose_merge_failed_for_good_is_left_alone(plane: ControlPlane) -> None:
    held = await one_merge(plane)
    await plane.fail(held, retryable=False)
    assert (await compaction(plane).run_once()).tasks == 0


async def test_young_files_and_datasets_that_opt_out_stay_as_they_are(plane: ControlPlane) -> None:
    await plane.deploy(POSITIONED)
    await written(plane, *range(5))
    assert (await compaction(plane).run_once()).tasks == 0, "no worker could do it"
    await with_worker(plane)
    assert (await compaction(plane, age=timedelta(hours=1)).run_once()).tasks == 0
    await plane.deploy(POSITIONED.replace("position: n,", "position: n, compaction: {enabled: false},"))
    assert (await compaction(plane).run_once()).tasks == 0
    await plane.deploy(POSITIONED.replace("position: n,", "position: n, compaction: {min_files: 6},"))
    assert (await compaction(plane).run_once()).tasks == 0
    changed = POSITIONED.replace("position: n,", "position: n, cluster_by: [n], compaction: {min_files: 5},")
    deployed = await plane.deploy(changed)
    assert not deployed.building, "it rebuilds nothing"
    assert (await compaction(plane).run_once()).tasks == 1


async def test_a_dataset_is_looked_through_in_pages(plane: ControlPlane) -> None:
    await plane.deploy(POSITIONED)
    await written(plane, *range(12))
    await with_worker(plane)
    loop, spans = compaction(plane, page=5), []
    while (planned := await loop.run_once()).tasks or planned.more:
        for held in await merging(plane):
            spans.append((held.scope.start, held.scope.end))
            assert await merged(plane, held) == ["committed"]
    assert spans == [(0, 4), (5, 9)]
    assert await live(plane) == ["c:10", "c:11", "p:0-4", "p:5-9"]
