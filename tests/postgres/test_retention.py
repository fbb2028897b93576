"""History ends after its time, and what something still needs stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane, canceled
from tests.dags import SOURCE, job
from tests.postgres.test_garbage import claim, files, staged
from traceplane.adapters.object_store import StagingPrefix
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.dispatcher.loops.retention import Retention, RetentionPass
from traceplane.errors import PlatformError
from traceplane.postgres import history, tasks
from traceplane.registry.garbage import Collected, Policy, collect
from traceplane.wire.deploys import DeleteRequest

DAG = SOURCE + job("copy", "in", "mid", "max_attempts: 1")
CHANGED = SOURCE + job("copy", "in", "mid", "max_attempts: 1", entrypoint="basic:other")
DAY = 86_400.0
POLICY = Policy(timedelta(hours=24), timedelta(days=30))


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        await opened.deploy(DAG)
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


async def end(
    plane: ControlPlane, root: Path, *, policy: Policy = POLICY, dry_run: bool = False
) -> Collected:
    """Without the audit log, which every event by hand adds to."""
    collected = await collect(plane.database, FolderObjectStore(root), policy, dry_run=dry_run)
    return replace(collected, audit=0)


async def counts(plane: ControlPlane) -> dict[str, int]:
    tables = ("tasks", "events", "task_inputs", "task_logs")
    return {table: await plane.value(f"select count(*) from {table}") for table in tables}


async def test_finished_tasks_go_after_their_time_and_their_data_stays(
    plane: ControlPlane, root: Path
) -> None:
    held = await claim(plane, root, *range(5))
    await plane.complete(*held)
    async with plane.database.transaction() as tx:
        await tx.run("insert into task_logs select task_id, 1, 'x', tp_now() from tasks")
    await plane.set_clock(29 * DAY)
    assert await end(plane, root) == Collected()
    await plane.set_clock(31 * DAY)
    assert await end(plane, root, dry_run=True) == Collected(tasks=5)
    assert (await counts(plane))["tasks"] == 5
    assert await end(plane, root) == Collected(tasks=5)
    # The last event of a scope is what a rebuild replays; its lineage says which jobs have had it.
    assert await counts(plane) == {"tasks": 0, "events": 10, "task_inputs": 5, "task_logs": 0}
    assert files(root) == {staged(h) for h in held}
    assert (await plane.explain_scope("mid", 0, 4)).missing == ()
    assert await end(plane, root) == Collected()


async def test_forever_is_forever(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, 1))
    await plane.set_clock(10_000 * DAY)
    assert await end(plane, root, policy=Policy(POLICY.grace)) == Collected()


async def test_events_go_when_a_later_one_of_their_scope_came(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, 5))
    await plane.set_clock(20 * DAY)
    await plane.complete(*await claim(plane, root, 5, emission="again"))
    await plane.set_clock(31 * DAY)
    assert await end(plane, root, dry_run=True) == Collected(commits=1, files=1, bytes=10, tasks=1, events=2)
    assert await end(plane, root) == Collected(commits=1, files=1, bytes=10, tasks=1, events=2)
    assert (await plane.emit("in", [5], emission="again")).duplicates == 1


async def test_unfinished_and_dead_tasks_stay_with_their_events(plane: ControlPlane, root: Path) -> None:
    dead, waiting = await claim(plane, root, 1, 2)
    await plane.fail(dead, retryable=False)
    await plane.emit("in", [1, 2], emission="later")  # replaces the events that these tasks were made for
    await plane.set_clock(400 * DAY)
    assert await end(plane, root) == Collected(attempts=1, files=1, bytes=10)
    assert await plane.retry(dead.task_id) == {dead.task_id: "queued"}
    assert await plane.value("select count(*) from events where emission = ''") == 2
    assert await plane.complete(waiting) == ["committed"]


async def test_a_dead_task_goes_once_its_work_was_done(plane: ControlPlane, root: Path) -> None:
    (dead,) = await claim(plane, root, 1)
    await plane.fail(dead, retryable=False)
    await plane.set_clock(1 * DAY)
    await plane.complete(*await claim(plane, root, 1, emission="again"))
    await plane.set_clock(40 * DAY)
    assert (await end(plane, root)).tasks == 2
    assert await plane.states() == {}


async def test_a_source_keeps_its_run(database_url: str, root: Path) -> None:
    """It is one task for ever, by whose id repeated events are recognized."""
    async with ControlPlane.open(database_url) as plane:
        await plane.set_clock(0)
        runs = 'runtime: python, operator: python, config: {entrypoint: "basic:copy"}, outputs:'
        await plane.deploy(SOURCE.replace("kind: manual", "kind: always_on").replace("outputs:", runs))
        async with plane.database.transaction() as tx:
            await tasks.start_sources(tx)
            await tx.run("update tasks set state = 'completed', finished_at = tp_now()")
        await plane.set_clock(400 * DAY)
        assert (await end(plane, root)).tasks == 0


async def test_a_rollback_after_the_history_ended_does_no_work_again(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, *range(5)))
    await plane.deploy(CHANGED)
    await plane.builds.run_once()
    await plane.run_all()
    assert (await plane.builds.run_once()).cut_over == 1
    await plane.set_clock(100 * DAY)
    await end(plane, root)
    assert await plane.states() == {}
    await plane.rollback("main")
    assert (await plane.builds.run_once()).told == 0
    assert (await plane.explain_scope("mid", 0, 4)).missing == ()


async def test_a_rebuild_after_the_history_ended_has_all_of_it(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, *range(5)))
    await plane.set_clock(100 * DAY)
    await end(plane, root)
    await plane.deploy(CHANGED)
    assert (await plane.builds.run_once()).told == 5
    await plane.run_all()
    assert (await plane.builds.run_once()).cut_over == 1


async def test_what_a_canceled_task_was_to_do_is_replayed_after_it_is_gone(
    plane: ControlPlane, root: Path
) -> None:
    (held,) = await claim(plane, root, 1)
    await plane.cancel(held.task_id)
    await plane.report((held, canceled(held)))
    await plane.set_clock(100 * DAY)
    assert (await end(plane, root)).tasks == 1
    await plane.deploy(CHANGED)
    await plane.builds.run_once()
    await plane.run_all()
    await plane.builds.run_once()
    await plane.rollback("main", drop_missing=True)
    assert (await plane.builds.run_once()).told == 1


async def test_history_of_versions_out_of_reach_goes_whole(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, *range(5)))
    for number in range(4):
        await plane.deploy(SOURCE + job("copy", "in", "mid", entrypoint=f"basic:copy_{number}"))
        await plane.builds.run_once()
        await plane.run_all()
        await plane.builds.run_once()
    await plane.set_clock(100 * DAY)
    done = await end(plane, root)
    assert done.versions == 2
    assert done.tasks == 25
    kept = await plane.value(
        "select count(distinct generation_id) from events join datasets using (dataset_uuid) where dataset_id = 'mid'"
    )
    assert kept == 3


async def test_leftovers_of_tasks_that_are_gone_are_found(plane: ControlPlane, root: Path) -> None:
    (held,) = await claim(plane, root, 1)
    await plane.complete(held)
    left = root / staged(held).replace("part-0", "left-behind")
    left.write_bytes(b"x" * 7)
    await plane.set_clock(31 * DAY)
    async with plane.database.transaction() as tx:
        await tx.run("delete from tasks")
    assert await end(plane, root) == Collected(attempts=1, files=1, bytes=7)
    assert files(root) == {staged(held)}


async def test_unused_code_goes(plane: ControlPlane, root: Path) -> None:
    used, old, new, lock = "a" * 64, "b" * 64, "c" * 64, "d" * 64
    async with plane.database.transaction() as tx:
        for name in (used, old, lock):
            await tx.run("insert into code_bundles (bundle_hash, content) values ($1, '')", name)
        await tx.run(
            "update jobs set definition = definition"
            " || jsonb_build_object('code_bundle', $1::text, 'environment', $2::text)",
            used,
            lock,
        )
    await plane.set_clock(31 * DAY)
    async with plane.database.transaction() as tx:
        await tx.run("insert into code_bundles (bundle_hash, content) values ($1, '')", new)
    assert (await end(plane, root)).code == 1
    assert {r[0] for r in await plane.sql("select bundle_hash from code_bundles")} == {used, new, lock}


async def test_dead_wake_ups_go(plane: ControlPlane, root: Path) -> None:
    async with plane.database.transaction() as tx:
        for day in (0, 20):
            await tx.run(
                "insert into wake_dead_letters (message_id, queue, task_id, receives, buried_at)"
                " values ($1::int + 1, 'q', gen_random_uuid(), 3, tp_now() + $1::int * interval '1 day')",
                day,
            )
    await plane.set_clock(40 * DAY)
    assert await end(plane, root) == Collected(dead_letters=1)


async def test_two_dispatchers_run_a_round_once(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, *range(20)))
    await plane.set_clock(31 * DAY)
    loops = [Retention(plane.database, lambda: FolderObjectStore(root), POLICY, share=1.0) for _ in range(2)]
    done = [*await asyncio.gather(*(rounds(loop) for loop in loops))]
    assert sum(d.tasks for d in done) == 20
    assert [await rounds(loop) for loop in loops] == [RetentionPass(), RetentionPass()]
    await plane.set_clock(31 * DAY + 5 * 3600)
    assert await rounds(loops[0]) == RetentionPass()


async def test_the_round_of_a_dispatcher_that_died_is_taken_over(plane: ControlPlane, root: Path) -> None:
    await plane.complete(*await claim(plane, root, *range(20)))
    await plane.set_clock(31 * DAY)
    async with plane.database.transaction() as tx:
        await history.claim_round(tx, "history", timedelta(minutes=2))  # and nothing more is heard of it
    second = Retention(plane.database, lambda: FolderObjectStore(root), POLICY, share=1.0)
    assert (await rounds(second)).tasks == 0
    await plane.set_clock(31 * DAY + 130)
    assert (await rounds(second)).tasks == 20


def test_the_longer_a_round_takes_the_larger_is_its_share(plane: ControlPlane, root: Path) -> None:
    loop = Retention(plane.database, lambda: FolderObjectStore(root), POLICY)
    shares = [loop.share_after(hours * 3600, timedelta(hours=6)) for hours in (0, 5, 6, 20, 10_000)]
    assert shares == pytest.approx([0.02, 0.02, 0.04, 0.08, 0.5])


async def rounds(loop: Retention) -> Collected:
    """Passes until nothing is left to do."""
    total = Collected()
    while True:
        done = await loop.run_once()
        total = total + done
        if not done.more:
            return RetentionPass.of(total)


async def test_a_round_that_failed_is_due_again_soon(plane: ControlPlane, root: Path) -> None:
    loop = Retention(plane.database, lambda: Away(root), POLICY)
    with pytest.raises(PlatformError):
        await rounds(loop)
    due = "select array_agg(kind order by kind) from retention_rounds where due_at <= tp_now() + interval '10 minutes'"
    assert await plane.value(due) == ["leftovers"]
    await plane.set_clock(400)
    await rounds(Retention(plane.database, lambda: FolderObjectStore(root), POLICY))
    assert await plane.value(due) is None


class Away(FolderObjectStore):
    async def staging_prefixes(self) -> AsyncIterator[list[StagingPrefix]]:
        raise PlatformError("object_store.unavailable", "it is away")
        yield []


async def test_the_last_execution_of_a_schedule_stays(plane: ControlPlane, root: Path) -> None:
    async with plane.database.transaction() as tx:
        await tx.run(
            "insert into pipelines (org_id, user_id, name, trigger_mode, schedule, config)"
            " select org_id, 'u', 'p', 'periodic', '0 * * * *', '{\"target\": \"celery\"}' from orgs"
        )
        await tx.run(
            "insert into executions (pipeline_id, target, scheduled_for, status, created_at, finished_at)"
            " select pipeline_id, 'celery', tp_now() + n * interval '1 hour', 'COMPLETED', tp_now(), tp_now()"
            " from pipelines, generate_series(1, 5) n"
        )
    await plane.set_clock(31 * DAY)
    assert await end(plane, root, dry_run=True) == Collected(executions=4)
    assert await end(plane, root) == Collected(executions=4)
    assert await plane.value("select max(scheduled_for) from executions") is not None
    assert await end(plane, root) == Collected()


async def test_what_jobs_out_of_reach_remember_goes(plane: ControlPlane, root: Path) -> None:
    async with plane.database.transaction() as tx:
        await tx.run(
            "insert into open_batches select job_id, n, tp_now(), tp_now(), false"
            " from jobs, generate_series(1, 5000) n where name = 'copy'"
        )
        await tx.run(
            "insert into known_scopes (job_id, scope_key, range_start, range_end)"
            " select job_id, 'c:' || n, n, n from jobs, generate_series(1, 10) n where name = 'copy'"
        )
    await plane.set_clock(31 * DAY)
    assert await end(plane, root) == Collected()
    await plane.api.deploys.delete(plane._call(DeleteRequest("main")))
    await plane.set_clock(40 * DAY)
    assert (await end(plane, root)).job_memory == 5010
    assert await plane.value("select count(*) from open_batches") == 0
