"""Checks of datasets in the control plane: what is kept of failures, without personal data, and freshness."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.control_plane import ControlPlane, Held, completed, failed
from tests.hot_worker import HotWorker
from traceplane.cli.failures import problems
from traceplane.dispatcher.loops.freshness import Freshness, FreshnessJudged
from traceplane.model.checks import Severity
from traceplane.postgres import check_failures, history
from traceplane.wire.tasks import FailedCheck, StagedFile, TaskError

_DAG = """
version: 1
dag: shop
datasets:
  people: {{columns: [{{name: id, type: bigint}}, {{name: mail, type: string, pii: true}}]}}
  orders: {{checks: [{checks}]}}
jobs:
- {{name: days, activation: source, source: {{kind: manual}}, outputs: [{{dataset: days}}]}}
- name: people
  runtime: python
  operator: python
  config: {{entrypoint: "a:b"}}
  inputs: [{{from: {{dataset: days}}}}]
  outputs: [{{dataset: people}}]
- name: orders
  runtime: spark
  operator: sql
  config: {{query: "select id, lower(mail) as email from people"}}
  inputs: [{{name: people, from: {{dataset: people}}}}]
  outputs: [{{dataset: orders}}]
"""
_WARNS = "{not_null: email, severity: warn}"
_FAILED = FailedCheck(
    0, "not_null_email", "2 rows", 2, [{"id": "7", "email": "a@b.example"}, {"email": None}]
)


def dag(checks: str) -> str:
    return _DAG.format(checks=checks)


async def held_order(plane: ControlPlane, cursor: int, emission: str = "") -> Held:
    """The task of `orders` for a scope, once `people` is there."""
    await plane.emit("days", [cursor], emission=emission)
    (person,) = await plane.claim(await plane.send())
    assert await plane.report((person, filled(person))) == ["committed"]
    (order,) = await plane.claim(await plane.send(), runtime="spark")
    return order


def filled(held: Held, *failures: FailedCheck, rows: int = 1) -> Any:
    """A completion that brings rows."""
    (output,) = held.outputs()
    files = [StagedFile(f"{held.task.write_prefixes[0]}part-0.parquet", rows, 10)]
    changed = msgspec.structs.replace(output, files=files, row_count=rows, failed_checks=list(failures))
    return completed(held, outputs=[changed])


async def failures(plane: ControlPlane) -> list[check_failures.CheckFailure]:
    async with plane.database.transaction() as tx:
        return await check_failures.newest(tx, 0, 100)


async def test_a_check_that_warns_is_kept_with_the_commit_and_without_personal_data(
    plane: ControlPlane,
) -> None:
    await plane.deploy(dag(_WARNS))
    held = await held_order(plane, 1)
    report = held, filled(held, _FAILED)
    assert await plane.report(report) == ["committed"]
    assert await plane.report(report) == ["committed"]  # said again: it is kept once
    (kept,) = await failures(plane)
    assert (kept.dag, kept.dataset_id, kept.name, kept.rows) == ("shop", "orders", "not_null_email", 2)
    assert (kept.task_id, kept.range_start, kept.range_end) == (held.task_id, 1, 1)
    assert kept.sample == [{"id": "7", "email": "***"}, {"email": None}]
    sentences = [reason.sentence for reason in (await plane.explain(held.task_id)).reasons]
    assert (
        "The check not_null_email failed: 2 rows of orders, for example id=7, email=***; email=null."
        in sentences
    )


async def test_an_attempt_that_does_not_commit_keeps_no_warning(plane: ControlPlane) -> None:
    await plane.deploy(dag(_WARNS))
    held = await held_order(plane, 1)
    assert await plane.fail(held) == ["retrying"]
    assert await plane.report((held, filled(held, _FAILED))) == ["retrying"]
    assert await failures(plane) == []


async def test_a_check_that_blocks_ends_the_task_and_its_sample_has_no_personal_data(
    plane: ControlPlane,
) -> None:
    await plane.deploy(dag("{not_null: email}"))
    held = await held_order(plane, 1)
    error = TaskError("check.failed", "dataset orders: …", failed_checks=[_FAILED], retryable=False)
    assert await plane.report((held, failed(held, error=error))) == ["dead"]
    assert await failures(plane) == []
    explained = await plane.explain(held.task_id)
    assert explained.error is not None
    assert explained.error["failed_checks"][0]["sample"] == [{"id": "7", "email": "***"}, {"email": None}]
    assert "for example id=7, email=***; email=null" in explained.reasons[1].sentence
    assert "a@b.example" not in str(await plane.value("select error::text from tasks where state = 'dead'"))
    # Nothing was committed, and an input that is corrected computes the scope again.
    assert await plane.value("select count(*) from dataset_commits c join tasks using (task_id)"
                             " join jobs j using (job_id) where j.name = 'orders'") == 0  # fmt: skip
    again = await held_order(plane, 1, emission="corrected")
    assert await plane.report((again, filled(again))) == ["committed"]


async def checks_claimed(plane: ControlPlane, cursor: int) -> Sequence[tuple[str, Severity, str | None]]:
    held = await held_order(plane, cursor)
    await plane.complete(held)
    return [(check.name, check.severity, check.expression) for check in held.job.outputs[0].checks]


async def test_checks_change_in_place_for_the_next_task_and_a_rollback_brings_them_back(
    plane: ControlPlane,
) -> None:
    await plane.deploy(dag(""))
    assert await checks_claimed(plane, 1) == []
    jobs = await plane.value("select array_agg(job_id order by job_id) from jobs")
    planned = await plane.deploy(dag("{not_null: email}, {name: x, expression: id > 0}, {freshness: 1h}"))
    assert not planned.building
    assert await checks_claimed(plane, 2) == [
        ("not_null_email", Severity.BLOCK, None),
        ("x", Severity.BLOCK, "`id` > 0"),
    ]
    await plane.deploy(dag(_WARNS))
    assert await checks_claimed(plane, 3) == [("not_null_email", Severity.WARN, None)]
    await plane.rollback("shop", 1)
    assert await checks_claimed(plane, 4) == []
    assert await plane.value("select array_agg(job_id order by job_id) from jobs") == jobs


# --- freshness --------------------------------------------------------------------------------------


async def judged(plane: ControlPlane) -> tuple[int, int]:
    found = await Freshness(plane.database).run_once()
    assert isinstance(found, FreshnessJudged)
    return found.stale, found.fresh_again


@pytest.fixture
async def fresh(plane: ControlPlane) -> ControlPlane:
    """With rows that have just come, and are expected every hour."""
    await plane.deploy(dag("{freshness: 1h}"))
    held = await held_order(plane, 1)
    await plane.report((held, filled(held)))
    return plane


async def test_a_dataset_becomes_stale_once_and_recovers_once(fresh: ControlPlane) -> None:
    assert await judged(fresh) == (0, 0)
    await fresh.pass_time(3590)
    assert await judged(fresh) == (0, 0)
    await fresh.pass_time(20)
    assert await judged(fresh) == (1, 0)
    assert await judged(fresh) == (0, 0)
    empty = await held_order(fresh, 2)
    await fresh.report((empty, filled(empty, rows=0)))
    assert await judged(fresh) == (0, 0)  # a commit without rows brings none
    held = await held_order(fresh, 3)
    await fresh.report((held, filled(held)))
    assert await judged(fresh) == (0, 1)
    assert await judged(fresh) == (0, 0)
    await fresh.pass_time(3610)
    assert await judged(fresh) == (1, 0)
    found = await failures(fresh)
    assert [(f.name, f.rows, f.task_id, f.recovered) for f in found] == [
        ("freshness", None, None, recovered) for recovered in (False, True, False)
    ]
    assert found[0].problem.startswith("no rows have come for 1h; the last came at ")


async def test_nothing_is_expected_of_a_dataset_whose_jobs_are_paused(fresh: ControlPlane) -> None:
    for job in ("orders", "people"):
        await fresh.pause("shop", job)
        await fresh.pass_time(4000)
        assert await judged(fresh) == (0, 0)
        await fresh.resume("shop", job)
    assert await judged(fresh) == (1, 0)


async def test_a_dataset_without_rows_is_stale_when_its_build_is_old(plane: ControlPlane) -> None:
    await plane.deploy(dag("{freshness: 1h}"))
    assert await judged(plane) == (0, 0)
    await plane.pass_time(3700)
    assert await judged(plane) == (1, 0)
    assert (await failures(plane))[0].problem == "no rows have come for 1h; none ever came"


async def test_a_check_that_is_gone_is_not_judged(fresh: ControlPlane) -> None:
    await fresh.deploy(dag(""))
    await fresh.pass_time(9999)
    assert await judged(fresh) == (0, 0)


async def test_failures_end_with_history_but_not_the_last_word_on_freshness(plane: ControlPlane) -> None:
    await plane.deploy(dag(f"{_WARNS}, {{freshness: 1h}}"))
    held = await held_order(plane, 1)
    await plane.report((held, filled(held, _FAILED)))
    await plane.pass_time(4000)
    assert await judged(plane) == (1, 0)

    async def ended() -> int:
        kind, age = history.Kind.CHECK_FAILURES, timedelta(days=30)
        async with plane.database.transaction() as tx:
            return (await history.end(tx, kind, age, None, 100, dry_run=False)).ended

    assert await ended() == 0
    await plane.pass_time(31 * 86400)
    assert await ended() == 1
    assert [f.name for f in await failures(plane)] == ["freshness"]
    assert await judged(plane) == (0, 0)


async def test_warnings_of_a_buffered_output_are_kept_when_a_sink_commits_it(
    database_url: str, tmp_path: Path
) -> None:
    hot = (
        "storage: postgres, position: block, columns: [{name: block, type: bigint}, {name: n, type: bigint}]"
    )
    text = f"""
