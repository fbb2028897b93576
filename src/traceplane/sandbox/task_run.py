"""One run of one task in one child: send it, listen, stop it if necessary, judge the outcome.

A run ends only when none of its processes are left; the verdict is then, in this order: what the platform
decided (timeout, too much disk, garbage on the channel), how the process died, what it reported.
Cancelling waits for the same end and then passes the cancellation on.

If the child may be kept for the next task of its job, the run ends with its report instead. It is kept
if the task succeeded, it is alone in its slot, has not grown much, has stopped writing to its log, has none
of the outputs open, and its temporary folder could be emptied. In all other cases it is ended, and the run
ends with it. If the next task of the job is already waiting, the child is inspected (whether it is alone and has not
grown) twenty times a second rather than after each task.

The files that a Spark server wrote for the task are taken from the server before they are inspected, so that they
cannot change afterwards. If the server ends, so does the task: no other process may answer in the server's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from traceplane import telemetry
from traceplane.errors import TraceplaneError
from traceplane.model.json_object import JsonObject
from traceplane.runtime.process import describe
from traceplane.sandbox import frames
from traceplane.sandbox.assignment import OutputResult, RunResult, ServerGrant
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.frames import (
    Assign,
    EmittedEvent,
    Exited,
    Failure,
    FrameInvalid,
    Inspected,
    OutputInUse,
)
from traceplane.sandbox.slot import Child, Slot
from traceplane.sandbox.staging import StillInUse, TaskFolders

OnEvents = Callable[[list[EmittedEvent]], Awaitable[None]]
OnProgress = Callable[[JsonObject], None]

_DISK_CHECK_SECONDS = 0.5
_KILL_PATIENCE_SECONDS = 15.0
_NEARLY_ALL_MEMORY = 0.7
_LONGEST_TEXT = 8_000
_GROWN_TOO_MUCH_BYTES = 256 << 20
_LOOK_EVERY_SECONDS = 0.05
_CRASHES: dict[int, str] = {
    signal.SIGSEGV: "it used memory that is not its own",
    signal.SIGBUS: "it used memory that is not there",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGFPE: "an arithmetic error, such as a division by zero",
    signal.SIGABRT: "a library gave up",
}
_USUAL_CAUSES = (
    "usually a bug in a native library, one built for another processor or Python, a recursion that is too deep, or"
    " memory that it did not get because of its limit"
)


class TaskRun:
    def __init__(
        self,
        slot: Slot,
        child: Child,
        assign: Assign,
        encoded: bytes,
        folders: TaskFolders,
        *,
        began_ns: int,
        grace_seconds: float,
        log: TaskLog,
        on_events: OnEvents | None,
        on_progress: OnProgress | None,
        grant: ServerGrant | None,
        next_waits: Callable[[], bool],
        started_ns: int | None = None,
        is_followed: bool = False,
    ) -> None:
        """`encoded` is empty if the task was already sent to the child, in a batch; `started_ns` is what the child has
        reported since. With `is_followed`, tasks follow this one, which the child must pass on."""
        self._grant = grant
        self._slot = slot
        self._child = child
        self._assign = assign
        self._encoded = encoded
        self._folders = folders
        self._began_ns = began_ns
        self._taken_ns = time.monotonic_ns()
        self._grace_seconds = grace_seconds
        self._on_events = on_events
        self._on_progress = on_progress
        self._next_waits = next_waits
        self._log = child.read_log(log, assign.limits.log_bytes, assign.log_end)
        self._decided: Failure | None = None
        self._started_ns = started_ns
        self._is_followed = is_followed
        self._outcome: frames.Succeeded | frames.Failed | None = None
        self._declined = False
        self._discarded = False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.kept = False
        """Whether the child is kept and may get another task of its job."""

    async def run(self, timeout: float | None) -> RunResult:
        with self._grant.using(self._on_spark_lost) if self._grant is not None else contextlib.nullcontext():
            try:
                return await self._run(timeout)
            finally:
                self._log.stop()
                if not self.kept:
                    if not self._child.exited.done():
                        await self._end(0.0)
                    self._child.close()

    async def _run(self, timeout: float | None) -> RunResult:
        watched: list[asyncio.Task[None]] = [asyncio.create_task(self._listen())]
        watching = asyncio.get_running_loop().call_later(
            _DISK_CHECK_SECONDS, lambda: watched.append(asyncio.create_task(self._watch_disk()))
        )
        self._child.exited.add_done_callback(self._on_over)
        try:
            standing = await self._until_over(timeout)
            if self._decided is None and not isinstance(standing, Inspected):
                await watched[0]
            if isinstance(standing, Exited):
                await self._log.wait_ended()
        finally:
            self._child.exited.remove_done_callback(self._on_over)
            watching.cancel()
            running = [task for task in watched if not task.done()]
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)
        return await self._result(standing)

    def _on_over(self, _: object = None) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _on_spark_lost(self, _: object = None) -> None:
        self._decide("operator.spark_lost", "the Spark server ended while it was working for this task")
        self._slot.kill(self._child, 0.0)

    async def _until_over(self, timeout: float | None) -> Exited | Inspected | None:
        """How it ended, or its state if it may be kept; None if it was lost with its slot."""
        try:
            async with asyncio.timeout(timeout):
                await self._over
                if not self._child.exited.done():
                    standing = await look_at(self._slot, self._child, self._next_waits())
                    if standing is not None and self._may_be_kept(standing):
                        return standing
                    self._discard()
                return await asyncio.shield(self._child.exited)
        except TimeoutError:
            self._decide(
                "operator.timeout", f"the operator ran longer than {timeout:g} seconds and was killed"
            )
            return await self._end(self._grace_seconds)
        except asyncio.CancelledError:
            await self._end(self._grace_seconds)
            raise

    def _may_be_kept(self, standing: Inspected) -> bool:
        return is_as_it_should_be(standing) and self._log.drain()

    def _discard(self) -> None:
        """End a child that has finished its task; this does not affect the task's outcome."""
        if not self._child.exited.done():
            self._discarded = True
            self._slot.kill(self._child, 0.0)

    async def _end(self, grace_seconds: float) -> Exited | None:
        """Kill it and wait until nothing is left; a cancellation in the meantime is passed on only then."""
        ending = asyncio.create_task(end_child(self._slot, self._child, grace_seconds))
        cancelled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return ending.result()

    def _decide(self, code: str, message: str) -> None:
        if self._decided is None:
            self._decided = Failure(code=code, message=message)

    # --- while it runs ----------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            if self._encoded:
                await self._child.send(self._encoded)
            while (frame := await self._child.next_frame(self._assign.limits.result_bytes)) is not None:
                await self._take(frame)
                if (
                    self._assign.keep
                    and isinstance(self._outcome, frames.Succeeded)
                    and not self._is_followed
                ):
                    if self._child.has_more_to_say():
                        raise FrameInvalid("a frame after the result")
                    self._on_over()
                    return
        except FrameInvalid as error:
            self._decide(
                "operator.result_invalid",
                f"the operator's process sent something other than a result: {error}",
            )
            self._slot.kill(self._child, 0.0)
        except OSError:
            return  # it died while being written to; its exit status says how
        except Exception as error:
            telemetry.emit("sandbox.listener_failed", "error", **describe(error))
            self._decide("sandbox.failed", f"the wrapper could not follow the task: {error}")
            self._slot.kill(self._child, 0.0)

    async def _take(self, frame: frames.FromChild) -> None:
        if isinstance(frame, frames.Passed):
            self._take_passed()
            return
        if self._outcome is not None:
            raise FrameInvalid("a frame after the result")
        match frame:
            case frames.Started(monotonic_ns):
                self._started_ns = monotonic_ns
            case frames.Progress():
                if self._on_progress is not None:
                    self._on_progress(frame.figures())
            case frames.Declined():
                self._declined = self._started_ns is None
            case frames.Events(batch, events):
                await self._accept(batch, events)
            case frames.Succeeded(_, events):
                self._check_events(events)
                if frame.inline_bytes > self._assign.inline_bytes:
                    raise FrameInvalid("the result contains more file content than allowed")
                self._outcome = frame
            case frames.Failed():
                self._outcome = frame

    def _take_passed(self) -> None:
        """The child has read that the batch's time is over: this task runs elsewhere, or only those that follow it."""
        sent_in_batch = bool(self._assign.batch) and not self._assign.leads
        if self._started_ns is None and sent_in_batch:
            self._declined = True
            self._slot.kill(self._child, 0.0)
        elif not self._is_followed:
            raise FrameInvalid("it passed on a task that it had not been sent")
        self._is_followed = False

    def _check_events(self, events: list[frames.EmittedEvent]) -> None:
        if any(event.output_index >= len(self._folders.outputs) for event in events):
            raise FrameInvalid("an event for an output that does not exist")

    async def _accept(self, batch: int, events: list[frames.EmittedEvent]) -> None:
        if self._on_events is None:
            raise FrameInvalid("events from a task that is not a source")
        self._check_events(events)
        try:
            await self._on_events(events)
        except TraceplaneError as error:
            await self._answer(frames.EventsRefused(batch, error.code, error.message))
        except Exception as error:
            await self._answer(
                frames.EventsRefused(batch, "platform.failed", f"{type(error).__name__}: {error}")
            )
        else:
            await self._answer(frames.EventsAccepted(batch))

    async def _answer(self, answer: frames.EventsAccepted | frames.EventsRefused) -> None:
        with contextlib.suppress(OSError):  # it may have ended, with more of its frames still unread
            await self._child.send(frames.encode(answer))

    async def _watch_disk(self) -> None:
        limit = self._assign.limits.disk_bytes
        while limit is not None:
            used = await asyncio.to_thread(self._folders.bytes_used)
            if used > limit:
                self._decide(
                    "operator.killed", f"the operator's files took {used} bytes; the limit is {limit}"
                )
                self._slot.kill(self._child, 0.0)
                return
            await asyncio.sleep(_DISK_CHECK_SECONDS)

    # --- afterwards -------------------------------------------------------------------------------

    async def _result(self, standing: Exited | Inspected | None) -> RunResult:
        outputs: tuple[OutputResult, ...] = ()
        error = self._decided or self._why_ended(standing)
        if error is None:
            assert isinstance(self._outcome, frames.Succeeded)
            try:
                outputs = await self._take_outputs(self._outcome)
                self.kept = await self._clear_temp() and not self._child.exited.done()
            except FrameInvalid as problem:
                error = Failure(code=problem.code, message=f"the result cannot be trusted: {problem}")
            except OSError as problem:
                error = Failure(code="sandbox.failed", message=f"the outputs could not be stored: {problem}")
        ended_ns = time.monotonic_ns()
        done = self._outcome if error is None and isinstance(self._outcome, frames.Succeeded) else None
        return RunResult(
            task_id=self._assign.task_id,
            attempt=self._assign.attempt,
            status="ok" if error is None else "failed",
            outputs=outputs,
            events=tuple(done.events) if done else (),
            error=error,
            log_tail=self._log.tail,
            start_seconds=self._start_seconds(),
            run_seconds=(ended_ns - self._began_ns) / 1e9,
            slot_seconds=(ended_ns - self._taken_ns) / 1e9,
            cpu_seconds=self._cpu_seconds(standing),
            max_rss_bytes=_resident_bytes(standing),
            leftovers=isinstance(standing, Exited) and standing.leftovers,
        )

    async def _take_outputs(self, done: frames.Succeeded) -> tuple[OutputResult, ...]:
        if self._grant is not None and not await self._grant.end(sealed=True):
            raise OutputInUse("Spark still had an output open for writing after the operator returned")
        if self._folders.seal_empty(done.outputs):
            return ()
        lives = not self._child.exited.done()
        if all(file.content is not None for output in done.outputs for file in output.files):
            with contextlib.suppress(StillInUse):
                return self._folders.seal(done.outputs, child_lives=lives)  # does not wait for the disk
        if not self._child.exited.done():
            try:
                return await asyncio.to_thread(self._folders.seal, done.outputs, child_lives=True)
            except StillInUse as reason:
                telemetry.emit("sandbox.child_discarded", reason=str(reason))
                await self._end(0.0)
        return await asyncio.to_thread(self._folders.seal, done.outputs)

    async def _clear_temp(self) -> bool:
        """Whether there is a child to keep and its temporary folder is empty."""
        if self._child.exited.done():
            return False
        temp = self._folders.temp_folder
        return temp.is_empty() or await asyncio.to_thread(temp.clear)

    def _cpu_seconds(self, standing: Exited | Inspected | None) -> float:
        if standing is None:
            return 0.0
        before, self._child.cpu_seconds = self._child.cpu_seconds, standing.cpu_seconds
        return max(0.0, standing.cpu_seconds - before)

    def _start_seconds(self) -> float | None:
        if self._started_ns is None or not self._began_ns <= self._started_ns <= time.monotonic_ns():
            return None
        return (self._started_ns - self._began_ns) / 1e9

    def _why_ended(self, exited: Exited | Inspected | None) -> Failure | None:
        if exited is None or self._declined or self._died_before_start():
            return Failure(
                code="sandbox.lost",
                message="the process that supervised this task ended unexpectedly, and so did the task",
                hint="no result was lost; the task can be retried",
            )
        if isinstance(exited, Inspected) or self._discarded:
            return None
        if exited.signal is not None:
            return self._killed(exited, exited.signal)
        if isinstance(self._outcome, frames.Failed):
            return _as_told(self._outcome.error, self._assign.error_codes)
        if self._outcome is None or exited.exit_code != 0:
            message = f"the operator's process ended with exit code {exited.exit_code}, without a result"
            return Failure(code="operator.exited", message=message, exit_code=exited.exit_code)
        return None

    def _died_before_start(self) -> bool:
        """A used child may have died between two tasks; this task is not the cause."""
        return self._child.tasks > 0 and self._started_ns is None and self._outcome is None

    def _killed(self, exited: Exited, number: int) -> Failure:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        limits = self._assign.limits
        hint = None
        if number == signal.SIGXCPU or (limits.cpu_seconds and exited.cpu_seconds > limits.cpu_seconds * 0.6):
            hint = f"it used its {limits.cpu_seconds} seconds of processor time"
        elif limits.memory_bytes and exited.max_rss_bytes > limits.memory_bytes * _NEARLY_ALL_MEMORY:
            hint = f"out of memory: it had {exited.max_rss_bytes} bytes; the limit is {limits.memory_bytes}"
        elif number == signal.SIGKILL:
            hint = "perhaps this machine is out of memory: nothing in the platform killed the process"
        if hint is None and number in _CRASHES:
            message = f"the operator's process crashed in native code with {name}: {_CRASHES[number]}"
            return Failure(code="operator.crashed", message=message, signal=name, hint=_USUAL_CAUSES)
        message = f"the operator's process was killed by {name}"
        return Failure(code="operator.killed", message=message, signal=name, hint=hint)


