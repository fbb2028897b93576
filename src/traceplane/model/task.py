"""The life of a task, as words.

           create            relay            claim            complete(ok)
event ──► queued ─────────► dispatched ────► running ───────► completed
             ▲  ▲ (held by the valve)          │ fail / lease expired
             │  └──────── retry at ready_at ◄──┼──► dead (attempts used up)
             │  └──────────────────────────────┘ returned by a worker that stops; costs no attempt
             └ canceled (running ones are told at their next heartbeat)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never
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


class EventKind(StrEnum):
    DATA = "data"
    INVALIDATION = "invalidation"


class Report(StrEnum):
    """How a worker says that an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    RETURNED = "returned"
    """It did not end: its worker stops, and hands the task back for another one."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A locked task, as far as the fence and the retry rule need it."""

    state: TaskState
    attempt: int
    lease_token: UUID | None
    reported_attempt: int
    cancel_requested: bool
    attempts_used_up: bool
    endless: bool
    """An always-on source: it is never dead, and started again whenever it ends."""

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
    """The attempt has been reported before; nothing changes and the first answer is given again."""
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
    if task.cancel_requested or report is Report.CANCELED:
        return ReportVerdict.CANCEL
    match report:
        case Report.COMPLETED:
            return ReportVerdict.COMPLETE
        case Report.FAILED:
            dead = not task.endless and (task.attempts_used_up or not retryable)
            return ReportVerdict.DIE if dead else ReportVerdict.RETRY
        case Report.RETURNED:
            # One that was given up for good meanwhile stays so: a pipeline of it may be running again.
            return ReportVerdict.STALE if task.state.finished else ReportVerdict.RETURN
        case _:
            assert_never(report)


class HeartbeatVerdict(StrEnum):
    OK = "ok"
    REVIVE = "revive"
    """It was reaped, yet lives and nobody has claimed it: it runs on, if its scope is free."""
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
