"""A job's scopes: when they are ready, and which of them a change makes stale."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest

from tests.control_plane import ControlPlane
from traceplane.cli.coverage import contents
from traceplane.errors import Conflict, InvalidInput, NotFound, SpecInvalid
from traceplane.model.partitions import By, Partitions
from traceplane.wire.control import ManualEvent, TaskQuery, TaskSelection
from traceplane.wire.scalars import Scope

DAYS = Partitions(By.DAY)


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


def dag(jobs: str, datasets: str = "{}", sources: tuple[str, ...] = ("a", "b")) -> str:
    lines = [
        f"  - {{name: {name}, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}}}]}}\n"
        for name in sources
    ]
    return f"version: 1\ndag: scopes\ndatasets: {datasets}\njobs:\n" + "".join(lines) + jobs


def job(name: str, *inputs: str, more: str = "") -> str:
    return (
        f"  - name: {name}\n    runtime: python\n    operator: python\n    config: {{entrypoint: 'm:f'}}\n"
        f"    inputs: [{', '.join(inputs)}]\n    outputs: [{{dataset: {name}.out}}]\n    {more}\n"
    )


async def scopes(plane: ControlPlane, job: str = "j") -> list[str]:
    """The scopes of a job's tasks, in the order of their creation; `!` marks an invalidation."""
    rows = await plane.sql(
        "select coalesce(partition_key, range_start::text) as scope, kind::text from tasks join jobs using (job_id)"
        " where name = $1 order by task_id",
        job,
    )
    return [row["scope"] + ("!" if row["kind"] == "invalidation" else "") for row in rows]


async def new_scopes(plane: ControlPlane, dataset: str, *events: int | Scope, **fields: str) -> list[str]:
    before = len(await scopes(plane))
    await plane.emit(dataset, events, **fields)
    await plane.meter()
    await plane.run_all()
    return (await scopes(plane))[before:]


def day(name: str) -> Scope:
    position = DAYS.position(name)
    return Scope(partition_key=name, start=position, end=position)


async def test_a_job_with_two_inputs_runs_when_both_have_the_scope_and_again_when_one_changes(
    plane: ControlPlane,
) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", "{from: {dataset: b}}")))
    assert await new_scopes(plane, "a", 1, 2, 3) == []
    assert await new_scopes(plane, "b", 2) == ["2"]
    assert await new_scopes(plane, "b", 1, 4) == ["1"]
    assert await new_scopes(plane, "a", 2, emission="again") == ["2!"]
    assert await new_scopes(plane, "a", 4) == ["4"]


async def test_with_when_any_each_event_is_a_task(plane: ControlPlane) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", "{from: {dataset: b}}", more="when: any")))
    assert await new_scopes(plane, "a", 1) == ["1"]
    assert await new_scopes(plane, "b", 1) == ["1"]


async def test_a_window_waits_for_what_it_reads_and_a_change_recomputes_exactly_what_reads_it(
    plane: ControlPlane,
) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}, read: {before: 3}}")))
    assert await new_scopes(plane, "a", *range(5)) == ["0", "1", "2", "3", "4"]
    assert await new_scopes(plane, "a", 6) == []
    assert await new_scopes(plane, "a", 5) == ["5", "6"]
    await new_scopes(plane, "a", *range(7, 20))
    assert await new_scopes(plane, "a", 10, kind="invalidation") == ["10!", "11!", "12!", "13!"]


async def test_a_window_that_waits_for_nothing_runs_at_once(plane: ControlPlane) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}, read: {before: 3}, wait_for: nothing}")))
    assert await new_scopes(plane, "a", 6) == ["6"]
    assert await new_scopes(plane, "a", 5) == ["5", "6!"]


async def test_a_window_that_looks_ahead_waits_for_it(plane: ControlPlane) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}, read: {before: 1, after: 1}}")))
    assert await new_scopes(plane, "a", 0, 1, 2) == ["0", "1"]
    assert await new_scopes(plane, "a", 3) == ["2"]
    assert await new_scopes(plane, "a", 2, emission="again") == ["1!", "2!"]


async def test_a_month_waits_for_its_days_and_a_day_recomputes_its_month(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day, start: 2026-02-01}}, j.out: {partitions: {by: month}}}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}}"), datasets))
    february = [day(f"2026-02-{n:02}") for n in range(1, 29)]
    assert await new_scopes(plane, "a", *february[:-1]) == []
    assert await new_scopes(plane, "a", february[-1]) == ["2026-02"]
    assert await new_scopes(plane, "a", day("2026-03-01")) == []
    assert await new_scopes(plane, "a", day("2026-02-14"), emission="again") == ["2026-02!"]


