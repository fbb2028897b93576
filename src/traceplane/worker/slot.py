"""The wrapper's side of one slot, of the child waiting in it, and of the child's log.

A slot tells the wrapper when a child is ready and when it has ended. Both sides may vanish at any
time: a slot that goes away ends its child with `None` in place of an `Exited`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from traceplane.worker import frames
from traceplane.worker.frames import Exited, FromChild, Kill, Ready, SlotReport
from traceplane.worker.staging import TempFolder

OnLog = Callable[[str], None]

_CONTROL_TIMEOUT_SECONDS = 5.0
_END_TIMEOUT_SECONDS = 5.0
_READ_SIZE = 65_536
_LONGEST_LINE = 8_192
_TAIL_BYTES = 16_384
_PAUSE_SECONDS = 0.005
"""Between reads of a log past its limit: the flood slows the operator that makes it, not the wrapper."""


class Child:
    """A process that waits for, or runs, one task."""

    def __init__(self, pid: int, channel: socket.socket, log_fd: int, temp: TempFolder) -> None:
        self.pid = pid
        self.temp = temp
        self.exited: asyncio.Future[Exited | None] = asyncio.get_running_loop().create_future()
        self._channel = channel
        self._channel.setblocking(False)
        self._log_fd = log_fd
        os.set_blocking(log_fd, False)

    async def send(self, frame: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._channel, frame)

    async def next_frame(self, limit: int) -> FromChild | None:
        """The next message, or None at the end. Raises FrameInvalid."""
        header = await self._receive(4)
        if not header:
            return None
        body = await self._receive(frames.frame_length(header, limit)) if len(header) == 4 else b""
        return frames.decode_from_child(body)

    async def _receive(self, count: int) -> bytes:
        """`count` bytes; nothing if the stream ended before the first, FrameInvalid if in between."""
        loop, missing = asyncio.get_running_loop(), count
        parts: list[bytes] = []
        while missing:
            try:
                part = await loop.sock_recv(self._channel, min(missing, _READ_SIZE))
            except ConnectionError:
                part = b""
            if not part:
                if parts:
                    raise frames.FrameInvalid(f"a frame ends {missing} bytes early")
                return b""
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def read_log(self, on_log: OnLog | None, limit: int) -> LogReader:
        fd, self._log_fd = self._log_fd, -1
        return LogReader(fd, on_log, limit)

    def close(self) -> None:
        self._channel.close()
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1


class LogReader:
    """Splits a child's output into lines; hands them on up to a limit and always keeps the tail."""

    def __init__(self, fd: int, on_log: OnLog | None, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._on_log = on_log
        self._left = limit
        self._dropped = 0
        self._partial = b""
        self._tail: deque[str] = deque()
        self._tail_bytes = 0
        self._ended = asyncio.Event()
        self._loop.add_reader(fd, self._on_readable)

    async def wait_ended(self) -> None:
        await self._ended.wait()

    @property
    def tail(self) -> str:
        note = f"[{self._dropped} bytes of log were not forwarded]\n" if self._dropped else ""
        return note + "\n".join(self._tail)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        self._take(data)
        if self._left <= 0:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self._ended.is_set():
            self._loop.add_reader(self._fd, self._on_readable)

    def _take(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        if len(self._partial) > _LONGEST_LINE:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self._hand_on(line)

    def _hand_on(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode("utf-8", "replace").replace("\0", "\\0")
        self._tail.append(line)
        self._tail_bytes += len(line) + 1
        while self._tail_bytes > _TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft()) + 1
        if self._left <= 0:
            self._dropped += len(raw) + 1
            return
        self._left -= len(raw) + 1
        if self._on_log is not None:
            with contextlib.suppress(Exception):  # a consumer of logs must not be able to fail a task
                self._on_log(line)

    def _end(self) -> None:
        if self._partial:
            self._hand_on(self._partial)
            self._partial = b""
        self.close()

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._loop.remove_reader(self._fd)
            os.close(self._fd)


class Slot:
    """A place for one task at a time. `on_ready` and `on_lost` are told of every change."""

    def __init__(
        self,
        index: int,
        uid: int | None,
        control: socket.socket,
        *,
        make_temp: Callable[[], TempFolder],
        on_ready: Callable[[Slot], None],
        on_lost: Callable[[Slot], None],
    ) -> None:
        self.index = index
        self.uid = uid
        self._control = control
        self._control.settimeout(_CONTROL_TIMEOUT_SECONDS)
        self._make_temp = make_temp
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._waiting: Child | None = None
        self._current: Child | None = None
        self._reports: msgspec.json.Decoder[SlotReport] = msgspec.json.Decoder(SlotReport)
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control.fileno(), self._on_report)

    def take(self) -> Child | None:
        """The waiting child, if there is one; it is the caller's from now on."""
        child, self._waiting = self._waiting, None
        return child

    def kill(self, child: Child, grace_seconds: float) -> None:
        if not child.exited.done():
            with contextlib.suppress(OSError):  # a lost slot has ended the child itself
                frames.send(self._control, Kill(child.pid, grace_seconds))

    async def end(self) -> None:
        """Have the slot end its task and itself, and wait until it has."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_SECONDS):
                await self._gone.wait()
        self.close()

    def give_up(self) -> None:
        """It does not answer; without a wrapper it ends itself as soon as it can."""
        self.close()
        self._on_lost(self)

    def close(self) -> None:
        """Let go; the slot then ends its task and itself."""
        self._gone.set()
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
        if self._current is not None and not self._current.exited.done():
            self._current.exited.set_result(None)

    def _on_report(self) -> None:
        try:
            body, descriptors = frames.receive(self._control)
        except (EOFError, OSError):
            self.give_up()
            return
        match self._reports.decode(body):
            case Ready(pid):
                channel = socket.socket(fileno=descriptors[0])
                self._current = self._waiting = Child(pid, channel, descriptors[1], self._make_temp())
                self._on_ready(self)
            case Exited() as report:
                self._end_child(report)

    def _end_child(self, report: Exited) -> None:
        child = self._current
        if child is None or child.pid != report.pid:
            return
        if self._waiting is child:  # it was killed from outside while idle; another one follows
            self._waiting = None
            child.close()
            child.temp.remove()
        if not child.exited.done():
            child.exited.set_result(report)
