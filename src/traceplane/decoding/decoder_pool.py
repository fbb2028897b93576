"""The owner's side: a few decoders, each reused from file to file of one organization and replaced when it fails.

Used from threads, each of which waits for its file. The server starts with the first file, and again if it died.
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
    Decoded,
    DecoderAnswer,
    DecodeRequest,
    FileLimits,
    FileRefusal,
    FileTooLarge,
    InvalidContents,
    Unreadable,
    Work,
)
from traceplane.linux import conversation
from traceplane.linux.confine import Strength
from traceplane.linux.fork_server import ForkServer
from traceplane.linux.plain_files import open_plain

_answers: msgspec.json.Decoder[DecoderAnswer] = msgspec.json.Decoder(DecoderAnswer)
_TRIES = 3
"""For a file whose decoder ended without an answer."""
_MOST_IDLE = 16
"""Beyond these, those that were not used for longest are ended."""


class Decoders:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._names = itertools.count(1)
        self._idle: list[_Decoder] = []
        """The one used last comes last."""
        self._closed = False

    def decode(self, org: str, path: Path, work: Work, limits: FileLimits, sink: IO[bytes]) -> Decoded:
        """Writes the decoded file to the sink, and returns the number of rows and the cost.

        A decoder only ever reads files of one organization: one that a hostile file took over sees no others. Raises
        InvalidContents, FileTooLarge or Unreadable, and then leaves nothing in the sink.
        """
        request = msgspec.json.encode(DecodeRequest(work, limits))
        start = sink.tell()
        for tried in range(_TRIES):
            try:
                with open_plain(path) as file, self._taken(org, fresh=tried > 0) as decoder:
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
        raise Unreadable("the process that reads it crashed each time")

    def close(self) -> None:
        """Also ends decoding in progress."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            server, self._server = self._server, None
        for decoder in idle:
            decoder.end()
        if server is not None:
            server.close()

    @contextlib.contextmanager
    def _taken(self, org: str, *, fresh: bool) -> Iterator[_Decoder]:
        with self._lock:
            idle = None if fresh else next((d for d in reversed(self._idle) if d.org == org), None)
            if idle is not None:
                self._idle.remove(idle)
            decoder = idle or self._forked(org)
        try:
            yield decoder
        except BaseException:
            decoder.end()
            raise
        with self._lock:
            self._idle.append(decoder)
            unused, self._idle = self._idle[:-_MOST_IDLE], self._idle[-_MOST_IDLE:]
        for decoder in unused:
            decoder.end()

    def _forked(self, org: str) -> _Decoder:
        if self._closed:
            raise Unreadable("this process is stopping and reads no more files")
        if self._server is not None and self._server.running:
            with contextlib.suppress(OSError):  # it has just died
                return _Decoder(org, self._server, str(next(self._names)))
        if self._server is not None:
            self._server.close()
        self._server = _started_server()
        return _Decoder(org, self._server, str(next(self._names)))


def _started_server() -> ForkServer:
    def on_complaint(text: str) -> None:
        telemetry.emit("decoding.server_says", "warning", text=text)

    server = ForkServer(
        "traceplane.decoding.decoder_process", on_complaint, environment={"OPENBLAS_NUM_THREADS": "1"}
    )
    try:
        strength = msgspec.json.decode(server.greet(), type=Strength)
    except BaseException:
        server.close()
        raise
    telemetry.emit(
        "decoding.server_started", pid=server.pid, landlock=strength.landlock, seccomp=strength.seccomp
    )
    return server


class Budget:
    """A budget that several files share, however many there are."""

    def __init__(self, most_bytes: int, cpu_seconds: float = 10.0) -> None:
        self._most_bytes, self._cpu_seconds = most_bytes, cpu_seconds

    def decode(self, decoders: Decoders, org: str, path: Path, work: Work, sink: IO[bytes]) -> int:
        """Decodes the next file and returns its number of rows; the sink keeps earlier rows. Raises like `Decoders`."""
        if self._cpu_seconds <= 0:
            raise FileTooLarge("its files take too long to read")
        limits = FileLimits(self._most_bytes - sink.tell(), cpu_seconds=self._cpu_seconds)
        done = decoders.decode(org, path, work, limits, sink)
        self._cpu_seconds -= done.cpu_seconds
        return done.rows


class _Ended(Exception):
    """A decoder that ended in the middle, or whose memory may be full of leftovers of earlier files."""


class _Decoder:
    """No size in its answers is trusted beyond the agreed limits."""

    def __init__(self, org: str, server: ForkServer, name: str) -> None:
        self.org, self._server, self._name = org, server, name
        self._files = 0
        self._socket, theirs = socket.socketpair()
        try:
            server.fork(name, theirs)
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()  # so that the conversation ends with the process

    def end(self) -> None:
        self._socket.close()
        self._server.kill(self._name)

    def ask(self, request: bytes, descriptor: int, limits: FileLimits, sink: IO[bytes]) -> Decoded:
        began = time.monotonic()
        deadline = began + limits.seconds
        self._socket.settimeout(limits.seconds)
        try:
            conversation.send_request(self._socket, request, descriptor)
            remaining = limits.most_bytes
            while True:
                head = self._received(conversation.FRAME_HEAD.size, deadline)
                kind, size = conversation.frame_of(head)
                body = self._received(size, deadline)
                if kind == conversation.END:
                    break
                remaining -= size
                if remaining < 0:
                    raise FileTooLarge("it contains more than may be read at once")
                sink.write(body)
            answer = _answers.decode(body)
        except (conversation.NotAsAgreed, msgspec.MsgspecError):
            raise Unreadable("the process that reads it sent an invalid answer") from None
        except TimeoutError:
            raise Unreadable(f"it was not read within {limits.seconds:g} seconds") from None
        except ConnectionError:
            if time.monotonic() - began >= limits.cpu_seconds:
                raise FileTooLarge("it takes too long to read") from None
            raise _Ended from None
        match answer:
            case Decoded():
                self._files += 1
                return answer
            case FileRefusal():
                raise self._error(answer)

    def _error(self, refusal: FileRefusal) -> Exception:
        match refusal.kind:
            case "invalid":
                return InvalidContents(
                    refusal.message,
                    column=refusal.column,
                    next_step=refusal.next_step,
                    row=refusal.row,
                    value=refusal.value,
                    expected=refusal.expected,
                )
            case "too_large":
                return FileTooLarge(refusal.message)
            case "out_of_memory":
                return FileTooLarge(refusal.message) if self._files == 0 else _Ended()
            case "unreadable":
                return Unreadable(refusal.message)

    def _received(self, size: int, deadline: float) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            if not (piece := self._socket.recv(size - len(pieces))):
                raise ConnectionResetError
            pieces += piece
        return bytes(pieces)
