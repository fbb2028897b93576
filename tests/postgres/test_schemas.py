"""A generation has the columns of all its commits; an output that does not fit them is refused."""

from __future__ import annotations

import asyncio

import msgspec

from tests.control_plane import ControlPlane, Held, completed
from tests.postgres.copy_jobs import COPY, held_for, live, merged, readers, with_schema
from tests.postgres.test_commits import span
from traceplane.wire.tasks import ColumnStatistics


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