async def test_a_month_of_trading_days_is_ready_when_a_later_day_has_come(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day}}, j.out: {partitions: {by: month}}}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}, wait_for: end}"), datasets))
    assert await new_scopes(plane, "a", day("2026-10-29"), day("2026-10-30")) == []
    assert await new_scopes(plane, "a", day("2026-11-02")) == ["2026-10"]
    assert await new_scopes(plane, "a", day("2026-11-03")) == []
    assert await new_scopes(plane, "a", day("2026-10-30"), emission="again") == ["2026-10!"]


async def test_a_reference_table_is_ignored_or_recomputes_everything(plane: ControlPlane) -> None:
    reference = "{from: {dataset: b}, read: all, on_change: recompute}"
    jobs = job("i", "{from: {dataset: a}}", "{from: {dataset: b}, read: all}")
    jobs += job("j", "{from: {dataset: a}}", reference)
    await plane.deploy(dag(jobs))
    assert await new_scopes(plane, "a", 1, 2) == ["1", "2"]
    assert await scopes(plane, "i") == ["1", "2"]
    assert await new_scopes(plane, "b", 7) == ["1!", "2!"]
    assert await scopes(plane, "i") == ["1", "2"]


def named(dataset: str, partition: str, through: str | None = None, emission: str = "") -> ManualEvent:
    return ManualEvent(dataset, partition=partition, through=through, emission=emission)


async def test_partitions_are_written_and_read_by_name(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day, time_zone: Europe/Berlin}}, j.out: {partitions: {by: month}}}"
    datasets = datasets.replace("by: month", "by: month, time_zone: Europe/Berlin")
    await plane.deploy(dag(job("i", "{from: {dataset: a}}") + job("j", "{from: {dataset: a}}"), datasets))
    answer = await plane.emit_events([named("a", "2026-02-01", "2026-02-27")])
    assert (answer.accepted, answer.duplicates) == (27, 0)
    answer = await plane.emit_events([named("a", "2026-02-26", "2026-02-28")])
    assert (answer.accepted, answer.duplicates) == (1, 2)
    await plane.run_all()
    assert len(await scopes(plane, "i")) == 28
    assert (await scopes(plane, "i"))[0] == "2026-02-01"
    assert await scopes(plane, "j") == ["2026-02"]
    (held,) = [d.coverage for d in (await plane.status()).datasets if d.dataset == "j.out"]
    assert held is not None
    assert (held.first_name, held.last_name) == ("2026-02", "2026-02")
    await plane.emit_events([named("a", "2026-03-02")])
    await plane.run_all()
    (held,) = [d.coverage for d in (await plane.status()).datasets if d.dataset == "i.out"]
    assert held is not None
    assert held.gap_names == (("2026-03-01", "2026-03-01"),)


async def test_a_missing_partition_is_explained_by_name(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day, start: 2026-02-01}}, j.out: {partitions: {by: month}}}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}}"), datasets))
    await plane.emit_events([named("a", "2026-02-01", "2026-02-10"), named("a", "2026-02-12", "2026-02-28")])
    await plane.run_all()
    why = await plane.explain_scope("j.out", "2026-02", "2026-02")
    assert why.missing_scopes == ("2026-02",)
    sentences = [reason.sentence for reason in why.reasons]
    assert sentences[0] == "j.out waits for 2026-02 of a, which lacks 2026-02-11."
    assert "`traceplane emit a 2026-02-11`" in sentences[1]


async def test_a_missing_name_is_explained_by_name(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: name}}, b: {partitions: {by: name}}}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", "{from: {dataset: b}}"), datasets))
    await plane.emit_events([named("b", "us"), named("a", "eu")])
    await plane.run_all()
    why = await plane.explain_scope("j.out", "eu", "eu")
    sentences = [reason.sentence for reason in why.reasons]
    assert sentences[0] == "j.out waits for eu of b, which lacks eu."
    assert "`traceplane emit b eu`" in sentences[1]
    (sentence,) = [reason.sentence for reason in (await plane.explain_scope("a", "us", "us")).reasons]
    assert "a lacks us" in sentence