version: 1
dag: hot
datasets:
  kept: {{{hot}, checks: [{{range: {{column: n, max: 5}}, severity: warn}}]}}
jobs:
- {{name: in, activation: source, source: {{kind: manual}}, outputs: [{{dataset: in}}]}}
- name: kept
  runtime: spark
  operator: sql
  config: {{query: select 1}}
  inputs: [{{from: {{dataset: in}}}}]
  outputs: [{{dataset: kept}}]
"""
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.deploy(text)
        worker = HotWorker(plane, tmp_path / "objects")
        await plane.emit("in", [1])
        (held,) = await plane.claim(await plane.send(), runtime="spark")
        done = worker.done(held, pa.table({"block": [1], "n": [9]}))
        failure = FailedCheck(0, "range_n", "1 row", 1, [{"n": "9"}])
        outputs = [msgspec.structs.replace(output, failed_checks=[failure]) for output in done.outputs]
        done = msgspec.structs.replace(done, outputs=outputs)
        assert await plane.report((held, done)) == ["buffered"]
        assert await failures(plane) == []
        await plane.sink()
        assert [(f.name, f.sample) for f in await failures(plane)] == [("range_n", [{"n": "9"}])]


async def test_status_lists_what_the_rows_do_not_meet_until_they_are_computed_again(
    plane: ControlPlane,
) -> None:
    async def unmet() -> list[str]:
        return list(problems(await plane.status()))

    await plane.deploy(dag(f"{_WARNS}, {{freshness: 1h}}"))
    for cursor in (1, 2):
        held = await held_order(plane, cursor)
        await plane.report((held, filled(held, _FAILED)))
    assert await unmet() == [
        "failed checks:",
        "  orders: not_null_email in 2 scopes: 2 rows",
        f"    newest: traceplane explain {held.task_id}",
    ]
    for cursor in (1, 2):
        held = await held_order(plane, cursor, emission="corrected")
        await plane.report((held, filled(held)))
    assert await unmet() == []
    await plane.pass_time(4000)
    await judged(plane)
    (_, line) = await unmet()
    assert line.startswith("  orders: freshness: no rows have come for 1h; the last came at ")
    await plane.deploy(dag(_WARNS))
    assert await unmet() == []  # nobody expects it any more
