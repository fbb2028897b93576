"""For functions on AWS Lambda: makes a Python operator the handler of a function.

    from traceplane.aws import handler
    from traceplane.sdk import OperatorTask

    @handler
    def enrich(task: OperatorTask) -> list[dict[str, object]]:
        return [price(row) for row in task.read("transfers").to_pylist()]

The function is called with a task that is already leased. What a worker does for a task is done here by the worker's
own code: the inputs are fetched from the object store, the operator runs, its outputs are stored below the prefix of
the attempt, heartbeats extend the lease meanwhile, and the end is reported with the capability token of the call. The
function holds no other token; the object store knows it by its own role.

The operator runs in the thread that Lambda calls. Everything else runs on an event loop in a second thread, which stays
from one call to the next with the connections and fetched files that it has. So heartbeats go out whatever the
operator does, and if it does not end in time, that is reported before Lambda ends the process.

If the dispatcher does not accept the report, the function answers with it, and the dispatcher that called it commits
it. To test the operator without Lambda, call `enrich.__wrapped__` with a task of `traceplane.testing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import msgspec

from traceplane import settings as process_settings
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_stores import object_store_for
from traceplane.adapters.watched_files import WatchedFiles
from traceplane.decoding.decoder_pool import Decoders
from traceplane.errors import InvalidInput, PlatformError, TooLarge, TraceplaneError
from traceplane.model.json_object import JsonObject
from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox import operator_call
from traceplane.sandbox.assignment import OutputFile, OutputResult, RunResult
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.frames import Failed, Failure, RunLimits, Succeeded
from traceplane.sdk import OperatorTask
from traceplane.wire.invocations import COMPLETE_PATH, Answer, Invocation
from traceplane.wire.tasks import Completion
from traceplane.worker import report
from traceplane.worker.attempt import Attempts
from traceplane.worker.dispatcher_client import DispatcherClient, patiently
from traceplane.worker.heartbeats import HeartbeatSender
from traceplane.worker.held_task import HeldTask
from traceplane.worker.payload import task_payload
from traceplane.worker.store_on_disk import StoreOnDisk

__all__ = ["handler"]
"""The public names; the rest is internal."""

Operator = Callable[[OperatorTask], Any]
Result = TypeVar("Result")

_HEARTBEAT_SECONDS = 10.0
_REPORT_SECONDS = 10.0
"""How long the dispatcher has to accept the report."""
_RESERVED_SECONDS = 10.0
"""For outputs and the report, of the time that Lambda leaves; less if that is short."""
_RESERVED_SHARE = 0.2
_INTERRUPT = signal.SIGUSR2


def handler(operator: Operator) -> Callable[..., JsonObject]:
    """Makes an operator the handler of a Lambda function: it takes `(event, context)`."""

    @functools.wraps(operator)
    def handle(event: object, context: object = None) -> JsonObject:
        try:
            invocation = msgspec.convert(event, Invocation)
        except msgspec.ValidationError as error:
            raise InvalidInput(
                "function.not_a_task",
                f"the function was called with something other than a task: {error}",
                next_step="let a job call it; the version of traceplane in the function must not be older than the"
                " platform's",
            ) from error
        answer: JsonObject = msgspec.to_builtins(
            _process().serve(invocation, operator, _seconds_left(context))
        )
        return answer

    return handle


def _seconds_left(context: object) -> float | None:
    """What Lambda leaves the operator; None: no limit is known."""
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    if remaining is None:
        return None
    seconds = remaining() / 1000
    return float(seconds - min(_RESERVED_SECONDS, seconds * _RESERVED_SHARE))


@functools.cache
def _process() -> _Process:
    return _Process()


class _Process:
    """What stays from one call of the function to the next."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stores: dict[str, StoreOnDisk] = {}
        self._watched_files: dict[str, WatchedFiles] = {}
        self._decoders = Decoders()
        self._thread = threading.Thread(target=self._loop.run_forever, name="traceplane", daemon=True)
        self._thread.start()

    def serve(self, invocation: Invocation, operator: Operator, seconds: float | None) -> Answer:
        """Runs the task, and reports how it ended."""
        caller = _CallingThread()
        call = _FunctionCall(operator, caller, self._thread, seconds)
        attempt = asyncio.run_coroutine_threadsafe(self._attempt(invocation, call), self._loop)
        attempt.add_done_callback(lambda _: caller.release())
        caller.work()
        return attempt.result()

    async def _attempt(self, invocation: Invocation, call: _FunctionCall) -> Answer:
        task = invocation.task
        held = HeldTask(task, invocation.job, invocation.token, reuse=None, operator=None)
        held.run = asyncio.current_task()
        client = DispatcherClient(
            invocation.complete_url.removesuffix(COMPLETE_PATH),
            None,
            tls_ca=process_settings.of_function(invocation.object_store).tls_ca,
        )
        heartbeats = HeartbeatSender(
            client, {task.task_id: held}, longest_interval_seconds=_HEARTBEAT_SECONDS
        )
        heartbeats.schedule([held])
        beating = asyncio.create_task(heartbeats.run(asyncio.Event()))
        try:
            completion = await self._run(client, held, invocation.object_store, call)
            held.ended = True
            return Answer(accepted=True) if completion is None else await _report(client, held, completion)
        finally:
            beating.cancel()
            await client.close()

    async def _run(
        self, client: DispatcherClient, held: HeldTask, address: str, call: _FunctionCall
    ) -> Completion | None:
        traceparent = held.task.traceparent
        try:
            store = await self._store(address)
        except TraceplaneError as error:
            return report.completion_of_error(held, error, traceparent)
        operators = _FunctionOperators(call, store)
        attempts = Attempts(
            client=client,
            operators=operators,
            store=store,
            decoders=self._decoders,
            watched_files=self._watched_files[address],
        )
        return await attempts.run(held, traceparent, on_ran=lambda _: None)

    async def _store(self, address: str) -> StoreOnDisk:
        if address not in self._stores:
            settings = process_settings.of_function(address)
            self._watched_files[address] = WatchedFiles(settings)
            self._stores[address] = await _open_store(settings)
        return self._stores[address]


