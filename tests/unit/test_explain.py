"""Why a task is waiting: the reasons are data, and the decisive one comes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from traceplane.model.explain import ExplainFacts, explain
from traceplane.model.resources import parsed
from traceplane.model.stuck import SeenWorker

WAITING = ExplainFacts(
    task_id=UUID(int=1),
    dag="shop",
    operator="python",
    source_kind=None,
    code_deployed=False,
    partition_key=None,
    range_start=0,
    standing=None,
    state="queued",
    attempt=0,
    max_attempts=5,
    cancel_requested=False,
    worker_id=None,
    error=None,
    job="enrich",
    runtime="python",
    max_concurrency=None,
    dispatch_window=1000,
    routed=True,
    priority=0,
    ready_in_seconds=-1.0,
    dispatched_seconds=None,
    running_seconds=None,
    lease_seconds=None,
    resends=0,
    in_flight=0,
    ahead=0,
    scope_held_by=None,
    hold_level=None,
    hold_path=None,
    hold_job=None,
    hold_metric=None,
    hold_figure=None,
    hold_threshold=None,
    in_outbox=False,
)
HELD = {
    "hold_level": 2,
    "hold_path": ["enrich", "join", "publish"],
    "hold_job": "publish",
    "hold_metric": "queue_depth",
    "hold_figure": 1200.0,
    "hold_threshold": 1000.0,
}


def reasons(**facts: Any) -> dict[str, str]:
    return {reason.code: reason.sentence for reason in explain(replace(WAITING, **facts))}


def test_a_check_that_failed_without_rows_is_named() -> None:
    """Where nothing could be sampled, for example when there are too few rows."""
    error = {
        "code": "check.failed",
        "message": "1 check failed",
        "failed_checks": [{"check": "rows", "problem": "0 rows, at least 1 expected"}],
    }
    assert "check rows failed: 0 rows" in reasons(state="dead", attempt=1, error=error)["check"]


def test_a_held_task_names_edge_threshold_and_figure() -> None:
    sentence = reasons(**HELD)["held"]
    assert "all its work" in sentence
    for said in ("publish", "queue_depth", "1200", "1000", "enrich → join → publish"):
        assert said in sentence


@pytest.mark.parametrize(("priority", "held"), [(0, False), (1, True)])
def test_the_first_level_holds_backfill_only(priority: int, held: bool) -> None:
    found = reasons(**{**HELD, "hold_level": 1}, priority=priority)
    assert ("held" in found) is held
    assert not held or "backfill" in found["held"]


def test_a_retry_says_how_long_and_after_what() -> None:
    error = {"code": "operator.failed", "message": "division by zero"}
    sentence = reasons(attempt=2, ready_in_seconds=4.25, error=error)["retry_wait"]
    for said in ("4.2 s", "attempt 3 of 5", "operator.failed", "division by zero"):
        assert said in sentence


def test_a_busy_scope_names_the_task_that_holds_it() -> None:
    assert "0198-abc" in reasons(scope_held_by="0198-abc")["scope_busy"]


def test_a_full_job_names_its_limit_and_its_tasks_in_flight() -> None:
    assert (
        "4 tasks in flight; its max_concurrency is 4"
        in reasons(max_concurrency=4, in_flight=4)["concurrency"]
    )
    assert "1000 tasks in flight; its dispatch window is 1000" in reasons(in_flight=1000)["concurrency"]
    assert "concurrency" not in reasons(max_concurrency=4, in_flight=3)


def test_a_queue_ahead_is_counted() -> None:
    assert "17 tasks of job enrich" in reasons(ahead=17)["queue"]


def test_the_decisive_reason_comes_first() -> None:
    codes = list(
        reasons(**HELD, ready_in_seconds=3.0, scope_held_by="x", in_flight=1000, ahead=1, routed=False)
    )
    assert codes == ["held", "retry_wait", "scope_busy", "concurrency", "queue", "retired"]


def test_a_task_that_nothing_holds_is_due() -> None:
    assert list(reasons()) == ["due"]


def test_a_dispatched_task_waits_for_the_relay_or_for_a_worker() -> None:
    assert list(reasons(state="dispatched", dispatched_seconds=1.0, in_outbox=True)) == ["outbox"]
    sentence = reasons(state="dispatched", dispatched_seconds=61.5, resends=2)["no_worker"]
    for said in ("61.5 s", "runtime python", "resent 2 times"):
        assert said in sentence


def test_a_running_task_names_worker_attempt_and_lease() -> None:
    running = {
        "state": "running",
        "worker_id": "w-1",
        "attempt": 2,
        "running_seconds": 8.0,
        "lease_seconds": 22.0,
    }
    sentence = reasons(**running)["running"]
    for said in ("w-1", "attempt 2", "8.0 s", "22.0 s"):
        assert said in sentence
    assert list(reasons(**running, cancel_requested=True)) == ["canceling", "running"]


@pytest.mark.parametrize("error", [None, {"code": "operator.failed", "message": "no"}])
def test_a_finished_task_says_how_it_ended(error: dict[str, str] | None) -> None:
    assert list(reasons(state="completed")) == ["completed"]
    assert "traceplane retry" in reasons(state="canceled")["canceled"]
    retired = reasons(state="canceled", routed=False)
    assert list(retired) == ["canceled", "retired"]
    assert "cannot be retried" in retired["retired"]
    assert "traceplane retry" not in " ".join(retired.values())
    sentence = reasons(state="dead", attempt=5, error=error)["dead"]
    assert "5 attempts" in sentence
    assert (error or {"code": "unknown"})["code"] in sentence


def test_an_unknown_state_raises() -> None:
    with pytest.raises(AssertionError, match="asleep"):
        explain(replace(WAITING, state="asleep"))


def test_a_task_of_a_paused_job_names_who_paused_it_since_when_and_why() -> None:
    since = datetime(2026, 11, 17, 20, 30, tzinfo=UTC)
    sentence = reasons(paused_by="ada", paused_since=since, pause_reason="wrong prices")["paused"]
    for said in ("ada", "2026-11-17 20:30:00", "wrong prices", "traceplane job resume shop enrich"):
        assert said in sentence


def test_a_source_that_a_pause_stopped_is_not_to_be_retried() -> None:
    since = datetime(2026, 11, 17, tzinfo=UTC)
    said = reasons(state="canceled", source_kind="always_on", paused_by="ada", paused_since=since)
    assert "starts again when its job is resumed" in said["canceled"]


def test_a_task_on_spark_says_where_spark_shows_it() -> None:
    page = "http://history:18080/history/app-1/jobs/"
    assert page in reasons(state="completed", spark_ui=page)["spark"]
    assert "spark" not in reasons(state="completed")


@pytest.mark.parametrize(
    ("in_outbox", "codes"), [(False, ["no_able_worker"]), (True, ["no_able_worker", "outbox"])]
)
def test_a_task_that_no_worker_can_run_says_what_each_lacks(in_outbox: bool, codes: list[str]) -> None:
    facts = replace(
        WAITING,
        state="dispatched",
        dispatched_seconds=1.0,
        in_outbox=in_outbox,
        requires=parsed(["gpu=1", "label=eu"]),
        workers=[SeenWorker("host:7", "python", parsed(["label=eu"]))],
    )
    first, *_ = reasons = explain(facts)
    assert [reason.code for reason in reasons] == codes
    assert "requires gpu=1, label=eu, but host:7 lacks gpu=1" in first.sentence
