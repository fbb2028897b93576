"""What went wrong, in lines for people: failed and stuck work, and all that is known of one task."""

from __future__ import annotations

import re
from collections.abc import Iterator

from traceplane.model.printable import one_line
from traceplane.wire.control import AttemptLog, ExplainResponse, FailureView, StatusResponse, TaskLogs

_LONGEST_MESSAGE = 160
_LINES_OF_OUTPUT = 20
_KEPT_CODE = re.compile(r"(?<![^\s\"])/[^\"\n]*/code_bundles/[0-9a-f]{64}/")


def shortened(text: str, length: int = _LONGEST_MESSAGE) -> str:
    """The beginning of a text, with a mark where it is cut."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def problems(status: StatusResponse) -> Iterator[str]:
    """What failed, then what is stuck; nothing if all is well."""
    if status.failed:
        yield "failed:"
        for failure in status.failed:
            yield from _failure(failure)
    if status.stuck:
        yield "stuck:"
        for waiting in status.stuck:
            yield f"  {waiting.dag}/{waiting.job}: {waiting.sentence}"
    if status.outbox_lag_seconds > 30:
        yield f"  wake-ups have waited {status.outbox_lag_seconds:.0f} s to be sent; see whether a dispatcher runs"


def forgivable(status: StatusResponse) -> str | None:
    """Dead tasks that need nobody."""
    parts = []
    if status.dead_superseded:
        parts.append(f"{status.dead_superseded} whose work was done since")
    if status.dead_retired:
        parts.append(f"{status.dead_retired} of jobs that are no longer deployed")
    return f"dead, and nothing to do: {', '.join(parts)} (`traceplane dead --all`)" if parts else None


def _failure(failure: FailureView) -> Iterator[str]:
    more = "+" if failure.and_more else ""
    count = f"{failure.tasks}{more} task{'' if failure.tasks == 1 and not more else 's'}"
    verb = "dead" if failure.state == "dead" else "waiting for another attempt"
    scope = f", scope {failure.scope}" if failure.scope is not None else ""
    yield f"  {failure.dag}/{failure.job}: {count} {verb}, {failure.code}: {shortened(failure.message)}"
    yield f"    newest{scope}: traceplane explain {failure.newest}"


def explained(answer: ExplainResponse) -> Iterator[str]:
    """All that is known of a task, an item at a time. Only tracebacks and output have lines of their own, indented, so
    that nothing in them looks like a line of ours."""
    job = f"{answer.dag}/{answer.job}" if answer.dag else answer.job
    scope = f", scope {answer.scope}" if answer.scope is not None else ""
    yield one_line(f"Task {answer.task_id} of job {job}{scope} is {answer.state}.")
    for reason in answer.reasons:
        yield one_line(f"- {reason.sentence}")
    error = answer.error if answer.state in ("dead", "queued") else None
    if error:
        yield from _error(error)
        yield from _output(answer.log, error.get("logs") or [])
    if answer.next_step:
        yield one_line(f"Next step: {answer.next_step}")


def _error(error: dict[str, object]) -> Iterator[str]:
    if error.get("type"):
        yield one_line(f"Raised: {error['type']}: {error.get('message', '')}")
    traceback = str(error.get("traceback") or "").rstrip()
    if error.get("file"):
        line = _line_of_code(traceback, error)
        yield one_line(
            f"At: {_within_code(str(error['file']))}, line {error.get('line')}"
            + (f": {line}" if line else "")
        )
    if traceback:
        yield f"Traceback, your part of it:\n{_indented(_within_code(traceback))}"


def _within_code(text: str) -> str:
    """Paths of deployed code as they were deployed, without where the worker keeps it."""
    return _KEPT_CODE.sub("", text)


def _line_of_code(traceback: str, error: dict[str, object]) -> str | None:
    """The user's line, as the traceback quotes it below the place."""
    lines = traceback.splitlines()
    place = f'File "{error["file"]}", line {error.get("line")},'
    found = [lines[n + 1].strip() for n, line in enumerate(lines[:-1]) if place in line]
    return found[-1] if found else None


def _output(log: AttemptLog | None, last_lines: object) -> Iterator[str]:
    lines = log.text.splitlines() if log is not None else list(map(str, last_lines))  # type: ignore[call-overload]
    if not lines:
        yield "It wrote no output."
        return
    shown = lines[-_LINES_OF_OUTPUT:]
    which = f"the last {len(shown)} of {len(lines)} lines" if len(shown) < len(lines) else "all of it"
    attempt = f" of attempt {log.attempt}" if log is not None else ""
    yield f"Output{attempt}, {which}:\n{_indented(chr(10).join(shown))}"


def logged(answer: TaskLogs, attempt: int | None) -> Iterator[str]:
    """What a task wrote, its first attempt first."""
    wanted = [a for a in reversed(answer.attempts) if attempt is None or a.attempt == attempt]
    if not wanted:
        which = f"attempt {attempt}" if attempt is not None else f"task {answer.task_id}"
        yield f"Of {which} there is no output" + (
            "; what a running attempt writes is kept when it ends." if answer.state == "running" else "."
        )
    for one in wanted:
        if len(answer.attempts) > 1:
            yield f"--- attempt {one.attempt}, ended {one.written_at}"
        yield one.text


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
