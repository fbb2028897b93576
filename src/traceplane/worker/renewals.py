"""Where Spark's executors renew the credentials of a task for S3, for as long as this worker holds the attempt.

Hadoop and the executors' Python get an address and a token instead of credentials. Whoever calls with the token is
answered with credentials that are at least half as good as new, in four lines: key, secret, session token, and for how
many seconds to use them. When the attempt ends, its tokens end; what was handed out expires soon afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from traceplane import __version__, telemetry
from traceplane.adapters.object_store import BucketAccess as MadeAccess
from traceplane.errors import TraceplaneError, Unauthenticated
from traceplane.http_service.app import App
from traceplane.http_service.routes import Call, Incoming, Reply, Route
from traceplane.http_service.server import serve
from traceplane.model.task_payload import Renewal
from traceplane.runtime.process import describe

Make = Callable[[], Awaitable[MadeAccess]]

_PATH = "/credentials"
_HOLDER = "attempt"


@dataclass(eq=False)
class _Renewed:
    make: Make
    made: MadeAccess
    made_at: float = field(default_factory=time.monotonic)
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.lasts = seconds_left(self.made)

    @property
    def left(self) -> float:
        return self.made_at + self.lasts - time.monotonic()

    async def renew(self) -> None:
        """If half of their time is over. Those that still hold are used if there are no new ones."""
        async with self.renewing:
            if self.left > self.lasts / 2:
                return
            try:
                self.made = await self.make()
            except TraceplaneError as error:
                telemetry.emit("credentials.not_renewed", "warning", **describe(error))
                if self.left <= 0:
                    raise
                return
            self.made_at, self.lasts = time.monotonic(), seconds_left(self.made)


class Renewals:
    """`host` is an address of this machine that executors reach; port 0 asks the system for a free one."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._renewed: dict[str, _Renewed] = {}
        summary = "Credentials of an attempt for S3, for those who have its token."
        route = Route("GET", _PATH, None, Reply, self._answer, _HOLDER, summary)
        self._app = App(
            [route], authenticate=self._holder, title="Traceplane credentials", version=__version__
        )

    async def serve(self, stop: asyncio.Event) -> None:
        await serve(self._app, host=self._host, port=self._port, stop=stop, grace=1.0, bound=self._bound)

    @contextlib.asynccontextmanager
    async def renewing(self, make: Make, made: MadeAccess) -> AsyncIterator[Renewal]:
        """Until the block ends, whoever has the token gets what was `made`, and what is made after it."""
        port = await asyncio.shield(self._bound)
        token = secrets.token_urlsafe(32)
        self._renewed[token] = _Renewed(make, made)
        try:
            yield Renewal(f"http://{self._host}:{port}{_PATH}", token)
        finally:
            del self._renewed[token]

    def _holder(self, incoming: Incoming) -> object:
        scheme, _, token = (incoming.header("authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or (renewed := self._renewed.get(token)) is None:
            raise Unauthenticated("token.unknown", "this token is of no attempt that runs here")
        return renewed

    async def _answer(self, call: Call[None]) -> Reply:
        renewed: _Renewed = call.principal
        await renewed.renew()
        made = renewed.made
        seconds = max(1, int(renewed.left / 2))
        lines = (made.access_key, made.secret_key, made.session_token, str(seconds), "")
        return Reply("\n".join(lines).encode(), "text/plain; charset=utf-8")


def seconds_left(made: MadeAccess) -> float:
    return (made.expires_at - datetime.now(UTC)).total_seconds()
