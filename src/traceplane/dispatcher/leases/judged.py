"""A report and what it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self
from uuid import UUID

from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.model.task import Report, ReportVerdict, TaskState, judge_report
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.tasks import LockedTask
from traceplane.wire.tasks import CompletionOutcome, TaskError

_Answer = Literal["committed", "retrying", "dead", "canceled", "stale", "unknown"]

_ANSWERS: dict[ReportVerdict, _Answer] = {
    ReportVerdict.COMPLETE: "committed",
    ReportVerdict.RETRY: "retrying",
    ReportVerdict.RETURN: "retrying",
    ReportVerdict.DIE: "dead",
    ReportVerdict.CANCEL: "canceled",
    ReportVerdict.CANCELED: "canceled",
    ReportVerdict.STALE: "stale",
    ReportVerdict.UNKNOWN: "unknown",
}
_REPLAYED: dict[TaskState, _Answer] = {
    TaskState.COMPLETED: "committed",
    TaskState.DEAD: "dead",
    TaskState.CANCELED: "canceled",
}


@dataclass(frozen=True, slots=True)
class Judged:
    call: CompletionCall
    verdict: ReportVerdict
    task: LockedTask | None
    """None if there is no such task."""

    @classmethod
    def of(cls, call: CompletionCall, task: LockedTask | None) -> Self:
        fence = call.fence
        facts = task.facts if task is not None else None
        verdict = judge_report(facts, fence.attempt, fence.lease_token, call.report, retryable=call.retryable)
        return cls(call, verdict, task)

    @property
    def task_id(self) -> UUID:
        return self.call.fence.task_id

    @property
    def completes(self) -> bool:
        return self.verdict is ReportVerdict.COMPLETE

    @property
    def is_held(self) -> bool:
        """Whether the task is in flight; otherwise its lease has expired."""
        return self.task is not None and self.task.facts.state is TaskState.RUNNING

    @property
    def seconds(self) -> float:
        """Since the attempt began."""
        assert self.task is not None
        return self.task.seconds or 0.0

    @property
    def outputs(self) -> list[OutputCommit]:
        """As the task's job commits them."""
        assert self.task is not None
        return [
            replace(output, replaces=self.task.replaces, compacts=self.task.compacts)
            for output in self.call.outputs
        ]

    def failed(self, error: TaskError) -> Judged:
        """The report of a completed attempt, counted as a failure."""
        return Judged.of(self.call.failed(error), self.task)

    def returned(self) -> Judged:
        """The report of a completed attempt, treated as if it had never run."""
        return Judged.of(CompletionCall(self.call.fence, Report.RETURNED, log=self.call.log), self.task)

    @property
    def outcome(self) -> CompletionOutcome:
        if self.verdict is ReportVerdict.REPLAYED:
            assert self.task is not None
            return CompletionOutcome(self.task_id, _REPLAYED.get(self.task.facts.state, "retrying"))
        return CompletionOutcome(self.task_id, _ANSWERS[self.verdict])