@pytest.mark.parametrize(
    ("by", "emitted", "extra", "scope", "last", "unbuilt"),
    [
        (
            "day",
            ["2026-02-01"],
            ["2026-02-03", "2026-02-05"],
            "2026-02-03..2026-02-05",
            "2026-02-01",
            ["2026-02-01", "2026-02-03..2026-02-05"],
        ),
        ("name", ["eu"], ["us", "us"], "us", None, ["eu", "us"]),
    ],
)
async def test_what_a_version_lacks_is_written_as_partitions(
    plane: ControlPlane,
    by: str,
    emitted: list[str],
    extra: list[str],
    scope: str,
    last: str | None,
    unbuilt: list[str],
) -> None:
    text = dag(
        job("i", "{from: {dataset: a}}"),
        f"{{a: {{partitions: {{by: {by}}}}}, b: {{partitions: {{by: {by}}}}}}}",
    )
    await plane.deploy(text)
    await plane.emit_events([named("a", name) for name in emitted] + [named("b", extra[0])])
    await plane.run_all()
    (view,) = [d for d in (await plane.status()).datasets if d.dataset == "a"]
    assert contents(view) == "1 event" + (f", the last at {last}" if last else "")
    await plane.deploy(text.replace("m:f", "m:g"))
    for _ in range(3):
        await plane.builds.run_once()
        await plane.run_all()
    await plane.backfill("i.out", *extra)
    await plane.run_all()
    with pytest.raises(Conflict, match=rf"rollback\.drops_data.*i\.out {scope}\b"):
        await plane.rollback("scopes")
    await plane.deploy(text.replace("m:f", "m:h"), manual_cutover=True)
    (building,) = [v for v in await plane.versions("scopes") if v.state == "building"]
    assert sorted(", ".join(p.scope for p in building.lacking).split(", ")) == unbuilt
    with pytest.raises(Conflict, match=rf"deploy\.not_caught_up.*readers would lose i\.out .*{scope}\b"):
        await plane.cutover("scopes")
    moved = await plane.rollback("scopes", drop_missing=True)
    assert [p.scope for p in moved.lacking] == [scope]


async def test_a_window_at_the_beginning_of_history_lacks_nothing(plane: ControlPlane) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}, read: {before: 5}}")))
    await plane.emit("a", [0, 2])
    await plane.run_all()
    why = await plane.explain_scope("j.out", 2, 2)
    assert next(r.sentence for r in why.reasons) == "j.out waits for 2 of a, which lacks 1."


async def test_a_scope_that_waits_only_for_the_dispatcher_is_explained_by_that(plane: ControlPlane) -> None:
    window = "{from: {dataset: a}, read: {before: 3, after: 1}, wait_for: any}"
    await plane.deploy(dag(job("j", window)))
    await plane.emit("a", [100])
    (why,) = (await plane.explain_scope("j.out", 100, 100)).reasons
    assert why.code == "task_queued"
    assert why.sentence.startswith(f"j.out 100: task {(await plane.tasks('j__scopes'))[0]} is queued")
    await plane.meter()
    (why,) = (await plane.explain_scope("j.out", 100, 100)).reasons
    assert why.code == "task_dispatched"
    (why, _) = (await plane.explain_scope("j.out", 200, 200)).reasons
    assert why.sentence == "j.out waits for 200 of a, which lacks 200."


async def test_names_that_are_no_partitions_are_refused_and_nothing_is_emitted(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day, start: 2026-01-01}}}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}}"), datasets))
    for event, code in (
        (named("a", "2026-02-30"), "scope.bad_partition"),
        (named("a", "2025-12-31"), "scope.bad_partition"),
        (named("a", "2026-02"), "scope.bad_partition"),
        (named("a", "9999-12-31"), "scope.bad_partition"),
        (named("a", "2026-02-02", "2026-02-01"), "scope.bad_range"),
        (named("a", "2026-02-02", "8999-02-01"), "scope.range_too_wide"),
        (ManualEvent("a", Scope(cursor=7)), "scope.needs_name"),
        (ManualEvent("a", Scope(partition_key="2026-02-01", start=7, end=7)), "scope.wrong_position"),
        (named("b", "2026-02-01"), "scope.bad_partition"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await plane.emit_events([named("a", "2026-01-01"), event])
        assert refused.value.code == code
        assert refused.value.next_step
    assert await plane.value("select count(*) from events") == 0


async def test_partitions_by_name_grow_unless_they_are_listed(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: name}}, b: {partitions: {by: name, names: [eu, us]}}}"
    await plane.deploy(dag(job("i", "{from: {dataset: a}}") + job("j", "{from: {dataset: b}}"), datasets))
    await plane.emit_events([named("a", "tokyo"), named("a", "paris"), named("b", "us")])
    await plane.run_all()
    assert await scopes(plane, "i") == ["tokyo", "paris"]
    for unlisted in ("mars", "tokyo"):  # which another dataset has
        with pytest.raises(InvalidInput, match=unlisted):
            await plane.emit_events([named("b", unlisted)])
    with pytest.raises(InvalidInput, match="names have no order"):
        await plane.emit_events([named("a", "tokyo", "paris")])
    await plane.emit_events([named("a", "paris", emission="again"), named("b", "eu")])
    await plane.run_all()
    assert await scopes(plane, "i") == ["tokyo", "paris", "paris"]
    assert await scopes(plane, "j") == ["us", "eu"]
    assert (await plane.explain_scope("i.out", "tokyo", "tokyo")).missing == ()
    rows = await plane.sql(
        "select range_start from tasks join jobs using (job_id) where name = 'i' order by task_id"
    )
    numbers = {
        row["name"]: row["position"] for row in await plane.sql("select name, position from partition_names")
    }
    assert [row["range_start"] for row in rows] == [numbers["tokyo"], numbers["paris"], numbers["paris"]]


