"""An HTTP server that keeps connections open, and remembers the keys of the messages that it accepted."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Decide = Callable[[str, int], Awaitable[web.Response | None]]
"""By the key of a message and how often it came, this time included: the answer; None: the connection is dropped."""


@dataclass
class HttpReceiver:
    port: int = 0
    came: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    """Keys, without those that came again."""
    bodies: list[Any] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    """The addresses of those that sent."""
    known: set[str] = field(default_factory=set)
    """The accepted keys, to find one among many."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"


class Unanswered(web.Response):
    """The message is accepted, but the connection is dropped before the answer."""


async def accept(_key: str, _times: int) -> web.Response | None:
    return web.Response(status=204)


def status(code: int, **headers: str) -> Decide:
    async def decide(_key: str, _times: int) -> web.Response | None:
        return web.Response(status=code, headers={name.replace("_", "-"): v for name, v in headers.items()})

    return decide


async def drop(_key: str, _times: int) -> web.Response | None:
    return None


async def hang(_key: str, _times: int) -> web.Response | None:
    await asyncio.sleep(60)
    return None


def after(times: int, first: Decide, then: Decide = accept) -> Decide:
    """The first so many times that a message comes it is treated differently."""

    async def decide(key: str, number: int) -> web.Response | None:
        return await (first if number <= times else then)(key, number)

    return decide


@contextlib.asynccontextmanager
async def http_receiver(decide: Decide = accept, port: int = 0) -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()

    async def handle(request: web.Request) -> web.StreamResponse:
        key = request.headers["idempotency-key"]
        body = await request.json()
        transport = request.transport
        assert transport is not None
        receiver.connections.add(transport.get_extra_info("peername"))
        receiver.came[key] += 1
        answer = await decide(key, receiver.came[key])
        if answer is not None and answer.status < 300 and key not in receiver.known:
            receiver.known.add(key)
            receiver.accepted.append(key)
            receiver.bodies.append(body)
        if answer is None or isinstance(answer, Unanswered):
            transport.abort()
            return web.Response()
        return answer

    app = web.Application()
    app.router.add_post("/in", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()
