"""What failed is shown first, told apart from what needs nobody, read with its output, and changed by the DAG."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from tests.control_plane import ControlPlane, Held, canceled, completed, failed, returned
from tests.dags import SOURCE, job
from tests.postgres.test_versions import build, chain
from traceplane.errors import NotFound
from traceplane.wire.control import StatusResponse, TaskQuery, TaskSelection, TaskView
from traceplane.wire.tasks import TaskError

DAG = SOURCE + job("copy", "in", "mid", "max_attempts: 1") + job("after", "mid", "end", "max_attempts: 1")
NO_OUTPUTS = DAG.replace("  outputs: [{dataset: end}]\n", "")
ERROR = TaskError("operator.raised", "division by zero", type="ZeroDivisionError")


async def run(plane: ControlPlane, *, failing: str | None = None) -> None:
    """Everything that waits is run to its end; tasks of one job fail for good."""
    while True:
        await plane.meter()
        held = await plane.claim(await plane.send())
        if not held:
            return
        await plane.report(
            *(
                (
                    h,
                    msgspec.structs.replace(failed(h), error=ERROR)
                    if h.job.name == failing
                    else completed(h),
                )
                for h in held
            )
        )


async def status(plane: ControlPlane) -> StatusResponse:
    return await plane.status()


async def standings(plane: ControlPlane) -> dict[str, str | None]:
    """By scope, of all dead tasks."""
    return {task.scope or "": task.standing for task in await listed(plane, state="dead")}


async def listed(plane: ControlPlane, **query: object) -> list[TaskView]:
    call = msgspec.structs.replace(plane._call(None), query=TaskQuery(**query))  # type: ignore[arg-type]
    return (await plane.api.tasks.listing(call)).tasks


async def select(plane: ControlPlane, verb: str, **fields: object) -> dict[str, str]:
    changes = await getattr(plane.api.tasks, verb)(plane._call(TaskSelection(**fields)))  # type: ignore[arg-type]
    return dict(changes.changed)


async def test_failed_work_is_counted_by_job_and_error_with_an_example(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(3))
    await run(plane, failing="copy")
    answer = await status(plane)
    (failure,) = answer.failed
    newest = (await plane.tasks("copy", "dead"))[-1]
    assert (failure.dag, failure.job, failure.state, failure.tasks) == ("main", "copy", "dead", 3)
    assert (failure.code, failure.message) == ("operator.raised", "ZeroDivisionError: division by zero")
    assert (failure.newest, failure.scope) == (newest, "2")
    assert (answer.dead_superseded, answer.dead_retired) == (0, 0)


@pytest.mark.parametrize("dag", [DAG, NO_OUTPUTS], ids=["outputs", "no outputs"])
async def test_a_later_success_of_the_scope_supersedes_a_dead_task(plane: ControlPlane, dag: str) -> None:
    await plane.deploy(dag)
    await plane.emit("in", range(2))
    await run(plane, failing="after")
    assert await standings(plane) == {"0": "open", "1": "open"}
    await plane.emit("in", [1], kind="invalidation", emission="again")
    await run(plane)
    assert await standings(plane) == {"0": "open", "1": "superseded"}
    answer = await status(plane)
    assert [f.tasks for f in answer.failed] == [1]
    assert answer.dead_superseded == 1


async def test_dead_tasks_of_a_retired_version_need_nobody(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", [1])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.fail(held, retryable=False)
    await plane.deploy(chain(2).replace("basic:copy", "basic:other"))
    await build(plane)
    assert await standings(plane) == {"1": "retired"}
    answer = await status(plane)
    assert (answer.failed, answer.dead_retired) == ([], 1)


async def test_an_acknowledged_task_is_spoken_of_no_more_until_it_dies_again(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(3))
    await run(plane, failing="copy")
    first, *_ = await plane.tasks("copy", "dead")
    assert await select(plane, "acknowledge", task_ids=[first]) == {str(first): "acknowledged"}
    assert await select(plane, "acknowledge", task_ids=[first]) == {}
    assert [f.tasks for f in (await status(plane)).failed] == [2]
    assert len(await select(plane, "acknowledge", dag="main", job="copy", start=2, end=9)) == 1
    assert await standings(plane) == {"0": "acknowledged", "1": "open", "2": "acknowledged"}
    assert [t.scope for t in await listed(plane, standing="open")] == ["1"]
    await plane.retry(first)
    await run(plane, failing="copy")
    assert (await standings(plane))["0"] == "open"


async def test_a_retry_says_why_a_task_is_unchanged(plane: ControlPlane) -> None:
    await plane.deploy(chain(1))
    await plane.emit("in", range(2))
    await plane.meter()
    first, second = await plane.claim(await plane.send())
    await plane.report((first, completed(first)))
    nobody = UUID(int=7)
    asked = TaskSelection([first.task_id, second.task_id, nobody])
    answer = await plane.api.tasks.retry(plane._call(asked))
    assert answer.why_unchanged == {
        str(first.task_id): "completed",
        str(second.task_id): "running",
        str(nobody): "unknown",
    }
    await plane.report((second, failed(second)))
    await plane.deploy(SOURCE, drop_missing=True)
    answer = await plane.api.tasks.retry(plane._call(TaskSelection([second.task_id])))
    assert answer.why_unchanged == {str(second.task_id): "retired"}


async def test_tasks_are_canceled_and_started_again_by_dag_job_and_range(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(10))
    with pytest.raises(NotFound, match=r"dag\.unknown"):
        await select(plane, "cancel", dag="other")
    assert await select(plane, "cancel", dag="main", job="after") == {}
    assert len(await select(plane, "cancel", dag="main", job="copy", start=0, end=3)) == 4
    assert (await plane.states())["canceled"] == 4
    assert len(await select(plane, "retry", dag="main", state="canceled", start=3)) == 1
    await run(plane, failing="copy")
    assert await plane.states() == {"dead": 7, "canceled": 3}
    assert len(await select(plane, "retry", dag="main", start=5, end=5)) == 1
    assert len(await select(plane, "retry", dag="main")) == 6
    assert await plane.states() == {"queued": 7, "canceled": 3}
    assert set((await select(plane, "cancel", dag="main")).values()) == {"canceled"}


async def test_more_tasks_than_one_call_changes_are_changed_by_several(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceplane.gateway.tasks.CHANGED_AT_ONCE", 4)
    await plane.deploy(DAG)
    await plane.emit("in", range(10))
    first = await plane.api.tasks.cancel(plane._call(TaskSelection(dag="main")))
    assert (len(first.changed), first.after is not None) == (4, True)
    after: UUID | None = first.after
    counts: list[int] = []
    while after is not None:
        more = await plane.api.tasks.cancel(plane._call(TaskSelection(dag="main", after=after)))
        counts, after = [*counts, len(more.changed)], more.after
    assert counts == [4, 2]
    again, seen = await plane.api.tasks.retry(plane._call(TaskSelection(dag="main", state="canceled"))), 0
    while True:
        seen += len(again.changed)
        if again.after is None:
            break
        again = await plane.api.tasks.retry(
            plane._call(TaskSelection(dag="main", state="canceled", after=again.after))
        )
    assert seen == 10


async def test_what_attempts_wrote_is_kept_with_their_reports(plane: ControlPlane) -> None:
    await plane.deploy(DAG.replace("max_attempts: 1", "max_attempts: 2"))
    await plane.emit("in", range(2))
    await plane.meter()
    one, other = await plane.claim(await plane.send())
    await plane.report(
        (one, msgspec.structs.replace(failed(one), log="first\nattempt")), (other, completed(other))
    )
    await plane.sql("update tasks set ready_at = tp_now() where task_id = $1", one.task_id)
    await plane.meter()
    (again,) = [h for h in await plane.claim(await plane.send()) if h.task_id == one.task_id]
    report = completed(again, log="second")
    await plane.report((again, report), (again, msgspec.structs.replace(report, log="repeated")))
    answer = await plane.api.tasks.logs(plane._call(None, task_id=str(one.task_id)))
    assert [(a.attempt, a.text) for a in answer.attempts] == [(2, "second"), (1, "first\nattempt")]
    assert (answer.state, answer.attempt) == ("completed", 2)
    silent = await plane.api.tasks.logs(plane._call(None, task_id=str(other.task_id)))
    assert silent.attempts == []


async def test_explain_tells_the_error_the_output_and_the_next_step(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", [1])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.report((held, msgspec.structs.replace(failed(held), error=ERROR, log="so far")))
    answer = await plane.explain(held.task_id)
    assert "dead after 1 attempt;" in answer.reasons[0].sentence
    assert answer.error is not None
    assert answer.error["type"] == "ZeroDivisionError"
    assert answer.log is not None
    assert answer.log.text == "so far"
    assert answer.retry_helps
    assert f"traceplane retry {held.task_id}" in (answer.next_step or "")


async def attempts(plane: ControlPlane, task_id: UUID) -> list[tuple[int, str, str | None]]:
    detail = await plane.api.tasks.task(plane._call(None, task_id=str(task_id)))
    for one in detail.attempts:
        assert one.started_at <= (one.ended_at or one.started_at)
        assert (one.ended_at is None) == (one.outcome == "running")
    return [(one.attempt, one.outcome, one.code) for one in detail.attempts]


async def test_each_attempt_is_told_with_how_it_ended(plane: ControlPlane) -> None:
    await plane.deploy(DAG.replace("max_attempts: 1", "max_attempts: 3"))
    await plane.emit("in", [7])

    async def claimed() -> Held:
        await plane.pass_time(3_600)
        await plane.meter()
        (held,) = await plane.claim(await plane.send())
        return held

    held = await claimed()
    task_id = held.task_id
    assert await attempts(plane, task_id) == [(1, "running", None)]
    await plane.report((held, msgspec.structs.replace(failed(held), error=ERROR)))
    told: list[tuple[int, str, str | None]] = [(1, "failed", "operator.raised")]
    assert await attempts(plane, task_id) == told
    await plane.report((held := await claimed(), returned(held)))
    told.append((2, "returned", None))
    assert await attempts(plane, task_id) == told
    silent = await claimed()
    await plane.pass_time(3_600)
    assert (await plane.reaper.run_once()).retried == 1
    assert await attempts(plane, task_id) == [*told, (3, "lost", "lease.expired")]
    assert await plane.heartbeat(silent) == ["ok"]
    assert await attempts(plane, task_id) == [*told, (3, "running", None)], "it was late, not lost"
    await plane.complete(silent)
    assert await attempts(plane, task_id) == [*told, (3, "completed", None)]


async def test_of_a_task_that_fails_for_ever_the_last_attempts_are_told(plane: ControlPlane) -> None:
    await plane.deploy(DAG.replace("max_attempts: 1", "max_attempts: 100"))
    await plane.emit("in", [7])
    for _ in range(60):
        await plane.pass_time(3_600)
        await plane.meter()
        (held,) = await plane.claim(await plane.send())
        await plane.fail(held)
    assert [attempt for attempt, _, _ in await attempts(plane, held.task_id)] == list(range(11, 61))


async def test_a_canceled_attempt_is_told_when_its_task_runs_again(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", [7])
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    await plane.cancel(held.task_id)
    await plane.report((held, canceled(held)))
    await plane.retry(held.task_id)
    await plane.run_all()
    assert await attempts(plane, held.task_id) == [(1, "canceled", None), (2, "completed", None)]
