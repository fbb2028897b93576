"""Inside the sandbox: wait for a task, drop all privileges, run the operator, report.

A child that may be kept then waits for the next task of the same job; one whose task failed ends.

The first half (`serve` up to `confine`) belongs to the platform and is trusted. From the import of the
entrypoint on, anything may happen in this process, and the wrapper trusts nothing it says. `operator_call` says how
an operator can end; before it is called, a task can fail with one of these codes:

    operator.no_entrypoint     the module or function does not exist
    operator.import_failed     its module could not be imported
    sandbox.setup_failed       the confinement could not be built; no user code ran
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from traceplane.linux.confine import NOBODY_ELSE, close_descriptors
from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox import confinement, frames, operator_call
from traceplane.sandbox.frames import Assign, Failure
from traceplane.sandbox.surroundings import LoadedCode, Surroundings
from traceplane.sdk import EmitRefused, Event, OperatorError, OperatorTask, load

EXIT_BROKEN = 70
_LOG = 2
_CHANNEL = 3
_SUPERVISOR = 16
"""The lowest number for its descriptor, above those that have a fixed number."""
_REHEARSAL = "traceplane.sandbox.selfcheck:look_around"

_assignments: msgspec.json.Decoder[Assign] = msgspec.json.Decoder(Assign)
_answers: msgspec.json.Decoder[frames.EventsAccepted | frames.EventsRefused] = msgspec.json.Decoder(
    frames.EventsAccepted | frames.EventsRefused
)


def serve(
    channel: int,
    log: int,
    supervisor: socket.socket | None,
    make_cell: Callable[[socket.socket | None], confinement.Cell],
    spare_processes: int,
    parent: int,
) -> NoReturn:
    """Run tasks as they arrive, then exit. `parent` is the slot's pid, or 0 if a namespace ends both together."""
    os.setsid()
    connection, supervisor = _arrange_descriptors(channel, log, supervisor)
    problem: Exception | None = None
    try:
        cell = make_cell(supervisor)
        rehearse()
    except Exception as error:
        problem = error
    assignment = _receive(connection)
    try:
        if problem is not None:
            raise problem
        temp = _confine(cell, assignment, spare_processes)
    except BaseException as error:
        message = f"the sandbox could not be set up: {error}"
        _finish(connection, frames.Failed(Failure(code="sandbox.setup_failed", message=message)), 1 << 20)
    if parent and os.getppid() != parent:
        os._exit(EXIT_BROKEN)  # the slot died before its death could be signalled to us
    surroundings = Surroundings(temp, NOBODY_ELSE)
    code = LoadedCode(assignment.code_paths, assignment.entrypoint)
    while True:
        outcome = _outcome(assignment, temp, connection, code)
        if not assignment.keep or isinstance(outcome, frames.Failed):
            _finish(connection, outcome, assignment.limits.result_bytes)
        if not _report(connection, outcome, assignment.limits.result_bytes, assignment.log_end):
            os._exit(0)
        assignment = _next(connection, assignment.batch if _left_files(outcome) else 0)
        surroundings.restore()
        if code.has_changed():
            connection.sendall(frames.encode(frames.Declined()))
            os._exit(0)


def _arrange_descriptors(
    channel: int, log: int, supervisor: socket.socket | None
) -> tuple[socket.socket, socket.socket | None]:
    """0: nothing, 1 and 2: the log, 3: the channel to the wrapper. The only other one leads to a supervisor of
    connections, and is closed once they have been handed over."""
    channel, log = os.dup(channel), os.dup(log)
    if supervisor is not None:
        supervisor = socket.socket(
            fileno=fcntl.fcntl(supervisor.detach(), fcntl.F_DUPFD_CLOEXEC, _SUPERVISOR)
        )
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    if channel != _CHANNEL:
        os.dup2(channel, _CHANNEL, inheritable=False)
    close_descriptors((_CHANNEL, *((supervisor.fileno(),) if supervisor is not None else ())))
    return socket.socket(fileno=_CHANNEL), supervisor


def _receive(connection: socket.socket) -> Assign:
    try:
        body, _ = frames.receive(connection)
    except EOFError:
        os._exit(0)  # nobody needs this child any more
    return _assignments.decode(body)


def _next(connection: socket.socket, ended_batch: int) -> Assign:
    """The next task to start here. Tasks of a batch that has ended, or whose time is over, are passed on, which is
    reported once: they run elsewhere. The end of a task is reported before the clock is read for the next one, so if no
    end was reported when the time is over, no later task was started."""
    reported_batch = 0
    while True:
        assignment = _receive(connection)
        is_in_time = assignment.leads or time.monotonic_ns() < assignment.batch_ends_ns
        if not assignment.batch or (is_in_time and assignment.batch != ended_batch):
            return assignment
        if reported_batch != assignment.batch:
            connection.sendall(frames.encode(frames.Passed()))
        reported_batch = ended_batch = assignment.batch


def _left_files(outcome: frames.Succeeded | frames.Failed) -> bool:
    return isinstance(outcome, frames.Succeeded) and any(
        file.content is None for output in outcome.outputs for file in output.files
    )


