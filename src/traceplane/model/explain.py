"""Why a task is waiting, in sentences: a pure function of the facts, so the reasons can be tested as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.model.checks import SampleRow, sampled
from traceplane.model.json_object import JsonObject
from traceplane.model.resources import Resources
from traceplane.model.stuck import SeenWorker, missing_worker
from traceplane.model.task import DeadStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainFacts:
    """Everything that could make a task wait."""

    task_id: UUID
    dag: str
    job: str
    operator: str
    state: str
    attempt: int
    max_attempts: int
    cancel_requested: bool
    worker_id: str | None
    error: JsonObject | None
    runtime: str
    max_concurrency: int | None
    dispatch_window: int
    routed: bool
    source_kind: str | None
    code_deployed: bool
    priority: int
    partition_key: str | None
    range_start: int | None
    standing: DeadStanding | None
    """Of a dead task."""
    ready_in_seconds: float
    dispatched_seconds: float | None
    running_seconds: float | None
    lease_seconds: float | None
    resends: int
    in_flight: int
    """The job's tasks that are dispatched or running."""
    ahead: int
    """The job's queued tasks that go before it."""
    scope_held_by: UUID | None
    hold_level: int | None
    hold_path: Sequence[str] | None
    hold_job: str | None
    hold_metric: str | None
    hold_figure: float | None
    hold_threshold: float | None
    in_outbox: bool
    backfill_concurrency: int | None = None
    """How many slots of the job backfills may take."""
    backfill_in_flight: int = 0
    paused_by: str | None = None
    """Who paused its job; None: it is not paused."""
    pause_reason: str | None = None
    paused_since: datetime | None = None
    spark_ui: str | None = None
    """Where Spark's own interface shows what it does."""
    requires: Resources = Resources()
    """What its job needs of the worker that runs it."""
    workers: Sequence[SeenWorker] = ()
    """Those that are there."""
    buffer_ahead: int | None = None
    """If its rows wait for a sink: how many completed attempts go before it."""
    buffer_error: str | None = None
    """Why a sink could not write them the last time: a code, since messages may quote rows."""
    dead_letter: bool = False
    """Whether the rows that a sink could not write are kept."""


@dataclass(frozen=True, slots=True)
class Reason:
    code: str
    sentence: str


def explain(facts: ExplainFacts) -> tuple[Reason, ...]:
    """Everything that the task is waiting for, the decisive reason first, and where there is more to see."""
    reasons = _reasons(facts)
    if facts.spark_ui is not None and facts.state != "queued":
        reasons += (Reason("spark", f"Spark shows what it does, or did, at {facts.spark_ui}"),)
    return reasons


def _reasons(facts: ExplainFacts) -> tuple[Reason, ...]:
    match facts.state:
        case "queued":
            return tuple(_queued(facts))
        case "dispatched":
            return tuple(_dispatched(facts))
        case "running":
            return tuple(_running(facts))
        case "completed":
            return (Reason("completed", "It is completed: its outputs and events are committed."),)
        case "canceled":
            return tuple(_canceled(facts))
        case "dead":
            return tuple(_dead(facts))
        case state:
            raise AssertionError(f"unknown task state {state}")


def _queued(facts: ExplainFacts) -> list[Reason]:
    reasons = _paused(facts)
    level = facts.hold_level
    if level == 2 or (level == 1 and facts.priority == 1):
        path = " → ".join(facts.hold_path or ())
        what = "all its work" if level == 2 else "its backfill work"
        reasons.append(
            Reason(
                "held",
                f"Backpressure holds {what}: {facts.hold_job} has {facts.hold_metric} "
                f"{_number(facts.hold_figure)} against a threshold of {_number(facts.hold_threshold)} "
                f"(edge {path}).",
            )
        )
    if facts.ready_in_seconds > 0:
        error = facts.error or {}
        reasons.append(
            Reason(
                "retry_wait",
                f"It waits {facts.ready_in_seconds:.1f} s before attempt {facts.attempt + 1} of "
                f"{facts.max_attempts}, after {error.get('code', 'an error')}: {error.get('message', '')}",
            )
        )
    if facts.scope_held_by is not None:
        reasons.append(
            Reason(
                "scope_busy", f"Task {facts.scope_held_by} is running on the same scope; one runs at a time."
            )
        )
    reasons += _no_slot(facts)
    if facts.ahead:
        tasks = "1 task" if facts.ahead == 1 else f"{facts.ahead} tasks"
        verb = "is" if facts.ahead == 1 else "are"
        reasons.append(Reason("queue", f"{tasks} of job {facts.job} {verb} ahead of it."))
    if not facts.routed:
        reasons.append(Reason("retired", "Its job is no longer deployed."))
    reasons += _no_able_worker(facts)
    return reasons or [Reason("due", "Nothing holds it; the dispatcher sends it in its next pass.")]


