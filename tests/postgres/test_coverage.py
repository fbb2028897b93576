"""A cutover never serves less than it replaces, unless it is told to."""

from __future__ import annotations

import pytest

from tests.control_plane import ControlPlane, completed
from tests.dags import SOURCE, job
from tests.postgres.test_commits import span
from tests.postgres.test_scopes import day
from tests.postgres.test_versions import active, build, chain, filled, made_by, pointers, served
from traceplane.dispatcher.loops.source_monitor import SourceMonitor
from traceplane.errors import Conflict
from traceplane.wire.deploys import DeployRequest
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import EventOut


def cursors(numbers: range) -> list[str]:
    return [f"c:{n}" for n in numbers]


WEEKS = (
    SOURCE
    + job("a", "in", "a")
    + job("weekly", "a", "weekly", "execution_strategy: Bulk\n  batch: {size: 7}")
)
COLUMNS = "datasets: {in: {columns: [{name: n, type: bigint}]}}\n"
ANOTHER_SOURCE = {
    "renamed": SOURCE.replace("name: numbers", "name: figures"),
    "of another kind": SOURCE.replace("kind: manual", "kind: webhook"),
    "of another column": SOURCE + COLUMNS,
}


def downstream(source: str) -> str:
    """The jobs in front, since a file's other keys may follow them."""
    head, _, columns = source.partition("datasets:")
    return head + job("a", "in", "a") + job("b", "a", "b") + (f"datasets:{columns}" if columns else "")


@pytest.mark.parametrize("how", ANOTHER_SOURCE)
@pytest.mark.parametrize("said", [list(range(20)), [span(0, 9), span(10, 19)]], ids=["cursors", "partitions"])
async def test_a_new_source_keeps_what_the_old_one_emitted(
    plane: ControlPlane, how: str, said: list[int | Scope]
) -> None:
    await plane.deploy(downstream(SOURCE))
    await plane.emit("in", said)
    await plane.run_all()
    before = {dataset: await served(plane, dataset) for dataset in ("a", "b")}
    assert len(before["b"]) == len(said)
    answer = await plane.deploy(downstream(ANOTHER_SOURCE[how]))
    assert answer.building == (how == "of another column")
    await build(plane)
    assert await active(plane) == 2
    assert {dataset: await served(plane, dataset) for dataset in ("a", "b")} == before
    again = await plane.emit("in", [*said, 77])
    assert (again.accepted, again.duplicates) == (1, len(said))
    await build(plane)
    assert (await served(plane, "b"))[-1] == "c:77"
    await plane.rollback("main", drop_missing=True)
    assert (await plane.emit("in", [77, 78])).accepted == 1
    await build(plane)
    assert (await served(plane, "b"))[-2:] == ["c:77", "c:78"]


async def test_a_source_that_nobody_reads_differently_rebuilds_nothing(plane: ControlPlane) -> None:
    await plane.deploy(downstream(SOURCE))
    await plane.emit("in", range(3))
    await plane.run_all()
    before = await pointers(plane)
    await plane.deploy(downstream(ANOTHER_SOURCE["renamed"]))
    assert await pointers(plane) == before
    assert len(await plane.tasks("b")) == 3
    assert not (await plane.deploy(downstream(ANOTHER_SOURCE["renamed"]))).changed