async def _open_store(settings: process_settings.Settings) -> StoreOnDisk:
    if settings.object_bucket is None:
        root = settings.object_store_root
        return StoreOnDisk(inputs=root, outputs=root)
    limit = settings.object_cache_mb << 20
    cache = await ObjectCache.open(object_store_for(settings), settings.object_cache_root, limit_bytes=limit)
    return StoreOnDisk(inputs=cache.files, outputs=cache.outputs, cache=cache)


async def _report(client: DispatcherClient, held: HeldTask, completion: Completion) -> Answer:
    try:
        async with asyncio.timeout(_REPORT_SECONDS):
            await patiently(lambda: client.complete([held.token], [completion]))
    except (InvalidInput, TooLarge) as refusal:  # the report contains data from the operator
        if completion.status != "completed":
            raise
        return await _report(client, held, report.completion_of_refusal(held, completion, refusal))
    except (TimeoutError, PlatformError):
        # Whoever called the function may be able to commit what this process cannot report. If both do, it counts once.
        assert completion.status != "returned", "only workers hand tasks back"
        return Answer(
            completion.status,
            outputs=completion.outputs,
            events=completion.events,
            error=completion.error,
            log=completion.log,
        )
    return Answer(accepted=True)


# The operator ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FunctionCall:
    """One call of the function by Lambda."""

    operator: Operator
    caller: _CallingThread
    platform_thread: threading.Thread
    seconds: float | None

    async def outcome(self, task: OperatorTask, written: _Written, timeout: float) -> Succeeded | Failed:
        limits = [(timeout, "its job's timeout"), (self.seconds, "the time that Lambda leaves it")]
        seconds, what = min((limit, what) for limit, what in limits if limit is not None)
        code_paths = (os.path.dirname(inspect.getfile(self.operator)),)
        name = getattr(self.operator, "__name__", "the function")

        def run() -> Succeeded | Failed:
            with written.taking_output():
                return operator_call.outcome(self.operator, task, name=name, code_paths=code_paths)

        try:
            async with asyncio.timeout(seconds):
                return await self.caller.run(run)
        except TimeoutError:
            message = f"the function ran longer than {seconds:.0f} seconds, {what}"
            return Failed(Failure(code="operator.timeout", message=message))


