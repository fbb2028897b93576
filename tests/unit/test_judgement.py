"""What a report or a heartbeat does to a task, as data: every combination of facts is checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from traceplane.model.task import (
    HeartbeatVerdict,
    Report,
    ReportVerdict,
    TaskFacts,
    TaskState,
    judge_heartbeat,
    judge_report,
    state_after_failure,
)

MINE = UUID(int=1)
ANOTHERS = UUID(int=2)
RUNNING = TaskFacts(
    state=TaskState.RUNNING,
    attempt=2,
    lease_token=MINE,
    reported_attempt=1,
    cancel_requested=False,
    max_attempts=3,
    endless=False,
)
CHANGING = {
    ReportVerdict.COMPLETE,
    ReportVerdict.RETRY,
    ReportVerdict.DIE,
    ReportVerdict.CANCEL,
    ReportVerdict.RETURN,
}


def every_task() -> Iterator[TaskFacts]:
    flags = (False, True)
    for state, attempt, token, reported, cancel, used_up, endless in itertools.product(
        TaskState, (0, 1, 2, 3), (None, MINE, ANOTHERS), (0, 1, 2, 3), flags, flags, flags
    ):
        if reported <= attempt:
            yield TaskFacts(
                state=state,
                attempt=attempt,
                lease_token=token,
                reported_attempt=reported,
                cancel_requested=cancel,
                max_attempts=attempt if used_up else attempt + 1,
                endless=endless,
            )


def reports(task: TaskFacts | None, attempt: int = 2, token: UUID = MINE) -> Iterator[ReportVerdict]:
    for report, retryable in itertools.product(Report, (False, True)):
        yield judge_report(task, attempt, token, report, retryable=retryable)


def test_a_stale_attempt_changes_nothing() -> None:
    for task in every_task():
        if task.attempt != 2 or task.lease_token != MINE:
            assert set(reports(task)) == {ReportVerdict.STALE}
            assert judge_heartbeat(task, 2, MINE) is HeartbeatVerdict.STALE


def test_an_unknown_task_is_reported_as_unknown() -> None:
    assert set(reports(None)) == {ReportVerdict.UNKNOWN}
    assert judge_heartbeat(None, 2, MINE) is HeartbeatVerdict.UNKNOWN


def test_an_attempt_is_reported_once_and_repetitions_change_nothing() -> None:
    for task in every_task():
        if task.is_held_by(2, MINE) and task.reported_attempt == 2:
            assert set(reports(task)) == {ReportVerdict.REPLAYED}
            assert judge_heartbeat(task, 2, MINE) in (HeartbeatVerdict.STALE, HeartbeatVerdict.CANCELED)


def test_no_report_revives_a_canceled_task() -> None:
    for task in every_task():
        if task.state is TaskState.CANCELED and task.is_held_by(2, MINE) and not task.reported:
            assert set(reports(task)) == {ReportVerdict.CANCELED}
            assert judge_heartbeat(task, 2, MINE) is HeartbeatVerdict.CANCELED


def test_a_task_being_canceled_stops_whatever_its_worker_reports() -> None:
    task = replace(RUNNING, cancel_requested=True)
    assert set(reports(task)) == {ReportVerdict.CANCEL}
    assert judge_heartbeat(task, 2, MINE) is HeartbeatVerdict.CANCELED


def test_a_source_whose_cancellation_was_withdrawn_runs_again() -> None:
    source = replace(RUNNING, endless=True)
    assert judge_report(source, 2, MINE, Report.CANCELED, retryable=True) is ReportVerdict.RETURN
    assert judge_report(RUNNING, 2, MINE, Report.CANCELED, retryable=True) is ReportVerdict.CANCEL


@pytest.mark.parametrize("state", [TaskState.RUNNING, TaskState.QUEUED, TaskState.DISPATCHED, TaskState.DEAD])
def test_a_late_report_counts_until_the_task_is_claimed_again(state: TaskState) -> None:
    task = replace(RUNNING, state=state)
    assert judge_report(task, 2, MINE, Report.COMPLETED, retryable=True) is ReportVerdict.COMPLETE
    expected = HeartbeatVerdict.OK if state is TaskState.RUNNING else HeartbeatVerdict.REVIVE
    assert judge_heartbeat(task, 2, MINE) is expected


@pytest.mark.parametrize(
    ("used_up", "endless", "retryable", "verdict"),
    [
        (False, False, True, ReportVerdict.RETRY),
        (True, False, True, ReportVerdict.DIE),
        (False, False, False, ReportVerdict.DIE),
        (True, False, False, ReportVerdict.DIE),
        (False, True, True, ReportVerdict.RETRY),
        (True, True, True, ReportVerdict.RETRY),
        (False, True, False, ReportVerdict.RETRY),
        (True, True, False, ReportVerdict.RETRY),
    ],
)
def test_a_failure_is_retried_until_attempts_are_used_up_and_a_source_forever(
    used_up: bool, endless: bool, retryable: bool, verdict: ReportVerdict
) -> None:
    task = replace(RUNNING, max_attempts=2 if used_up else 3, endless=endless)
    assert judge_report(task, 2, MINE, Report.FAILED, retryable=retryable) is verdict


def test_one_rule_decides_the_outcome_of_an_attempt_however_it_ended() -> None:
    assert state_after_failure(RUNNING) is TaskState.QUEUED
    assert state_after_failure(RUNNING, retryable=False) is TaskState.DEAD
    assert state_after_failure(replace(RUNNING, attempt=3)) is TaskState.DEAD
    assert state_after_failure(replace(RUNNING, attempt=3, endless=True)) is TaskState.QUEUED
    assert state_after_failure(replace(RUNNING, cancel_requested=True, endless=True)) is TaskState.CANCELED


@pytest.mark.parametrize("state", [TaskState.RUNNING, TaskState.QUEUED, TaskState.DISPATCHED])
@pytest.mark.parametrize("used_up", [False, True])
def test_a_task_that_is_handed_back_runs_again_even_after_its_last_attempt(
    state: TaskState, used_up: bool
) -> None:
    task = replace(RUNNING, state=state, max_attempts=2 if used_up else 3)
    assert judge_report(task, 2, MINE, Report.RETURNED, retryable=True) is ReportVerdict.RETURN


def test_a_task_that_was_given_up_for_good_is_not_handed_back() -> None:
    task = replace(RUNNING, state=TaskState.DEAD)
    assert judge_report(task, 2, MINE, Report.RETURNED, retryable=True) is ReportVerdict.STALE


def test_only_the_holder_of_an_unreported_attempt_changes_a_task() -> None:
    for task in every_task():
        for verdict in reports(task):
            if verdict in CHANGING:
                assert task.is_held_by(2, MINE)
                assert not task.reported
                assert task.state is not TaskState.CANCELED


def test_a_heartbeat_keeps_alive_exactly_what_a_report_could_still_end() -> None:
    for task in every_task():
        alive = judge_heartbeat(task, 2, MINE) in (HeartbeatVerdict.OK, HeartbeatVerdict.REVIVE)
        if alive:
            assert judge_report(task, 2, MINE, Report.COMPLETED, retryable=True) is ReportVerdict.COMPLETE