async def test_history_that_came_by_backfill_survives_a_rebuild(plane: ControlPlane) -> None:
    await filled(plane, range(10, 14))
    await plane.backfill("a", 0, 9)
    await plane.run_all()
    assert await served(plane, "c") == cursors(range(14))
    await plane.deploy(chain(2))  # b and c anew; a tells them of all
    await build(plane)
    assert await served(plane, "c") == cursors(range(14))
    await plane.backfill("b", 20, 24, allow_gaps=True)  # a has nothing there
    await plane.run_all()
    everything = [*range(14), *range(20, 25)]
    changed = job("a", "in", "a").replace("basic:copy", "basic:copy_9")
    await plane.deploy(chain(2).replace(job("a", "in", "a"), changed))
    await build(plane)
    assert await active(plane) == 3
    assert await served(plane, "a") == cursors(range(14))
    for dataset in ("b", "c"):
        assert await served(plane, dataset) == [f"c:{n}" for n in everything]
    assert await made_by(plane, "a") == {"basic:copy_9"}
    counts = await plane.sql(
        "select j.name, count(*) from tasks t join jobs j using (job_id) where j.routed group by 1 order by 1"
    )
    assert [tuple(r) for r in counts] == [("a", 14), ("b", 19), ("c", 19)]  # each scope once
    assert await plane.sql("select * from catch_ups") == []


async def test_a_scope_whose_backfill_died_is_computed_by_the_version_that_mends_it(
    plane: ControlPlane,
) -> None:
    batched = job("b", "a", "b", "execution_strategy: Bulk\n  batch: {size: 5}")
    broken = job("a", "in", "a", "max_attempts: 1")
    await plane.deploy(SOURCE + broken + batched)
    await plane.emit("in", range(2))
    await plane.run_all()
    await plane.backfill("a", 0, 9)
    await plane.meter()
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    await plane.fail(*held[4:6], retryable=False)  # 6 and 7
    await plane.complete(*held[:4], *held[6:])
    await plane.run_all()
    assert await served(plane, "b") == ["p:0-4"]
    await plane.deploy(SOURCE + broken.replace("basic:copy", "basic:copy_2") + batched)
    await build(plane)
    assert await active(plane) == 2
    assert await served(plane, "a") == cursors(range(10))
    assert await served(plane, "b") == ["p:0-4", "p:5-9"]
    assert await plane.sql("select * from catch_ups") == []


async def test_a_scope_whose_backfill_dies_again_stays_reported_and_holds_up_nothing(
    plane: ControlPlane,
) -> None:
    await plane.deploy(chain(1))
    await plane.backfill("b", 7, 7, allow_gaps=True)
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.fail(held, retryable=False)
    await plane.emit("in", range(2))
    await plane.run_all()
    await plane.deploy(chain(2))
    await plane.builds.run_once()
    await plane.run_all()
    await plane.builds.run_once()
    await plane.meter()
    (again,) = await plane.claim(await plane.send())
    assert again.task.scope == Scope(cursor=7)
    await plane.fail(again, retryable=False)
    await build(plane)
    assert await active(plane) == 2
    assert (await plane.backfill("b", 0, 9, only="failed", dry_run=True)).failed == 1
    assert [r.code for r in (await plane.explain_scope("b", 7, 7)).reasons] == ["task_dead"]


