"""Serves an application: connections that have to be used, of which there are only so many."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import ipaddress
import os
import resource
import socket
import ssl
import stat
import struct
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from traceplane.errors import InvalidInput, PlatformError, TraceplaneError
from traceplane.http_service.app import App, answer_headers, new_request_id
from traceplane.http_service.routes import JSON, KNOWN_CALLER, TooSlow
from traceplane.http_service.tls import ServerCertificate, TlsTransport
from traceplane.runtime.process import listen
from traceplane.settings import Settings

LONGEST_HEAD = 64 * 1024
MOST_PIPELINED = 16
"""Requests that may wait on a connection for the answer before them."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may take of the server before, between and after answers."""

    head_seconds: float = 10.0
    """From the connection, or from the first byte of a further request, to the end of its head."""
    body_seconds: float = 60.0
    """The same to the end of its body, all of it, however steadily it comes."""
    idle_seconds: float = 300.0
    """Without a request after an answer; also how long a closed connection may take to read its last answer."""
    answer_seconds: float = 60.0
    """Without a single byte being taken of an answer that is there."""
    most: int = 2000
    """Connections at once. A process that may open few files has less, see `_most_connections`."""
    most_of_an_address: int = 1000
    """Of these, and never more than three quarters of them, so that one address does not keep all others out."""
    unread_bytes: int = 64 * 1024 * 1024
    """Answers, or parts of them, that callers without a token have not taken, of all connections."""


DEFAULT_LIMITS = ConnectionLimits()


def connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        head_seconds=settings.http_head_seconds,
        body_seconds=settings.http_body_seconds,
        idle_seconds=settings.http_idle_seconds,
        answer_seconds=settings.http_answer_seconds,
        most=settings.http_max_connections,
        most_of_an_address=settings.http_max_connections_per_address,
    )


async def serve(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    setting: str | None = None,
    uds: str | None = None,
    stop: asyncio.Event,
    bound: asyncio.Future[int] | None = None,
    grace: float = 10.0,
    limits: ConnectionLimits = DEFAULT_LIMITS,
    certificate: ServerCertificate | None = None,
) -> None:
    """Answer requests on a TCP port or a Unix socket until `stop` is set; over TLS with a `certificate`. `setting`:
    where the port is from, for whoever finds it in use.

    `bound` is resolved with the port once connections are accepted (0 asks the system for a free one). At
    `stop` no new connection is taken, and calls under way have `grace` seconds to finish.
    """
    listener = _listen_unix(uds) if uds is not None else _listen_tcp(host, port or 0, setting)
    server = _Server(_config(app, grace, certificate), limits)

    async def end_at_stop() -> None:
        await stop.wait()
        server.should_exit = True

    async def end_the_late() -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            connections = tuple(server.server_state.connections)
            for connection in connections:
                connection.end_if_late(now, limits)
            _end_the_unread(connections, limits.unread_bytes)

    async def renew(certificate: ServerCertificate) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            certificate.renew()

    helpers = [asyncio.create_task(end_at_stop()), asyncio.create_task(end_the_late())]
    if certificate is not None:
        helpers.append(asyncio.create_task(renew(certificate)))
    try:
        if bound is not None and not bound.done():
            bound.set_result(listener.getsockname()[1] if uds is None else 0)
        await server.serve([listener])
    finally:
        for helper in helpers:
            helper.cancel()
        if uds is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(uds)


_LOOK_SECONDS = 0.25
_RENEW_SECONDS = 2.0
"""How often the files of a certificate are looked at."""
_MOST_UNSENT_BYTES = 128 * 1024
_TCP_NOTSENT_LOWAT = 25
_OTHER_FILES = 256
"""Descriptors that are kept for the database, engines and files, where there are so many."""


def _config(app: App, grace: float, certificate: ServerCertificate | None) -> uvicorn.Config:
    class Connection(_TlsConnection):
        def tls_context(self) -> ssl.SSLContext:
            assert certificate is not None
            return certificate.context

    return uvicorn.Config(
        app,
        http=_Connection if certificate is None else Connection,
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=grace,  # type: ignore[arg-type]  # handed to asyncio as it is
    )


