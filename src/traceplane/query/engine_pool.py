"""The gateway's side of the engine: a server that forks a process for each query, with a limit on concurrent ones.

The server starts with the first query, and again if it died. A query is ended by closing its conversation and killing
its process: on timeout, when its caller disconnects, and when the gateway stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceplane import telemetry
from traceplane.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    TooLarge,
    TooManyRequests,
    TraceplaneError,
)
from traceplane.linux import conversation
from traceplane.linux.confine import Strength
from traceplane.linux.fork_server import ForkServer
from traceplane.query.store_files import ANSWER, MOST_BYTES, MOST_OPEN, QUESTION
from traceplane.query.wire import Answer, EngineQuery, EngineRequest, QueryFailed

ReadPart = Callable[[int, int, int], Awaitable[bytes]]
"""Of the file with this number, from this byte, so many."""

_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
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
    "query.invalid": "correct what is named; `traceplane dataset show NAME` lists the columns of a dataset",
    "query.too_large": "aggregate, filter, or add a LIMIT; or run it on Spark with --to-dataset",
    "query.out_of_memory": "read fewer rows or columns, or run it on Spark with --to-dataset",
    "query.timeout": "read fewer rows or columns, or run it on Spark with --to-dataset",
    "query.file_unreadable": "retry the query; history may have been deleted, see `traceplane gc`",
}


@dataclass(slots=True)
class _Share:
    """What one caller has of the slots."""

    slots: asyncio.Semaphore
    queries: int = 0
    """That run or wait."""


class EnginePool:
    def __init__(
        self,
        *,
        spill_root: Path,
        concurrency: int,
        of_one_caller: int | None = None,
        wait_seconds: float = 10.0,
    ) -> None:
        """`of_one_caller`: how many of the concurrent queries may be one caller's; None: all."""
        self._spill_root = spill_root
        self._slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._of_one_caller = of_one_caller or concurrency
        self._shares: dict[str, _Share] = {}
        self._wait_seconds = wait_seconds
        self._numbers = itertools.count(1)
        self._starting: asyncio.Task[ForkServer] | None = None
        self._server: ForkServer | None = None

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        await self._end()

    async def _end(self) -> None:
        if self._server is not None:
            ended, self._server = self._server, None
            await asyncio.to_thread(ended.close)

    async def run(
        self, query: EngineQuery, caller: str = "", read: ReadPart | None = None
    ) -> AsyncGenerator[bytes]:
        """The pieces of the result; afterwards nothing of the query remains, however it ended. `read`: reads the
        files that the query reads in parts."""
        async with self._slot(caller):
            await self._running_server()  # its start does not count as the query's time
            deadline = time.monotonic() + query.limits.seconds
            self._spill_root.mkdir(parents=True, exist_ok=True)
            spill = tempfile.mkdtemp(prefix="query-", dir=self._spill_root)
            try:
                request = EngineRequest(query, spill)
                try:
                    async with contextlib.aclosing(self._converse(request, deadline, read)) as pieces:
                        async for piece in pieces:
                            yield piece
                except _NothingCame:
                    if not await self._server_died():
                        raise _error("query.engine_failed", "the engine crashed on this query") from None
                    async with contextlib.aclosing(self._converse(request, deadline, read)) as pieces:
                        async for piece in pieces:
                            yield piece
            finally:
                shutil.rmtree(spill, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def _slot(self, caller: str) -> AsyncIterator[None]:
        """First one of the caller's own, so that its further queries do not wait before those of others."""
        share = self._shares.setdefault(caller, _Share(asyncio.Semaphore(self._of_one_caller)))
        share.queries += 1
        try:
            until = asyncio.get_running_loop().time() + self._wait_seconds
            await self._take_share(share, until)
            try:
                await self._take_slot(until)
                try:
                    yield
                finally:
                    self._slots.release()
            finally:
                share.slots.release()
        finally:
            share.queries -= 1
            if not share.queries:
                del self._shares[caller]

    async def _take_share(self, share: _Share, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await share.slots.acquire()
        except TimeoutError:
            raise TooManyRequests(
                "query.too_many",
                f"{self._of_one_caller} queries of this caller are already running, and none finished in time",
                next_step="run fewer at once, or raise query_concurrency_per_caller",
            ) from None

    async def _take_slot(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._slots.acquire()
        except TimeoutError:
            raise PlatformError(
                "query.busy",
                f"{self._concurrency} queries are already running, and none finished in time",
                next_step="retry later, or raise query_concurrency",
            ) from None

    async def _converse(
        self, request: EngineRequest, deadline: float, read: ReadPart | None
    ) -> AsyncGenerator[bytes]:
        name = str(next(self._numbers))
        ours, theirs = socket.socketpair()
        writer, begun, answers = None, False, None
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + deadline - time.monotonic()
            ) as timer:
                await self._hand_over(name, theirs)
                theirs.close()  # so that the conversation ends with the other side
                reader, writer = await asyncio.open_unix_connection(sock=ours)
                with contextlib.suppress(ConnectionError):  # it ended early, and its last frame says why
                    writer.write(conversation.as_request(msgspec.json.encode(request)))
                    await writer.drain()
            answers = _Answers(writer, list(request.query.in_parts.values()), read)
            while True:
                async with asyncio.timeout_at(timer.when()):
                    kind, body = await _next_frame(reader)
                begun = True
                if kind == conversation.END:
                    _raise_if_failed(body, answers.failure)
                    return
                if kind == conversation.ASK:
                    answers.take(body)
                else:
                    yield body
        except TimeoutError:
            seconds = request.query.limits.seconds
            raise _error("query.timeout", f"the query took longer than {seconds:g} seconds") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if not begun:
                raise _NothingCame from None
            raise _error("query.engine_failed", "the engine stopped during the query") from None
        except (conversation.NotAsAgreed, msgspec.MsgspecError):
            raise _error("query.engine_failed", "the engine sent an invalid answer") from None
        finally:
            theirs.close()
            if answers is not None:
                answers.cancel()
            if writer is None:
                ours.close()
            else:
                writer.close()
            self._kill(name)

    async def _server_died(self) -> bool:
        """Whether the server ended, and not only the query's process."""
        return self._server is None or await asyncio.to_thread(self._server.ended_within, 1.0)

    async def _hand_over(self, name: str, theirs: socket.socket) -> None:
        for attempt in (1, 2):
            server = await self._running_server(again=attempt == 2)
            try:
                server.fork(name, theirs)
                return
            except OSError:
                continue
        raise PlatformError("query.engine_failed", "the engine cannot be started", next_step="see the log")

    def _kill(self, name: str) -> None:
        if self._server is not None:
            self._server.kill(name)

    async def _running_server(self, *, again: bool = False) -> ForkServer:
        if self._starting is None:
            if self._server is not None and self._server.running and not again:
                return self._server
            self._starting = asyncio.create_task(self._restart(), context=Context())
        # Others wait for the same start, and continue even if this caller gives up.
        return await asyncio.shield(self._starting)

    async def _restart(self) -> ForkServer:
        try:
            await self._end()
            server, strength = await asyncio.to_thread(_started_server)
            self._server = server
        except OSError:
            raise PlatformError(
                "query.engine_failed", "the engine cannot be started", next_step="see the log"
            ) from None
        finally:
            self._starting = None
        telemetry.emit(
            "query.engine_started",
            pid=server.pid,
            landlock=strength.landlock,
            seccomp=strength.seccomp,
        )
        return server


def _started_server() -> tuple[ForkServer, Strength]:
    def on_complaint(text: str) -> None:
        telemetry.emit("query.engine_says", "warning", text=text)

    server = ForkServer(
        "traceplane.query.engine_process", on_complaint, environment={"OPENBLAS_NUM_THREADS": "1"}
    )
    try:
        return server, msgspec.json.decode(server.greet(), type=Strength)
    except BaseException:
        server.close()
        raise


class _NothingCame(Exception):
    """A conversation that ended without an answer: the query's process crashed, or was never started."""


async def _next_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kinds = (conversation.DATA, conversation.END, conversation.ASK)
    kind, size = conversation.frame_of(await reader.readexactly(conversation.FRAME_HEAD.size), kinds)
    return kind, await reader.readexactly(size)


class _Answers:
    """To questions of a query's process for parts of its files. It may be hostile by then: it gets no bytes but of
    these files, and no more of them at once than agreed."""

    def __init__(self, writer: asyncio.StreamWriter, sizes: list[int], read: ReadPart | None) -> None:
        self._writer, self._sizes, self._read = writer, sizes, read
        self._open: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self.failure: TraceplaneError | None = None
        """Why a file could not be read; the process is not told."""

    def take(self, question: bytes) -> None:
        # An answer can be there a moment before its task has ended, so more may be open here than there.
        if len(question) != QUESTION.size or self._read is None or len(self._open) >= 2 * MOST_OPEN:
            raise conversation.NotAsAgreed
        number, file, start, count = QUESTION.unpack(question)
        if file >= len(self._sizes) or not 0 < count <= MOST_BYTES or start + count > self._sizes[file]:
            raise conversation.NotAsAgreed
        task = asyncio.create_task(self._answer(self._read, number, file, start, count))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def cancel(self) -> None:
        for task in self._open:
            task.cancel()

    async def _answer(self, read: ReadPart, number: int, file: int, start: int, count: int) -> None:
        try:
            data = await read(file, start, count)
        except TraceplaneError as error:
            self.failure, data = self.failure or error, b""
        except Exception as error:
            telemetry.emit("query.read_failed", "error", type=type(error).__name__, message=str(error))
            unknown = PlatformError("query.file_unreadable", "a file of a dataset cannot be read")
            self.failure, data = self.failure or unknown, b""
        async with self._sending:
            with contextlib.suppress(ConnectionError):  # the process has ended
                self._writer.write(ANSWER.pack(number, len(data)) + data)
                await self._writer.drain()


def _raise_if_failed(body: bytes, because: TraceplaneError | None) -> None:
    answer = _answers.decode(body)
    if isinstance(answer, QueryFailed):
        if because is not None:
            raise because
        raise _error(answer.code, answer.message)


def _error(code: str, message: str) -> TraceplaneError:
    return _KINDS.get(code, InvalidInput)(code, message, next_step=_NEXT_STEPS.get(code))
