"""What went wrong, as text: failed and stuck work, and everything known about one task."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from traceplane.cli.jobs import pause_line
from traceplane.cli.output import moment
from traceplane.model.counted import counted
from traceplane.model.printable import one_line
from traceplane.wire.control import (
    AttemptLog,
    ExplainResponse,
    FailedCheckView,
    FailureView,
    StatusResponse,
    TaskLogs,
)

_LONGEST_MESSAGE = 160
_LINES_OF_OUTPUT = 20
_FRAMES = re.compile(r'^(?=  File ")', re.MULTILINE)
_LIBRARY = re.compile(
    r'  File "(?:[^"]*/(?:site-packages|dist-packages|lib(?:64)?/python3\.[0-9]+)/|<frozen )'
)
_NOTES = re.compile(
    r"(?:\[\d+ bytes of log were not forwarded\]\n)?(?:\[(?P<missing>\d+) earlier lines were not kept\]\n)?"
)
_KEPT_CODE = re.compile(r"(?<![^\s\"])/[^\"\n]*/code_bundles/[0-9a-f]{64}/")


def shortened(text: str, length: int = _LONGEST_MESSAGE) -> str:
    """The start of a text, with an ellipsis if it is cut."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def error_text(error: Mapping[str, object]) -> str:
    """A task's error in one line. An exception's message says little without its class, and may be empty."""
    parts = (error["code"], error.get("type"), shortened(str(error["message"])))
    return ": ".join(str(part) for part in parts if part)


def problems(status: StatusResponse) -> Iterator[str]:
    """Failed work, rows that could not be written or fail a check, messages that could not be delivered, stuck work,
    and paused jobs; nothing if all is well."""
    if status.failed:
        yield "failed:"
        for failure in status.failed:
            yield from _failure(failure)
    if with_letters := [d for d in status.datasets if d.dead_letters]:
        yield "dead letters:"
        for d in with_letters:
            yield f"  {d.dataset}: {d.dead_letters}; traceplane dead-letter list --dataset {d.dataset}"
    if status.dead_messages:
        yield "dead messages:"
        for channel, messages in status.dead_messages.items():
            yield f"  {channel}: {messages}; traceplane message list --channel {channel} --state dead"
    if unmet := [(d.dataset, check) for d in status.datasets for check in d.failed_checks]:
        yield "failed checks:"
        for dataset, check in unmet:
            yield from _failed_check(dataset, check)
    if status.stuck:
        yield "stuck:"
        for waiting in status.stuck:
            yield f"  {waiting.dag}/{waiting.job}: {waiting.sentence}"
    if status.paused:
        yield "paused:"
        for pause in status.paused:
            yield f"  {pause_line(pause)}"
    if status.outbox_lag_seconds > 30:
        yield f"  wake-ups have been unsent for {status.outbox_lag_seconds:.0f} s; check that a dispatcher is running"


def _failed_check(dataset: str, check: FailedCheckView) -> Iterator[str]:
    scopes = f" in {counted(check.scopes, 'scope')}" if check.scopes else ""
    yield f"  {dataset}: {check.check}{scopes}: {shortened(check.problem)}"
    if check.task_id is not None:
        yield f"    newest: traceplane explain {check.task_id}"


def forgivable(status: StatusResponse) -> str | None:
    """Dead tasks that need no action."""
    parts = []
    if status.dead_superseded:
        parts.append(f"{status.dead_superseded} whose work another task has done since")
    if status.dead_retired:
        parts.append(f"{status.dead_retired} of jobs that are no longer deployed")
    return f"dead, no action needed: {', '.join(parts)} (`traceplane dead --all`)" if parts else None


def _failure(failure: FailureView) -> Iterator[str]:
    more = "+" if failure.and_more else ""
    count = f"{failure.tasks}{more} task{'' if failure.tasks == 1 and not more else 's'}"
    verb = "dead" if failure.state == "dead" else "waiting for another attempt"
    scope = f", scope {failure.scope}" if failure.scope is not None else ""
    yield f"  {failure.dag}/{failure.job}: {count} {verb}, {failure.code}: {shortened(failure.message)}"
    yield f"    newest{scope}: traceplane explain {failure.newest}"


