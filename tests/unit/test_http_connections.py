"""Connections that break, stop or never were HTTP, and the stop of a server that still has calls."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from tests.http_app import Counted, authenticate, make_app, running, status
from traceplane import telemetry
from traceplane.errors import Conflict
from traceplane.http_service.app import App
from traceplane.http_service.routes import PUBLIC, Call, Route
from traceplane.http_service.server import serve


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def converse(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


@pytest.mark.parametrize("sent", [b"GET / NONSENSE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n"])
async def test_a_request_that_is_not_http_gets_a_json_error(sent: bytes) -> None:
    async with running(make_app()) as port:
        head, _, body = (await converse(port, sent)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "request.malformed_http"


async def test_an_endless_head_is_cut_off() -> None:
    async with running(make_app()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")

        async def fill() -> None:
            for _ in range(5000):
                writer.write(b"x-filler: " + b"x" * 10_000 + b"\r\n")
                await writer.drain()

        with pytest.raises(ConnectionError):
            await fill()
        writer.close()


async def test_a_caller_that_disconnects_midway_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test")
    async with running(make_app()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            b"POST /tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
        )
        writer.write(head + b"{")
        await writer.drain()
        writer.close()
        await until(lambda: b'route="POST /tasks",status="499"' in telemetry.render_metrics())
    assert "error" not in capsys.readouterr().err


async def test_at_stop_calls_in_flight_finish_and_stuck_ones_are_abandoned() -> None:
    release = asyncio.Event()
    entered = asyncio.Queue[str]()

    async def slow(call: Call[None]) -> Counted:
        entered.put_nowait(call.path_params["kind"])
        if call.path_params["kind"] == "stuck":
            await asyncio.Event().wait()
        await release.wait()
        return Counted(1)

    routes = [Route("GET", "/slow/{kind}", None, Counted, slow, PUBLIC, "Slow.")]
    app = App(routes, authenticate=authenticate, title="Test", version="1")
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, port=0, stop=stop, bound=bound, grace=1.0))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{await bound}") as session:
        good = asyncio.create_task(session.get("/slow/good"))
        stuck = asyncio.create_task(session.get("/slow/stuck"))
        assert {await entered.get(), await entered.get()} == {"good", "stuck"}
        stop.set()
        await asyncio.sleep(0.2)
        release.set()
        assert await status(good) == 200
        await asyncio.wait_for(server, 60)
        await asyncio.wait([stuck], timeout=60)
        assert stuck.done()
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get("/healthz")


async def test_a_port_in_use_is_reported_at_once() -> None:
    async with running(make_app()) as port:
        with pytest.raises(Conflict, match="another process is listening on this port") as failure:
            await serve(make_app(), port=port, setting="dispatcher_port", stop=asyncio.Event())
        assert str(failure.value.next_step).endswith("choose another port with the setting dispatcher_port")


def test_a_unix_socket_serves_too_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)

    async def main() -> None:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(make_app(), uds=path, stop=stop, bound=bound))
        await bound
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
            assert await status(session.get("http://local/healthz")) == 200
        stop.set()
        await server

    uvloop.run(main())
    assert not Path(path).exists()
