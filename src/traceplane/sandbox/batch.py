"""Several short tasks of one job, sent to one child together, which is woken once for all of them.

The child runs them in order and reports the end of each before it starts the next. Results are taken here as long as
they are ordinary: the task succeeded, and its outputs, if any, came with the report. At anything else the batch ends,
and a `TaskRun` takes over the task in question.

Tasks not started when the batch's time is over are never started by that child (`runner._next`), so they need not wait
behind a long task: once the time has passed and all earlier reports are read, it is known which task is running or
about to, and the others run elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traceplane.sandbox import frames
from traceplane.sandbox.assignment import OutputResult, RunResult
from traceplane.sandbox.child_log import LogLines
from traceplane.sandbox.frames import Assign, FrameInvalid
from traceplane.sandbox.job_queues import Waiting
from traceplane.sandbox.slot import Child
from traceplane.sandbox.staging import TaskFolders

BATCH_SECONDS = 0.1
"""How long the tasks of one batch have to start: several times the expected duration."""

_ANSWER_SECONDS = 5.0
"""How soon a child says whether it starts the next task, unless something is wrong with it."""


@dataclass(slots=True)
class Link:
    waiting: Waiting
    assign: Assign
    encoded: bytes
    folders: TaskFolders
    started_ns: int | None = None
    begun: float = 0.0
    """Since when it could have been running."""
    is_followed: bool = False
    """Whether tasks of its batch follow that the child will not run."""


class TaskBatch:
    def __init__(
        self,
        child: Child,
        links: Sequence[Link],
        on_ended: Callable[[list[tuple[Link, RunResult]]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._on_ended = on_ended
        self._ends_ns = 0
        self._heard_at = self._loop.time()
        self.child = child
        self.links = links
        self.done = 0
        """How many have ended normally."""
        self.is_late = False
        """Whether its time is over: `current` is still running, and the tasks after it will not run."""
        self.was_refused = False
        """Whether the child is dead or not reading, so that not even all tasks could be sent to it."""
        self.has_passed = False
        """Whether its time is over, and neither `current` nor the tasks after it will run."""

    async def run(self) -> bool:
        """Whether all of them ended normally. If not, `current` is the one that did not, and the tasks after it will
        not be started once it, or its child, has ended."""
        loop = self._loop
        self.links[0].begun = loop.time()
        self._ends_ns = self.links[0].assign.batch_ends_ns
        left = (self._ends_ns - time.monotonic_ns()) / 1e9
        timers = (
            loop.call_later(left, self._on_readable),
            loop.call_later(left + _ANSWER_SECONDS, self._be_late),
        )
        self.child.exited.add_done_callback(self._end)
        try:
            if self.child.send_at_once(b"".join(link.encoded for link in self.links)):
                self.child.watch(self._on_readable)
                await self._over
            else:
                self.was_refused = True
        finally:
            for timer in timers:
                timer.cancel()
            self.child.unwatch()
            self.child.exited.remove_done_callback(self._end)
        return self.done == len(self.links)

    @property
    def current(self) -> Link:
        return self.links[self.done]

    @property
    def rest(self) -> Sequence[Link]:
        return self.links[self.done + 1 :]

    def _end(self, _: object = None) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _on_readable(self) -> None:
        time_is_over = time.monotonic_ns() >= self._ends_ns  # first the clock, then everything sent before it
        if not self._take_what_came() or self.done == len(self.links):
            self._end()
        elif time_is_over and self.current.started_ns is not None:
            self._be_late()

    def _be_late(self) -> None:
        self.is_late = True
        self._end()

    def _take_what_came(self) -> bool:
        """Whether the batch continues."""
        goes_on = self.child.hear()
        ended: list[tuple[Link, frames.Succeeded, tuple[OutputResult, ...]]] = []
        try:
            while self.done < len(self.links):
                link = self.links[self.done]
                frame = self.child.heard(link.assign.limits.result_bytes)
                if frame is None:
                    break
                match frame:
                    case frames.Started(monotonic_ns):
                        link.started_ns = monotonic_ns
                    case frames.Progress() if link.waiting.on_progress is not None:
                        link.waiting.on_progress(frame.figures())
                    case frames.Succeeded(outputs, events) if (
                        link.started_ns is not None
                        and all(event.output_index < len(link.folders.outputs) for event in events)
                        and frame.inline_bytes <= link.assign.inline_bytes
                        and (accepted := link.folders.accept(outputs)) is not None
                    ):
                        ended.append((link, frame, accepted))
                        self.done += 1
                        if self.done < len(self.links):
                            self.links[self.done].begun = self._loop.time()
                    case frames.Passed() if (
                        not link.assign.leads
                        and link.started_ns is None
                        and time.monotonic_ns() >= self._ends_ns
                    ):
                        self.has_passed = True
                        self.child.forget_heard()
                        goes_on = False
                        break
                    case _:
                        goes_on = False
                        break
                self.child.forget_heard()
        except FrameInvalid:  # the TaskRun that takes over will find it again
            goes_on = False
        if ended:
            since, self._heard_at = self._heard_at, self._loop.time()
            each = (self._heard_at - since) / len(ended)
            self._on_ended([(link, self._result(link, done, outputs, each)) for link, done, outputs in ended])
        return goes_on

    def _result(
        self, link: Link, done: frames.Succeeded, outputs: tuple[OutputResult, ...], seconds: float
    ) -> RunResult:
        assign, began_ns = link.assign, link.waiting.began_ns
        log_tail = ""
        if text := self.child.log_up_to(assign.log_end):
            lines = LogLines(link.waiting.log, assign.limits.log_bytes)
            lines.take(text)
            lines.take_rest()
            log_tail = lines.tail
        now_ns = time.monotonic_ns()
        started_ns = link.started_ns or 0
        return RunResult(
            task_id=assign.task_id,
            attempt=assign.attempt,
            status="ok",
            outputs=outputs,
            events=tuple(done.events),
            log_tail=log_tail,
            start_seconds=(started_ns - began_ns) / 1e9 if began_ns <= started_ns <= now_ns else None,
            run_seconds=(now_ns - began_ns) / 1e9,
            slot_seconds=seconds,
        )
