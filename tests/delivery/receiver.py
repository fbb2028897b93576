"""An HTTP server that answers with given bytes, and misbehaves as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Received:
    request: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        (value,) = [value for header, value in self.headers if header == name]
        return value

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    host: str = "127.0.0.1"
    port: int = 0
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/in"


def answer(status: int, body: bytes = b"", *headers: str) -> Answer:
    head = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", *headers]
    return pieces("\r\n".join(head).encode() + b"\r\n\r\n" + body)


def pieces(*given: bytes, again: float | None = None) -> Answer:
    """`again`: the last piece is repeated for ever, at this interval."""

    async def write(writer: asyncio.StreamWriter) -> None:
        for piece in given:
            writer.write(piece)
            await writer.drain()
        while again is not None:
            await asyncio.sleep(again)
            writer.write(given[-1])
            await writer.drain()

    return write


async def until_closed(port: int) -> None:
    """Until nobody holds a connection to this port any more; fails if that depends on the other side."""
    async with asyncio.timeout(10):
        while _is_connected_to(port):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _is_connected_to(port: int) -> bool:
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    # A socket without an inode belongs to no process any more.
    return any(int(row[2].partition(":")[2], 16) == port and row[9] != "0" for row in rows)


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def receiving(
    answer: Answer, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, reads_body: bool = True
) -> AsyncIterator[Receiver]:
    receiver = Receiver(host)
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        receiver.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = tuple(
                    (name.lower(), value.strip()) for name, _, value in (h.partition(":") for h in head[1:-2])
                )
                length = int(dict(headers).get("content-length", "0"))
                body = await reader.readexactly(length) if reads_body else b""
                receiver.received.append(Received(head[0], headers, body))
                await answer(writer)
        finally:
            writer.close()

    listening = socket.create_server((host, 0))
    if not reads_body:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the sender has to wait
    server = await asyncio.start_server(handle, sock=listening, ssl=tls, limit=4096)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
