"""The states of a task, and the rules that move it between them.

           create            relay            claim            complete(ok)
event ──► queued ─────────► dispatched ────► running ───────► completed
             ▲  ▲ (held by the valve)          │ fail / lease expired
             │  └──────── retry at ready_at ◄──┼──► dead (attempts used up)
             │  └──────────────────────────────┘ returned by a stopping worker; does not count as an attempt
             └ canceled (a running task's worker learns of it at its next heartbeat)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, assert_never
from uuid import UUID


class TaskState(StrEnum):
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELED = "canceled"

    @property
    def finished(self) -> bool:
        return self in (TaskState.COMPLETED, TaskState.DEAD, TaskState.CANCELED)


DeadStanding = Literal["open", "superseded", "retired", "acknowledged"]
"""Whether a dead task still needs attention."""


class Report(StrEnum):
    """How an attempt ended, as its worker reports it."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    RETURNED = "returned"
    """It did not end: its worker is stopping, and returns the task for another worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """An attempt, as far as the retry rule needs it."""

    attempt: int
    max_attempts: int
    cancel_requested: bool
    endless: bool
    """An always-on source: it is never dead, and is restarted whenever it ends."""


def state_after_failure(attempt: AttemptFacts, *, retryable: bool = True) -> TaskState:
    """The one retry rule: for attempts that were reported as failed, whose lease expired, or that failed in the
    dispatcher."""
    if attempt.cancel_requested:
        return TaskState.CANCELED
    if attempt.endless or (retryable and attempt.attempt < attempt.max_attempts):
        return TaskState.QUEUED
    return TaskState.DEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts(AttemptFacts):
    """A locked task, as far as the fence and the retry rule need it."""

    state: TaskState
    lease_token: UUID | None
    reported_attempt: int

    def is_held_by(self, attempt: int, lease_token: UUID) -> bool:
        return self.attempt == attempt and self.lease_token == lease_token

    @property
    def reported(self) -> bool:
        return self.attempt > 0 and self.reported_attempt == self.attempt


class ReportVerdict(StrEnum):
    COMPLETE = "complete"
    RETRY = "retry"
    DIE = "die"
    CANCEL = "cancel"
    RETURN = "return"
    REPLAYED = "replayed"
    """The attempt was reported before: nothing changes, and the first answer is repeated."""
    CANCELED = "canceled"
    STALE = "stale"
    UNKNOWN = "unknown"


def judge_report(
    task: TaskFacts | None, attempt: int, lease_token: UUID, report: Report, *, retryable: bool
) -> ReportVerdict:
    """What a report does. A late one counts as long as nobody has claimed the task since."""
    if task is None:
        return ReportVerdict.UNKNOWN
    if not task.is_held_by(attempt, lease_token):
        return ReportVerdict.STALE
    if task.reported:
        return ReportVerdict.REPLAYED
    if task.state is TaskState.CANCELED:
        return ReportVerdict.CANCELED
    if task.cancel_requested or (report is Report.CANCELED and not task.endless):
        return ReportVerdict.CANCEL
    match report:
        case Report.COMPLETED:
            return ReportVerdict.COMPLETE
        case Report.FAILED:
            dead = state_after_failure(task, retryable=retryable) is TaskState.DEAD
            return ReportVerdict.DIE if dead else ReportVerdict.RETRY
        case Report.RETURNED | Report.CANCELED:
            # A source that nobody asks to stop: its job was resumed after the worker had learned of the pause.
            # A task that finished meanwhile stays finished: its pipeline may already be running again.
            return ReportVerdict.STALE if task.state.finished else ReportVerdict.RETURN
        case _:
            assert_never(report)


class HeartbeatVerdict(StrEnum):
    OK = "ok"
    REVIVE = "revive"
    """It was reaped but is alive, and nobody has claimed it since: it continues if its scope is free."""
    CANCELED = "canceled"
    STALE = "stale"
    UNKNOWN = "unknown"


def judge_heartbeat(task: TaskFacts | None, attempt: int, lease_token: UUID) -> HeartbeatVerdict:
    if task is None:
        return HeartbeatVerdict.UNKNOWN
    if not task.is_held_by(attempt, lease_token):
        return HeartbeatVerdict.STALE
    if task.state is TaskState.CANCELED or task.cancel_requested:
        return HeartbeatVerdict.CANCELED
    if task.reported or task.state is TaskState.COMPLETED:
        return HeartbeatVerdict.STALE
    return HeartbeatVerdict.OK if task.state is TaskState.RUNNING else HeartbeatVerdict.REVIVE