async def test_datasets_by_name_are_joined_by_name(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: name}}, b: {partitions: {by: name}}}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", "{from: {dataset: b}}"), datasets))
    await plane.emit_events([named("a", "eu"), named("a", "us"), named("b", "us")])
    await plane.run_all()
    assert await scopes(plane) == ["us"]


async def test_a_backfill_takes_names_and_needs_what_the_scopes_read(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day}}}"
    jobs = job("i", "{from: {dataset: a}}") + job("j", "{from: {dataset: i.out}, read: {before: 2}}")
    await plane.deploy(dag(jobs, datasets))
    await plane.emit_events([named("a", "2026-02-01", "2026-02-04"), named("a", "2026-02-06", "2026-02-09")])
    await plane.run_all()
    assert await scopes(plane) == [f"2026-02-0{n}" for n in (1, 2, 3, 4, 8, 9)]
    answer = await plane.backfill("j.out", "2026-02-01", "2026-02-09")
    assert (answer.scopes, answer.created, answer.left_out) == (9, 0, 3)
    assert [(gap.dataset, gap.scope) for gap in answer.gaps] == [("i.out", "2026-02-05")]
    forced = await plane.backfill("j.out", "2026-02-08", "2026-02-09", only="all")
    assert forced.created == 2
    await plane.run_all()
    assert (await scopes(plane))[-2:] == ["2026-02-08", "2026-02-09"]


@pytest.mark.parametrize("when", ["", "when: any"])
async def test_a_job_may_wait_for_the_first_load_of_a_table(plane: ControlPlane, when: str) -> None:
    table = job("table", "{from: {dataset: b}}")
    whole = "{name: table, from: {dataset: table.out}, read: all, wait_for: any}"
    datasets = "{a: {partitions: {by: day}}, b: {partitions: {by: name}}}"
    await plane.deploy(dag(table + job("j", "{from: {dataset: a}}", whole, more=when), datasets))
    await plane.emit_events([named("a", "2026-02-01", "2026-02-02")])
    await plane.run_all()
    assert await scopes(plane) == []
    why = await plane.explain_scope("j.out", "2026-02-01", "2026-02-01")
    assert [r.sentence for r in why.reasons] == ["j.out waits for the first rows of table.out."]
    await plane.emit_events([named("b", "eu")])
    await plane.run_all()
    assert sorted(await scopes(plane)) == ["2026-02-01", "2026-02-02"]
    await plane.emit_events([named("b", "us"), named("a", "2026-02-03")])
    await plane.run_all()
    assert sorted(await scopes(plane)) == ["2026-02-01", "2026-02-02", "2026-02-03"]


async def test_a_task_says_which_commit_of_a_reference_table_it_read(plane: ControlPlane) -> None:
    reference = job("table", "{from: {dataset: b}}")
    joined = job("j", "{from: {dataset: a}}", "{name: table, from: {dataset: table.out}, read: all}")
    await plane.deploy(dag(reference + joined))
    await plane.emit("a", [1])
    await plane.run_all()
    (first,) = await plane.tasks("j")
    assert "It read table.out, which had no rows then." in await reasons(plane, first)
    await plane.emit("b", [7, 8])
    await plane.run_all()
    await plane.emit("a", [2])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    assert [len(files) for files in held.task.input_files] == [0, 2]
    await plane.complete(held)
    newest = await plane.value("select max(commit_id) from dataset_commits where range_start in (7, 8)")
    assert f"It read table.out as of commit {newest}." in await reasons(plane, held.task_id)
    await plane.emit("b", [9])
    await plane.run_all()
    said = await reasons(plane, held.task_id)
    assert f"It read table.out as of commit {newest}; 1 newer commit is there since." in said


