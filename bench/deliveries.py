"""A sender of webhooks that costs little itself, since it shares the cores with what it measures.

Requests are made beforehand. Each connection sends one, waits for its answer, and sends the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator

KEY = "a key that nobody else has"
PATH = "/hooks/default/orders"


def requests(count: int, run: str) -> list[bytes]:
    """Signed as GitHub does, with bodies of about 400 bytes and a key for each."""
    made = []
    for number in range(count):
        body = json.dumps({"id": number, "amount": f"{number % 1000}.50", "note": "x" * 340}).encode()
        signature = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-github-event: push\r\nx-github-delivery: {run}-{number}\r\n"
            f"x-hub-signature-256: sha256={signature}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


class _Connection(asyncio.Protocol):
    def __init__(self, waiting: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self._waiting, self._done = waiting, done
        self._received = b""
        self.accepted = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._send()

    def _send(self) -> None:
        request = next(self._waiting, None)
        if request is None:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            assert b" 200 " in head.partition(b"\r\n")[0], self._received
            self.accepted += b'"accepted"' in body
            self._received = b""
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server closed the connection"))


async def send(port: int, made: list[bytes], connections: int) -> float:
    """Deliveries a second, all of which were accepted."""
    loop, waiting = asyncio.get_running_loop(), iter(made)
    began = time.perf_counter()
    ends: list[asyncio.Future[None]] = [loop.create_future() for _ in range(connections)]
    opened = [
        await loop.create_connection(lambda done=done: _Connection(waiting, done), "127.0.0.1", port)  # type: ignore[misc]
        for done in ends
    ]
    await asyncio.gather(*ends)
    seconds = time.perf_counter() - began
    assert sum(protocol.accepted for _, protocol in opened) == len(made)
    return len(made) / seconds
