"""Messages between a forked process and its owner: bytes on their socket, whatever they mean.

    request  length, body; may carry a descriptor
    frame    kind, length, body: pieces of the result (DATA), then how it ended (END); or what the process asks for in
             between (ASK), if its owner answers questions

The process may be hostile by then, so its owner reads no frame longer than agreed.
"""

from __future__ import annotations

import io
import socket
import struct
from typing import Any, Protocol

FRAME_BYTES = 256 << 10
"""The longest body of a frame."""
FRAME_HEAD = struct.Struct(">cI")
DATA, END, ASK = b"D", b"E", b"A"

_REQUEST_HEAD = struct.Struct(">I")


class NotAsAgreed(Exception):
    """A frame that is too long or of an unknown kind."""


class TooManyBytes(Exception):
    """The result is larger than its limit."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the result is larger than {most_bytes} bytes")
        self.most_bytes = most_bytes


def as_request(body: bytes) -> bytes:
    return _REQUEST_HEAD.pack(len(body)) + body


def send_request(target: socket.socket, body: bytes, descriptor: int) -> None:
    socket.send_fds(target, [_REQUEST_HEAD.pack(len(body))], [descriptor])
    target.sendall(body)


def receive_request(source: socket.socket) -> tuple[bytes, list[int]] | None:
    """The next request and its descriptors; None if there are no more."""
    head, descriptors, _, _ = socket.recv_fds(source, _REQUEST_HEAD.size, 1)
    while head and len(head) < _REQUEST_HEAD.size:
        if not (more := source.recv(_REQUEST_HEAD.size - len(head))):
            return None
        head += more
    if not head:
        return None
    (size,) = _REQUEST_HEAD.unpack(head)
    body = bytearray()
    while len(body) < size:
        if not (piece := source.recv(size - len(body))):
            return None
        body += piece
    return bytes(body), descriptors


class Target(Protocol):
    def sendall(self, data: bytes, /) -> None: ...


def send_frame(target: Target, kind: bytes, body: bytes) -> None:
    target.sendall(FRAME_HEAD.pack(kind, len(body)) + body)


def frame_of(head: bytes, kinds: tuple[bytes, ...] = (DATA, END)) -> tuple[bytes, int]:
    """Kind and length of the frame that follows."""
    kind, size = FRAME_HEAD.unpack(head)
    if kind not in kinds or size > FRAME_BYTES:
        raise NotAsAgreed
    return kind, size


class Pieces(io.RawIOBase):
    """A file-like sink whose contents go to the owner as frames, up to a limit."""

    def __init__(self, target: Target, most_bytes: int) -> None:
        self._target, self._most_bytes = target, most_bytes
        self._waiting = bytearray()
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        piece = memoryview(data).cast("B")
        self.written += len(piece)
        if self.written > self._most_bytes:
            raise TooManyBytes(self._most_bytes)
        self._waiting += piece
        while len(self._waiting) >= FRAME_BYTES:
            send_frame(self._target, DATA, bytes(self._waiting[:FRAME_BYTES]))
            del self._waiting[:FRAME_BYTES]
        return len(piece)

    def finish(self) -> None:
        if self._waiting:
            send_frame(self._target, DATA, bytes(self._waiting))
            self._waiting.clear()
