"""A process that reads Parquet files one after another, and the server that forks it.

Its memory is limited, and of the file system and the network it has only the descriptors that it is given.
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
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet

from traceplane.decoding import hot_rows, kept_rows, signals
from traceplane.decoding.messages import (
    Decoded,
    DecoderAnswer,
    DecodeRequest,
    FileRefusal,
    HotRowsWork,
    InvalidContents,
    KeptRowsWork,
    SignalsWork,
    Work,
)
from traceplane.linux import conversation, fork_server
from traceplane.linux.confine import Allowed, Barriers, confine, no_network
from traceplane.linux.conversation import Pieces, TooManyBytes
from traceplane.linux.fork_server import Readiness

MEMORY_BYTES = 512 << 20
"""For the data read and the result, besides what the process inherits from its server."""
_GRACE_SECONDS = 5.0


class _TooSlow(Exception):
    pass


def _receive(owner: socket.socket) -> tuple[DecodeRequest, int] | None:
    """A request and its file; None if there are no more."""
    received = conversation.receive_request(owner)
    if received is None:
        return None
    body, (descriptor,) = received
    return msgspec.json.decode(body, type=DecodeRequest), descriptor


def _end(owner: socket.socket, answer: DecoderAnswer) -> None:
    conversation.send_frame(owner, conversation.END, msgspec.json.encode(answer))


def _made(work: Work, file: Any, sink: Any) -> int:
    with parquet.ParquetFile(file) as opened:
        match work:
            case HotRowsWork():
                return hot_rows.write(opened, work, sink)
            case SignalsWork():
                return signals.write(opened, work, sink)
            case KeptRowsWork():
                return kept_rows.write(opened, work, sink)


def _refusal(error: BaseException) -> FileRefusal:
    match error:
        case InvalidContents():
            return FileRefusal(
                "invalid",
                str(error),
                column=error.column,
                next_step=error.next_step,
                row=error.row,
                value=error.value,
                expected=error.expected,
            )
        case TooManyBytes():
            return FileRefusal("too_large", "it contains more than may be read at once")
        case MemoryError():
            return FileRefusal(
                "out_of_memory", f"it takes more than {MEMORY_BYTES >> 20} MB of memory to read"
            )
        case _TooSlow():
            return FileRefusal("too_large", "it takes too long to read")
        case _:
            return FileRefusal("unreadable", f"{type(error).__name__}: {error}"[:500])


def _answer(request: DecodeRequest, descriptor: int, owner: socket.socket) -> bool:
    """Whether the file was read; a process that failed on one is not used again."""
    # Normally the owner ends it earlier; this is for a process whose owner cannot.
    signal.setitimer(signal.ITIMER_REAL, request.limits.seconds + _GRACE_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, request.limits.cpu_seconds)
    # Python sees the timer only when Arrow returns, which may take minutes; this ends the process in any case.
    used = resource.getrusage(resource.RUSAGE_SELF)
    began = used.ru_utime + used.ru_stime
    resource.setrlimit(
        resource.RLIMIT_CPU, (math.ceil(began + request.limits.cpu_seconds) + 1, resource.RLIM_INFINITY)
    )
    try:
        with os.fdopen(descriptor, "rb") as file:
            sink = Pieces(owner, request.limits.most_bytes)
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
        _end(owner, Decoded(rows, used.ru_utime + used.ru_stime - began))
        return True
    signal.setitimer(signal.ITIMER_PROF, 0)
    _end(owner, refusal)
    return False


def _too_slow(*_: object) -> NoReturn:
    raise _TooSlow


def allowed() -> Allowed:
    """No file and no network: a decoder has only the descriptors that it is given."""
    return Allowed(
        limits={
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: _inherited_bytes() + MEMORY_BYTES,
            resource.RLIMIT_FSIZE: 0,
        }
    )


def _inherited_bytes() -> int:
    """What already counts towards the limit: memory of the server, most of which is never touched."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def _run(owner: socket.socket, barriers: Barriers) -> NoReturn:
    try:
        signal.signal(signal.SIGPROF, _too_slow)
        confine(allowed(), barriers)
        while (received := _receive(owner)) is not None:
            if not _answer(*received, owner):
                break
    finally:
        os._exit(0)  # nothing needs cleaning up


def _prepare(setup: bytes, descriptors: list[int]) -> Readiness:
    barriers = no_network()
    _warm_up()
    return Readiness(msgspec.json.encode(barriers.strength), lambda owner, work: _run(owner, barriers))


def _warm_up() -> None:
    """Loads what a decoder could not load itself, since it cannot read files."""
    os.environ.clear()
    os.environ["TZ"] = "UTC"
    ctypes.CDLL(None)
    pa.set_memory_pool(
        pa.system_memory_pool()
    )  # returns freed memory, so that the limit applies to used memory
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    tries: tuple[Callable[[Any], None], ...] = (hot_rows.warm_up, signals.warm_up, kept_rows.warm_up)
    for warm_up in tries:
        warm_up(io.BytesIO())


if __name__ == "__main__":
    fork_server.main(_prepare)
