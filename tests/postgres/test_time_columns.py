"""Blocks become hours by a column of time: when an hour is ready, and which hours a change of a block concerns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.control_plane import ControlPlane, Held, completed
from tests.gateway_http import GatewayHttp
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.auth.roles import Role
from traceplane.errors import InvalidInput, SpecInvalid
from traceplane.registry.garbage import Policy, collect
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ColumnStatistics, StagedFile

START = datetime(2026, 11, 16, tzinfo=UTC)

DAG = """
version: 1
dag: chain
datasets:
  chain.blocks: { position: block, partitions: { by: position, start: 0 } }
  chain.hourly: { partitions: { by: hour } }
jobs:
  - {name: heads, activation: source, source: {kind: manual}, outputs: [{dataset: chain.heads}]}
  - name: blocks
    runtime: python
    operator: python
    config: {entrypoint: 'm:f'}
    inputs: [{from: {dataset: chain.heads}}]
    outputs: [{dataset: chain.blocks}]
  - name: hourly
    runtime: python
    operator: python
    config: {entrypoint: 'm:f'}
    inputs: [{from: {dataset: chain.blocks}, time_column: at, wait_for: WAIT}]
    outputs: [{dataset: chain.hourly}]
"""


class Chain:
    """Commits of blocks, each with rows at the given minutes after the start."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._emission = 0

    async def tell(self, *blocks: tuple[int | Scope, Sequence[int]], seconds: bool = False) -> list[str]:
        """Returns the hours that were computed because of it, with the blocks that each read; `!`: again."""
        self._emission += 1
        times = {(b if isinstance(b, int) else b.first): minutes for b, minutes in blocks}
        await self.plane.emit("chain.heads", [b for b, _ in blocks], emission=str(self._emission))
        hours: list[str] = []
        while True:
            await self.plane.meter()
            held = await self.plane.claim(await self.plane.send())
            if not held:
                return sorted(hours)
            for one in held:
                if one.job.name == "blocks":
                    await self._commit(one, times[one.scope.first], seconds)
                else:
                    hours.append(_computed(one))
                    assert await self.plane.report((one, completed(one))) == ["committed"]

    async def _commit(self, held: Held, minutes: Sequence[int], seconds: bool) -> None:
        (output,) = held.outputs()
        moments = [START + timedelta(minutes=minute) for minute in minutes]
        files: list[StagedFile] = []
        if moments:
            first, last = [
                int(m.timestamp()) if seconds else m.isoformat() for m in (min(moments), max(moments))
            ]
            (file,) = output.files
            bounds = {"at": ColumnStatistics(first, last, 0)}
            files = [
                msgspec.structs.replace(
                    file, path=f"{file.path}.{held.scope.first}", rows=len(moments), statistics=bounds
                )
            ]
        output = msgspec.structs.replace(output, files=files, row_count=len(moments))
        assert await self.plane.report((held, completed(held, outputs=[output]))) == ["committed"]


def _computed(held: Held) -> str:
    name = held.scope.partition_key
    assert name is not None
    blocks = sorted(int(f.path.rpartition(".")[2]) for f in held.task.input_files[0])
    again = "!" if held.task.kind == "invalidation" else ""
    return f"{name.removeprefix('2026-11-16')}{again} {','.join(map(str, blocks))}".strip()


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


async def chain(plane: ControlPlane, wait_for: str = "end", **changes: str) -> Chain:
    text = DAG.replace("WAIT", wait_for)
    for old, new in changes.items():
        text = text.replace(old, new)
    await plane.deploy(text)
    return Chain(plane)


async def test_an_hour_is_computed_once_a_later_one_was_told(plane: ControlPlane) -> None:
    blocks = await chain(plane)
    assert await blocks.tell((0, [10]), (1, [30]), (2, [59])) == []
    assert await blocks.tell((3, [60])) == ["T00 0,1,2"]
    assert await blocks.tell((4, [61]), (5, [200])) == ["T01 3,4"]


async def test_an_event_of_a_block_is_followed_into_the_hours_of_its_rows(plane: ControlPlane) -> None:
    blocks = await chain(plane)
    assert await blocks.tell((0, [10]), (1, [30, 70]), (2, [130])) == ["T00 0,1", "T01 1"]
    async with GatewayHttp.open(plane) as http:
        admin = await http.token(Role.ADMIN)

        async def followed(block: int) -> set[str]:
            _, listed = await http.send(
                admin, "GET", f"/api/v1/events?dataset=chain.heads&start={block}&end={block}"
            )
            (event,) = json.loads(listed)["events"]
            status, answer = await http.send(admin, "GET", f"/api/v1/events/{event['event_id']}/effects")
            assert status == 200, answer
            tasks = [one["task"] for one in json.loads(answer)["effects"] if "task" in one]
            return {task["scope"] for task in tasks if task["job"] == "hourly"}

        assert await followed(0) == {"2026-11-16T00"}
        assert await followed(1) == {"2026-11-16T00", "2026-11-16T01"}
        assert await followed(2) == set()


