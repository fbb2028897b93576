"""Several short tasks of one job, handed to one child together: it is woken once for all of them.

The child runs them in their order and tells the end of each before it begins the next. What comes of a task is taken
here as long as it is the usual thing: it went well, and its outputs, if it has any, came with the report. At anything
else the batch ends, and the task in question is a `TaskRun`'s to follow and judge.

What is not begun when the batch's time is over is never begun by that child (`runner._next`), so that those behind a
task that takes long do not have to wait for it: once the clock has passed, and everything that was said before has been
heard, it is known which one runs or is about to, and the others are run elsewhere.
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
"""How long the tasks of one batch have to begin: several times of what it is expected to take."""

_ANSWER_SECONDS = 5.0
"""Within which a child says whether it begins the next task, unless something is wrong with it."""


@dataclass(slots=True)
class Link:
    waiting: Waiting
    assign: Assign
    encoded: bytes
    folders: TaskFolders
    started_ns: int | None = None
    begun: float = 0.0
    """Since when nothing but itself keeps it from running."""
    is_followed: bool = False
    """Whether others of its batch are behind it, to which the child will not get."""


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
        """How many have ended as usual."""
        self.is_late = False
        """Whether its time is over: `current` still runs, and those behind it will not."""
        self.was_refused = False
        """Whether the child, which is dead or does not read, was not even handed all of them."""
        self.has_passed = False
        """Whether its time is over, and neither `current` nor those behind it will run."""

    async def run(self) -> bool:
        """Whether all of them ended as usual. If not, `current` is the one that did not, and those behind it will not
        be begun once it, or its child, has ended."""
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
        time_is_over = time.monotonic_ns() >= self._ends_ns  # what was said before is heard after this
        if not self._take_what_came() or self.done == len(self.links):
            self._end()
        elif time_is_over and self.current.started_ns is not None:
            self._be_late()

    def _be_late(self) -> None:
        self.is_late = True
        self._end()

    def _take_what_came(self) -> bool:
        """Whether the batch goes on."""
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
                    case frames.Progress(stages, tasks, tasks_done) if link.waiting.on_progress is not None:
                        link.waiting.on_progress({"stages": stages, "tasks": tasks, "tasks_done": tasks_done})
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
        except FrameInvalid:  # whoever takes over finds it again
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
            lines = LogLines(link.waiting.on_log, assign.limits.log_bytes)
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
