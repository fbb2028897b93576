"""A process that reads Parquet files one after the other, and the server that forks it.

It has a limit on its memory, and of the file system and the network nothing but the descriptors that it is handed.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet

from traceplane.decoding import hot_rows, kept_rows, signals
from traceplane.decoding.messages import (
    ANSWER_HEAD,
    FRAME_BYTES,
    REQUEST_HEAD,
    Done,
    HotRowsWork,
    KeptRowsWork,
    Misfit,
    Refusal,
    Request,
    SignalsWork,
    Work,
)
from traceplane.linux import forking, seccomp

MEMORY_BYTES = 512 << 20
"""For what is read and what is made of it, besides what the process has from its server."""
_GRACE_SECONDS = 5.0


class _TooLarge(Exception):
    pass


class _TooSlow(Exception):
    pass


class _Frames(io.RawIOBase):
    """What is written to it goes to the owner, up to a limit."""

    def __init__(self, target: socket.socket, most_bytes: int) -> None:
        self._target, self._left = target, most_bytes
        self._piece = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _TooLarge
        self._piece += data
        while len(self._piece) >= FRAME_BYTES:
            _send(self._target, b"D", bytes(self._piece[:FRAME_BYTES]))
            del self._piece[:FRAME_BYTES]
        return size

    def finish(self) -> None:
        if self._piece:
            _send(self._target, b"D", bytes(self._piece))
            self._piece.clear()


def _send(target: socket.socket, kind: bytes, body: bytes) -> None:
    target.sendall(ANSWER_HEAD.pack(kind, len(body)) + body)


def _receive(source: socket.socket) -> tuple[Request, int] | None:
    """A request and its file; None when there are no more."""
    head, descriptors, _, _ = socket.recv_fds(source, REQUEST_HEAD.size, 1)
    if not head:
        return None
    (size,) = REQUEST_HEAD.unpack(head)
    body = bytearray()
    while len(body) < size:
        if not (piece := source.recv(size - len(body))):
            return None
        body += piece
    return msgspec.json.decode(body, type=Request), descriptors[0]


def _made(work: Work, file: Any, sink: Any) -> int:
    with parquet.ParquetFile(file) as opened:
        match work:
            case HotRowsWork():
                return hot_rows.write(opened, work, sink)
            case SignalsWork():
                return signals.write(opened, work, sink)
            case KeptRowsWork():
                return kept_rows.write(opened, work, sink)


def _refusal(error: BaseException) -> Refusal:
    match error:
        case Misfit():
            return Refusal("misfit", str(error), column=error.column, next_step=error.next_step)
        case _TooLarge():
            return Refusal("too_large", "there is more in it than may be read at once")
        case MemoryError():
            return Refusal(
                "out_of_memory", f"it takes more than {MEMORY_BYTES >> 20} MB of memory to read it"
            )
        case _TooSlow():
            return Refusal("too_large", "it takes too long to read it")
        case _:
            return Refusal("unreadable", f"{type(error).__name__}: {error}"[:500])


def _answer(request: Request, descriptor: int, target: socket.socket) -> bool:
    """Whether the file was read; a process that failed one is not used again."""
    # The owner ends it before; this is for a process whose owner cannot.
    signal.setitimer(signal.ITIMER_REAL, request.limits.seconds + _GRACE_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, request.limits.cpu_seconds)
    # Python hears of the timer when Arrow returns, which it may not do for minutes; this ends the process anyhow.
    used = resource.getrusage(resource.RUSAGE_SELF)
    began = used.ru_utime + used.ru_stime
    resource.setrlimit(
        resource.RLIMIT_CPU, (math.ceil(began + request.limits.cpu_seconds) + 1, resource.RLIM_INFINITY)
    )
    try:
        with os.fdopen(descriptor, "rb") as file:
            sink = _Frames(target, request.limits.most_bytes)
            rows = _made(request.work, file, sink)
            sink.finish()
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        refusal = _refusal(error)
    except Exception as error:
        refusal = _refusal(error)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        used = resource.getrusage(resource.RUSAGE_SELF)
        _send(target, b"F", msgspec.json.encode(Done(rows, used.ru_utime + used.ru_stime - began)))
        return True
    signal.setitimer(signal.ITIMER_PROF, 0)
    _send(target, b"E", msgspec.json.encode(refusal))
    return False


def _confine(abi: int, system_calls: seccomp.Filter | None) -> None:
    def too_slow(*_: object) -> NoReturn:
        raise _TooSlow

    signal.signal(signal.SIGPROF, too_slow)
    memory = _inherited_bytes() + MEMORY_BYTES
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    forking.confine(abi, system_calls, readable=[], writable=[])


def _inherited_bytes() -> int:
    """What counts for the limit already: memory of the server, of which most is never touched."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def run(conversation: socket.socket, abi: int, system_calls: seccomp.Filter | None) -> NoReturn:
    try:
        _confine(abi, system_calls)
        while (received := _receive(conversation)) is not None:
            if not _answer(*received, conversation):
                break
    finally:
        os._exit(0)  # nothing of this process is worth tidying up


def serve(control: socket.socket) -> NoReturn:
    abi, system_calls = forking.confinement()
    _warm_up()
    hello = msgspec.json.encode({"landlock": abi, "seccomp": system_calls is not None})
    forking.serve(control, hello, lambda conversation: run(conversation, abi, system_calls))


def _warm_up() -> None:
    """What a decoder would otherwise load for itself, where it can read nothing any more."""
    os.environ.clear()
    os.environ["TZ"] = "UTC"
    ctypes.CDLL(None)
    pa.set_memory_pool(
        pa.system_memory_pool()
    )  # gives back what is freed, so that a limit means what is used
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    tries: tuple[Callable[[Any], None], ...] = (hot_rows.warm_up, signals.warm_up, kept_rows.warm_up)
    for warm_up in tries:
        warm_up(io.BytesIO())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