async def test_a_reorganized_block_recomputes_the_hours_of_its_old_and_new_rows(plane: ControlPlane) -> None:
    blocks = await chain(plane)
    told = [(n, [n * 20]) for n in range(20)]
    assert len(await blocks.tell(*told)) == 6
    assert await blocks.tell((4, [85])) == ["T01! 3,4,5"]
    assert await blocks.tell((5, [250])) == ["T01! 3,4", "T04! 5,12,13,14"]
    assert await blocks.tell((3, []), (4, [])) == ["T01!"]
    assert await blocks.tell((3, [119])) == ["T01! 3"]


async def test_a_file_may_have_rows_of_several_hours(plane: ControlPlane) -> None:
    blocks = await chain(plane)
    wide = Scope(partition_key="0-9", start=0, end=9)
    assert await blocks.tell((wide, [30, 90, 130])) == ["T00 0", "T01 0"]
    assert await blocks.tell((10, [190])) == ["T02 0"]
    # Statistics say no more than that the block may have had rows in each of the three hours.
    assert await blocks.tell((4, [95])) == ["T00! 0", "T01! 0,4", "T02! 0"]
    assert await blocks.tell((4, [96])) == ["T01! 0,4"]


async def test_all_waits_for_every_block_of_the_hour(plane: ControlPlane) -> None:
    blocks = await chain(plane, "all")
    assert await blocks.tell((0, [10]), (2, [50])) == []
    assert await blocks.tell((4, [70])) == []
    assert await blocks.tell((1, [])) == []
    assert await blocks.tell((3, [])) == ["T00 0,2"]
    assert await blocks.tell((6, [130])) == []
    assert await blocks.tell((5, [90])) == ["T01 4,5"]


async def test_any_runs_with_the_first_block_and_again_with_each_other(plane: ControlPlane) -> None:
    blocks = await chain(plane, "any")
    assert await blocks.tell((0, [10])) == ["T00 0"]
    assert await blocks.tell((1, [30]), (2, [70])) == ["T00! 0,1", "T01 2"]


async def test_seconds_since_1970_are_times_too(plane: ControlPlane) -> None:
    blocks = await chain(plane, "any")
    assert await blocks.tell((0, [10]), seconds=True) == ["T00 0"]


async def test_explain_says_what_an_hour_waits_for(plane: ControlPlane) -> None:
    blocks = await chain(plane, "all")

    async def reasons(hour: str) -> list[str]:
        return [r.sentence for r in (await plane.explain_scope("chain.hourly", hour, hour)).reasons]

    assert await blocks.tell((0, [10]), (2, [50])) == []
    later, *_ = await reasons("2026-11-16T00")
    assert later.startswith("chain.hourly waits for rows of chain.blocks that are later than 2026-11-16T00")
    assert await blocks.tell((4, [70])) == []
    gap, *_ = await reasons("2026-11-16T00")
    assert gap == "chain.hourly waits for 2026-11-16T00 of chain.blocks, which lacks 1."
    assert await blocks.tell((1, [20]), (3, [59]), (5, [190])) == ["T00 0,1,2,3", "T01 4"]
    (nothing,) = await reasons("2026-11-16T02")
    assert nothing == "chain.hourly lacks 2026-11-16T02: chain.blocks has no rows of that time."


async def test_a_backfill_reads_the_rows_of_the_hour(plane: ControlPlane) -> None:
    blocks = await chain(plane)
    await blocks.tell(*((n, [n * 20]) for n in range(7)))
    assert (await plane.backfill("chain.hourly", "2026-11-16T00", "2026-11-16T01", only="all")).created == 2
    assert await blocks.tell() == ["T00 0,1,2", "T01 3,4,5"]


async def test_a_rebuilt_job_learns_the_times_from_what_is_committed(plane: ControlPlane) -> None:
    blocks = await chain(plane)
    await blocks.tell(*((n, [n * 20]) for n in range(7)))
    await plane.deploy(DAG.replace("WAIT", "end").replace("time_column", "columns: [at], time_column"))
    await plane.builds.run_once()
    assert await blocks.tell() == ["T00 0,1,2", "T01 3,4,5"]


