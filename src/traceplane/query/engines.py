"""The gateway's side of the engine: a server process that forks, and one conversation for each query.

The server is started with the first query and again when it died. A query is ended by closing its conversation and
killing its process: when its time is over, when its caller is gone, and when the gateway stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from traceplane import telemetry
from traceplane.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    TooLarge,
    TraceplaneError,
)
from traceplane.linux.forking import ForkingServer

_HEAD = struct.Struct(">cI")

Request = dict[str, Any]
"""What `engine.EngineRequest` decodes; a plain dict, since only the engine's process imports DuckDB."""

_KINDS: dict[str, type[TraceplaneError]] = {
    "query.several_statements": Forbidden,
    "query.not_a_select": Forbidden,
    "query.function_denied": Forbidden,
    "query.syntax_denied": Forbidden,
    "query.unknown_relation": NotFound,
    "query.too_large": TooLarge,
    "query.out_of_memory": TooLarge,
    "query.timeout": TooLarge,
    "query.file_unreadable": Conflict,
    "query.engine_failed": PlatformError,
}
_NEXT_STEPS = {
    "query.too_large": "aggregate, filter, or add a LIMIT; or let it run on Spark with --to-dataset",
    "query.out_of_memory": "read fewer rows or columns, or let it run on Spark with --to-dataset",
    "query.timeout": "read fewer rows or columns, or let it run on Spark with --to-dataset",
    "query.file_unreadable": "repeat the query; history may be gone, see `traceplane gc`",
}


class Engines:
    def __init__(self, *, spill_root: Path, concurrency: int, wait_seconds: float = 10.0) -> None:
        self._spill_root = spill_root
        self._slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._wait_seconds = wait_seconds
        self._numbers = itertools.count(1)
        self._starting: asyncio.Task[ForkingServer] | None = None
        self._server: ForkingServer | None = None

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        await self._end()

    async def _end(self) -> None:
        if self._server is not None:
            ended, self._server = self._server, None
            await asyncio.to_thread(ended.close)

    async def run(self, request: Request, *, seconds: float) -> AsyncGenerator[bytes]:
        """The pieces of the result; at its end everything of the query is gone, whatever the end was."""
        await self._take_slot()
        try:
            await self._running_server()  # its start is not the query's time
            deadline = time.monotonic() + seconds
            self._spill_root.mkdir(parents=True, exist_ok=True)
            spill = tempfile.mkdtemp(prefix="query-", dir=self._spill_root)
            try:
                body = msgspec.json.encode({**request, "spill": spill, "seconds": seconds + 10})
                try:
                    async with contextlib.aclosing(self._converse(body, deadline, seconds)) as pieces:
                        async for piece in pieces:
                            yield piece
                except _NothingCame:
                    if not await self._server_died():
                        raise _refused("query.engine_failed", "the engine crashed on this query") from None
                    async with contextlib.aclosing(self._converse(body, deadline, seconds)) as pieces:
                        async for piece in pieces:
                            yield piece
            finally:
                shutil.rmtree(spill, ignore_errors=True)
        finally:
            self._slots.release()

    async def _take_slot(self) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise PlatformError(
                "query.busy",
                f"{self._concurrency} queries run already, and none of them ended in time",
                next_step="try again; more may run at once with the setting query_concurrency",
            ) from None

    async def _converse(self, body: bytes, deadline: float, seconds: float) -> AsyncGenerator[bytes]:
        query = str(next(self._numbers))
        ours, theirs = socket.socketpair()
        writer, begun = None, False
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + deadline - time.monotonic()
            ) as timer:
                await self._hand_over(query, theirs)
                theirs.close()  # so that the end of the other side is the end of the conversation
                reader, writer = await asyncio.open_unix_connection(sock=ours)
                with contextlib.suppress(ConnectionError):  # it ended early, and its last frame says why
                    writer.write(struct.pack(">I", len(body)) + body)
                    await writer.drain()
            while True:
                async with asyncio.timeout_at(timer.when()):
                    kind, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                    piece = await reader.readexactly(size)
                begun = True
                if kind == b"D":
                    yield piece
                    continue
                if kind == b"E":
                    raise _refused(**msgspec.json.decode(piece))
                return
        except TimeoutError:
            raise _refused("query.timeout", f"the query took longer than {seconds:g} seconds") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if not begun:
                raise _NothingCame from None
            raise _refused("query.engine_failed", "the engine ended in the middle of the query") from None
        finally:
            theirs.close()
            if writer is None:
                ours.close()
            else:
                writer.close()
            self._kill(query)

    async def _server_died(self) -> bool:
        """Whether it was the server that ended, and not only the query's process."""
        return self._server is None or await asyncio.to_thread(self._server.ended_within, 1.0)

    async def _hand_over(self, query: str, conversation: socket.socket) -> None:
        for attempt in (1, 2):
            server = await self._running_server(again=attempt == 2)
            try:
                server.fork(query, conversation)
                return
            except OSError:
                continue
        raise PlatformError("query.engine_failed", "the engine cannot be started", next_step="see the log")

    def _kill(self, query: str) -> None:
        if self._server is not None:
            self._server.kill(query)

    async def _running_server(self, *, again: bool = False) -> ForkingServer:
        if self._starting is None:
            if self._server is not None and self._server.running and not again:
                return self._server
            self._starting = asyncio.create_task(self._restart())
        # Others wait for the same start, and go on with it when this caller gives up.
        return await asyncio.shield(self._starting)

    async def _restart(self) -> ForkingServer:
        try:
            await self._end()
            self._server = await asyncio.to_thread(ForkingServer, "traceplane.query.engine")
        except OSError:
            raise PlatformError(
                "query.engine_failed", "the engine cannot be started", next_step="see the log"
            ) from None
        finally:
            self._starting = None
        telemetry.emit(
            "query.engine_started", pid=self._server.pid, **msgspec.json.decode(self._server.hello)
        )
        return self._server


class _NothingCame(Exception):
    """A conversation that ended without a word: the query's process crashed, or it was never started."""


def _refused(code: str, message: str) -> TraceplaneError:
    return _KINDS.get(code, InvalidInput)(code, message, next_step=_NEXT_STEPS.get(code))
