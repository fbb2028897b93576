"""The owner's side: a few decoders, each kept from file to file, and forked anew when it fails.

Used from threads, each of which waits for its file. The server is started with the first file, and again when it died.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from traceplane import telemetry
from traceplane.decoding.messages import (
    ANSWER_HEAD,
    FRAME_BYTES,
    REQUEST_HEAD,
    Done,
    Limits,
    Misfit,
    Refusal,
    Request,
    TooLarge,
    Unreadable,
    Work,
)
from traceplane.linux.forking import ForkingServer
from traceplane.linux.plain_files import open_plain

_TRIES = 3
"""Of a file whose decoder ended without a word."""


class Decoders:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkingServer | None = None
        self._names = itertools.count(1)
        self._idle: list[_Decoder] = []
        self._closed = False

    def decode(self, path: Path, work: Work, limits: Limits, sink: IO[bytes]) -> Done:
        """Writes what is made of the file to the sink, and returns how many rows that is and what it took.

        Raises Misfit, TooLarge or Unreadable, and then leaves nothing of it in the sink.
        """
        request = msgspec.json.encode(Request(work, limits))
        start = sink.tell()
        for tried in range(_TRIES):
            try:
                with open_plain(path) as file, self._taken(fresh=tried > 0) as decoder:
                    return decoder.ask(request, file.fileno(), limits, sink)
            except _Ended:
                sink.seek(start)
                sink.truncate()
            except OSError as error:
                raise Unreadable(str(error)) from error
            except BaseException:
                sink.seek(start)
                sink.truncate()
                raise
        raise Unreadable("the process that reads it ended each time without a word")

    def close(self) -> None:
        """Ends what is under way, too."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            server, self._server = self._server, None
        for decoder in idle:
            decoder.end()
        if server is not None:
            server.close()

    @contextlib.contextmanager
    def _taken(self, *, fresh: bool) -> Iterator[_Decoder]:
        with self._lock:
            decoder = self._idle.pop() if self._idle and not fresh else self._forked()
        try:
            yield decoder
        except BaseException:
            decoder.end()
            raise
        with self._lock:
            self._idle.append(decoder)

    def _forked(self) -> _Decoder:
        if self._closed:
            raise Unreadable("files are not read any more, since this process stops")
        if self._server is not None and self._server.running:
            with contextlib.suppress(OSError):  # it has just died
                return _Decoder(self._server, str(next(self._names)))
        if self._server is not None:
            self._server.close()
        self._server = ForkingServer("traceplane.decoding.decoder")
        telemetry.emit(
            "decoding.server_started", pid=self._server.pid, **msgspec.json.decode(self._server.hello)
        )
        return _Decoder(self._server, str(next(self._names)))


class Budget:
    """What several files may take together, however many there are."""

    def __init__(self, most_bytes: int, cpu_seconds: float = 10.0) -> None:
        self._most_bytes, self._cpu_seconds = most_bytes, cpu_seconds

    def decode(self, decoders: Decoders, path: Path, work: Work, sink: IO[bytes]) -> int:
        """How many rows the next one makes; the sink has what the others made. Raises as `Decoders.decode` does."""
        if self._cpu_seconds <= 0:
            raise TooLarge("its files take too long to read")
        limits = Limits(self._most_bytes - sink.tell(), cpu_seconds=self._cpu_seconds)
        done = decoders.decode(path, work, limits, sink)
        self._cpu_seconds -= done.cpu_seconds
        return done.rows


class _Ended(Exception):
    """A decoder that is gone in the middle, or whose memory may be full of what earlier files left."""


class _Decoder:
    """Nothing that it says is believed to be of a size that was not agreed on."""

    def __init__(self, server: ForkingServer, name: str) -> None:
        self._server, self._name = server, name
        self._files = 0
        self._socket, theirs = socket.socketpair()
        try:
            server.fork(name, theirs)
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()  # so that its end is the end of the conversation

    def end(self) -> None:
        self._socket.close()
        self._server.kill(self._name)

    def ask(self, request: bytes, descriptor: int, limits: Limits, sink: IO[bytes]) -> Done:
        began = time.monotonic()
        deadline = began + limits.seconds
        self._socket.settimeout(limits.seconds)
        try:
            socket.send_fds(self._socket, [REQUEST_HEAD.pack(len(request))], [descriptor])
            self._socket.sendall(request)
            left = limits.most_bytes
            while True:
                kind, size = ANSWER_HEAD.unpack(self._received(ANSWER_HEAD.size, deadline))
                if size > FRAME_BYTES:
                    raise Unreadable("the process that reads it does not answer as agreed")
                body = self._received(size, deadline)
                if kind != b"D":
                    break
                left -= size
                if left < 0:
                    raise TooLarge("there is more in it than may be read at once")
                sink.write(body)
        except TimeoutError:
            raise Unreadable(f"it was not read within {limits.seconds:g} seconds") from None
        except ConnectionError:
            if time.monotonic() - began >= limits.cpu_seconds:
                raise TooLarge("it takes too long to read it") from None
            raise _Ended from None
        try:
            if kind == b"F":
                self._files += 1
                return msgspec.json.decode(body, type=Done)
            refusal = msgspec.json.decode(body, type=Refusal)
        except msgspec.MsgspecError:
            raise Unreadable("the process that reads it does not answer as agreed") from None
        match refusal.kind:
            case "misfit":
                raise Misfit(refusal.message, column=refusal.column, next_step=refusal.next_step)
            case "too_large":
                raise TooLarge(refusal.message)
            case "out_of_memory":
                raise TooLarge(refusal.message) if self._files == 0 else _Ended
            case "unreadable":
                raise Unreadable(refusal.message)

    def _received(self, size: int, deadline: float) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            if not (piece := self._socket.recv(size - len(pieces))):
                raise ConnectionResetError
            pieces += piece
        return bytes(pieces)
