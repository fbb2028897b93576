"""A changed DAG is built beside the one that serves, takes its place in one transaction, and can be taken back."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, dag, job, source
from tests.postgres.test_commits import span
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import Conflict, NotFound
from traceplane.postgres import tasks
from traceplane.registry import cutover
from traceplane.registry.garbage import Collected, Policy, collect
from traceplane.wire.control import ManualEvent
from traceplane.wire.deploys import DeployRequest, VersionQuery
from traceplane.wire.scalars import Scope


def chain(version: int, more: str = "") -> str:
    """in → a → b → c, of which b is another one in each version."""
    changed = job("b", "a", "b").replace("basic:copy", f"basic:copy_{version}")
    return SOURCE + job("a", "in", "a") + changed + job("c", "b", "c") + more


async def build(plane: ControlPlane) -> None:
    """Whatever the dispatcher and its workers would do, until nothing is left to do."""
    for _ in range(20):
        built = await plane.builds.run_once()
        if not await plane.run_all() and not (built.told or built.canceled or built.cut_over):
            return
    raise AssertionError("it did not come to rest")


async def served(plane: ControlPlane, dataset: str) -> list[str]:
    """The scopes that readers of a dataset see."""
    rows = await plane.sql(
        "select scope_key from datasets join dataset_commits on generation_id = current_generation_id"
        " where dataset_id = $1 and superseded_by is null order by range_start",
        dataset,
    )
    return [r["scope_key"] for r in rows]


async def made_by(plane: ControlPlane, dataset: str) -> set[str]:
    """The entrypoints of the jobs that made what readers see."""
    rows = await plane.sql(
        "select distinct j.definition->'config'->>'entrypoint' as made_by from datasets d"
        " join dataset_commits c on c.generation_id = d.current_generation_id"
        " join tasks using (task_id) join jobs j using (job_id) where d.dataset_id = $1",
        dataset,
    )
    return {r["made_by"] for r in rows}


async def pointers(plane: ControlPlane) -> dict[str, Any]:
    rows = await plane.sql("select dataset_id, current_generation_id from datasets")
    return {r["dataset_id"]: r["current_generation_id"] for r in rows}


async def active(plane: ControlPlane) -> int:
    return await plane.value("select number from dag_versions where state = 'active'")


async def filled(plane: ControlPlane, cursors: range = range(5)) -> dict[str, Any]:
    await plane.deploy(chain(1))
    await plane.emit("in", cursors)
    await plane.run_all()
    return await pointers(plane)


async def test_only_what_changed_and_its_downstream_is_built_and_the_old_serves_meanwhile(
    plane: ControlPlane,
) -> None:
    before = await filled(plane)
    answer = await plane.deploy(chain(2))
    assert answer.building
    assert "b: 5 scopes" in answer.text
    assert "c: 5 scopes" in answer.text
    assert await pointers(plane) == before
    assert await active(plane) == 1
    await plane.emit("in", range(5, 8))  # processed for both
    await plane.run_all()
    assert await served(plane, "c") == [f"c:{n}" for n in range(8)]
    assert await made_by(plane, "b") == {"basic:copy_1"}
    await build(plane)
    assert await active(plane) == 2
    after = await pointers(plane)
    assert {name for name in after if after[name] != before[name]} == {"b", "c"}
    for dataset in ("a", "b", "c"):
        assert await served(plane, dataset) == [f"c:{n}" for n in range(8)]
    assert await made_by(plane, "b") == {"basic:copy_2"}
    assert len(await plane.tasks("a")) == 8  # what did not change was not computed again


async def test_a_rollback_serves_the_old_data_at_once_and_then_what_it_missed(plane: ControlPlane) -> None:
    before = await filled(plane)
    await plane.deploy(chain(2))
    await build(plane)
    await plane.emit("in", range(5, 7))
    await plane.run_all()
    moved = await plane.rollback("main", drop_missing=True)
    assert (moved.version, moved.before) == (1, 2)
    assert await pointers(plane) == before
    assert await served(plane, "c") == [f"c:{n}" for n in range(5)]
    await build(plane)
    assert await served(plane, "c") == [f"c:{n}" for n in range(7)]
    assert await made_by(plane, "b") == {"basic:copy_1"}
    assert await active(plane) == 1
    forward = await plane.rollback("main", to=2)
    assert forward.version == 2
    await build(plane)
    assert await made_by(plane, "b") == {"basic:copy_2"}
    assert await served(plane, "c") == [f"c:{n}" for n in range(7)]


async def test_queued_tasks_of_a_bad_version_are_canceled_and_running_ones_are_notified(
    plane: ControlPlane,
) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    await build(plane)
    await plane.emit("in", range(10, 14))
    await plane.meter()
    await plane.complete(*await plane.claim(await plane.send()))  # a
    await plane.meter()
    running = (await plane.claim((await plane.send())[:2]))[:2]
    assert {h.job.name for h in running} == {"b"}
    await plane.rollback("main", drop_missing=True)
    await plane.builds.run_once()
    assert await plane.heartbeat(*running) == ["canceled"] * 2
    assert await plane.complete(*running) == ["canceled"] * 2
    await build(plane)
    assert await made_by(plane, "b") == {"basic:copy_1"}
    assert await served(plane, "c") == [f"c:{n}" for n in (*range(5), *range(10, 14))]
    states = await plane.sql(
        "select t.state::text, count(*) from tasks t join jobs j using (job_id)"
        " where not j.routed and t.stage in (0, 1) group by 1"
    )
    assert states == []


async def test_a_rollback_repeats_what_running_tasks_are_about_to_give_up(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    await plane.builds.run_once()
    await plane.emit("in", [10])
    await plane.meter()
    await plane.complete(*await plane.claim(await plane.send()))  # a
    await plane.meter()
    held = await plane.claim(await plane.send())
    running = [h for h in held if h.job.name == "b" and h.scope.cursor == 10]
    assert len(running) == 2  # of both versions; nothing serves there yet
    await plane.complete(*(h for h in held if h not in running))
    await build(plane)
    assert await active(plane) == 2
    await plane.rollback("main", drop_missing=True)
    await plane.builds.run_once()
    assert await plane.complete(*running) == ["canceled"] * 2
    await build(plane)
    assert await served(plane, "b") == [f"c:{n}" for n in (*range(5), 10)]


async def test_a_rollback_repeats_what_is_being_canceled(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    await build(plane)
    await plane.emit("in", [10])
    await plane.complete(*await plane.claim(await plane.send()))  # a; b waits
    monkeypatch.setattr(cutover, "_CANCELED_AT_ONCE", 0)
    await plane.rollback("main", drop_missing=True)
    async with plane.database.transaction() as tx:
        assert await tasks.cancel_retired(tx, 10)
        moving = asyncio.create_task(plane.rollback("main", drop_missing=True))
        await asyncio.wait([moving], timeout=0.5)
        await plane.builds._replay()
    await moving
    await build(plane)
    assert await active(plane) == 2
    assert await served(plane, "c") == [f"c:{n}" for n in (*range(5), 10)]


async def test_a_version_that_is_given_up_leaves_no_trace_for_readers(plane: ControlPlane) -> None:
    before = await filled(plane)
    await plane.deploy(chain(2))
    await plane.builds.run_once()
    assert (await plane.abort("main")).version == 2
    await build(plane)
    assert await pointers(plane) == before
    with pytest.raises(Conflict, match=r"deploy\.not_building"):
        await plane.abort("main")
    await plane.deploy(chain(3))
    await build(plane)
    assert await made_by(plane, "b") == {"basic:copy_3"}
    with pytest.raises(Conflict, match=r"version\.never_served"):
        await plane.rollback("main", to=2)
    with pytest.raises(NotFound, match=r"version\.unknown"):
        await plane.rollback("main", to=99)
    with pytest.raises(Conflict, match=r"version\.active"):
        await plane.rollback("main", to=3)


async def test_progress_counts_scopes_that_serve_and_are_built_too(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(4))
    await plane.run_all()
    await plane.deploy(chain(2))
    await plane.emit("in", range(4, 9))  # done by the new version first, and by the serving one never
    progress = []
    for _ in range(20):
        await plane.builds.run_once()
        await plane.meter()
        held = await plane.claim(await plane.send())
        serving = {
            row["job_id"] for row in await plane.sql("select job_id from jobs where building or name = 'a'")
        }
        await plane.complete(*(h for h in held if h.task.job_id in serving))
        query = VersionQuery("main")
        call = msgspec.structs.replace(plane._call(None), query=query)
        newest = (await plane.api.deploys.versions(call)).versions[0]
        progress.append([(d.dataset, d.built, d.serving) for d in newest.datasets])
        if newest.state != "building":
            break
    counted = [(built, of) for step in progress for _, built, of in step]
    assert all(built <= of == 4 for built, of in counted)
    assert {built for built, _ in counted} > {4}


async def test_only_one_version_is_built_at_a_time_and_an_outdated_deploy_is_refused(
    plane: ControlPlane,
) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    with pytest.raises(Conflict, match=r"deploy\.building"):
        await plane.deploy(chain(3))
    await build(plane)
    with pytest.raises(Conflict, match=r"deploy\.version_moved"):
        await plane.deploy(chain(3), expect_version=1)
    assert (await plane.deploy(chain(2))).changed is False


async def test_deploying_what_serves_aborts_the_version_being_built(plane: ControlPlane) -> None:
    before = await filled(plane)
    await plane.deploy(chain(2))
    plan = await plane.plan(chain(1))
    assert (plan.noop, plan.gives_up, plan.blocked) == (False, 2, None)
    assert "A deploy aborts version 2, which is being built." in plan.text
    assert [v.state for v in await plane.versions("main")] == ["building", "active"]
    other = await plane.plan(chain(3))
    assert (other.gives_up, other.blocked_code) == (None, "deploy.building")
    assert "version 2 of main is being built" in (other.blocked or "")
    with pytest.raises(Conflict, match=r"version_moved"):  # a refused deploy aborts nothing
        await plane.deploy(chain(1), expect_version=2)
    answer = await plane.deploy(chain(1))
    assert (answer.version, answer.changed, answer.building, answer.given_up) == (1, False, False, 2)
    assert "Version 2, which was being built, was aborted." in answer.text
    await build(plane)
    assert [v.state for v in await plane.versions("main")] == ["aborted", "active"]
    assert await pointers(plane) == before
    again = await plane.deploy(chain(1))
    assert (again.given_up, "version 2" in again.text) == (None, False)
    assert (await plane.plan(chain(1))).noop


async def test_deploying_the_file_that_is_being_built_joins_its_build(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(chain(2), manual_cutover=True)
    plan = await plane.plan(chain(2))
    assert (plan.noop, plan.being_built, plan.blocked) == (True, 2, None)
    answer = await plane.deploy(chain(2))
    assert (answer.version, answer.changed, answer.building) == (2, False, True)
    assert answer.text == "DAG main: no changes; version 2 matches the file.\nVersion 2 is being built.\n"
    with pytest.raises(Conflict, match=r"deploy\.building"):
        await plane.deploy(chain(2).replace("name: c\n", "name: c\n  description: other\n"))
    await build(plane)
    assert (await plane.deploy(chain(2))).building  # it still waits for its cutover
    assert [v.state for v in await plane.versions("main")] == ["building", "active"]
    await plane.cutover("main")
    answer = await plane.deploy(chain(2))
    assert (answer.version, answer.changed, answer.building) == (2, False, False)


async def test_a_version_may_wait_to_be_let_serve(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(chain(2), manual_cutover=True)
    with pytest.raises(Conflict, match=r"deploy\.not_caught_up"):
        await plane.cutover("main")
    await build(plane)
    assert await active(plane) == 1
    assert (await plane.cutover("main")).version == 2
    assert await active(plane) == 2


async def test_a_dead_task_keeps_a_version_from_serving_until_it_is_retried(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    await plane.builds.run_once()
    await plane.meter()
    held = await plane.claim(await plane.send())
    assert {h.job.name for h in held} == {"b"}
    await plane.fail(held[0], retryable=False)
    await plane.complete(*held[1:])
    await build(plane)
    assert await active(plane) == 1
    await plane.retry(held[0].task_id)
    await build(plane)
    assert await active(plane) == 2
    assert await served(plane, "c") == [f"c:{n}" for n in range(5)]


async def _run_all_but(plane: ControlPlane, position: int) -> None:
    """Lets the one job of a file compute everything; its task for one position dies."""
    await plane.builds.run_once()
    await plane.meter()
    for held in await plane.claim(await plane.send()):
        if held.task.scope == Scope(cursor=position):
            await plane.fail(held, retryable=False)
        else:
            await plane.complete(held)
    await build(plane)


@pytest.mark.parametrize("renamed", [True, False])
@pytest.mark.parametrize("remembered", [True, False])
async def test_a_scope_that_nobody_has_does_not_keep_a_version_from_serving(
    plane: ControlPlane, renamed: bool, remembered: bool
) -> None:
    await plane.deploy(SOURCE + job("copy", "in", "out"))
    await plane.emit("in", range(3))
    await _run_all_but(plane, 1)
    if not remembered:  # the serving job has no task for it
        await plane.sql("delete from tasks where stage = 3")
        await plane.sql("delete from task_inputs where task_id not in (select task_id from tasks)")
    await plane.deploy(SOURCE + job("copied" if renamed else "copy", "in", "out", entrypoint="basic:other"))
    await _run_all_but(plane, 1)
    assert await active(plane) == 2
    assert await served(plane, "out") == ["c:0", "c:2"]
    assert len(await plane.tasks("copied" if renamed else "copy", "dead")) >= 1, "it stays visible"


async def test_a_dead_scope_that_readers_have_keeps_a_renamed_job_from_serving(plane: ControlPlane) -> None:
    await plane.deploy(SOURCE + job("copy", "in", "out"))
    await plane.emit("in", range(3))
    await build(plane)
    await plane.deploy(SOURCE + job("copied", "in", "out"))
    await _run_all_but(plane, 1)
    assert await active(plane) == 1
    newest, *_ = await plane.versions("main")
    assert newest.dead == 1


async def test_readers_in_other_dags_follow_and_compute_everything_anew(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(dag("other", source("other.in"), job("mine", "c", "mine")))
    await build(plane)
    assert await served(plane, "mine") == [f"c:{n}" for n in range(5)]  # also of what was there before it
    answer = await plane.deploy(chain(2))
    assert "! DAG other, job mine reads c" in answer.text
    await build(plane)
    read = await plane.sql(
        "select i.generation_id = d.current_generation_id as current from job_inputs i join jobs using (job_id)"
        " join datasets d using (dataset_uuid) where jobs.name = 'mine'"
    )
    assert [r["current"] for r in read] == [True]
    assert len(await plane.tasks("mine", "completed")) == 10
    await plane.emit("in", [77])
    await plane.run_all()
    assert (await served(plane, "mine"))[-1] == "c:77"


async def test_ranges_get_past_events_too(plane: ControlPlane) -> None:
    batched = job("b", "a", "b", "execution_strategy: Bulk\n  batch: {size: 5}")
    batching = SOURCE + job("a", "in", "a") + batched + job("c", "b", "c")
    await plane.deploy(batching)
    await plane.emit("in", range(13))
    await plane.run_all()
    assert await served(plane, "c") == ["p:0-4", "p:5-9"]
    await plane.deploy(batching.replace("size: 5", "size: 4"))
    await build(plane)
    assert await served(plane, "c") == ["p:0-3", "p:4-7", "p:8-11"]
    await plane.rollback("main", drop_missing=True)
    await plane.emit("in", [13, 14])
    await build(plane)
    assert await served(plane, "c") == ["p:0-4", "p:5-9", "p:10-14"]


async def test_superseded_scopes_are_not_replayed(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", [1, 2, span(0, 9), 12])
    await plane.run_all()
    assert await served(plane, "a") == ["p:0-9", "c:12"]
    await plane.deploy(chain(2))
    await build(plane)
    told = await plane.sql(
        "select scope_key from tasks join jobs using (job_id) where name = 'b' and fingerprint ="
        " (select fingerprint from jobs where name = 'b' order by job_id desc limit 1) order by range_start"
    )
    assert [r["scope_key"] for r in told] == ["p:0-9", "c:12"]


async def test_no_event_falls_between_two_versions(database_url: str, plane: ControlPlane) -> None:
    """Guarantee 1 across deploys and rollbacks: events that arrive at any moment reach whoever serves then."""
    draw = random.Random(7)
    await plane.deploy(chain(1))
    emitted = 0
    async with ControlPlane.open(database_url) as other:
        for turn in range(12):

            async def emit_some() -> None:
                nonlocal emitted
                for _ in range(6):
                    await other.emit("in", range(emitted, emitted + 3))
                    emitted += 3

            async def move(turn: int = turn) -> None:
                await asyncio.sleep(draw.random() * 0.02)
                if turn % 3 == 2:
                    await plane.rollback("main", drop_missing=True)
                else:
                    await plane.deploy(chain(turn + 2))

            await asyncio.gather(emit_some(), move())
            await build(plane)
            for dataset in ("a", "b", "c"):
                assert await served(plane, dataset) == [f"c:{n}" for n in range(emitted)], (turn, dataset)


async def test_a_change_of_metering_and_its_rollback_are_moves_too(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.deploy(chain(1).replace("name: a\n", "name: a\n  scaling: {max_concurrency: 3}\n"))
    assert await plane.value("select max_concurrency from jobs where name = 'a'") == 3
    assert await plane.value("select priority from jobs where name = 'b'") == 0
    await plane.rollback("main")
    assert await plane.value("select max_concurrency from jobs where name = 'a'") is None
    assert await active(plane) == 1


async def test_data_of_old_versions_goes_and_they_cannot_serve_again(
    plane: ControlPlane, tmp_path: Path
) -> None:
    store = FolderObjectStore(tmp_path)

    def stored() -> set[str]:
        return {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}

    async def write_files() -> None:
        for row in await plane.sql(
            "select f ->> 'path' as path from dataset_commits, jsonb_array_elements(files) f"
        ):
            (tmp_path / row["path"]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / row["path"]).write_bytes(b"x" * 10)

    await filled(plane)
    for version in (2, 3, 4):
        await plane.deploy(chain(version))
        await build(plane)
    await write_files()
    before = stored()
    grace = timedelta(hours=1)
    assert (await collect(plane.database, store, Policy(grace, keep_versions=1))).files == 0
    await plane.pass_time(7200)
    dry = await collect(plane.database, store, Policy(grace, keep_versions=1), dry_run=True)
    assert stored() == before
    done = await collect(plane.database, store, Policy(grace, keep_versions=1))
    assert done == dry
    assert (done.versions, done.files) == (2, 20)  # b and c of two versions, five scopes each
    assert await served(plane, "c") == [f"c:{n}" for n in range(5)]
    with pytest.raises(Conflict, match=r"version\.collected"):
        await plane.rollback("main", to=2)
    await plane.rollback("main", to=3)
    live = await plane.sql(
        "select f ->> 'path' as path from datasets join dataset_commits on generation_id = current_generation_id,"
        " jsonb_array_elements(files) f where superseded_by is null"
    )
    assert {r["path"] for r in live} <= stored()
    assert await collect(plane.database, store, Policy(grace, keep_versions=1)) == Collected()


async def test_a_change_of_execution_strategy_may_keep_the_data_and_a_plan_is_data_too(
    plane: ControlPlane,
) -> None:
    by_name = chain(1).replace("jobs:", "datasets: {in: {partitions: {by: name}}}\njobs:")
    await plane.deploy(by_name)
    await plane.emit_events([ManualEvent("in", partition=name) for name in ("eu", "us", "uk", "jp", "in")])
    await plane.run_all()
    before = await pointers(plane)
    per_partition = by_name.replace("- name: b", "- execution_strategy: PerPartition\n  name: b")

    async def steps(text: str, **fields: Any) -> Any:
        return await plane.api.deploys.plan(plane._call(DeployRequest(text, **fields)))

    rebuilt = await steps(per_partition)
    assert [(r.job, r.downstream_of) for r in rebuilt.steps.rebuilt] == [("b", []), ("c", ["b"])]
    assert [c.field for c in rebuilt.steps.rebuilt[0].changes] == ["execution_strategy"]
    assert [(w.dataset, w.scopes) for w in rebuilt.steps.computed_anew] == [("b", 5), ("c", 5)]
    kept = await steps(per_partition, no_rematerialize=True)
    assert not kept.steps.rebuilt
    (change,) = kept.steps.in_place
    assert (change.job, change.changes[0].old, change.changes[0].new) == (
        "b",
        '"PerUpdate"',
        '"PerPartition"',
    )

    assert not (await plane.deploy(per_partition, no_rematerialize=True)).building
    assert await pointers(plane) == before
    assert not (await plane.deploy(per_partition)).changed  # said once, it holds
    await plane.emit_events([ManualEvent("in", partition="br")])
    await plane.run_all()
    assert (await served(plane, "c"))[-1] == "p:br"

    strategy = "select definition->>'execution_strategy' from jobs where name = 'b'"
    assert await plane.value(strategy) == "PerPartition"
    await plane.rollback("main")
    assert await plane.value(strategy) == "PerUpdate"
    await plane.rollback("main", to=2)
    assert await plane.value(strategy) == "PerPartition"

    other = per_partition.replace("basic:copy_1", "basic:copy_2")
    more = await steps(other, no_rematerialize=True)
    assert more.blocked_code == "deploy.needs_rematerialize"
    with pytest.raises(Conflict, match=r"deploy\.needs_rematerialize"):
        await plane.deploy(other, no_rematerialize=True)