async def reasons(plane: ControlPlane, task_id: UUID) -> list[str]:
    return [reason.sentence for reason in (await plane.explain(task_id)).reasons]


async def test_a_rebuild_computes_a_join_when_its_reference_table_has_been_built(plane: ControlPlane) -> None:
    reference = job("table", "{from: {dataset: b}}")
    joined = job("j", "{from: {dataset: a}}", "{name: table, from: {dataset: table.out}, read: all}")
    await plane.deploy(dag(reference + joined))
    await plane.emit("b", range(5))
    await plane.run_all()
    await plane.emit("a", [1, 2])
    await plane.run_all()
    await plane.deploy(dag(reference.replace("'m:f'", "'m:g'") + joined))
    for _ in range(30):
        await plane.builds.run_once()
        await plane.meter()
        for held in (await plane.claim(await plane.send()))[:1]:  # the others expire
            if held.job.name == "j":
                assert [len(files) for files in held.task.input_files] == [0, 5]
            await plane.complete(held)
        await plane.pass_time(60)
        await plane.reaper.run_once()
    (version, *_) = await plane.versions("scopes")
    assert (version.version, version.state) == (2, "active")
    assert await scopes(plane) == ["1", "2", "1", "2"]


async def test_windows_and_roll_ups_are_rebuilt_as_they_were(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day, start: 2026-02-01}}, j.out: {partitions: {by: month}}}"
    jobs = job("i", "{from: {dataset: a}, read: {before: 3}}") + job("j", "{from: {dataset: i.out}}")
    await plane.deploy(dag(jobs, datasets))
    await plane.emit_events([named("a", "2026-02-01", "2026-03-10")])
    await plane.run_all()
    assert len(await scopes(plane, "i")) == 38
    assert await scopes(plane) == ["2026-02"]
    await plane.deploy(dag(jobs.replace("before: 3", "before: 2"), datasets))
    for _ in range(30):
        await plane.builds.run_once()
        await plane.run_all()
    (version, *_) = await plane.versions("scopes")
    assert (version.version, version.state) == (2, "active")
    assert len(await scopes(plane, "i")) == 2 * 38
    assert await scopes(plane) == ["2026-02", "2026-02"]
    await plane.emit_events([named("a", "2026-02-10", emission="again")])
    await plane.run_all()
    assert (await scopes(plane, "i"))[-3:] == ["2026-02-10!", "2026-02-11!", "2026-02-12!"]
    assert set((await scopes(plane))[2:]) == {"2026-02!"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ("{a: {partitions: {by: day, start: 2026-02-30}}}", "spec.bad_partition"),
        ("{a: {partitions: {by: day, time_zone: Europe/Berlim}}}", "spec.unknown_time_zone"),
        ("{a: {partitions: {by: hour, time_zone: Asia/Kolkata}}}", "spec.half_hours"),
        ("{a: {partitions: {by: name, start: eu}}}", "spec.no_time"),
        ("{a: {partitions: {by: position, time_zone: UTC}}}", "spec.no_time"),
        ("{a: {partitions: {by: day, names: [eu]}}}", "spec.names_of_time"),
        ("{a: {partitions: {by: day}}, j.out: {partitions: {by: name}}}", "spec.partitions_differ"),
        ("{a: {partitions: {by: fortnight}}}", "spec.unknown_value"),
    ],
)
async def test_partitions_that_cannot_be_are_refused_at_deploy(
    plane: ControlPlane, changed: str, code: str
) -> None:
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(dag(job("j", "{from: {dataset: a}}"), changed))
    problem = next(p for p in refused.value.problems if p.code == code)
    assert problem.line > 0
    assert problem.suggestion


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        (("{from: {dataset: a}, read: all}",), "spec.no_scopes"),
        (("{from: {dataset: a}}", "{from: {dataset: b}, read: all, wait_for: end}"), "spec.never_waits"),
        (("{from: {dataset: a}, read: {before: -1}}",), "spec.out_of_range"),
        (("{from: {dataset: a}, read: some}",), "spec.unknown_value"),
    ],
)
async def test_inputs_that_cannot_be_read_so_are_refused_at_deploy(
    plane: ControlPlane, inputs: tuple[str, ...], code: str
) -> None:
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(dag(job("j", *inputs)))
    assert code in [problem.code for problem in refused.value.problems]


