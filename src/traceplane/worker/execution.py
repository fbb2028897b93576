"""One run of one task in one child: hand it over, listen, stop it when it must, judge the outcome.

A run ends only when no process of it is left; then the verdict is, in this order: what the platform
decided (timeout, too much disk, garbage on the channel), how the process died, what it reported.
Cancelling waits for the same end and then passes the cancellation on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from traceplane.errors import TraceplaneError
from traceplane.worker import frames
from traceplane.worker.assignment import OutputResult, RunResult
from traceplane.worker.frames import Assign, Exited, Failure, FrameInvalid
from traceplane.worker.slot import Child, OnLog, Slot
from traceplane.worker.staging import TaskFolders

log = logging.getLogger(__name__)

OnEvents = Callable[[list[dict[str, Any]]], Awaitable[None]]

_DISK_CHECK_SECONDS = 0.5
_KILL_PATIENCE_SECONDS = 15.0
_NEARLY_ALL_MEMORY = 0.7
_LONGEST_TEXT = 8_000


class Execution:
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
        on_log: OnLog | None,
        on_events: OnEvents | None,
    ) -> None:
        self._slot = slot
        self._child = child
        self._assign = assign
        self._encoded = encoded
        self._folders = folders
        self._began_ns = began_ns
        self._grace_seconds = grace_seconds
        self._on_events = on_events
        self._log = child.read_log(on_log, assign.limits.log_bytes)
        self._decided: Failure | None = None
        self._started_ns: int | None = None
        self._outcome: frames.Done | frames.Failed | None = None

    async def run(self, timeout: float | None) -> RunResult:
        listener = asyncio.create_task(self._listen())
        watcher = asyncio.create_task(self._watch_disk())
        try:
            exited = await self._until_exited(timeout)
            if self._decided is None:
                await listener
            if exited is not None:
                await self._log.wait_ended()
        finally:
            for task in (listener, watcher):
                task.cancel()
            await asyncio.gather(listener, watcher, return_exceptions=True)
            self._log.close()
            self._child.close()
        return await self._result(exited)

    async def _until_exited(self, timeout: float | None) -> Exited | None:
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._child.exited)
        except TimeoutError:
            self._decide(
                "operator.timeout", f"the operator ran longer than {timeout:g} seconds and was killed"
            )
            return await self._end()
        except asyncio.CancelledError:
            await self._end()
            raise

    async def _end(self) -> Exited | None:
        """Kill it and wait until nothing is left; a cancellation meanwhile is passed on only then."""
        ending = asyncio.create_task(self._kill())
        cancelled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return ending.result()

    async def _kill(self) -> Exited | None:
        self._slot.kill(self._child, self._grace_seconds)
        try:
            async with asyncio.timeout(self._grace_seconds + _KILL_PATIENCE_SECONDS):
                return await asyncio.shield(self._child.exited)
        except TimeoutError:
            self._slot.give_up()
            return None

    def _decide(self, code: str, message: str) -> None:
        if self._decided is None:
            self._decided = Failure(code=code, message=message)

    # --- while it runs ----------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            await self._child.send(self._encoded)
            while (frame := await self._child.next_frame(self._assign.limits.result_bytes)) is not None:
                await self._take(frame)
        except FrameInvalid as error:
            self._decide(
                "operator.result_invalid",
                f"the operator's process sent something else than a result: {error}",
            )
            self._slot.kill(self._child, 0.0)
        except OSError:
            return  # it died while being written to; how, its exit status tells
        except Exception as error:
            log.exception("sandbox.listener_failed")
            self._decide("sandbox.failed", f"the wrapper could not follow the task: {error}")
            self._slot.kill(self._child, 0.0)

    async def _take(self, frame: frames.FromChild) -> None:
        if self._outcome is not None:
            raise FrameInvalid("a frame after the result")
        match frame:
            case frames.Started(monotonic_ns):
                self._started_ns = monotonic_ns
            case frames.Events(batch, events):
                await self._accept(batch, events)
            case frames.Done(_, events):
                self._check_events(events)
                self._outcome = frame
            case frames.Failed():
                self._outcome = frame

    def _check_events(self, events: list[frames.EmittedEvent]) -> None:
        if any(event.output_index >= len(self._folders.outputs) for event in events):
            raise FrameInvalid("an event of an output that does not exist")

    async def _accept(self, batch: int, events: list[frames.EmittedEvent]) -> None:
        if self._on_events is None:
            raise FrameInvalid("events from a task that is not a source")
        self._check_events(events)
        try:
            await self._on_events([event.as_dict() for event in events])
        except TraceplaneError as error:
            await self._answer(frames.Refused(batch, error.code, error.message))
        except Exception as error:
            await self._answer(frames.Refused(batch, "platform.failed", f"{type(error).__name__}: {error}"))
        else:
            await self._answer(frames.Accepted(batch))

    async def _answer(self, answer: frames.Accepted | frames.Refused) -> None:
        with contextlib.suppress(OSError):  # it need not be there to hear it, and more may be in its stream
            await self._child.send(frames.encode(answer))

    async def _watch_disk(self) -> None:
        limit = self._assign.limits.disk_bytes
        while limit is not None:
            await asyncio.sleep(_DISK_CHECK_SECONDS)
            used = await asyncio.to_thread(self._folders.bytes_used)
            if used > limit:
                self._decide(
                    "operator.killed", f"the operator's files took {used} bytes; the limit is {limit}"
                )
                self._slot.kill(self._child, 0.0)
                return

    # --- afterwards -------------------------------------------------------------------------------

    async def _result(self, exited: Exited | None) -> RunResult:
        outputs: tuple[OutputResult, ...] = ()
        error = self._decided or self._why_ended(exited)
        if error is None:
            assert isinstance(self._outcome, frames.Done)
            try:
                if self._folders.outputs:
                    outputs = await asyncio.to_thread(self._folders.seal, self._outcome.outputs)
            except FrameInvalid as problem:
                error = Failure(
                    code="operator.result_invalid", message=f"the result cannot be trusted: {problem}"
                )
            except OSError as problem:
                error = Failure(code="sandbox.failed", message=f"the outputs could not be kept: {problem}")
        done = self._outcome if error is None and isinstance(self._outcome, frames.Done) else None
        return RunResult(
            task_id=self._assign.task_id,
            attempt=self._assign.attempt,
            status="ok" if error is None else "failed",
            outputs=outputs,
            events=tuple(event.as_dict() for event in done.events) if done else (),
            error=error,
            log_tail=self._log.tail,
            start_seconds=self._start_seconds(),
            run_seconds=(time.monotonic_ns() - self._began_ns) / 1e9,
            cpu_seconds=exited.cpu_seconds if exited else 0.0,
            max_rss_bytes=exited.max_rss_bytes if exited else 0,
            leftovers=exited.leftovers if exited else False,
        )

    def _start_seconds(self) -> float | None:
        if self._started_ns is None or not self._began_ns <= self._started_ns <= time.monotonic_ns():
            return None
        return (self._started_ns - self._began_ns) / 1e9

    def _why_ended(self, exited: Exited | None) -> Failure | None:
        if exited is None:
            return Failure(
                code="sandbox.lost",
                message="the process that supervised this task ended unexpectedly, and the task with it",
                hint="no result was lost by this; the task can be run again",
            )
        if exited.signal is not None:
            return self._killed(exited, exited.signal)
        if isinstance(self._outcome, frames.Failed):
            return _as_told(self._outcome.error)
        if self._outcome is None or exited.exit_code != 0:
            message = f"the operator's process ended with exit code {exited.exit_code} and without a result"
            return Failure(code="operator.exited", message=message, exit_code=exited.exit_code)
        return None

    def _killed(self, exited: Exited, number: int) -> Failure:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        limits = self._assign.limits
        hint = None
        if number == signal.SIGXCPU or (limits.cpu_seconds and exited.cpu_seconds > limits.cpu_seconds * 0.8):
            hint = f"it used its {limits.cpu_seconds} seconds of processor time"
        elif limits.memory_bytes and exited.max_rss_bytes > limits.memory_bytes * _NEARLY_ALL_MEMORY:
            hint = f"out of memory: it had {exited.max_rss_bytes} bytes; the limit is {limits.memory_bytes}"
        elif number == signal.SIGKILL:
            hint = "out of memory on this machine, perhaps: nothing in the platform killed it"
        message = f"the operator's process was killed by {name}"
        return Failure(code="operator.killed", message=message, signal=name, hint=hint)


def _as_told(error: Failure) -> Failure:
    """A failure in the operator's own words: of its own kind, of bearable length, fit to be stored."""
    known = error.code.startswith("operator.") or error.code in ("sandbox.setup_failed", "sandbox.breached")
    return Failure(
        code=_clip(error.code, 100) if known else "operator.raised",
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