def _most_connections(most: int) -> int:
    """So few that the process never runs out of descriptors: then not even a health check could be accepted."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, allowed - min(_OTHER_FILES, allowed // 2)))


def _end_the_unread(connections: Sequence[_Connection], most_bytes: int) -> None:
    """What callers without a token do not read must not fill the memory; those go first that stopped longest ago."""
    waiting = [connection for connection in connections if connection.unread and not connection.is_known()]
    excess = sum(connection.unread for connection in waiting) - most_bytes
    if excess > 0:
        for connection in sorted(waiting, key=lambda connection: connection.taken_at):
            connection.abort()
            excess -= connection.unread
            if excess <= 0:
                break


def _listen_tcp(host: str, port: int, setting: str | None) -> socket.socket:
    # uvloop sets TCP_NODELAY on every connection itself.
    listener = listen(host, port, setting)
    # Or the kernel takes megabytes of each answer that nobody reads. Its connections inherit this.
    listener.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
    return listener


def _listen_unix(path: str) -> socket.socket:
    """A socket for this user and group only; one left behind by a process that died is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o660)
    listener.listen(2048)
    return listener


class _ServerState(ServerState):
    connections: set[_Connection]  # type: ignore[assignment]

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.most = _most_connections(limits.most)
        self.most_of_an_address = min(limits.most_of_an_address, max(1, self.most * 3 // 4))
        self.of_address: dict[str, set[_Connection]] = {}


class _Server(uvicorn.Server):
    server_state: _ServerState

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self.server_state = _ServerState(limits)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to `runtime.run_process`."""
        yield


class _Waits(Enum):
    """What a connection waits for."""

    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    REQUEST = auto()
    """Nothing is under way."""
    END = auto()
    """It is closed, and its last answer is not read yet."""


_HEAD, _BODY, _ANSWER, _REQUEST, _END = (
    _Waits  # a name of the module is found faster, in what every request runs
)

_HEAD_TOO_LONG = "the request's head is too long"
_SETTLED_SECONDS = 1.0
"""A head that takes longer than this is not just on its way."""


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with JSON for what is not HTTP, a bound on the request's head, and `ConnectionLimits`.

    It only notes what it waits for and since when; one task of the server looks at all connections. uvicorn's own timer
    for idle connections, which each request makes anew, costs more than that.
    """

    server_state: _ServerState
    connections: set[_Connection]  # type: ignore[assignment]
    head_bytes: int | None = None  # of the reads before this one; None outside a head
    read_bytes = 0  # of this read
    waits_for = _HEAD
    since = 0.0
    answering: RequestResponseCycle | None = None  # `cycle` is the request that was read last
    unread = 0  # bytes that the caller has not taken, when it was looked at last
    taken_at = 0.0  # when it took some, or there were none
    address: str | None = None
    fault: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.taken_at = self.loop.time()
        state, neighbours = self.server_state, {self}
        if self.client is not None:  # a Unix socket has no addresses
            self.address = _share_of(self.client[0])
            neighbours = state.of_address.setdefault(self.address, neighbours)
            neighbours.add(self)
        if len(neighbours) > state.most_of_an_address:
            self._make_room(neighbours, "this address has as many connections as one may")
        elif len(self.connections) > state.most:
            self._make_room(self.connections, "the service has as many connections as it may")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.address is not None:
            neighbours = self.server_state.of_address[self.address]
            neighbours.discard(self)
            if not neighbours:
                del self.server_state.of_address[self.address]
        self.pipeline.clear()
        if self.answering is not None and not self.answering.response_complete:
            self.answering.disconnected = True
            self.answering.message_event.set()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self.taken_at = self.loop.time()
        super().resume_writing()

    def on_message_begin(self) -> None:
        self.head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if (self.head_bytes or 0) + self.read_bytes > LONGEST_HEAD and self._length_of_head() > LONGEST_HEAD:
            self._give_up(_HEAD_TOO_LONG)
        self.head_bytes = None
        self.waits_for = _BODY
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            self._give_up(f"more than {MOST_PIPELINED} requests wait for the answer before them")

    def _length_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _give_up(self, fault: str) -> NoReturn:
        """Ends the parser, and with `send_400_response` the connection."""
        self.fault = fault
        raise ValueError(fault)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # A call that is refused by its headers is answered before its body is there.
        if self.cycle.response_complete:
            self.waits_for, self.since = _REQUEST, self.loop.time()
        else:
            self.waits_for = _ANSWER

    def on_response_complete(self) -> None:
        """As uvicorn has it, but for the timer, and nothing more is read while there are requests to answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self.since = self.loop.time()
            self._start_asgi_task(*self.pipeline.pop())
            return
        self.flow.resume_reading()
        if self.waits_for is _ANSWER:
            self.waits_for = _REQUEST if self.head_bytes is None else _HEAD
            self.since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.waits_for is _REQUEST:
            self.waits_for, self.since = _HEAD, self.loop.time()
        self.read_bytes = len(data)
        super().data_received(data)
        if self.head_bytes is not None:
            self.head_bytes += len(data)
            if self.head_bytes > LONGEST_HEAD and not self.transport.is_closing():
                self.send_400_response(_HEAD_TOO_LONG)

    def end_if_late(self, now: float, limits: ConnectionLimits) -> None:
        if self.transport.is_closing() and self.waits_for is not _END:
            self.waits_for, self.since = _END, now
        unread = _unread_bytes(self.transport)
        if unread == 0 or unread < self.unread:
            self.taken_at = now
        self.unread = unread
        if now - self.taken_at > limits.answer_seconds:
            self.abort()
            return
        late = now - self.since
        match self.waits_for:
            case _Waits.END if late > limits.idle_seconds:
                self.abort()
            case _Waits.REQUEST if late > limits.idle_seconds:
                self.transport.close()
            case _Waits.HEAD | _Waits.BODY if self.flow.read_paused:
                self.since = now  # it is the server that does not read
            case _Waits.HEAD if late > limits.head_seconds:
                self._end("the request's head did not arrive in time")
            case _Waits.BODY if late > limits.body_seconds:
                self._end("the request's body did not arrive in time")

    def _end(self, why: str) -> None:
        if self.waits_for is _HEAD and self.head_bytes is None:
            self.transport.close()  # nothing was asked, so there is nothing to answer
        elif self.cycle is not None and self.waits_for is _BODY and self.cycle.response_started:
            self.abort()
        else:
            self._refuse(TooSlow("request.too_slow", why, next_step="send the whole request at once"))

    def abort(self) -> None:
        """Ends it at once; the kernel too forgets what was not taken."""
        with contextlib.suppress(OSError):
            end = self.transport.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _make_room(self, crowd: set[_Connection], why: str) -> None:
        """Ends connections on which nothing is being answered, some at once: looking at all of them takes a while.

        First those that keep the server waiting, then idle ones, then those whose head may be on its way. If there are
        none, this one is refused: all others are calls under way.
        """
        now, others = self.loop.time(), crowd - {self}
        dispensable = [(c.value(now), c.since, id(c), c) for c in others if not c.is_under_way()]
        if not dispensable:
            refusal = PlatformError(
                "service.too_many_connections",
                f"{why}, and calls are under way on all of them",
                next_step="try again",
            )
            self._refuse(refusal)
        for *_, connection in heapq.nsmallest(max(1, len(others) // 20), dispensable):
            connection.abort()

    def is_known(self) -> bool:
        """Whether the call that is being answered, or was answered last, came with a token."""
        return self.answering is not None and KNOWN_CALLER in self.answering.scope

    def is_under_way(self) -> bool:
        """Whether a call on it is being answered. One without a token is not while its caller keeps it waiting, by not
        sending the body or by not reading the answer: that costs nothing."""
        call = self.answering
        if call is None or call.response_complete:
            return False
        return self.is_known() or not (call.more_body or self.transport.get_write_buffer_size())

    def value(self, now: float) -> int:
        """What is lost if it is ended while no call is under way."""
        if self.waits_for is _REQUEST and not self.unread:
            return 1
        return 0 if now - self.since > _SETTLED_SECONDS else 2

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidInput("request.malformed_http", self.fault or msg))

    def _refuse(self, error: TraceplaneError) -> None:
        call = self.answering
        if call is not None and call.response_started and not call.response_complete:
            self.abort()  # or the refusal would be taken for a part of that answer
            return
        body = msgspec.json.encode({"error": error.as_dict()})
        status = HTTPStatus(error.status)
        head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        common = answer_headers(new_request_id(), over_tls=self.scheme == "https")
        lines = b"".join(b"%s: %s\r\n" % header for header in common)
        self.transport.write(head.encode() + lines + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class _TlsConnection(_Connection):
    """Encrypted, from the moment that it is accepted: the handshake is part of the time for the first head."""

    tls: TlsTransport

    def tls_context(self) -> ssl.SSLContext:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.tls = TlsTransport(transport, self.tls_context())
        super().connection_made(self.tls)

    def data_received(self, data: bytes) -> None:
        for piece in self.tls.decrypted(data):
            super().data_received(piece)


def _unread_bytes(transport: asyncio.Transport) -> int:
    """What was written and not taken by the caller: here, and if there is such, in the kernel too."""
    unread = transport.get_write_buffer_size()
    if unread:
        with contextlib.suppress(OSError, ValueError):  # it may be closed by now, or the system cannot tell
            waiting = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            unread += int.from_bytes(waiting, sys.byteorder)
    return unread


def _share_of(address: str) -> str:
    """Whose connections are counted together: an IPv4 address, or the network that an IPv6 host has for itself."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((parsed, 64), strict=False))
