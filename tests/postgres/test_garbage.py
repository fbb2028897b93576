"""Files go when nobody can read them any more, and not before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from tests.control_plane import ControlPlane, Held, completed
from tests.dags import SOURCE, job
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import PlatformError
from traceplane.registry.garbage import Collected, Policy, collect
from traceplane.wire.scalars import Scope

DAG = SOURCE + job("copy", "in", "mid", "max_attempts: 2")
GRACE = timedelta(hours=24)
HOUR = 3600.0


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.deploy(DAG)
        await opened.set_clock(0)
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def files(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def stage(root: Path, *held: Held) -> None:
    """Writes what the reports of these attempts will name."""
    for h in held:
        for output in h.outputs():
            for file in output.files:
                path = root / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x" * file.bytes)


def staged(held: Held) -> str:
    return held.outputs()[0].files[0].path


async def claim(plane: ControlPlane, root: Path, *scopes: int | Scope, emission: str = "") -> list[Held]:
    await plane.emit("in", scopes, emission=emission)
    await plane.meter()
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    stage(root, *held)
    return held


async def gc(
    plane: ControlPlane, root: Path, *, dry_run: bool = False, grace: timedelta = GRACE
) -> Collected:
    return await collect(plane.database, FolderObjectStore(root), Policy(grace), dry_run=dry_run)


async def test_replaced_files_go_after_the_grace_period(plane: ControlPlane, root: Path) -> None:
    (old,) = await claim(plane, root, 5)
    await plane.complete(old)
    (new,) = await claim(plane, root, 5, emission="again")
    await plane.complete(new)
    await plane.set_clock(23 * HOUR)
    assert await gc(plane, root) == Collected()
    await plane.set_clock(25 * HOUR)
    assert await gc(plane, root, dry_run=True) == Collected(commits=1, files=1, bytes=10)
    assert files(root) == {staged(old), staged(new)}
    assert await gc(plane, root) == Collected(commits=1, files=1, bytes=10)
    assert files(root) == {staged(new)}
    assert not (root / staged(old)).parent.parent.exists()
    assert await plane.value("select count(*) from dataset_commits") == 1
    assert await gc(plane, root) == Collected()


async def test_what_live_commits_name_is_never_touched(plane: ControlPlane, root: Path) -> None:
    held = await claim(plane, root, *range(20))
    await plane.complete(*held)
    await plane.set_clock(1000 * HOUR)
    assert await gc(plane, root, grace=timedelta(0)) == Collected()
    assert files(root) == {staged(h) for h in held}


async def test_a_file_of_two_commits_stays_as_long_as_one_of_them(plane: ControlPlane, root: Path) -> None:
    """A task may commit one file for two scopes, of which only one is replaced."""
    (held,) = await claim(plane, root, Scope(partition_key="1-2", start=1, end=2))
    (output,) = held.outputs()
    both = [msgspec.structs.replace(output, scope=Scope(cursor=n)) for n in (1, 2)]
    await plane.report((held, completed(held, outputs=both)))
    (again,) = await claim(plane, root, 1, emission="again")
    await plane.complete(again)
    await plane.set_clock(25 * HOUR)
    assert await gc(plane, root) == Collected(commits=1)
    assert files(root) == {staged(held), staged(again)}
    (last,) = await claim(plane, root, 2, emission="again")
    await plane.complete(last)
    await plane.set_clock(50 * HOUR)
    assert await gc(plane, root) == Collected(commits=1, files=1, bytes=10)
    assert files(root) == {staged(again), staged(last)}


async def test_what_an_overtaken_attempt_left_goes(plane: ControlPlane, root: Path) -> None:
    await claim(plane, root, 5)
    await plane.set_clock(100)
    await plane.reaper.run_once()
    await plane.set_clock(HOUR)
    assert await gc(plane, root, grace=timedelta(0)) == Collected()  # it may still be reported
    await plane.meter()
    (second,) = await plane.claim(await plane.send())
    stage(root, second)
    assert await gc(plane, root) == Collected()
    await plane.set_clock(26 * HOUR)
    assert await gc(plane, root) == Collected(attempts=1, files=1, bytes=10)
    assert files(root) == {staged(second)}
    assert await plane.complete(second) == ["committed"]


async def test_what_dead_and_canceled_tasks_left_goes(plane: ControlPlane, root: Path) -> None:
    dead, stopped, running = await claim(plane, root, 1, 2, 3)
    await plane.fail(dead, retryable=False)
    await plane.cancel(stopped.task_id)
    await plane.report((stopped, completed(stopped)))
    (root / "README").write_text("not ours")
    await plane.set_clock(25 * HOUR)
    assert await gc(plane, root) == Collected(attempts=2, files=2, bytes=20)
    assert files(root) == {staged(running), "README"}
    assert await gc(plane, root) == Collected()


async def test_an_attempt_whose_files_went_can_no_longer_commit(plane: ControlPlane, root: Path) -> None:
    """Given up without a word and dead: a report after weeks must not make files visible that are gone."""
    (held,) = await claim(plane, root, 5)
    async with plane.database.transaction() as tx:
        await tx.run("update jobs set max_attempts = 1")
    await plane.set_clock(100)
    await plane.reaper.run_once()
    assert await plane.states() == {"dead": 1}
    await plane.set_clock(30 * HOUR)
    assert await gc(plane, root, dry_run=True) == Collected(attempts=1, files=1, bytes=10)
    assert await gc(plane, root) == Collected(attempts=1, files=1, bytes=10)
    assert await plane.complete(held) == ["dead"]
    assert await plane.heartbeat(held) == ["stale"]
    assert await plane.value("select count(*) from dataset_commits") == 0
    assert await plane.retry(held.task_id) == {held.task_id: "queued"}


async def test_a_late_report_before_the_collection_counts(plane: ControlPlane, root: Path) -> None:
    (held,) = await claim(plane, root, 5)
    async with plane.database.transaction() as tx:
        await tx.run("update jobs set max_attempts = 1")
    await plane.set_clock(100)
    await plane.reaper.run_once()
    await plane.set_clock(30 * HOUR)
    await gc(plane, root, dry_run=True)
    assert await plane.complete(held) == ["committed"]
    await plane.set_clock(90 * HOUR)
    assert await gc(plane, root) == Collected()
    assert files(root) == {staged(held)}


class Dies(FolderObjectStore):
    """Fails after the first so many deletions."""

    room = 3

    async def delete(self, paths: Sequence[str]) -> None:
        await super().delete(paths[: self.room])
        raise PlatformError("object_store.cannot_delete", "it died")


async def test_a_collection_that_dies_half_way_goes_on_where_it_was(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, *range(10)))
    kept = await claim(plane, root, *range(10), emission="again")
    await plane.complete(*kept)
    await plane.set_clock(25 * HOUR)
    with pytest.raises(PlatformError):
        await collect(plane.database, Dies(root), Policy(GRACE))
    assert len(files(root)) == 17
    assert await plane.value("select count(*) from dataset_commits") == 20
    assert await gc(plane, root) == Collected(commits=10, files=7, bytes=70)
    assert files(root) == {staged(h) for h in kept}
    assert await plane.value("select count(*) from dataset_commits") == 10


async def test_tasks_of_another_platform_are_left_alone(plane: ControlPlane, root: Path) -> None:
    stranger = "/".join(["00000000-0000-0000-0000-000000000001"] * 2)
    path = root / stranger / "staging" / "00000000-0000-0000-0000-000000000002" / "1" / "x.parquet"
    path.parent.mkdir(parents=True)
    path.write_text("x")
    await plane.set_clock(1000 * HOUR)
    assert await gc(plane, root) == Collected()
    assert path.exists()


async def test_a_store_that_is_not_there_yet_holds_no_garbage(plane: ControlPlane, root: Path) -> None:
    assert await gc(plane, root) == Collected()


async def test_a_path_that_leads_out_of_the_store_is_refused(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").write_text("x")
    root.mkdir()
    (root / "link").symlink_to(outside)
    store = FolderObjectStore(root)
    for path in ("../precious/file", "/etc/hostname", "link/file"):
        with pytest.raises(PlatformError) as refused:
            await store.delete([path])
        assert refused.value.code == "object_store.outside"
    assert (outside / "file").exists()
