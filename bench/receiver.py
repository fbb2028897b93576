"""A receiver of messages that costs little itself, since it shares the cores with what it measures.

`POST` is answered with 204. `GET` answers how many messages came, and when each did, by their keys; then it forgets
them. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

_ACCEPTED = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"

came: dict[str, float] = {}


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        lower = head.lower()
        if lower.startswith(b"get "):
            text = json.dumps(came).encode()
            came.clear()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode()
            self._transport.write(head + text)
            self._received = b""
        elif len(body) >= int(_header(lower, b"content-length")):
            came[_header(lower, b"idempotency-key").decode()] = time.monotonic()
            self._transport.write(_ACCEPTED)
            self._received = b""


def _header(head: bytes, name: bytes) -> bytes:
    return head.partition(name + b":")[2].partition(b"\r\n")[0].strip()


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=500)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
