"""Unused connections, over real sockets: they end in time, and make room for those in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
import pytest

from tests.platform import until
from traceplane import telemetry
from traceplane.http_service import server as http_service
from traceplane.http_service.app import App
from traceplane.http_service.routes import FROM_BODY, PUBLIC, Call, Health, Incoming, Reply, Route
from traceplane.http_service.server import LONGEST_HEAD, MOST_PIPELINED, ConnectionLimits, serve

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-more: "
HALF_A_BODY = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"
REFUSED_EARLY = b"POST /private HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n"
BIG = b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n"
HALF_A_HEARTBEAT = HALF_A_BODY.replace(b"/echo", b"/heartbeat")
KNOWN = b"authorization: Bearer known\r\ncontent-length"
LONG = 600.0
BIG_BYTES = 512 * 1024
CLOSED = 7  # as the kernel counts the states of TCP

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    def __init__(self) -> None:
        self.port = 0
        self.waiting = 0
        self.let_go = asyncio.Event()
        self.streams: list[asyncio.StreamWriter] = []

    async def echo(self, call: Call[bytes]) -> Reply:
        return Reply(call.body)

    async def wait(self, _: Call[None]) -> Health:
        self.waiting += 1
        await self.let_go.wait()
        return Health()

    async def private(self, _: Call[bytes]) -> Health:
        raise AssertionError("nobody has the token")

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, **limits: float) -> AsyncIterator[Served]:
        telemetry.configure("test")
        served, stop = cls(), asyncio.Event()
        reply = Reply(bytes(BIG_BYTES))

        async def big(_: Call[None]) -> Reply:
            return reply

        def authenticate(incoming: Incoming) -> object:
            if incoming.header("authorization") == "Bearer known":
                return "somebody"
            return FROM_BODY if incoming.auth == "later" else None

        routes = [
            Route("GET", "/big", None, Reply, big, PUBLIC, "More than the system holds."),
            Route("POST", "/heartbeat", bytes, Reply, served.echo, "later", "Its body says who calls."),
            Route("POST", "/echo", bytes, Reply, served.echo, PUBLIC, "The body."),
            Route("GET", "/wait", None, Health, served.wait, PUBLIC, "A long answer."),
            Route("POST", "/private", bytes, Health, served.private, "nobody", "Refused by its headers."),
        ]
        app = App(routes, authenticate=authenticate, title="Test", version="1")
        bound = asyncio.get_running_loop().create_future()
        chosen = ConnectionLimits(
            **{"head_seconds": LONG, "body_seconds": LONG, "idle_seconds": LONG, **limits}  # type: ignore[arg-type]
        )
        server = asyncio.create_task(serve(app, port=0, stop=stop, bound=bound, limits=chosen, grace=0.1))
        served.port = await bound
        try:
            yield served
        finally:
            served.let_go.set()
            stop.set()
            await asyncio.wait_for(server, 30)
            for writer in served.streams:
                writer.close()

    async def connect(self, sent: bytes = b"") -> Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.streams.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader, writer

    async def ask_and_read_nothing(self, request: bytes = BIG) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await loop.sock_sendall(client, request)
        return client

    async def is_healthy(self) -> bool:
        try:
            async with asyncio.timeout(30):
                reader, writer = await self.connect(HEALTH)
                line = await reader.readline()
                writer.close()
        except OSError:
            return False
        return line == b"HTTP/1.1 200 OK\r\n"


async def rest(stream: Stream) -> bytes:
    """What comes until the server closes the connection; a reset is an end too."""
    received = b""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            while piece := await stream[0].read(65536):
                received += piece
    stream[1].close()
    return received


async def ask(stream: Stream, request: bytes) -> bytes:
    """The status line of one request on a connection that stays open."""
    reader, writer = stream
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    length = int(next(h for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")).split()[1])
    await reader.readexactly(length)
    return head.partition(b"\r\n")[0]


def code(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], json.loads(body)["error"]["code"]


async def test_health_is_answered_while_three_hundred_half_open_connections_are_closed() -> None:
    async with Served.open(head_seconds=1.0) as served:
        silent = [await served.connect() for _ in range(150)]
        begun = [await served.connect(HALF_A_HEAD) for _ in range(150)]
        assert await served.is_healthy()
        assert await asyncio.gather(*map(rest, silent)) == [b""] * 150
        for answer in await asyncio.gather(*map(rest, begun)):
            assert code(answer) == (b"HTTP/1.1 408 Request Timeout", "request.too_slow")


async def test_a_head_that_arrives_byte_by_byte_has_the_same_deadline() -> None:
    async with Served.open(head_seconds=1.0) as served:
        stream = await served.connect(HALF_A_HEAD)
        ended = asyncio.create_task(rest(stream))
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                stream[1].write(b"x")
                await asyncio.sleep(0.05)
        assert code(await ended)[1] == "request.too_slow"


async def test_a_second_head_on_a_kept_connection_has_a_deadline_too() -> None:
    async with Served.open(head_seconds=1.0) as served:
        stream = await served.connect()
        assert await ask(stream, HEALTH) == b"HTTP/1.1 200 OK"
        stream[1].write(HALF_A_HEAD)
        assert code(await rest(stream))[1] == "request.too_slow"


async def test_a_body_that_arrives_too_slowly_is_refused() -> None:
    async with Served.open(body_seconds=1.0) as served:
        stream = await served.connect(HALF_A_BODY.replace(b": 10", b": 100000"))
        ended = asyncio.create_task(rest(stream))
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                stream[1].write(b"x")
                await asyncio.sleep(0.05)
        assert code(await ended) == (b"HTTP/1.1 408 Request Timeout", "request.too_slow")


async def test_a_body_has_a_deadline_even_after_its_call_was_refused() -> None:
    async with Served.open(body_seconds=1.0) as served:
        assert code(await rest(await served.connect(REFUSED_EARLY)))[1] == "auth.required"


async def test_an_idle_connection_is_closed() -> None:
    async with Served.open(idle_seconds=1.0) as served:
        stream = await served.connect()
        assert await ask(stream, HEALTH) == b"HTTP/1.1 200 OK"
        assert await rest(stream) == b""


async def test_a_long_answer_has_no_deadline() -> None:
    async with Served.open(head_seconds=0.5, body_seconds=0.5, idle_seconds=0.5) as served:
        waiting = await served.connect(WAIT)
        assert await rest(await served.connect()) == b""  # so the deadlines were looked at meanwhile
        assert await rest(await served.connect()) == b""
        served.let_go.set()
        assert (await waiting[0].readline()) == b"HTTP/1.1 200 OK\r\n"
        waiting[1].close()


async def test_an_unread_answer_ends_its_connection() -> None:
    async with Served.open(answer_seconds=0.5) as served:
        for request in (BIG, BIG * 12, BIG.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")):
            with await served.ask_and_read_nothing(request) as unread:
                await until(partial(_is_closed, unread), what="the connection is closed")


async def test_an_answer_may_be_read_slowly_or_take_long() -> None:
    async with Served.open(answer_seconds=0.5) as served:
        waiting = await served.connect(WAIT)
        with await served.ask_and_read_nothing() as slow:
            received = b""
            for _ in range(2):
                with await served.ask_and_read_nothing() as unread:
                    while not await _is_closed(unread):
                        received += await asyncio.get_running_loop().sock_recv(slow, 1024)
                        await asyncio.sleep(0.02)
            while len(received.partition(b"\r\n\r\n")[2]) < BIG_BYTES:
                piece = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(slow, 65536), 60)
                assert piece, "the answer was cut"
                received += piece
        served.let_go.set()
        assert (await waiting[0].readline()) == b"HTTP/1.1 200 OK\r\n"
        waiting[1].close()


async def test_unread_answers_do_not_fill_the_memory() -> None:
    async with Served.open(unread_bytes=2 * BIG_BYTES) as served:
        unread = [await served.ask_and_read_nothing() for _ in range(20)]
        await until(lambda: _count_closed(unread, at_least=17), what="all but a few are closed")
        kept = [client for client in unread if not await _is_closed(client)]
        assert kept
        assert await served.is_healthy()
        for client in unread:
            client.close()


async def test_few_requests_may_wait_for_the_answer_before_them() -> None:
    async with Served.open() as served:
        reader, writer = await served.connect(HEALTH * MOST_PIPELINED)
        for _ in range(MOST_PIPELINED):
            await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 60)
        writer.close()
        many = await served.connect(WAIT + HEALTH * (MOST_PIPELINED + 1))
        assert code(await rest(many)) == (b"HTTP/1.1 400 Bad Request", "request.malformed_http")


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_a_head_that_is_too_long_is_refused_however_it_arrives(pieces: int) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * LONGEST_HEAD + b"\r\n\r\n"
    size = len(head) // pieces + 1
    async with Served.open() as served:
        stream = await served.connect()
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(head), size):
                stream[1].write(head[start : start + size])
                await stream[1].drain()
        answer = await rest(stream)
        assert answer == b"" or code(answer)[1] == "request.malformed_http"
        assert not answer.startswith(b"HTTP/1.1 200")


async def test_a_pipelined_request_is_not_late_because_the_one_before_it_takes_long() -> None:
    async with Served.open(head_seconds=0.5, body_seconds=0.5) as served:
        stream = await served.connect(WAIT + HALF_A_BODY)
        assert await rest(await served.connect()) == b""
        assert await rest(await served.connect()) == b""
        served.let_go.set()
        await stream[0].readuntil(b'{"status":"ok"}')
        stream[1].write(b"defghij")
        assert b"abcdefghij" in await asyncio.wait_for(stream[0].readuntil(b"abcdefghij"), 60)
        stream[1].close()


async def test_a_client_that_keeps_its_connection_uses_one() -> None:
    made = 0

    async def count(*_: object) -> None:
        nonlocal made
        made += 1

    watch = aiohttp.TraceConfig()
    watch.on_connection_create_end.append(count)
    async with (
        Served.open(head_seconds=1.0, body_seconds=1.0) as served,
        aiohttp.ClientSession(f"http://127.0.0.1:{served.port}", trace_configs=[watch]) as session,
    ):
        late = asyncio.create_task(rest(await served.connect(HALF_A_HEAD)))
        while not late.done():
            async with session.post("/echo", data=b"abc") as answer:
                assert await answer.read() == b"abc"
            await asyncio.sleep(0.02)
        assert made == 1


async def test_beyond_the_cap_connections_that_wait_give_way_to_new_ones() -> None:
    async with Served.open(most=10) as served:
        half_open = [await served.connect(HALF_A_HEAD) for _ in range(300)]
        assert await served.is_healthy()
        ended = [asyncio.create_task(rest(stream)) for stream in half_open]
        await until(lambda: _count(ended, at_least=290), what="those before the last ten are closed")
        for task in ended:
            task.cancel()


async def test_bodies_of_refused_calls_give_way_too() -> None:
    async with Served.open(most=10) as served:
        kept = [await served.connect(REFUSED_EARLY) for _ in range(50)]
        await until(served.is_healthy, what="a health check gets through")
        assert len(kept) == 50


async def test_bodies_of_callers_without_a_token_give_way_and_those_of_others_do_not() -> None:
    async with Served.open(most=10) as served:
        known = await served.connect(HALF_A_HEARTBEAT.replace(b"content-length", KNOWN))
        kept = [await served.connect(HALF_A_HEARTBEAT) for _ in range(50)]
        for _ in range(5):
            assert await served.is_healthy()
        known[1].write(b"defghij")
        assert b"abcdefghij" in await asyncio.wait_for(known[0].readuntil(b"abcdefghij"), 60)
        known[1].close()
        assert len(kept) == 50


async def test_answers_that_callers_without_a_token_do_not_read_give_way() -> None:
    async with Served.open(most=10) as served:
        unread = [await served.ask_and_read_nothing(BIG * 2) for _ in range(30)]
        for _ in range(5):
            await until(served.is_healthy, what="a health check gets through")
        for client in unread:
            client.close()


async def test_one_address_does_not_keep_others_out() -> None:
    async with Served.open(most=100, most_of_an_address=3) as served:
        waiting = [await served.connect(WAIT) for _ in range(3)]
        await until(lambda: _reaches(served, len(waiting)), what="the calls are under way")
        refusal = code(await rest(await served.connect()))
        assert refusal == (b"HTTP/1.1 503 Service Unavailable", "service.too_many_connections")
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=("127.0.0.2", 0))
        assert await ask((reader, writer), HEALTH) == b"HTTP/1.1 200 OK"
        writer.close()


def test_a_host_with_many_addresses_has_one_share() -> None:
    share = http_service._share_of
    assert share("2001:db8:0:1::5") == share("2001:db8:0:1:ffff::9") != share("2001:db8:0:2::5")
    assert share("::ffff:10.0.0.5") == share("10.0.0.5") != share("10.0.0.6")


async def test_the_least_recently_used_connection_gives_way_and_calls_in_flight_do_not() -> None:
    async with Served.open(most=4) as served:
        waiting = await served.connect(WAIT)
        await until(lambda: _reaches(served, 1), what="the call is under way")
        older, newer = await served.connect(), await served.connect()
        for stream in (older, newer):
            await ask(stream, HEALTH)
        assert await served.is_healthy()
        assert await rest(older) == b""
        assert await ask(newer, HEALTH) == b"HTTP/1.1 200 OK"
        served.let_go.set()
        assert (await waiting[0].readline()) == b"HTTP/1.1 200 OK\r\n"


async def test_if_calls_are_in_flight_on_all_connections_a_new_one_is_refused() -> None:
    async with Served.open(most=10, most_of_an_address=3) as served:
        waiting = [await served.connect(WAIT) for _ in range(3)]
        await until(lambda: _reaches(served, len(waiting)), what="the calls are under way")
        refusal = code(await rest(await served.connect()))
        assert refusal == (b"HTTP/1.1 503 Service Unavailable", "service.too_many_connections")
        served.let_go.set()
        await until(served.is_healthy, what="there is room again")


@pytest.mark.parametrize(
    ("allowed", "most"), [(256, 128), (1024, 768), (65536, 2000), (2, 1), (-1, 2000)], ids=str
)
def test_a_process_that_may_open_few_files_takes_few_connections(
    allowed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert http_service._most_connections(2000) == most


async def _is_closed(client: socket.socket) -> bool:
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSED


async def _count_closed(clients: list[socket.socket], *, at_least: int) -> bool:
    return sum([await _is_closed(client) for client in clients]) >= at_least


async def _count(tasks: list[asyncio.Task[bytes]], *, at_least: int) -> bool:
    return sum(task.done() for task in tasks) >= at_least


async def _reaches(served: Served, number: int) -> bool:
    return served.waiting >= number
