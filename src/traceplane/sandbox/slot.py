"""The wrapper's side of one slot, and of the child waiting in it.

A slot tells the wrapper when a child is ready and when it has ended. Both sides may disappear at any
time: if a slot is lost, its child ends with `None` instead of an `Exited`. A slot is in use from
`take` until `release`, and offers no child in between, not even a new one: the files of its last task
must be out of reach first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Hashable
from pathlib import Path

import msgspec

from traceplane.runtime.locked_folder import remove_tree
from traceplane.sandbox import frames
from traceplane.sandbox.child_log import READ_SIZE, READS_AT_THE_END, LogReader, TaskLog
from traceplane.sandbox.frames import Exited, FromChild, Inspect, Inspected, Kill, Ready, SlotReport
from traceplane.sandbox.staging import TempFolder

_CONTROL_TIMEOUT_SECONDS = 5.0
_END_TIMEOUT_SECONDS = 5.0
_READS_AT_ONCE = 128


class Child:
    """A process that waits for, or runs, a task."""

    def __init__(
        self, pid: int, channel: socket.socket, log_fd: int, handle: int | None, temp: TempFolder
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.pid = pid
        self.temp = temp
        self.job: Hashable = None
        """The job it is confined to, once it has run a task and may run others of the job."""
        self.areas: dict[str, Path] | None = None  # until it gets the first task that needs them
        """Where it writes its outputs, by name, if it has the wrapper's own uid."""
        self.standing: Inspected | None = None
        """The result of its last inspection."""
        self._looked_at = 0.0
        self.tasks = 0
        self.batches = 0
        self.seconds_per_task: float | None = None
        """Average duration of its latest tasks."""
        self.cpu_seconds = 0.0
        """CPU time used by its earlier tasks."""
        self.exited: asyncio.Future[Exited | None] = self._loop.create_future()
        self._born = self._loop.time()
        self._channel = channel
        self._channel.setblocking(False)
        self._received = bytearray()
        self._logged = bytearray()
        """Bytes read from its log that belong to no task yet."""
        self._log_fd = log_fd
        os.set_blocking(log_fd, False)
        self._handle = handle
        self._frozen = False

    def note(self, standing: Inspected) -> None:
        self.standing, self._looked_at = standing, self._loop.time()

    def was_looked_at(self, seconds: float) -> bool:
        """Whether it was inspected within the last `seconds`."""
        return self.standing is not None and self._loop.time() - self._looked_at < seconds

    def is_young(self, oldest_seconds: float) -> bool:
        return self._loop.time() - self._born < oldest_seconds

    def is_fit(self, oldest_seconds: float) -> bool:
        """Whether it has waited properly: not too long, silently, and leaving no files."""
        return (
            self.is_young(oldest_seconds)
            and not self._received
            and not self._logged
            and self._peek() is None
            and self._log_is_silent()
            and self.temp.is_empty()
        )

    def freeze(self) -> None:
        """Stop it while it waits."""
        if not self._frozen:
            self._frozen = True
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def has_more_to_say(self) -> bool:
        """Whether anything has arrived beyond the frames taken so far."""
        return bool(self._received or self._peek())

    def _peek(self) -> bytes | None:
        """What has arrived in the channel; empty at its end, None if nothing has arrived."""
        try:
            return self._channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def is_silent(self) -> bool:
        """Whether it has sent nothing more; log output from outside its tasks is dropped."""
        for _ in range(READS_AT_THE_END):
            try:
                if not os.read(self._log_fd, READ_SIZE):
                    return False
            except BlockingIOError:
                self._logged.clear()
                return not self.has_more_to_say()
        return False

    def _log_is_silent(self) -> bool:
        try:
            os.read(self._log_fd, 1)
        except BlockingIOError:
            return True
        return False

    async def send(self, frame: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # it is usually short, and a caller waits for it
            frame = frame[self._channel.send(frame) :]
        if frame:
            await self._loop.sock_sendall(self._channel, frame)

    def send_at_once(self, frames: bytes) -> bool:
        """Whether all of it could be sent without waiting. A child that does not read would block forever."""
        try:
            return self._channel.send(frames) == len(frames)
        except OSError:
            return False

    async def next_frame(self, limit: int) -> FromChild | None:
        """The next message, or None at the end. Raises FrameInvalid."""
        header = await self._receive(4)
        if not header:
            return None
        body = await self._receive(frames.frame_length(header, limit)) if len(header) == 4 else b""
        return frames.decode_from_child(body)

    async def _receive(self, count: int) -> bytes:
        """`count` bytes; empty if the stream ended before the first one, FrameInvalid if it ended in between."""
        while (missing := count - len(self._received)) > 0:
            try:
                part = await self._loop.sock_recv(self._channel, READ_SIZE)
            except ConnectionError:
                part = b""
            if not part:
                if self._received:
                    raise frames.FrameInvalid(f"a frame ends {missing} bytes early")
                return b""
            self._received += part
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def watch(self, on_readable: Callable[[], None]) -> None:
        self._loop.add_reader(self._channel, on_readable)

    def unwatch(self) -> None:
        self._loop.remove_reader(self._channel)

    def hear(self) -> bool:
        """Receive what has arrived; returns whether more may come."""
        for _ in range(_READS_AT_ONCE):
            try:
                part = self._channel.recv(READ_SIZE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not part:
                return False
            self._received += part
        return True

    def heard(self, limit: int) -> FromChild | None:
        """The next message if it has fully arrived; it stays the next until `forget_heard`. Raises FrameInvalid."""
        received = self._received
        if len(received) < 4 or len(received) < 4 + (length := frames.frame_length(received[:4], limit)):
            return None
        return frames.decode_from_child(bytes(received[4 : 4 + length]))

    def forget_heard(self) -> None:
        del self._received[: 4 + frames.frame_length(self._received[:4], len(self._received))]

    def log_up_to(self, end: bytes) -> bytes:
        """What it wrote before the `end` mark, or everything if the mark is missing."""
        for _ in range(READS_AT_THE_END):
            if (at := self._logged.find(end)) >= 0:
                break
            try:
                data = os.read(self._log_fd, READ_SIZE)
            except BlockingIOError:
                data = b""
            if not data:
                at = len(self._logged)
                break
            self._logged += data
        else:
            at = len(self._logged)
        text = bytes(self._logged[:at])
        del self._logged[: at + len(end)]
        return text

    def read_log(self, log: TaskLog, limit: int, end: bytes = b"") -> LogReader:
        reader = LogReader(self._log_fd, log, limit, end)
        reader.take(bytes(self._logged))
        self._logged.clear()
        return reader

    def remove_areas(self) -> None:
        for folder in (self.areas or {}).values():
            remove_tree(folder)

    def close(self) -> None:
        self._channel.close()
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Slot:
    """A place for one task at a time. `on_ready` is called whenever a child waits in it."""

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
        self.waiting: Child | None = None
        self._current: Child | None = None
        self._in_use = False
        self._inspection: asyncio.Future[Inspected | None] | None = None
        self._reports: msgspec.json.Decoder[SlotReport] = msgspec.json.Decoder(SlotReport)
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control.fileno(), self._on_report)

    def take(self) -> None:
        """The caller owns the waiting child from now on."""
        if self.waiting is not None:
            self.waiting.thaw()
        self.waiting, self._in_use = None, True

    def release(self) -> None:
        """The last task has left nothing within reach; the slot may be used again."""
        self._in_use = False
        if self.waiting is not None:
            self._on_ready(self)

    def keep(self, child: Child) -> None:
        """Let a child wait for another task, if it is still alive."""
        if child.exited.done():
            self._drop(child)
        else:
            self.waiting = child

    def end_waiting(self) -> None:
        if self.waiting is not None:
            self.kill(self.waiting, 0.0)

    async def inspect(self, child: Child) -> Inspected | None:
        """The state of a child that says it has finished; None if it has ended."""
        if child.exited.done():
            return None
        self._inspection = self._loop.create_future()
        try:
            with contextlib.suppress(OSError):  # a lost slot has ended the child itself
                frames.send(self._control, Inspect(child.pid))
            return await self._inspection
        finally:
            self._inspection = None

    def kill(self, child: Child, grace_seconds: float) -> None:
        if not child.exited.done():
            with contextlib.suppress(OSError):  # a lost slot has ended the child itself
                frames.send(self._control, Kill(child.pid, grace_seconds))

    async def end(self) -> None:
        """Make the slot end its task and itself, and wait for that."""
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
        """Close the connection; the slot then ends its task and itself."""
        self._gone.set()
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if self.waiting is not None:
            self.waiting.close()
            self.waiting.remove_areas()
            self.waiting = None
        if self._current is not None and not self._current.exited.done():
            self._current.exited.set_result(None)
        self._end_inspection(None)

    def _on_report(self) -> None:
        try:
            body, descriptors = frames.receive(self._control)
        except (EOFError, OSError):
            self.give_up()
            return
        match self._reports.decode(body):
            case Ready(pid):
                channel, log_fd = socket.socket(fileno=descriptors[0]), descriptors[1]
                handle = descriptors[2] if len(descriptors) > 2 else None
                self._current = self.waiting = Child(pid, channel, log_fd, handle, self._make_temp())
                if not self._in_use:
                    self._on_ready(self)
            case Inspected() as report:
                if self._current is not None and self._current.pid == report.pid:
                    self._end_inspection(report)
            case Exited() as report:
                self._end_child(report)

    def _end_child(self, report: Exited) -> None:
        child = self._current
        if child is None or child.pid != report.pid:
            return
        if self.waiting is child:  # it was ended while it waited; another one follows
            self._drop(child)
        if not child.exited.done():
            child.exited.set_result(report)
        self._end_inspection(None)

    def _drop(self, child: Child) -> None:
        if self.waiting is child:
            self.waiting = None
        child.close()
        child.temp.remove()
        child.remove_areas()

    def _end_inspection(self, report: Inspected | None) -> None:
        if self._inspection is not None and not self._inspection.done():
            self._inspection.set_result(report)
