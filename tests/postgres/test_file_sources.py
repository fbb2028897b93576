"""Files become events, each one once, whatever dispatchers, deploys and crashes do meanwhile.

Guarantee 12 of docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.dags import job
from traceplane.adapters.watched_files import WatchedFile, WatchedFiles
from traceplane.dispatcher.loops.file_listing import FileListing
from traceplane.errors import SpecInvalid
from traceplane.wire.files import FileSourceView


def watching(
    folder: Path | str,
    pattern: str = "orders_{YYYY}-{MM}-{DD}.csv",
    *more: str,
    by: str = "day",
    jobs: str = "",
    name: str = "orders",
    partitions: str = "",
) -> str:
    fields = ", ".join((f"kind: file, path: {folder}, pattern: '{pattern}'", *more))
    return (
        f"version: 1\ndag: main\ndatasets: {{in: {{partitions: {{by: {by}{partitions}}}}}}}\njobs:\n"
        f"- {{name: {name}, activation: source, source: {{{fields}}}, outputs: [{{dataset: in}}]}}\n{jobs}"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
async def plane(database_url: str, folder: Path) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url, file_source_allow=(str(folder),)) as opened:
        yield opened


async def look(plane: ControlPlane, seconds: float = 60, *, passes: int = 1) -> int:
    """Moves the clock, and lets a dispatcher look; how many partitions were announced."""
    announced = 0
    for _ in range(passes):
        await plane.pass_time(seconds)
        announced += (await plane.files.run_once()).announced
    return announced


async def emitted(plane: ControlPlane) -> list[tuple[str | None, int, str]]:
    rows = await plane.sql(
        "select partition_key, range_start, kind::text as kind from events order by event_id"
    )
    return [(row["partition_key"], row["range_start"], row["kind"]) for row in rows]


async def days(plane: ControlPlane) -> list[str | None]:
    return [partition for partition, _, _ in await emitted(plane)]


async def listed(plane: ControlPlane, dataset: str = "in") -> list[tuple[str, str, int]]:
    generation = await plane.value(
        f"select current_generation_id from datasets where dataset_id = '{dataset}'"
    )
    rows = await plane.sql(
        f"select partition, path, bytes from traceplane_hot.g_{generation.hex} order by path"
    )
    return [(row["partition"], Path(row["path"]).name, row["bytes"]) for row in rows]


async def views(plane: ControlPlane) -> FileSourceView:
    (view,) = (await plane.api.file_sources.views(plane._call(None))).sources
    return view


async def test_a_file_is_an_event_of_the_partition_that_its_name_says(
    plane: ControlPlane, folder: Path
) -> None:
    await plane.deploy(watching(folder, jobs=job("copy", "in", "out")))
    (folder / "orders_2026-11-16.csv").write_text("a\n1\n")
    (folder / "readme.txt").write_text("not an order")
    assert await look(plane) == 0, "it may still be written"
    assert await look(plane) == 1
    assert await emitted(plane) == [("2026-11-16", 20773, "data")]
    assert await listed(plane) == [("2026-11-16", "orders_2026-11-16.csv", 4)]
    assert len(await plane.tasks("copy")) == 1
    assert await look(plane, passes=3) == 0, "once"
    view = await views(plane)
    assert (view.matched, view.ignored, view.waiting, view.problem) == (1, 1, 0, None)


async def test_a_file_that_changes_is_a_change_of_its_partition(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder, jobs=job("copy", "in", "out")))
    file = folder / "orders_2026-11-16.csv"
    file.write_text("a\n1\n")
    await look(plane, passes=2)
    await plane.run_all()
    file.write_text("a\n1\n2\n")
    assert await look(plane, passes=2) == 1
    assert await listed(plane) == [("2026-11-16", "orders_2026-11-16.csv", 6)]
    kinds = await plane.sql(
        "select kind::text as kind from events e join datasets d using (dataset_uuid) where dataset_id = 'in'"
        " order by event_id"
    )
    assert [row["kind"] for row in kinds] == ["data", "invalidation"]
    assert len(await plane.tasks("copy")) == 2


async def test_a_file_that_is_being_written_is_not_taken(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder))
    file = folder / "orders_2026-11-16.csv"
    for size in range(1, 5):
        file.write_text("x" * size)
        assert await look(plane) == 0
    assert (await views(plane)).waiting == 1
    assert await look(plane) == 1
    assert await listed(plane) == [("2026-11-16", file.name, 4)]


async def test_a_partition_waits_for_all_its_files_and_is_announced_once(
    plane: ControlPlane, folder: Path
) -> None:
    await plane.deploy(watching(folder, "{YYYY}-{MM}-{DD}_*.csv"))
    for number in range(20):
        (folder / f"2026-11-16_{number}.csv").write_text("x")
    (folder / "2026-11-15_0.csv").write_text("x")
    await look(plane)
    (folder / "2026-11-16_19.csv").write_text("xy")
    assert await look(plane) == 1
    assert await days(plane) == ["2026-11-15"]
    assert await look(plane) == 1
    assert await days(plane) == ["2026-11-15", "2026-11-16"]
    assert len(await listed(plane)) == 21


async def test_a_file_that_vanishes_before_it_is_announced_never_was(
    plane: ControlPlane, folder: Path
) -> None:
    await plane.deploy(watching(folder))
    file = folder / "orders_2026-11-16.csv"
    file.write_text("x")
    await look(plane)
    file.unlink()
    assert await look(plane, passes=2) == 0
    assert (await views(plane)).waiting == 0
    file.write_text("x")
    assert await look(plane, passes=2) == 1
    file.unlink()
    assert await look(plane, passes=2) == 0, "what was announced stays"
    assert len(await listed(plane)) == 1


async def test_files_of_months_without_a_dispatcher_are_all_announced_in_order(
    plane: ControlPlane, folder: Path
) -> None:
    await plane.deploy(watching(folder, jobs=job("copy", "in", "out")))
    await look(plane)
    for day in range(1, 29):
        for month in (1, 2, 3, 4, 5, 6):
            (folder / f"orders_2030-{month:02}-{day:02}.csv").write_text("x")
    await look(plane, 180 * 86_400)
    assert await look(plane) == 168
    assert await days(plane) == sorted(f"2030-{m:02}-{d:02}" for m in range(1, 7) for d in range(1, 29))
    assert len(await plane.tasks("copy")) == 168


@pytest.mark.parametrize(
    ("by", "pattern", "names", "partitions"),
    [
        ("hour", "{YYYY}{MM}{DD}/{HH}.csv", ["20261116/05.csv"], ["2026-11-16T05"]),
        (
            "month",
            "{YYYY}/{MM}/x_{YYYY}{MM}.csv",
            ["2026/11/x_202611.csv", "2026/12/x_202611.csv"],
            ["2026-11"],
        ),
        ("week", "{YYYY}-W{WW}.csv", ["2026-W47.csv"], ["2026-W47"]),
        ("name", "{name}/*.csv", ["eu/a.csv", "us/a.csv", "us/b.csv", "2eu/a.csv"], ["eu", "us"]),
    ],
)
async def test_names_say_partitions_of_every_kind(
    plane: ControlPlane, folder: Path, by: str, pattern: str, names: list[str], partitions: list[str]
) -> None:
    await plane.deploy(watching(folder, pattern, by=by))
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    await look(plane, passes=2)
    assert sorted(partition or "" for partition, _, _ in await emitted(plane)) == partitions


async def test_numbers_say_positions(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder, "part-{position}.csv", by="position"))
    for number in (7, 8, 12):
        (folder / f"part-{number:05}.csv").write_text("x")
    await look(plane, passes=2)
    assert [(key, at) for key, at, _ in await emitted(plane)] == [(None, 7), (None, 8), (None, 12)]


async def test_files_of_no_partition_are_refused_and_shown(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder, partitions=", start: 2026-01-01"))
    for day in ("2026-02-30", "2025-12-31", "2026-11-16"):
        (folder / f"orders_{day}.csv").write_text("x")
    await look(plane, passes=2)
    assert await days(plane) == ["2026-11-16"]
    refusals = {r.reason: (r.count, Path(r.example).name) for r in (await views(plane)).refusals}
    assert refusals == {
        "'2026-02-30' does not name a day, for example 2026-11-16": (1, "orders_2026-02-30.csv"),
        "2025-12-31 is before 2026-01-01, where the dataset starts": (1, "orders_2025-12-31.csv"),
    }
    (folder / "orders_2025-12-31.csv").unlink()
    await look(plane)
    assert len((await views(plane)).refusals) == 1


async def test_a_changed_pattern_moves_files_to_other_partitions(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder, "{YYYY}-{MM}-{DD}_*.csv"))
    (folder / "2026-11-16_2026-11-17.csv").write_text("x")
    (folder / "2026-11-16_2026-11-16.csv").write_text("x")
    await look(plane, passes=2)
    await plane.deploy(watching(folder, "*_{YYYY}-{MM}-{DD}.csv"))
    await look(plane, passes=2)
    assert await emitted(plane) == [
        ("2026-11-16", 20773, "data"),
        ("2026-11-16", 20773, "invalidation"),
        ("2026-11-17", 20774, "data"),
    ]
    assert [partition for partition, _, _ in await listed(plane)] == ["2026-11-16", "2026-11-17"]


async def test_dispatchers_that_look_at_once_announce_a_file_once(
    database_url: str, plane: ControlPlane, folder: Path
) -> None:
    await plane.deploy(watching(folder, jobs=job("copy", "in", "out")))
    for day in range(1, 29):
        (folder / f"orders_2026-11-{day:02}.csv").write_text("x")
    loops = [FileListing(plane.database, WatchedFiles(plane.settings, page=3)) for _ in range(3)]
    for _ in range(3):
        await plane.pass_time(60)
        await asyncio.gather(*(loop.run_once() for loop in loops))
    assert await days(plane) == [f"2026-11-{day:02}" for day in range(1, 29)]
    assert len(await plane.tasks("copy")) == 28


async def test_a_pass_that_was_taken_over_changes_nothing(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder))
    for day in range(1, 11):
        (folder / f"orders_2026-11-{day:02}.csv").write_text("x")
    await look(plane)

    class Slow(WatchedFiles):
        async def pages(self, place: str, beginning: str, folders: int) -> AsyncIterator[list[WatchedFile]]:
            async for page in super().pages(place, beginning, folders):
                await look(plane, 120)
                yield page

    slow = FileListing(plane.database, Slow(plane.settings))
    await plane.pass_time(120)
    assert (await slow.run_once()).announced == 0
    assert len(await emitted(plane)) == 10, "the other pass announced them"
    assert await look(plane) == 0


async def test_a_folder_that_cannot_be_listed_is_shown_and_listed_again(
    plane: ControlPlane, folder: Path
) -> None:
    await plane.deploy(watching(folder / "later"))
    assert (await look(plane), (await views(plane)).problem) == (
        0,
        f"files.unavailable: the files of a source cannot be read: No such file or directory: {folder / 'later'}",
    )
    (folder / "later").mkdir()
    (folder / "later" / "orders_2026-11-16.csv").write_text("x")
    await look(plane, passes=2)
    assert (await views(plane)).problem is None
    assert await days(plane) == ["2026-11-16"]


async def test_only_allowed_folders_are_listed_and_links_are_not_followed(
    plane: ControlPlane, folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "orders_2026-11-16.csv").write_text("secret")
    for place in (str(outside), f"{folder}-2", "/etc", "s3://bucket/prefix"):
        with pytest.raises(SpecInvalid) as refused:
            await plane.deploy(watching(place))
        (problem,) = refused.value.problems
        assert (problem.code, problem.line) == ("deploy.place_not_allowed", 5)
    os.symlink(outside, folder / "link")
    os.symlink(outside / "orders_2026-11-16.csv", folder / "orders_2026-11-17.csv")
    await plane.deploy(watching(folder / "link"))
    await look(plane, passes=2)
    assert "files.not_allowed" in ((await views(plane)).problem or "")
    await plane.deploy(watching(folder))
    await look(plane, passes=2)
    await plane.deploy(watching(folder, "*/orders_{YYYY}-{MM}-{DD}.csv"))
    await look(plane, passes=2)
    await plane.deploy(watching(folder, "link/orders_{YYYY}-{MM}-{DD}.csv"))
    await look(plane, passes=2)
    assert await emitted(plane) == []


async def test_names_that_no_database_holds_are_ignored(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder, "*_{YYYY}-{MM}-{DD}.csv"))
    os.close(os.open(os.fsencode(folder) + b"/\xff_2026-11-16.csv", os.O_CREAT | os.O_WRONLY))
    (folder / "a\nb_2026-11-16.csv").write_text("x")
    await look(plane, passes=2)
    assert await emitted(plane) == []
    assert (await views(plane)).ignored == 2


async def test_a_paused_source_is_not_listed(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder))
    (folder / "orders_2026-11-16.csv").write_text("x")
    await plane.pause("main", "orders")
    assert await look(plane, passes=3) == 0
    await plane.resume("main", "orders")
    assert await look(plane, passes=2) == 1


def _rows_of_files(folder: Path, pattern: str, by: str) -> str:
    reads = f"source: {{kind: file, path: {folder}, pattern: '{pattern}', format: csv}}"
    return (
        f"version: 1\ndag: main\ndatasets: {{in: {{partitions: {{by: {by}}}, columns: [{{name: a, type: bigint}}]}}}}\n"
        f"jobs:\n- {{name: orders, activation: source, {reads}, outputs: [{{dataset: in}}]}}\n"
    )


@pytest.mark.parametrize("deleted", [False, True])
async def test_files_are_listed_again_by_other_periods_before_these_serve(
    plane: ControlPlane, folder: Path, deleted: bool
) -> None:
    await plane.deploy(_rows_of_files(folder, "{YYYY}-{MM}-{DD}*.csv", "day"))
    for day in ("2026-01-01", "2026-01-31", "2026-02-03"):
        (folder / f"{day}.csv").write_text("a\n1\n")
    await look(plane, passes=2)
    await plane.run_all()
    if deleted:
        (folder / "2026-02-03.csv").unlink()
    answer = await plane.deploy(_rows_of_files(folder, "{YYYY}-{MM}-*.csv", "month"))
    assert "in: its partitions change from days to months" in answer.text
    assert "in#files: its partitions change from days to months" in answer.text
    for _ in range(3):
        await plane.builds.run_once()
        await look(plane, passes=2)
        await plane.run_all()
    newest, *_ = await plane.versions("main")
    if deleted:
        assert (newest.state, bool(newest.lacking)) == ("building", True), "readers have its rows"
        return
    assert newest.state == "active"
    assert {name for name, _, _ in await listed(plane, "in#files")} == {"2026-01", "2026-02"}
    (folder / "2026-03-01.csv").write_text("a\n1\n")
    assert await look(plane, passes=2) == 1
    assert (await views(plane)).problem is None


async def test_a_renamed_source_continues_its_list(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder))
    (folder / "orders_2026-11-16.csv").write_text("x")
    await look(plane, passes=2)
    await plane.deploy(watching(folder, name="renamed"))
    (folder / "orders_2026-11-17.csv").write_text("x")
    await look(plane, passes=2)
    assert await days(plane) == ["2026-11-16", "2026-11-17"]


async def test_a_large_folder_is_listed_in_pages(plane: ControlPlane, folder: Path) -> None:
    await plane.deploy(watching(folder, "{position}.csv", by="position"))
    for number in range(2_000):
        (folder / f"{number}.csv").touch()
    pages: list[int] = []

    class Counted(WatchedFiles):
        async def pages(self, place: str, beginning: str, folders: int) -> AsyncIterator[list[WatchedFile]]:
            async for page in super().pages(place, beginning, folders):
                pages.append(len(page))
                yield page

    plane.files = FileListing(plane.database, Counted(plane.settings, page=300))
    assert await look(plane, passes=2) == 2_000
    assert max(pages) == 300
    assert len(await emitted(plane)) == 2_000