class _FunctionOperators:
    """Runs every task with the function of this process; `worker.attempt` does the rest."""

    def __init__(self, call: _FunctionCall, store: StoreOnDisk) -> None:
        self._call = call
        self._store = store

    async def run(self, held: HeldTask, *, log: TaskLog, traceparent: str | None) -> RunResult:
        payload = task_payload(held.task, held.job, self._store, held.local, None)
        folders = await asyncio.to_thread(_make_folders, payload)
        log.begin(RunLimits().log_bytes)
        written = _Written(log, self._call.platform_thread)
        with tempfile.TemporaryDirectory(prefix="traceplane-", ignore_cleanup_errors=True) as temp:
            task = OperatorTask(
                task_id=str(held.task.task_id),
                attempt=held.task.attempt,
                payload=payload,
                output_folders=folders,
                temp_dir=temp,
            )
            began = time.monotonic()
            outcome = await self._call.outcome(task, written, held.job.timeout_seconds)
        outputs: tuple[OutputResult, ...] = ()
        if isinstance(outcome, Succeeded):
            outputs = await asyncio.to_thread(_sealed, outcome, task, folders)
        return RunResult(
            task_id=task.task_id,
            attempt=task.attempt,
            status="ok" if isinstance(outcome, Succeeded) else "failed",
            outputs=outputs,
            events=tuple(outcome.events) if isinstance(outcome, Succeeded) else (),
            error=outcome.error if isinstance(outcome, Failed) else None,
            log_tail=log.tail,
            run_seconds=time.monotonic() - began,
        )


def _make_folders(payload: TaskPayload) -> dict[str, str]:
    folders = {output.name: output.folder for output in payload.outputs if output.folder is not None}
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return folders


def _sealed(done: Succeeded, task: OperatorTask, folders: dict[str, str]) -> tuple[OutputResult, ...]:
    """The outputs, whose files are on disk and do not change any more."""
    for output in done.outputs:
        for file in output.files:
            with open(os.path.join(folders[output.name], file.name), "rb") as written:
                os.fchmod(written.fileno(), 0o444)
                os.fsync(written.fileno())
        folder = os.open(folders[output.name], os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return tuple(
        OutputResult(
            task.outputs[output.name].index,
            output.name,
            tuple(OutputFile(f.name, f.rows, f.bytes, f.statistics) for f in output.files),
            output.schema_hash or "",
            tuple(output.columns),
        )
        for output in done.outputs
    )


class _Interrupted(BaseException):
    """The operator is to end: its time is over, or its task was canceled."""


class _CallingThread:
    """The thread that Lambda calls. Operators run in it as they would in a handler of their own, and if it is the main
    thread, a signal ends them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._running = False

    def work(self) -> None:
        """Runs what the loop's thread passes to `run`, until it calls `release`."""
        before = signal.signal(_INTERRUPT, self._on_interrupt) if self._is_main else None
        try:
            while (call := self._calls.get()) is not None:
                call()
        finally:
            if self._is_main:
                signal.signal(_INTERRUPT, before)

    def release(self) -> None:
        self._calls.put(None)

    async def run(self, function: Callable[[], Result]) -> Result:
        """Called from the loop's thread. If it is canceled, so is the function."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Result] = loop.create_future()

        def end(result: Result) -> None:
            if not ended.done():
                ended.set_result(result)

        def call() -> None:
            with contextlib.suppress(_Interrupted):
                self._running = True
                try:
                    result = function()
                finally:
                    self._running = False
                loop.call_soon_threadsafe(end, result)

        self._calls.put(call)
        try:
            return await ended
        except asyncio.CancelledError:
            if self._is_main:
                signal.pthread_kill(self._thread, _INTERRUPT)
            raise

    def _on_interrupt(self, *_: object) -> None:
        if self._running:
            raise _Interrupted


class _Written(io.TextIOBase):
    """What the operator prints: it is still printed, and its lines are added to the task's log."""

    def __init__(self, log: TaskLog, platform_thread: threading.Thread) -> None:
        self._log = log
        self._platform_thread = platform_thread.ident
        self._output: TextIO = sys.stdout
        self._begun = ""
        self._busy = False

    @contextlib.contextmanager
    def taking_output(self) -> Iterator[None]:
        self._output = sys.stdout
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(self):
            yield
        if self._begun:
            self._log.add(self._begun.encode())

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._output.write(text)
        # The platform's own log lines are no part of the operator's.
        if not self._busy and threading.get_ident() != self._platform_thread:
            self._busy = True
            try:
                self._keep(text)
            finally:
                self._busy = False
        return len(text)

    def flush(self) -> None:
        self._output.flush()

    def _keep(self, text: str) -> None:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._log.add(line.encode("utf-8", "replace"))
