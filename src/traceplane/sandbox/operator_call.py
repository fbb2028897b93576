"""Calls an operator with its task, and says how it ended: in a sandbox, or in a process that has the task to itself.

Every way an operator can end has a stable code:

    operator.raised            it raised; with the type, message, location and the user's part of the traceback
    operator.wrong_parameters  it cannot be called with the task alone
    operator.exited            it called sys.exit, or the process ended without a result
    operator.output_unknown    it wrote to, or emitted for, an output the job does not declare
    operator.result_invalid    what it returned is not a valid result
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from traceplane.sandbox import frames
from traceplane.sandbox.frames import Failure
from traceplane.sdk import Event, OperatorError, OperatorTask

_MAX_TEXT = 8_000
_MAX_FRAMES = 40


def outcome(
    operator: Callable[..., Any],
    task: OperatorTask,
    *,
    name: str,
    error_codes: Collection[str] = (),
    code_paths: tuple[str, ...] = (),
) -> frames.Succeeded | frames.Failed:
    """`name` is what errors call the operator; `error_codes` are those that it may raise, besides the platform's."""
    try:
        task.write_returned(operator(task))
        return succeeded(task)
    except SystemExit as error:
        return frames.Failed(exited(error))
    except OperatorError as error:
        is_allowed = error.code in error_codes or error.code.startswith(("operator.", "sandbox."))
        return frames.Failed(described(error.code if is_allowed else "operator.raised", error, code_paths))
    except BaseException as error:
        if isinstance(error, TypeError) and not _takes_one_argument(operator):
            return frames.Failed(_wrong_parameters(name, operator))
        return frames.Failed(described("operator.raised", error, code_paths))


def succeeded(task: OperatorTask) -> frames.Succeeded:
    """What a task has written and emitted."""
    return frames.Succeeded(_written(task), as_events(task.emitted))


def _takes_one_argument(operator: Callable[..., Any]) -> bool:
    try:
        inspect.signature(operator).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C need not have a signature
        pass
    return True


def _wrong_parameters(called: str, operator: Callable[..., Any]) -> Failure:
    name = f"{called.rpartition(':')[2]}{inspect.signature(operator)}"
    message = f"{name} cannot be called with the task, which is the only argument of a Python operator"
    return Failure(code="operator.wrong_parameters", message=message[:_MAX_TEXT])


def _written(task: OperatorTask) -> list[frames.ReportedOutput]:
    return [
        frames.ReportedOutput(
            name,
            [
                frames.ReportedFile(
                    file.name,
                    file.rows,
                    file.bytes,
                    {
                        column: frames.ColumnBounds(facts.min, facts.max, facts.null_count)
                        for column, facts in file.statistics.items()
                    },
                    file.content,
                    file.stored,
                )
                for file in written.files
            ],
            written.schema_hash,
            [frames.ReportedColumn(c.name, c.type, c.nullable) for c in written.columns],
            [frames.ReportedCheck(c.name, c.rows, list(c.sample), c.error) for c in written.broken_checks],
        )
        for name, written in task.written.items()
    ]


def as_events(events: list[Event]) -> list[frames.EmittedEvent]:
    try:
        return msgspec.convert(events, list[frames.EmittedEvent])
    except msgspec.ValidationError as error:
        raise OperatorError("operator.result_invalid", f"an event is invalid: {error}") from None


def exited(error: SystemExit) -> Failure:
    code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    message = f"the operator called sys.exit({error.code!r}) instead of returning"
    return Failure(code="operator.exited", message=message[:_MAX_TEXT], exit_code=code)


def described(code: str, error: BaseException, code_paths: tuple[str, ...]) -> Failure:
    """An exception in the user's terms: their frames, their file and line."""
    stack = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(stack) if frame.filename.startswith(code_paths)), len(stack))
    users = stack[first:] if code_paths else []
    place = next((frame for frame in reversed(users) if frame.filename.startswith(code_paths)), None)
    file, line = (place.filename, place.lineno) if place else (None, None)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    if file is None and (location := getattr(error, "place", None)):
        file, line = location
    text = "".join(traceback.format_list(users[-_MAX_FRAMES:]))
    return Failure(
        code=code,
        message=_text_of(error),
        type=type(error).__name__,
        traceback=text[-_MAX_TEXT:] or None,
        file=file,
        line=line,
        hint="out of memory: the task reached its memory limit" if isinstance(error, MemoryError) else None,
    )


def _text_of(error: BaseException) -> str:
    try:
        text = str(getattr(error, "people_read", None) or error)
        return text[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    except BaseException:  # the operator's own __str__ may raise
        return "(its message could not be read)"