async def look_at(slot: Slot, child: Child, next_waits: bool) -> Inspected | None:
    """The state of a child that says it has finished; None if it has ended."""
    if next_waits and child.was_looked_at(_LOOK_EVERY_SECONDS):
        return child.standing
    standing = await slot.inspect(child)
    if standing is not None:
        child.note(standing)
    return standing


def is_as_it_should_be(standing: Inspected) -> bool:
    return standing.alone and standing.grown_bytes <= _GROWN_TOO_MUCH_BYTES


async def end_child(slot: Slot, child: Child, grace_seconds: float) -> Exited | None:
    slot.kill(child, grace_seconds)
    try:
        async with asyncio.timeout(grace_seconds + _KILL_PATIENCE_SECONDS):
            return await asyncio.shield(child.exited)
    except TimeoutError:
        slot.give_up()
        return None


def _resident_bytes(standing: Exited | Inspected | None) -> int:
    match standing:
        case Exited():
            return standing.max_rss_bytes
        case Inspected():
            return standing.resident_bytes
        case None:
            return 0


def _as_told(error: Failure, own_codes: Sequence[str]) -> Failure:
    """A failure reported by the operator: with an allowed code, clipped, and safe to store."""
    allowed = ("sandbox.setup_failed", "sandbox.breached", *own_codes)
    is_allowed = error.code.startswith("operator.") or error.code in allowed
    return Failure(
        code=_clip(error.code, 100) if is_allowed else "operator.raised",
        message=_clip(error.message, _LONGEST_TEXT),
        type=_clip_optional(error.type, 200),
        traceback=_clip_optional(error.traceback, _LONGEST_TEXT),
        file=_clip_optional(error.file, 1000),
        line=error.line if error.line is None or 0 <= error.line < 2**31 else None,
        exit_code=error.exit_code if error.exit_code is None or abs(error.exit_code) < 2**31 else None,
        hint=_clip_optional(error.hint, 1000),
    )


def _clip(text: str, length: int) -> str:
    return text[:length].replace("\0", "\\0")


def _clip_optional(text: str | None, length: int) -> str | None:
    return None if text is None else _clip(text, length)