async def test_with_nothing_but_a_backfill_it_is_all_there_too(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.backfill("b", 0, 9, allow_gaps=True)
    await plane.run_all()
    await plane.deploy(chain(2))
    assert await active(plane) == 1
    await build(plane)
    assert await active(plane) == 2
    assert await served(plane, "c") == cursors(range(10))


async def test_a_rollback_catches_up_with_history_too(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    await build(plane)
    await plane.backfill("b", 10, 12, allow_gaps=True)
    await plane.run_all()
    with pytest.raises(Conflict, match=r"rollback\.drops_data.*version 1.*b 10-12; c 10-12.*--drop-missing"):
        await plane.rollback("main")
    assert await active(plane) == 2
    moved = await plane.rollback("main", drop_missing=True)
    assert {(p.dataset, p.first, p.last) for p in moved.lacking} == {("b", 10, 12), ("c", 10, 12)}
    await build(plane)
    assert await served(plane, "c") == [f"c:{n}" for n in (*range(5), *range(10, 13))]
    assert await made_by(plane, "b") == {"basic:copy_1"}
    assert await plane.sql("select * from catch_ups") == []


async def test_a_rollback_to_a_version_without_a_dataset_drops_it_only_on_request(
    plane: ControlPlane,
) -> None:
    await plane.deploy(SOURCE + job("a", "in", "a"))
    await plane.deploy(SOURCE + job("a", "in", "a") + job("b", "a", "b"))
    await plane.rollback("main")  # nothing is in it yet, so nobody loses anything
    await plane.rollback("main", to=2)
    await plane.emit("in", range(3))
    await build(plane)
    changed = job("a", "in", "a").replace("basic:copy", "basic:copy_2") + job("b", "a", "b")
    await plane.deploy(SOURCE + changed, manual_cutover=True)
    with pytest.raises(Conflict, match=r"rollback\.drops_data.*b: 3 scopes"):
        await plane.rollback("main", to=1)
    states = [v.state for v in await plane.versions("main")]
    assert states == ["building", "active", "retired"]  # a refused rollback aborts nothing
    assert await served(plane, "b") == cursors(range(3))
    assert (await plane.rollback("main", to=1, drop_missing=True)).given_up == 3
    assert (await pointers(plane))["b"] is None
    await plane.rollback("main", to=2)
    assert await served(plane, "b") == cursors(range(3))


async def test_a_rollback_makes_no_total_of_what_is_not_whole(plane: ControlPlane) -> None:
    """Day 3 died in the version that serves again: its week waits, as it did before."""
    await plane.deploy(WEEKS)
    await plane.emit("in", range(7))
    await plane.meter()
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    await plane.fail(held[3], retryable=False)
    await plane.complete(*held[:3], *held[4:])
    await plane.run_all()
    mended = job("a", "in", "a").replace("basic:copy", "basic:copy_2")
    await plane.deploy(WEEKS.replace(job("a", "in", "a"), mended))
    await build(plane)
    assert await served(plane, "weekly") == ["p:0-6"]
    await plane.rollback("main", drop_missing=True)
    await build(plane)
    assert await served(plane, "weekly") == []
    await plane.retry(held[3].task_id)
    await build(plane)
    assert await served(plane, "weekly") == ["p:0-6"]
    await build(plane)
    assert await plane.sql("select * from catch_ups") == []


async def test_a_job_under_another_name_is_built_before_it_serves(plane: ControlPlane) -> None:
    await filled(plane)
    renamed = chain(1).replace("name: b,", "name: other,").replace("job: b}", "job: other}")
    renamed = renamed.replace("- name: b\n", "- name: other\n")
    answer = await plane.deploy(renamed)
    assert answer.building
    assert await served(plane, "b") == cursors(range(5))
    await build(plane)
    assert await active(plane) == 2
    assert await served(plane, "c") == cursors(range(5))


async def test_what_would_be_lost_is_named_and_dropped_only_on_request(plane: ControlPlane) -> None:
    batched = job("b", "a", "b", "execution_strategy: Bulk\n  batch: {size: 5}")
    dag = SOURCE + job("a", "in", "a") + batched
    await plane.deploy(dag)
    await plane.emit("in", range(12))
    await plane.run_all()
    assert await served(plane, "b") == ["p:0-4", "p:5-9"]
    await plane.deploy(dag.replace("size: 5", "size: 8"))
    await build(plane)
    assert await active(plane) == 1
    (view,) = [v for v in await plane.versions("main") if v.state == "building"]
    assert [(p.dataset, p.first, p.last) for p in view.lacking] == [("b", 8, 9)]
    with pytest.raises(Conflict, match=r"deploy\.not_caught_up.*readers would lose b 8-9"):
        await plane.cutover("main")
    assert (await plane.cutover("main", drop_missing=True)).version == 2
    assert await served(plane, "b") == ["p:0-7"]
    await plane.rollback("main")
    await plane.emit("in", [*range(12, 15)])
    await build(plane)
    assert await served(plane, "b") == ["p:0-4", "p:5-9", "p:10-14"]
    await plane.deploy(dag.replace("size: 5", "size: 7"), drop_missing=True)
    await build(plane)
    assert await served(plane, "b") == ["p:0-6", "p:7-13"]


async def test_a_dataset_whose_job_was_removed_is_dropped_only_on_request(plane: ControlPlane) -> None:
    dag = SOURCE + job("a", "in", "a")
    await plane.deploy(dag + job("b", "a", "b"))
    await plane.deploy(dag)  # nothing is in it yet, so nobody loses anything
    await plane.deploy(dag + job("b", "a", "b"))
    await plane.emit("in", range(3))
    await plane.run_all()
    planned = await plane.api.deploys.plan(plane._call(DeployRequest(dag)))
    assert "No longer served" in planned.text
    assert planned.steps is not None
    assert [(w.dataset, w.scopes) for w in planned.steps.dropped] == [("b", 3)]
    with pytest.raises(Conflict, match=r"deploy\.drops_data.*b: 3 scopes.*--drop-missing"):
        await plane.deploy(dag)
    assert await served(plane, "b") == cursors(range(3))
    version = (await plane.deploy(dag, drop_missing=True)).version
    assert await active(plane) == version
    assert (await pointers(plane))["b"] is None
    await plane.rollback("main")
    assert await served(plane, "b") == cursors(range(3))


async def test_a_sources_dataset_with_events_is_renamed_only_when_told_to(plane: ControlPlane) -> None:
    dag, renamed = (SOURCE.replace(": in}", f": {d}}}") + job("a", d, "a") for d in ("in", "numbers.in"))
    await plane.deploy(renamed)
    await plane.deploy(dag)  # no event was emitted yet
    await build(plane)
    await plane.emit("in", range(3))  # and no task has run
    planned = await plane.api.deploys.plan(plane._call(DeployRequest(renamed)))
    assert "No longer served (needs --drop-missing):\n      in: 3 events\n" in planned.text
    assert planned.steps is not None
    assert [(w.dataset, w.scopes, w.events) for w in planned.steps.dropped] == [("in", 0, 3)]
    with pytest.raises(
        Conflict, match=r"deploy\.drops_data.*in: 3 events.*make the source emit to in as before"
    ):
        await plane.deploy(renamed)
    await plane.run_all()
    assert await served(plane, "a") == cursors(range(3))
    with pytest.raises(Conflict, match=r"deploy\.drops_data.*a: 3 scopes.*in: 3 events.*put their jobs back"):
        await plane.deploy(SOURCE.replace("numbers", "others").replace(": in}", ": others.in}"))
    await plane.deploy(renamed, drop_missing=True)
    await build(plane)
    assert (await pointers(plane))["in"] is None


async def test_a_source_that_emits_less_is_named_and_its_version_serves_only_when_told_to(
    plane: ControlPlane,
) -> None:
    copies = job("a", "in", "a", "max_attempts: 1")
    await plane.deploy(SOURCE + copies)
    await plane.emit("in", range(5))
    await plane.run_all()
    operator = 'runtime: python, operator: python, config: {entrypoint: "basic:copy"}'
    await plane.deploy(SOURCE.replace("{kind: manual}", f"{{kind: always_on}}, {operator}") + copies)
    await SourceMonitor(plane.database).run_once()
    await plane.meter()
    (source,) = await plane.claim(await plane.send())
    await plane.emit_running(source, *(EventOut(0, Scope(cursor=n)) for n in range(3)))
    await plane.meter()
    first, *others = await plane.claim(await plane.send())
    await plane.fail(first, retryable=False)
    await plane.complete(*others)
    await plane.run_all()
    (view,) = [v for v in await plane.versions("main") if v.state == "building"]
    assert (view.unfinished, view.dead, view.sources_behind) == (0, 1, 1)
    assert [(s.job, s.dataset, s.position) for s in view.behind] == [("numbers", "in", 3)]
    with pytest.raises(Conflict, match=r"deploy\.not_caught_up.*--drop-missing"):
        await plane.cutover("main")
    assert (await plane.cutover("main", drop_missing=True)).version == 2


async def test_a_scope_for_which_there_is_nothing_to_write_is_not_missing(plane: ControlPlane) -> None:
    await filled(plane)
    await plane.deploy(chain(2))
    for _ in range(10):
        await plane.builds.run_once()
        await plane.meter()
        for held in await plane.claim(await plane.send()):
            outputs = [] if held.job.name == "b" and held.task.scope != Scope(cursor=4) else held.outputs()
            await plane.report((held, completed(held, outputs=outputs)))
    await build(plane)
    assert await active(plane) == 2
    assert await served(plane, "b") == ["c:4"]


async def test_a_gap_is_reported_and_no_incomplete_total_is_committed(plane: ControlPlane) -> None:
    await plane.deploy(WEEKS)
    await plane.emit("in", [0, 1, 2, 4, 5, 6, *range(7, 14)])
    await plane.run_all()
    assert await served(plane, "weekly") == ["p:7-13"]
    answer = await plane.backfill("weekly", 0, 13)
    assert (answer.created, answer.left_out) == (0, 1)
    assert [(g.dataset, g.first, g.last) for g in answer.gaps] == [("a", 3, 3)]
    await plane.run_all()
    assert await served(plane, "weekly") == ["p:7-13"]
    (held,) = [d.coverage for d in (await plane.status()).datasets if d.dataset == "a"]
    assert held is not None
    assert (held.first, held.last, held.gap_count, held.gaps, held.dead) == (0, 13, 1, ((3, 3),), 0)
    why = await plane.explain_scope("weekly", 0, 6)
    assert why.missing == ((0, 6),)
    told = [(r.code, r.sentence) for r in why.reasons]
    assert [code for code, _ in told] == ["input", "open_batch", "input", "input", "source"]
    assert "an open batch of a has 0-2, 4-6. It waits for 3." in told[1][1]
    assert "waits for the whole of 0-6 of a, which lacks 3." in told[2][1]
    assert "emit in 3" in told[-1][1]
    await plane.emit("in", [3])
    await plane.run_all()
    assert await served(plane, "weekly") == ["p:0-6", "p:7-13"]
    assert [r.code for r in (await plane.explain_scope("weekly", 0, 6)).reasons] == ["held"]
    assert (await plane.backfill("weekly", 14, 20, allow_gaps=True)).created == 1  # it was told to


async def test_a_scope_that_was_canceled_is_explained_by_its_task(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(3))
    (third,) = (await plane.tasks("a"))[-1:]
    await plane.cancel(third)
    await plane.run_all()
    why = await plane.explain_scope("a", 2, 2)
    assert [r.code for r in why.reasons] == ["task_canceled"]
    assert str(third) in why.reasons[0].sentence


async def test_each_scope_of_a_range_is_explained_by_its_own_reason(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(2))
    _, second = await plane.tasks("a")
    await plane.cancel(second)
    await plane.run_all()
    why = await plane.explain_scope("a", 0, 3)  # 1 was canceled, 2 and 3 were never emitted
    assert [r.code for r in why.reasons] == ["input", "source", "task_canceled"]
    assert str(second) in why.reasons[-1].sentence
    await plane.emit("in", [2])
    await plane.meter()
    why = await plane.explain_scope("a", 0, 3)
    assert [r.code for r in why.reasons] == ["task_dispatched", "input", "source", "task_canceled"]


async def test_an_explanation_counts_the_tasks_that_it_does_not_list(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(7))
    await plane.meter()
    why = await plane.explain_scope("a", 0, 6)
    assert [r.code for r in why.reasons][3:] == ["more"]
    assert why.reasons[-1].sentence == "a: 4 more tasks like these."


async def test_a_dead_scope_is_no_part_of_what_is_there(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(3))
    await plane.meter()
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    await plane.fail(held[1], retryable=False)
    await plane.complete(held[0], held[2])
    await plane.run_all()
    (found,) = [d.coverage for d in (await plane.status()).datasets if d.dataset == "a"]
    assert found is not None
    assert (found.gaps, found.dead) == (((1, 1),), 1)
    why = await plane.explain_scope("b", 1, 1)
    assert [r.code for r in why.reasons] == ["input", "task_dead"]
    assert str(held[1].task_id) in why.reasons[-1].sentence
    await plane.backfill("c", 7, 7, allow_gaps=True)
    assert [r.code for r in (await plane.explain_scope("c", 7, 7)).reasons] == ["task_queued"]
    await plane.emit("in", [9])
    await plane.run_all()
    why = await plane.explain_scope("c", 20, 20)
    assert [r.code for r in why.reasons] == ["input", "input", "input", "source"]


async def test_a_correction_that_died_is_named_where_older_rows_are_served(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(3))
    await plane.run_all()
    await plane.emit("in", [1], emission="correction")
    for dataset in ("a", "b"):
        why = await plane.explain_scope(dataset, 1, 1)
        assert (why.missing, [r.code for r in why.reasons]) == ((), ["updating"])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.fail(held, retryable=False)
    for dataset in ("a", "b"):  # what is computed from older rows is no newer
        why = await plane.explain_scope(dataset, 0, 2)
        assert (why.missing, [r.code for r in why.reasons]) == ((), ["outdated"])
        assert f"a 1: task {held.task_id} is dead (operator.failed)" in why.reasons[0].sentence
        assert "rows of an earlier event are served" in why.reasons[0].sentence
    assert [r.code for r in (await plane.explain_scope("a", 0, 0)).reasons] == ["held"]
    await plane.retry(held.task_id)
    await plane.run_all()
    for dataset in ("a", "b"):
        assert [r.code for r in (await plane.explain_scope(dataset, 0, 2)).reasons] == ["held"]
    # Done by another task since: nothing is outdated.
    await plane.emit("in", [1], emission="second")
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.fail(held, retryable=False)
    await plane.emit("in", [1], emission="third")
    await plane.run_all()
    assert [r.code for r in (await plane.explain_scope("b", 0, 2)).reasons] == ["held"]


async def test_input_that_never_had_rows_is_missing_and_not_outdated(plane: ControlPlane) -> None:
    months = job("m", "a", "m").replace("{from: {dataset: a}}", "{from: {dataset: a}, wait_for: end}")
    datasets = "datasets: {in: {partitions: {by: day}}, m: {partitions: {by: month}}}\n"
    await plane.deploy(SOURCE + job("a", "in", "a") + months + datasets)
    await plane.emit("in", [day("2026-02-17")])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.fail(held, retryable=False)
    await plane.emit("in", [day("2026-02-01"), day("2026-03-01")])
    await plane.run_all()
    why = await plane.explain_scope("m", "2026-02", "2026-02")
    assert (why.missing, [r.code for r in why.reasons]) == ((), ["input"])
    assert f"a 2026-02-17 is missing: task {held.task_id} is dead" in why.reasons[0].sentence


async def test_what_overlaps_many_buckets_is_one_set(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    wide: list[int | Scope] = [
        span(0, 99_999),
        span(100_000, 299_999),
        300_000,
        span(-70_000, -1),
        span(2**62, 2**63 - 1),
    ]
    await plane.emit("in", wide)
    await plane.run_all()
    held = await plane.value(
        "select coverage_of(current_generation_id)::text from datasets where dataset_id = 'c'"
    )
    assert held == "{[-70000,300001),[4611686018427387904,)}"
    await plane.deploy(chain(2))
    await build(plane)
    assert await active(plane) == 2
    assert len(await served(plane, "c")) == len(wide)