# PerPartition ---------------------------------------------------------------------------------------

PER_PARTITION = "execution_strategy: PerPartition"
HOURS_TO_DAYS = "{a: {partitions: {by: hour}}, j.out: {partitions: {by: day}}}"
DAILY_OUTPUT = "{j.out: {partitions: {by: day}}}"
DAYS_ONLY = "{a: {partitions: {by: day}}}"


def hour(name: str) -> Scope:
    position = Partitions(By.HOUR).position(name)
    return Scope(partition_key=name, start=position, end=position)


async def test_per_partition_maps_an_event_to_the_partition_that_it_belongs_to(plane: ControlPlane) -> None:
    text = dag(job("j", "{from: {dataset: a}, wait_for: any}", more=PER_PARTITION), HOURS_TO_DAYS, ("a",))
    await plane.deploy(text)
    together = [hour("2026-11-16T05"), hour("2026-11-16T06"), hour("2026-11-17T00")]
    assert await new_scopes(plane, "a", *together) == ["2026-11-16", "2026-11-17"]
    assert await new_scopes(plane, "a", hour("2026-11-16T07")) == ["2026-11-16!"]


async def test_per_partition_waits_for_all_of_a_partition_unless_told_otherwise(plane: ControlPlane) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", more=PER_PARTITION), HOURS_TO_DAYS, ("a",)))
    assert await new_scopes(plane, "a", *(hour(f"2026-11-16T{n:02}") for n in range(23))) == []
    assert await new_scopes(plane, "a", hour("2026-11-16T23")) == ["2026-11-16"]
    assert await new_scopes(plane, "a", hour("2026-11-16T05"), emission="again") == ["2026-11-16!"]


async def test_per_partition_makes_one_task_of_events_that_arrive_together(plane: ControlPlane) -> None:
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", more=PER_PARTITION), DAYS_ONLY, ("a",)))
    await plane.emit("a", [day("2026-11-16")], emission="first")
    assert await new_scopes(plane, "a", day("2026-11-16"), emission="second") == ["2026-11-16"]
    assert await new_scopes(plane, "a", day("2026-11-16"), emission="third") == ["2026-11-16!"]


async def test_per_partition_maps_events_of_another_dag(plane: ControlPlane) -> None:
    await plane.deploy(dag("", "{a: {partitions: {by: hour}}}", ("a",)))
    text = dag(job("j", "{from: {dataset: a}, wait_for: any}", more=PER_PARTITION), DAILY_OUTPUT, ())
    await plane.deploy(text.replace("dag: scopes", "dag: other"))
    assert await new_scopes(plane, "a", hour("2026-11-16T05")) == ["2026-11-16"]


async def test_per_partition_may_read_ranges(plane: ControlPlane) -> None:
    tens = (
        "  - {name: tens, runtime: dispatcher, operator: aggregator, config: {size: 10},"
        " inputs: [{from: {dataset: a}}], outputs: [{dataset: a.tens}]}\n"
    )
    await plane.deploy(dag(tens + job("j", "{from: {dataset: a.tens}}", more=PER_PARTITION), "{}", ("a",)))
    assert await new_scopes(plane, "a", *range(10)) == ["0-9"]


@pytest.mark.parametrize(
    ("datasets", "said"),
    [
        ("{}", "do not belong to one partition of the job"),
        ("{j.out: {partitions: {by: day}}}", "do not belong to one day of the job"),
    ],
)
async def test_per_partition_of_bare_positions_is_refused_with_what_to_write(
    plane: ControlPlane, datasets: str, said: str
) -> None:
    text = dag(job("j", "{from: {dataset: a}}", more=PER_PARTITION), datasets, ("a",))
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(text, file="scopes.yaml")
    (problem,) = refused.value.problems
    assert problem.code == "spec.unmapped_partitions"
    assert "scopes.yaml:10:21" in str(problem)
    assert said in str(problem)
    for way_out in ("partitions: { by: day }", "execution_strategy: Bulk", "remove execution_strategy"):
        assert way_out in str(problem)


