"""Gateway and dispatcher as processes that may open few files: nobody without a token keeps others out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

import pytest

from tests.platform import Platform, die_with_parent, until

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-more: "
HALF_A_BODY = (
    b"POST /internal/heartbeat HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 1000\r\n\r\n{"
)
UNREAD = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 12
CONNECTIONS = 150
FILES = 256


@pytest.mark.parametrize("name", ["gateway", "dispatcher"])
async def test_slow_connections_lock_nobody_out(database_url: str, tmp_path: Path, name: str) -> None:
    limits = {f"TRACEPLANE_HTTP_{what}_SECONDS": "2" for what in ("HEAD", "BODY", "ANSWER", "IDLE")}
    async with Platform.start(database_url, tmp_path, dispatchers=0, workers=0, gateway=False) as platform:
        process = platform.add(name, name, **limits)
        with (tmp_path / "limited.log").open("wb") as log:
            process.running = await asyncio.create_subprocess_exec(
                *("sh", "-c", f'ulimit -n {FILES}; exec "$0" -m traceplane.cli.main {name}', sys.executable),
                env=process.environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        port = int(process.environment[f"TRACEPLANE_{name.upper()}_PORT"])
        await until(lambda: _is_healthy(port), what=f"{name} answers")
        opened = []
        for request in (UNREAD, HALF_A_BODY, HALF_A_HEAD):
            for _ in range(CONNECTIONS):
                opened.append(await _ask_and_read_nothing(port, request))
            assert await _is_healthy(port), (
                f"{name} answers beside {CONNECTIONS} connections of {request!r:.30}"
            )
        ended = await asyncio.wait_for(asyncio.gather(*(_end(reader) for reader, _ in opened)), 60)
        for _, writer in opened:
            writer.close()
        assert len(ended) == 3 * CONNECTIONS
        assert await _is_healthy(port)
        assert process.alive, (tmp_path / "limited.log").read_text()


async def _ask_and_read_nothing(
    port: int, request: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    opened = await asyncio.open_connection(sock=client, limit=1024)
    opened[1].write(request)
    return opened


async def _is_healthy(port: int) -> bool:
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.readline()
            writer.close()
    except OSError:
        return False
    return answer == b"HTTP/1.1 200 OK\r\n"


async def _end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass
