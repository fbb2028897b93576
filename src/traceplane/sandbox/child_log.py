"""What an operator writes, line by line: passed on up to a limit, and its tail is always kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable

OnLog = Callable[[str], None]

READ_SIZE = 65_536
_LONGEST_LINE = 8_192
_TAIL_BYTES = 16_384
READS_AT_THE_END = 32
"""Far more than a pipe holds; a child that fills it faster is still writing."""
_BEGIN_SECONDS = 0.01
_PAUSE_SECONDS = 0.005
"""Between reads of a log past its limit: the flood slows the operator that makes it, not the wrapper."""


class TaskLog:
    """The lines of one task. It may be read while the task writes."""

    def __init__(self, on_log: OnLog | None = None) -> None:
        self._on_log = on_log
        self.begin(0)

    def begin(self, limit: int) -> None:
        """Forgets what a child wrote that could not start the task."""
        self._left = limit
        self._dropped = self._cut = self.lines = 0
        self._tail: deque[str] = deque()
        self._tail_bytes = 0

    @property
    def is_flooded(self) -> bool:
        return self._left <= 0

    @property
    def tail(self) -> str:
        note = f"[{self._dropped} bytes of log were not forwarded]\n" if self._dropped else ""
        if self._cut:
            note += f"[{self._cut} earlier lines were not kept]\n"
        return note + "\n".join(self._tail)

    def add(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode("utf-8", "replace").replace("\0", "\\0")
        self.lines += 1
        self._tail.append(line)
        self._tail_bytes += len(line) + 1
        while self._tail_bytes > _TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft()) + 1
            self._cut += 1
        if self.is_flooded:
            self._dropped += len(raw) + 1
            return
        self._left -= len(raw) + 1
        if self._on_log is not None:
            with contextlib.suppress(Exception):  # a consumer of logs must not be able to fail a task
                self._on_log(line)


class LogLines:
    """Splits a child's output into the lines of a task's log."""

    def __init__(self, log: TaskLog, limit: int, end: bytes = b"") -> None:
        log.begin(limit)
        self._log = log
        self._end_mark = end.rstrip(b"\n")
        self._partial = b""

    @property
    def tail(self) -> str:
        return self._log.tail

    def take(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        if len(self._partial) > _LONGEST_LINE:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self._hand_on(line)

    def take_rest(self) -> None:
        """At the end of the log: the remainder is a line too."""
        if self._partial:
            self._hand_on(self._partial)
            self._partial = b""

    def _hand_on(self, raw: bytes) -> None:
        if self._end_mark and raw.endswith(self._end_mark):
            raw = raw[: -len(self._end_mark)]
            if not raw:
                return
        self._log.add(raw)


class LogReader(LogLines):
    """Reads the child's descriptor until its end or until `stop`. It starts after a moment, since most tasks are over
    by then and `drain` reads what they wrote at once.
    """

    def __init__(self, fd: int, log: TaskLog, limit: int, end: bytes) -> None:
        super().__init__(log, limit, end)
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._ended = asyncio.Event()
        self._stopped = False
        self._beginning = self._loop.call_later(_BEGIN_SECONDS, self._resume)

    async def wait_ended(self) -> None:
        self._beginning.cancel()
        self._resume()
        await self._ended.wait()

    def drain(self) -> bool:
        """Read the rest of the log of a child that has finished its task; whether it has stopped writing."""
        for _ in range(READS_AT_THE_END):
            if not self._read():
                self.take_rest()
                return not self._ended.is_set()
        return False

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return False
        if data:
            self.take(data)
        else:
            self._end()
        return bool(data)

    def _on_readable(self) -> None:
        if self._read() and self._log.is_flooded:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self._stopped:
            self._loop.add_reader(self._fd, self._on_readable)

    def _end(self) -> None:
        self.take_rest()
        self._ended.set()
        self.stop()

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._beginning.cancel()
            self._loop.remove_reader(self._fd)
