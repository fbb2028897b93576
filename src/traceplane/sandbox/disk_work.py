"""Slow work on disk, in threads: writes outputs before the end of a task is reported, and removes folders after it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from traceplane.sandbox.assignment import RunResult
from traceplane.sandbox.frames import Failure
from traceplane.sandbox.job_queues import Waiting
from traceplane.sandbox.staging import TaskFolders

_WRITTEN_TOGETHER = 4
_WRITERS = 16
"""Threads that wait for the disk, which flushes the files of many tasks in the time of one."""

Ended = tuple[Waiting, RunResult, TaskFolders]


class DiskWork:
    def __init__(self) -> None:
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="outputs")
        self._removals: list[Callable[[], None]] = []
        self._removing: asyncio.Task[None] | None = None

    def settle(self, ended: Iterable[Ended]) -> None:
        """Deliver results to their callers, once the outputs that came with the reports are on disk."""
        unwritten = []
        for waiting, result, folders in ended:
            if result.status == "ok" and folders.to_be_written and not waiting.canceled:
                unwritten.append((waiting, result, folders))
            else:
                waiting.settle(result)
        for first in range(0, len(unwritten), _WRITTEN_TOGETHER):
            part = unwritten[first : first + _WRITTEN_TOGETHER]
            writing = asyncio.get_running_loop().run_in_executor(
                self._writers, _write_out, [folders for _, _, folders in part]
            )
            writing.add_done_callback(functools.partial(_on_written, part))

    def remove(self, folders: TaskFolders, *, outputs: bool) -> None:
        """Remove slowly, in another thread, and for many runs at once if many have ended."""
        if outputs:
            folders.withdraw()
        elif folders.remove_if_empty():
            return
        self.remove_later(functools.partial(folders.remove, outputs=outputs))

    def remove_later(self, removal: Callable[[], None]) -> None:
        self._removals.append(removal)
        if len(self._removals) == 1:
            self._removing = asyncio.create_task(self._remove_pending())

    async def until_removed(self) -> None:
        if self._removing is not None:
            await asyncio.wait((self._removing,))

    async def close(self) -> None:
        """Called after the last task: nothing may be added any more."""
        await self.until_removed()
        self._writers.shutdown(wait=False)

    async def _remove_pending(self) -> None:
        while self._removals:
            batch = list(self._removals)
            await asyncio.to_thread(_call_each, batch)
            del self._removals[: len(batch)]


def _call_each(acts: list[Callable[[], None]]) -> None:
    for act in acts:
        act()


def _write_out(tasks: Sequence[TaskFolders]) -> list[Exception | None]:
    """The error of each, or None."""
    errors: list[Exception | None] = []
    for folders in tasks:
        try:
            folders.write_out()
            errors.append(None)
        except Exception as error:  # any error: a caller waits for this task's end
            errors.append(error)
    return errors


def _on_written(part: Sequence[Ended], writing: asyncio.Future[list[Exception | None]]) -> None:
    for (waiting, result, _), error in zip(part, writing.result(), strict=True):
        if error is None:
            waiting.settle(result)
        else:
            failure = Failure(code="sandbox.failed", message=f"the outputs could not be stored: {error}")
            waiting.settle(replace(result, status="failed", outputs=(), events=(), error=failure))