def rehearse() -> None:
    """Go through the motions of a task without running one.

    In the fork server it fills the interpreter's caches; in a waiting child it makes the kernel copy the pages
    that the task would otherwise have to wait for.
    """
    sample = Assign(
        task_id="",
        attempt=1,
        entrypoint=_REHEARSAL,
        payload=TaskPayload(cursor=1),
        code_paths=[],
        readable=[],
        writable=[],
        output_folders={},
        temp="/tmp",  # noqa: S108 -- nothing is written
        limits=frames.RunLimits(),
        streaming=False,
        keep=False,
    )
    assignment = _assignments.decode(msgspec.json.encode(sample))
    task = OperatorTask(
        task_id=assignment.task_id,
        attempt=1,
        payload=assignment.payload,
        output_folders={},
        temp_dir=assignment.temp,
    )
    load(assignment.entrypoint)
    frames.encode(frames.Started(time.monotonic_ns()))
    frames.encode(operator_call.succeeded(task))


def _confine(cell: confinement.Cell, assignment: Assign, spare_processes: int) -> str:
    """Returns the new path of the temporary folder."""
    paths = confinement.Paths(
        readable=tuple(assignment.code_paths),
        inputs=tuple(assignment.readable),
        writable=tuple(assignment.writable),
        temp=assignment.temp,
        spark_port=assignment.spark_port,
    )
    temp = cell.temp_inside(paths)
    cell.confine(paths, assignment.limits, spare_processes=spare_processes)
    for path in assignment.code_paths:
        if not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(
                f"operators cannot read the code path {path}; make it readable for other users"
            )
    os.environ.update(HOME=temp, TMPDIR=temp)
    sys.dont_write_bytecode = True
    sys.path[:0] = assignment.code_paths
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return temp


def _as_task(assignment: Assign, temp: str, connection: socket.socket) -> OperatorTask:
    return OperatorTask(
        task_id=assignment.task_id,
        attempt=assignment.attempt,
        payload=assignment.payload,
        output_folders=assignment.output_folders,
        temp_dir=temp,
        stream=EventStream(connection).push if assignment.streaming else None,
        on_progress=lambda *told: connection.sendall(frames.encode(frames.Progress(*told))),
        inline_bytes=assignment.inline_bytes,
    )


def _outcome(
    assignment: Assign, temp: str, connection: socket.socket, loaded: LoadedCode
) -> frames.Succeeded | frames.Failed:
    code_paths = tuple(assignment.code_paths)
    began_ns = time.time_ns()
    try:
        task = _as_task(assignment, temp, connection)
    except Exception as error:
        message = f"the task cannot be passed to an operator: {error}"
        return frames.Failed(Failure(code="sandbox.setup_failed", message=message))
    try:
        operator = load(assignment.entrypoint)
        if assignment.keep:
            loaded.note(began_ns)
    except OperatorError as error:
        return frames.Failed(Failure(code=error.code, message=str(error)))
    except SystemExit as error:
        return frames.Failed(operator_call.exited(error))
    except BaseException as error:
        return frames.Failed(operator_call.described("operator.import_failed", error, code_paths))
    try:
        connection.sendall(frames.encode(frames.Started(time.monotonic_ns())))
    except OSError:
        os._exit(EXIT_BROKEN)  # nobody is left to report to
    outcome = operator_call.outcome(
        operator,
        task,
        name=assignment.entrypoint,
        error_codes=assignment.error_codes,
        code_paths=code_paths,
    )
    if assignment.keep and isinstance(outcome, frames.Succeeded):
        loaded.note(began_ns)
    return outcome


def _finish(connection: socket.socket, outcome: frames.Succeeded | frames.Failed, limit: int) -> NoReturn:
    status = 0
    try:
        _report(connection, outcome, limit)
    except BaseException:
        status = EXIT_BROKEN
    os._exit(status)


def _report(
    connection: socket.socket, outcome: frames.Succeeded | frames.Failed, limit: int, log_end: bytes = b""
) -> bool:
    """Send the outcome of the task; returns whether it could be sent as it is."""
    data, fits = _encode_outcome(outcome, limit)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    if log_end and fits:
        with contextlib.suppress(OSError):
            os.write(_LOG, log_end)
    connection.sendall(data)
    return fits


def _encode_outcome(outcome: frames.Succeeded | frames.Failed, limit: int) -> tuple[bytes, bool]:
    try:
        data = frames.encode(outcome)
        problem = f"the result has {len(data)} bytes; the limit is {limit}" if len(data) > limit else None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        problem = f"the result cannot be written as JSON: {error}"
    if problem is not None:
        return frames.encode(frames.Failed(Failure(code="operator.result_invalid", message=problem))), False
    return data, True


class EventStream:
    """Events of an always-on source: sent at once, acknowledged by the platform."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._next = 0
        self._acknowledged = -1

    def push(self, events: list[Event], wait: bool) -> None:
        batch, self._next = self._next, self._next + 1
        self._connection.sendall(frames.encode(frames.Events(batch, operator_call.as_events(events))))
        self._take_answers(until=batch if wait else None)

    def _take_answers(self, until: int | None) -> None:
        """Read answers until that batch's; without one, those that have already arrived."""
        while until is None or self._acknowledged < until:
            if until is None and not self._answer_waits():
                return
            body, _ = frames.receive(self._connection)
            answer = _answers.decode(body)
            self._acknowledged = answer.batch
            if isinstance(answer, frames.EventsRefused):
                raise EmitRefused(answer.code, f"{answer.code}: {answer.message}")

    def _answer_waits(self) -> bool:
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