async def test_a_commit_without_bounds_of_its_times_is_reported(plane: ControlPlane) -> None:
    await chain(plane)
    await plane.emit("chain.heads", [0])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    assert await plane.report((held, completed(held))) == ["committed"]
    await plane.run_all()
    (row,) = await plane.sql(
        "select state, error from tasks join jobs using (job_id) where name = 'hourly__scopes'"
    )
    assert (row["state"], row["error"]["code"], row["error"]["value"]) == (
        "dead",
        "operator.times_unknown",
        "at",
    )


async def test_a_task_gets_only_the_times_of_its_hour(plane: ControlPlane) -> None:
    blocks = await chain(plane, "any")
    await blocks.tell((Scope(partition_key="0-9", start=0, end=9), [30, 90]))
    await plane.backfill("chain.hourly", "2026-11-16T01", "2026-11-16T01", only="all")
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    assert held.job.inputs[0].time_column == "at"
    assert held.task.input_times == [("2026-11-16T01:00:00+00:00", "2026-11-16T02:00:00+00:00")]


HOURLY = "chain.hourly: { partitions: { by: hour } }"
BLOCKS = "chain.blocks: { position: block, partitions: { by: position, start: 0 } }"
TIMED = "time_column: at, wait_for: WAIT"


def _columns(type_: str) -> tuple[str, str]:
    return BLOCKS, f"chain.blocks: {{ columns: [{{ name: at, type: {type_} }}] }}"


@pytest.mark.parametrize(
    ("change", "said", "to_write"),
    [
        ((HOURLY, "chain.hourly: {}"), "'chain.hourly', which the job writes, is by position", "by: hour"),
        ((BLOCKS, "chain.blocks: { partitions: { by: day } }"), "the input is by day", "remove time_column"),
        ((TIMED, "time_column: at, read: all"), "read: all reads all times", "remove time_column or read"),
        ((TIMED, "time_column: at, read: { before: 1 }"), "a window is counted in positions", "remove read"),
        (_columns("string"), "the column 'at' is string: it holds no times", "type timestamp, or bigint"),
        (_columns("date"), "the column 'at' is date: a date does not say which hour it is", "type timestamp"),
        (
            (BLOCKS, "chain.blocks: { columns: [{ name: when, type: timestamp }] }"),
            "the dataset has no column 'at'",
            "",
        ),
    ],
)
async def test_a_time_column_that_does_not_fit_is_refused_with_what_to_write(
    plane: ControlPlane, change: tuple[str, str], said: str, to_write: str
) -> None:
    text = DAG.replace(*change).replace("WAIT", "end")
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(text, file="chain.yaml")
    problem = next(
        p for p in refused.value.problems if p.code in ("spec.bad_time_column", "spec.unknown_column")
    )
    assert str(problem).startswith("chain.yaml:19:")
    assert said in str(problem)
    assert to_write in str(problem)


async def test_blocks_without_a_time_column_are_refused_by_a_job_by_hour(plane: ControlPlane) -> None:
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(DAG.replace(TIMED, "wait_for: any"), file="chain.yaml")
    (problem,) = refused.value.problems
    assert problem.code == "spec.partitions_differ"
    assert "add time_column: with the column that holds the time of a row" in str(problem)


async def test_the_column_of_a_dataset_of_another_dag_is_checked_too(plane: ControlPlane) -> None:
    text = DAG.replace(*_columns("string")).replace("WAIT", "end")
    head, _, hourly = text.partition("  - name: hourly")
    await plane.deploy(head.replace(f"  {HOURLY}\n", ""))
    other = f"version: 1\ndag: other\ndatasets: {{ {HOURLY} }}\njobs:\n  - name: hourly{hourly}"
    with pytest.raises(InvalidInput, match=r"the column at of chain\.blocks is string: it holds no times"):
        await plane.deploy(other)
    with pytest.raises(
        InvalidInput, match=r"dag\.yaml:\d+:\d+: job .* the dataset chain\.blocks has no such column"
    ):
        await plane.deploy(other.replace("time_column: at", "time_column: when"))


async def test_hours_of_dropped_blocks_stay_as_they_were_computed(
    plane: ControlPlane, tmp_path: Path
) -> None:
    await plane.set_clock(0)
    blocks = await chain(plane, **{"position: block": "position: block, retention: 90d"})
    assert len(await blocks.tell(*((n, [n * 20]) for n in range(7)))) == 2
    await plane.set_clock(95 * 86_400)
    policy = Policy(timedelta(hours=24), timedelta(days=30))
    assert (await collect(plane.database, FolderObjectStore(tmp_path), policy)).partitions == 7
    assert await blocks.tell((7, [140]), (8, [190])) == []
    assert await blocks.tell((9, [250])) == ["T03 8"]
    (reason, *_) = (await plane.explain_scope("chain.hourly", "2026-11-16T02", "2026-11-16T02")).reasons
    assert reason.sentence.startswith("chain.blocks has dropped 6")