def explained(answer: ExplainResponse, *, full: bool = False) -> Iterator[str]:
    """Everything known about a task, item by item. Only tracebacks and output keep their lines, indented, so that
    nothing in them looks like a line of ours. `full`: include the frames of libraries."""
    job = f"{answer.dag}/{answer.job}" if answer.dag else answer.job
    scope = f", scope {answer.scope}" if answer.scope is not None else ""
    yield one_line(f"Task {answer.task_id} of job {job}{scope} is {answer.state}.")
    for reason in answer.reasons:
        yield one_line(f"- {reason.sentence}")
    error = answer.error if answer.state in ("dead", "queued") else None
    if error:
        yield from _error(error, full=full)
        yield from _output(answer.log, error.get("logs") or [])
    if answer.next_step:
        yield one_line(f"Next step: {answer.next_step}")


def _error(error: dict[str, object], *, full: bool) -> Iterator[str]:
    if error.get("type"):
        yield one_line(f"Raised: {error['type']}: {error.get('message', '')}")
    traceback = str(error.get("traceback") or "").rstrip()
    if error.get("file"):
        line = _line_of_code(traceback, error)
        yield one_line(
            f"At: {_within_code(str(error['file']))}"
            + (f", line {error['line']}" if error.get("line") else "")
            + (f": {line}" if line else "")
        )
    if traceback:
        title, text = "Traceback", traceback
        if not full:
            title, text = "Traceback of your code", _without_libraries(traceback)
        yield f"{title}:\n{_indented(_within_code(text))}"


def _without_libraries(traceback: str) -> str:
    """The frames of the user's own files; the others are counted."""
    frames = [frame for frame in _FRAMES.split(traceback) if frame]
    text = ""
    for is_library, group in itertools.groupby(frames, lambda frame: _LIBRARY.match(frame) is not None):
        run = list(group)
        count = "1 frame" if len(run) == 1 else f"{len(run)} frames"
        text += f"  … {count} of libraries; --full shows them\n" if is_library else "".join(run)
    return text.rstrip()


def _within_code(text: str) -> str:
    """The text with paths of deployed code as they were deployed, without the worker's folder for them."""
    return _KEPT_CODE.sub("", text)


def _line_of_code(traceback: str, error: dict[str, object]) -> str | None:
    """The user's line of code, which the traceback quotes below its location."""
    lines = traceback.splitlines()
    location = f'File "{error["file"]}", line {error.get("line")},'
    quoted = [lines[n + 1].strip() for n, line in enumerate(lines[:-1]) if location in line]
    return quoted[-1] if quoted else None


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
    """The output of a task, oldest attempt first."""
    logs = [log for log in reversed(answer.attempts) if attempt is None or log.attempt == attempt]
    if not logs:
        which = f"Attempt {attempt}" if attempt is not None else f"Task {answer.task_id}"
        yield f"{which} has no output" + (" so far." if answer.state == "running" else ".")
    for log in logs:
        if len(answer.attempts) > 1:
            is_running = answer.state == "running" and log.attempt == answer.attempt
            happened = "running, written" if is_running else "ended"
            yield f"--- attempt {log.attempt}, {happened} {moment(log.written_at)}"
        yield log.text


def unseen(answer: TaskLogs, attempt: int | None, seen: dict[int, int]) -> Iterator[tuple[int, list[str]]]:
    """For each attempt the lines that it has written beyond those that were seen, which are counted in `seen`. The
    server keeps the end of a log and says how many lines are missing before it."""
    for log in reversed(answer.attempts):
        if attempt is not None and log.attempt != attempt:
            continue
        notes = _NOTES.match(log.text)
        assert notes is not None  # the pattern matches the empty text too
        missing = int(notes["missing"] or 0)
        written = log.text[notes.end() :].split("\n")
        before = seen.get(log.attempt, 0)
        new = written[max(before - missing, 0) :]
        if missing > before:
            new.insert(0, f"[{missing - before} lines were not kept]")
        seen[log.attempt] = missing + len(written)
        if new:
            yield log.attempt, new


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