def _no_slot(facts: ExplainFacts) -> list[Reason]:
    limit, name = (
        (facts.max_concurrency, "max_concurrency")
        if facts.max_concurrency is not None
        else (facts.dispatch_window, "dispatch window")
    )
    if facts.in_flight >= limit:
        return [
            Reason(
                "concurrency",
                f"Job {facts.job} has {facts.in_flight} tasks in flight; its {name} is {limit}.",
            )
        ]
    if (
        facts.priority == 1
        and facts.backfill_concurrency is not None
        and facts.backfill_in_flight >= facts.backfill_concurrency
    ):
        return [
            Reason(
                "concurrency",
                f"Job {facts.job} has {facts.backfill_in_flight} backfill tasks in flight, and keeps the other of its "
                f"{limit} slots for new events; scaling.mode: backfill gives them to backfills.",
            )
        ]
    return []


def _dispatched(facts: ExplainFacts) -> list[Reason]:
    waited = f"{facts.dispatched_seconds:.1f} s"
    lacking = _no_able_worker(facts)
    if facts.in_outbox:
        sentence = f"Its wake-up has been in the outbox for {waited}; the relay has not sent it."
        return [*lacking, Reason("outbox", sentence)]
    if lacking:
        return lacking
    times = "once" if facts.resends == 1 else f"{facts.resends} times"
    again = f" It was resent {times}." if facts.resends else ""
    return [
        Reason(
            "no_worker",
            f"Its wake-up went out {waited} ago and no worker of runtime {facts.runtime} has claimed it yet.{again}",
        )
    ]


def _no_able_worker(facts: ExplainFacts) -> list[Reason]:
    lacking = missing_worker(facts.requires, facts.runtime, facts.workers)
    return [] if lacking is None else [Reason("no_able_worker", f"It waits for a worker: {lacking}.")]


def _buffered(facts: ExplainFacts) -> Reason:
    ahead = f", behind {facts.buffer_ahead} others" if facts.buffer_ahead else ""
    failed = f" The last try failed with {facts.buffer_error}." if facts.buffer_error else ""
    return Reason("buffered", f"Attempt {facts.attempt} is done; its rows wait for a sink{ahead}.{failed}")


def _running(facts: ExplainFacts) -> list[Reason]:
    if facts.buffer_ahead is not None:
        return [_buffered(facts)]
    reasons = [
        Reason(
            "running",
            f"Worker {facts.worker_id} has run attempt {facts.attempt} for {facts.running_seconds:.1f} s; "
            f"its lease ends in {facts.lease_seconds:.1f} s unless it sends a heartbeat.",
        )
    ]
    if facts.cancel_requested:
        reasons.insert(
            0, Reason("canceling", "It is being canceled; the worker learns of it at its next heartbeat.")
        )
    return reasons


def _paused(facts: ExplainFacts) -> list[Reason]:
    if facts.paused_by is None or facts.paused_since is None:
        return []
    why = f" ({facts.pause_reason})" if facts.pause_reason else ""
    since = facts.paused_since.isoformat(sep=" ", timespec="seconds")
    return [
        Reason(
            "paused",
            f"Job {facts.job} has been paused by {facts.paused_by} since {since}{why}; "
            f"`traceplane job resume {facts.dag} {facts.job}` lets its tasks run.",
        )
    ]


def _canceled(facts: ExplainFacts) -> list[Reason]:
    if facts.source_kind == "always_on" and (paused := _paused(facts)):
        return [*paused, Reason("canceled", "It was stopped, and starts again when its job is resumed.")]
    if facts.source_kind == "pipeline":
        return [Reason("canceled", "It was canceled, and its execution is over; run the pipeline again.")]
    if not facts.routed:
        return [
            Reason("canceled", "It was canceled."),
            Reason("retired", "Its job's version is no longer deployed, so it cannot be retried."),
        ]
    if facts.error is not None and facts.error.get("code") == "task.input_dropped":
        return [Reason("canceled", f"It was canceled: {facts.error['message']}.")]
    return [Reason("canceled", "It was canceled; `traceplane retry` starts it again.")]


_STANDINGS = {
    "superseded": "Its work has been done since; no action is needed.",
    "retired": "Its job is no longer deployed; no action is needed.",
    "acknowledged": "It has been acknowledged.",
}


def _dead(facts: ExplainFacts) -> list[Reason]:
    error = facts.error or {}
    attempts = "1 attempt" if facts.attempt == 1 else f"{facts.attempt} attempts"
    reasons = [
        Reason(
            "dead",
            f"It is dead after {attempts}; the last error was "
            f"{error.get('code', 'unknown')}: {error.get('message', '')}",
        )
    ]
    if facts.dead_letter:
        show = f"`traceplane dead-letter show {facts.task_id}`"
        reasons.append(Reason("dead_letter", f"The rows that it computed are kept as a dead letter: {show}."))
    reasons += [
        failed_check(check["check"], check["problem"], check.get("sample") or ())
        for check in error.get("failed_checks") or ()
    ]
    if (standing := facts.standing) in _STANDINGS:
        reasons.append(Reason(standing, _STANDINGS[standing]))
    return reasons


def failed_check(name: str, problem: str, sample: Sequence[SampleRow]) -> Reason:
    """A check that the rows of a task do not meet, and some of these rows."""
    rows = f", for example {sampled(sample)}" if sample else ""
    return Reason("check", f"The check {name} failed: {problem}{rows}.")


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
