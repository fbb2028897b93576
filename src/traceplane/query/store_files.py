"""Files of the store that the process of a query reads in parts, through its gateway.

The process has neither network nor credentials. It asks for a part of a file on the socket on which it sends the
result, and the gateway, which knows the query's files, answers with the bytes. DuckDB reads the footer of a file, and
then the columns of the row groups that it needs.

    question  number, file, start, count    as a frame (`linux.conversation`)
    answer    number, count, bytes          no bytes: they could not be read, and the gateway knows why

Questions are numbered, and several may be open at once; answers come in any order.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from traceplane.linux import conversation

SCHEME = "store"
QUESTION = struct.Struct(">IIQI")
ANSWER = struct.Struct(">II")
MOST_BYTES = 4 << 20
"""Of one answer; longer parts are asked for in pieces, all at once."""
MOST_OPEN = 16
"""Questions of one query."""


def name_of(path: str) -> str:
    """What the engine calls a file of the store."""
    return f"{SCHEME}://{path}"


class SharedSocket:
    """One on which several threads send: each call sends its bytes in one piece."""

    def __init__(self, target: socket.socket) -> None:
        self._target, self._sending = target, threading.Lock()

    def sendall(self, data: bytes) -> None:
        with self._sending:
            self._target.sendall(data)


class Questions:
    """The process's side. A thread takes the answers."""

    def __init__(self, source: socket.socket, target: SharedSocket) -> None:
        self._source, self._target = source, target
        self._numbers = itertools.count()
        self._open: dict[int, _Waiting] = {}
        self._room = threading.BoundedSemaphore(MOST_OPEN)
        threading.Thread(target=self._listen, daemon=True, name="answers").start()

    def read(self, file: int, start: int, count: int) -> bytes:
        """Raises OSError if the store did not answer."""
        pieces = [
            self._ask(file, first, min(MOST_BYTES, start + count - first))
            for first in range(start, start + count, MOST_BYTES)
        ]
        return b"".join(self._answer(piece) for piece in pieces)

    def _ask(self, file: int, start: int, count: int) -> _Waiting:
        self._room.acquire()
        waiting = _Waiting(next(self._numbers) & 0xFFFFFFFF, count)
        self._open[waiting.number] = waiting
        question = QUESTION.pack(waiting.number, file, start, count)
        conversation.send_frame(self._target, conversation.ASK, question)
        return waiting

    def _answer(self, waiting: _Waiting) -> bytes:
        waiting.came.wait()
        if len(waiting.data) != waiting.count:
            raise OSError("a file of the store cannot be read")
        return waiting.data

    def _listen(self) -> None:
        while head := self._exactly(ANSWER.size):
            number, count = ANSWER.unpack(head)
            waiting = self._open.pop(number)
            waiting.data = self._exactly(count)
            self._room.release()
            waiting.came.set()
        for waiting in list(self._open.values()):  # the gateway is gone
            waiting.came.set()

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view, received = memoryview(data), 0
        while received < count:
            if not (size := self._source.recv_into(view[received:])):
                return b""
            received += size
        return bytes(data)


class _Waiting:
    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.data = b""
        self.came = threading.Event()


def file_system(sizes: Mapping[str, int], questions: Questions) -> Any:
    """For DuckDB: the files of the query by their names, and no others."""
    from fsspec import AbstractFileSystem  # the type that DuckDB asks for

    numbers = {name: number for number, name in enumerate(sizes)}

    class StoreFiles(AbstractFileSystem):  # type: ignore[misc]
        protocol = SCHEME
        cachable = False

        def glob(self, path: str, **_: Any) -> list[str]:
            return [path] if path in sizes else []

        def exists(self, path: str, **_: Any) -> bool:
            return path in sizes

        def isfile(self, path: str) -> bool:
            return path in sizes

        def size(self, path: str) -> int:
            return sizes[path]

        def modified(self, path: str) -> datetime:
            return datetime(2000, 1, 1, tzinfo=UTC)  # files of the store never change

        def open(self, path: str, mode: str = "rb", **_: Any) -> _OpenFile:
            if mode != "rb":
                raise PermissionError("files of the store are only read")
            return _OpenFile(questions, numbers[path], sizes[path])

    return StoreFiles()


class _OpenFile:
    """What DuckDB uses of a file; each of its threads opens its own."""

    def __init__(self, questions: Questions, number: int, size: int) -> None:
        self._questions, self._number, self._size = questions, number, size
        self._at = 0

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        count = left if count < 0 else min(count, left)
        data = self._questions.read(self._number, self._at, count) if count else b""
        self._at += len(data)
        return data

    def close(self) -> None:
        pass