async def test_per_partition_of_a_dataset_of_another_dag_needs_partitions_too(plane: ControlPlane) -> None:
    await plane.deploy(dag("", "{}", ("a",)))
    text = dag(job("j", "{from: {dataset: a}}", more=PER_PARTITION), DAILY_OUTPUT, ())
    with pytest.raises(SpecInvalid) as refused:
        await plane.deploy(text.replace("dag: scopes", "dag: other"), file="other.yaml")
    (problem,) = refused.value.problems
    assert problem.code == "spec.partitions_differ"
    assert "other.yaml:9:21: spec.partitions_differ: no position of 'a' belongs to one day of the job" in str(
        problem
    )


def other(text: str) -> str:
    return text.replace("dag: scopes", "dag: other")


async def test_a_dataset_of_another_dag_passes_on_its_partitions(plane: ControlPlane) -> None:
    await plane.deploy(dag("", "{a: {partitions: {by: day, time_zone: Europe/Berlin}}}", ("a",)))
    weekly = "{k.out: {partitions: {by: week, time_zone: Europe/Berlin}}}"
    jobs = job("j", "{from: {dataset: a}}") + job("k", "{from: {dataset: j.out}, wait_for: end}")
    await plane.deploy(other(dag(jobs, weekly, ())))
    (row,) = await plane.sql(
        "select definition->'partitions' as own from datasets where dataset_id = 'j.out'"
    )
    assert (row["own"]["by"], row["own"]["time_zone"]) == ("day", "Europe/Berlin")
    assert await new_scopes(plane, "a", day("2026-11-16"), day("2026-11-23")) == ["2026-11-16", "2026-11-23"]
    assert await scopes(plane, "k") == ["2026-W47"]
    assert not (await plane.deploy(other(dag(jobs, weekly, ())))).changed


async def test_a_coarser_job_of_another_dag_gets_whole_periods(plane: ControlPlane) -> None:
    await plane.deploy(dag("", "{a: {partitions: {by: hour}}}", ("a",)))
    await plane.deploy(other(dag(job("j", "{from: {dataset: a}, wait_for: any}"), DAILY_OUTPUT, ())))
    assert await new_scopes(plane, "a", hour("2026-11-16T05")) == ["2026-11-16"]


async def test_partitions_of_another_dag_that_do_not_fit_are_refused_with_what_to_write(
    plane: ControlPlane,
) -> None:
    await plane.deploy(dag("", "{a: {partitions: {by: day}}}", ("a",)))
    text = other(dag(job("j", "{from: {dataset: a}}"), "{j.out: {partitions: {by: position}}}", ()))
    for call in (plane.deploy, plane.plan):
        with pytest.raises(SpecInvalid) as refused:
            await call(text, file="other.yaml")
        (problem,) = refused.value.problems
        assert problem.code == "spec.partitions_differ"
        assert (
            "other.yaml:9:21: spec.partitions_differ: no day of 'a' belongs to one position of the job"
            in str(problem)
        )
        assert "write partitions: { by: day } for j.out" in str(problem)


async def test_partitions_that_another_dag_builds_on_stay_as_they_are(plane: ControlPlane) -> None:
    await plane.deploy(dag("", "{a: {partitions: {by: hour}}, b: {partitions: {by: hour}}}"))
    inputs = ("{from: {dataset: a}}", "{from: {dataset: b}, read: all}")
    await plane.deploy(other(dag(job("j", *inputs), "{}", ())))
    changed = "{a: {partitions: {by: day}}, b: {partitions: {by: hour}}}"
    with pytest.raises(
        Conflict, match=r"scopes\.yaml:3:28: DAG other, job j\S* reads this dataset by hour"
    ) as refused:
        await plane.deploy(dag("", changed), file="scopes.yaml")
    assert (refused.value.code, refused.value.value) == ("deploy.partitions_in_use", "a")
    assert (await plane.plan(dag("", changed))).blocked_code == "deploy.partitions_in_use"
    read_as_a_whole = "{a: {partitions: {by: hour}}, b: {partitions: {by: day}}}"
    assert (await plane.deploy(dag("", read_as_a_whole))).changed


