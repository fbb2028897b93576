"""What needs somebody, in sentences, and which processes of the platform there are.

`traceplane doctor` and the page of the UI show the same findings; each caller gets those about what they may see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from traceplane.auth.callers import Caller
from traceplane.http_service.routes import Call, Route
from traceplane.model.counted import counted
from traceplane.postgres import processes
from traceplane.postgres.processes import SILENT_SECONDS, SeenProcess
from traceplane.wire.control import StatusQuery, StatusResponse
from traceplane.wire.health import FindingView, HealthResponse, ProcessView

_LATE_SECONDS = 30
_LONGEST_MESSAGE = 200


class HealthApi:
    def __init__(self, status: Callable[[Caller, StatusQuery], Awaitable[StatusResponse]]) -> None:
        self._status = status

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/health", None, HealthResponse, self.health, "reader",
                  "What needs somebody, and which processes of the platform there are."),
        ]  # fmt: skip

    async def health(self, call: Call[None]) -> HealthResponse:
        findings = list(diagnose(await self._status(call.principal, StatusQuery(unmet=True))))
        if not call.principal.is_admin:
            return HealthResponse(findings)
        async with call.principal.database.transaction() as tx:
            seen = await processes.seen(tx)
        views = [
            ProcessView(
                *(one.kind, one.name, one.seen_at, one.silent_seconds > SILENT_SECONDS),
                version=one.version,
                started_at=one.started_at,
                runtime=one.runtime,
            )
            for one in seen
        ]
        return HealthResponse([*findings, *_of_processes(seen)], views)


def diagnose(status: StatusResponse) -> Iterator[FindingView]:
    if status.outbox_lag_seconds > _LATE_SECONDS:
        yield FindingView(
            "problem",
            "dispatcher_silent",
            f"Wake-ups have been unsent for {status.outbox_lag_seconds:.0f} s: no dispatcher seems to run.",
            "look at the log of `traceplane dispatcher`, or start one",
        )
    else:
        yield FindingView("ok", "dispatcher", "Tasks are handed out: no wake-up is late.")
    for stuck in status.stuck:
        yield FindingView("problem", f"stuck_{stuck.reason}", f"{stuck.dag}/{stuck.job}: {stuck.sentence}")
    for failure in status.failed:
        tasks = f"{failure.dag}/{failure.job}: {counted(failure.tasks, 'task')}"
        step = f"`traceplane explain {failure.newest}`"
        message = _shortened(failure.message)
        if failure.state == "dead":
            yield FindingView("problem", failure.code, f"{tasks} dead: {message}", step)
        else:
            yield FindingView("warning", failure.code, f"{tasks} failed, to be tried again: {message}", step)
    if not status.stuck and not status.failed:
        yield FindingView("ok", "work", "No task has failed, and none is stuck.")
    yield from _beside_tasks(status)


def _beside_tasks(status: StatusResponse) -> Iterator[FindingView]:
    for d in status.datasets:
        if d.dead_letters:
            rows = counted(d.dead_letters, "row")
            step = f"`traceplane dead-letter list --dataset {d.dataset}`"
            yield FindingView("warning", "dead_letters", f"{d.dataset}: {rows} could not be written.", step)
        for check in d.failed_checks:
            explain = f"`traceplane explain {check.task_id}`" if check.task_id is not None else None
            yield FindingView(
                "warning", "check_failed", f"{d.dataset}, {check.check}: {check.problem}", explain
            )
    for channel, messages in status.dead_messages.items():
        step = f"`traceplane message list --channel {channel} --state dead`"
        yield FindingView(
            "warning", "dead_messages", f"{channel}: {counted(messages, 'message')} not delivered.", step
        )
    for pause in status.paused:
        why = f" ({pause.reason})" if pause.reason else ""
        waiting = f", {pause.waiting} waiting" if pause.waiting else ""
        yield FindingView(
            "warning",
            "paused",
            f"{pause.dag}/{pause.job}: paused by {pause.paused_by} since {pause.since}{why}{waiting}",
            f"`traceplane job resume {pause.dag} {pause.job}`",
        )


def _of_processes(seen: list[SeenProcess]) -> Iterator[FindingView]:
    for one in seen:
        if one.silent_seconds > SILENT_SECONDS:
            yield FindingView(
                "problem",
                "process_silent",
                f"The {one.kind} {one.name} has not been seen for {one.silent_seconds:.0f} s,"
                " and did not say that it stops.",
                f"look at its log, or start another `traceplane {one.kind}`",
            )
    there = {one.kind for one in seen if one.silent_seconds <= SILENT_SECONDS}
    if "dispatcher" not in there:
        yield FindingView(
            "problem",
            "no_dispatcher",
            "No dispatcher runs, so no task starts.",
            "start one: `traceplane dispatcher`",
        )
    if "worker" not in there:
        yield FindingView(
            "warning",
            "no_worker",
            "No worker runs: only jobs of the dispatcher and of functions are computed.",
            "start one: `traceplane worker --runtime spark`",
        )


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"
