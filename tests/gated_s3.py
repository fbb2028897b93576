"""A way to an S3 server on which single uploads of executors can be stopped, before the server has them or after.

    async with gated(server) as gate:
        gate.stop("stored")  # the server will have the file, and whoever sent it will not know
        upload = await gate.stopped()
        ...
        gate.go_on()

Uploads of executors are recognized by their header `If-None-Match`; everything else passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.seaweedfs import SeaweedFS

Step = Literal["asked", "stored"]
"""`asked`: the upload has begun, and the server knows nothing of it. `stored`: the server has answered that it has the
file, and the answer is on its way."""
_HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class Upload:
    key: str
    pid: int
    """Of the process that sent it."""


class Gate:
    def __init__(self, server: SeaweedFS) -> None:
        self._server = server
        self.endpoint = ""
        self._step: Step | None = None
        self._passing = 0
        self._stopped: asyncio.Future[Upload] | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._refused = 0
        self._serving: set[asyncio.Task[Any]] = set()

    def stop(self, step: Step, *, after: int = 0) -> None:
        """Stops one upload at that step: the first one `after` so many others."""
        self._step, self._passing, self._refused = step, after, 0
        self._stopped = asyncio.get_running_loop().create_future()
        self._open.clear()

    async def stopped(self, seconds: float = 240.0) -> Upload:
        assert self._stopped is not None
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self._stopped)

    def go_on(self) -> None:
        self._step = None
        self._open.set()

    async def was_refused(self) -> bool:
        """Whether the server was not there for somebody, since `stop`."""
        return self._refused > 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = [writer]
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)  # the loop knows of a task only weakly once its connection is gone
        serving.add_done_callback(self._serving.discard)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._answer(reader, writer, opened)
        finally:
            for one in opened:
                one.close()
            for one in opened:
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opened: list[asyncio.StreamWriter]
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        step = self._step_of(head)
        if step is not None:
            key = head.split(b" ", 2)[1].decode()
            pid = await asyncio.to_thread(_process_at, writer.get_extra_info("peername")[1])
            upload = Upload(key, pid)
        if step == "asked":
            await self._hold(upload)
        try:
            answers, asks = await asyncio.open_connection("127.0.0.1", self._server.port)
        except OSError:
            self._refused += 1
            raise
        opened.append(asks)
        asks.write(head)
        there = asyncio.create_task(_pass(reader, asks))
        try:
            if step == "stored":
                answer = await answers.read(_HEAD_BYTES)
                assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
                await self._hold(upload)
                writer.write(answer)
            await asyncio.gather(there, _pass(answers, writer))
        finally:
            there.cancel()

    async def end(self) -> None:
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _step_of(self, head: bytes) -> Step | None:
        if self._step is None or not head.startswith(b"PUT ") or b"\r\nif-none-match:" not in head.lower():
            return None
        self._passing -= 1
        if self._passing >= 0:
            return None
        step, self._step = self._step, None
        return step

    async def _hold(self, upload: Upload) -> None:
        assert self._stopped is not None
        self._stopped.set_result(upload)
        await self._open.wait()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 20):
            target.write(data)
            await target.drain()
        target.write_eof()


def _process_at(port: int) -> int:
    """The process whose connection comes from that local port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[1].endswith(f":{port:04X}")}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) in inodes and (pid := int(descriptor.parts[2])) != os.getpid():
                return pid
    raise AssertionError(f"no process has a connection from port {port}")


@contextlib.asynccontextmanager
async def gated(server: SeaweedFS) -> AsyncIterator[Gate]:
    gate = Gate(server)
    listening = await asyncio.start_server(gate.serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
    gate.endpoint = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        gate.go_on()
        listening.close()
        await gate.end()