async def test_tasks_are_selected_by_the_partitions_of_their_job(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day}}, j.out: {partitions: {by: month}}, b: {partitions: {by: name}}}"
    jobs = (
        job("i", "{from: {dataset: a}}") + job("j", "{from: {dataset: a}}") + job("k", "{from: {dataset: b}}")
    )
    await plane.deploy(dag(jobs, datasets))
    await plane.emit_events([named("a", "2026-02-01", "2026-02-28"), named("b", "eu"), named("b", "us")])

    async def canceled(job: str | None, start: int | str, end: int | str) -> int:
        selection = TaskSelection(dag="scopes", job=job, start=start, end=end)
        return len((await plane.api.tasks.cancel(plane._call(selection))).changed)

    async def listed(job: str, start: str, end: str) -> list[str | None]:
        query = TaskQuery(dag="scopes", job=job, start=start, end=end)
        call = msgspec.structs.replace(plane._call(None), query=query)
        return [task.scope for task in (await plane.api.tasks.listing(call)).tasks]

    assert await listed("i", "2026-02-03", "2026-02-04") == ["2026-02-04", "2026-02-03"]
    assert await listed("k", "us", "us") == ["us"]
    assert await canceled("i", "2026-02-03", "2026-02-04") == 2
    assert await canceled("i", DAYS.position("2026-02-05"), str(DAYS.position("2026-02-06"))) == 2
    assert await canceled("k", "eu", "eu") == 1
    for of_job, start, code in (
        (None, "2026-02-01", "scope.needs_job"),
        ("i", "2026-02", "scope.bad_partition"),
        ("k", "mars", "scope.bad_partition"),
        ("nobody", "2026-02-01", "job.unknown"),
    ):
        with pytest.raises((InvalidInput, NotFound)) as refused:
            await canceled(of_job, start, start)
        assert refused.value.code == code


async def test_a_table_that_very_many_scopes_read_recomputes_them_in_pages(plane: ControlPlane) -> None:
    table = "{from: {dataset: b}, read: all, on_change: recompute}"
    await plane.deploy(dag(job("j", "{from: {dataset: a}}", table)))
    assert await new_scopes(plane, "a", 0) == ["0"]
    await plane.sql(
        "insert into known_scopes (job_id, scope_key, range_start, range_end, emitted)"
        " select job_id, 'c:' || n, n, n, true from jobs, generate_series(1, 9999) n where name = 'j__scopes'"
    )
    await plane.sql(
        "insert into told_positions (job_id, input_index, bucket, positions)"
        " select job_id, 0, n >> 16, range_agg(int8range(n, n + 1)) from jobs, generate_series(1, 9999) n"
        " where name = 'j__scopes' group by 1, 2, 3"
        " on conflict (job_id, input_index, bucket)"
        " do update set positions = told_positions.positions + excluded.positions"
    )
    await plane.emit("b", [0])
    page = await plane.in_process.run_once()
    assert (page.emitted, page.more) == (2_000, True)
    # Whatever arrives meanwhile is not held up, and another load of the table waits for its turn.
    await plane.emit("a", [200_000])
    await plane.emit("b", [1])
    await plane.emit("b", [0], emission="again")
    assert (await plane.in_process.run_once()).emitted == 2_001
    passes = 2
    while (page := await plane.in_process.run_once()).emitted:
        assert page.emitted <= 2_000
        passes += 1
    assert passes == 6 + 6
    counts = await plane.sql(
        "select count(*) as events, count(distinct scope_key) as scopes from events e"
        " join jobs j on j.job_id = e.producer_id where j.name = 'j__scopes'"
    )
    assert [dict(row) for row in counts] == [{"events": 2 + 2 * 10_001, "scopes": 10_001}]


async def test_an_operator_that_raises_stops_only_its_own_tasks(plane: ControlPlane) -> None:
    """Such as for a period that is in no calendar; one that a running task emits is not refused."""
    datasets = "{a: {partitions: {by: hour}}, j.out: {partitions: {by: day, time_zone: America/New_York}}}"
    jobs = job("j", "{from: {dataset: a}, wait_for: any}")
    await plane.deploy(dag(jobs + job("k", "{from: {dataset: b}, read: {before: 1}}"), datasets))
    await plane.emit("b", [1, 2])
    await plane.emit("a", [hour("2026-02-01T00")])
    await plane.sql("update tasks set range_start = $1, range_end = $1 where range_start > 2", FIRST_HOUR)
    await plane.emit("a", [hour("2026-02-01T12"), hour("2026-02-02T12")])
    await plane.meter()
    assert await scopes(plane, "k") == ["1", "2"]
    assert await scopes(plane) == ["2026-02-01", "2026-02-02"]
    (row,) = await plane.sql("select state::text, error from tasks where range_start = $1", FIRST_HOUR)
    assert (row["state"], row["error"]["code"]) == ("queued", "operator.raised")
    assert "OverflowError" in row["error"]["message"]


FIRST_HOUR = -17_259_888
"""The first hour of year 1."""
