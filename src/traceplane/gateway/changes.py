"""Which things changed, as a stream of server-sent events, so that pages ask for those anew.

While somebody of an organization listens, one look a second at cheap prints of its things serves all who listen; a look
that takes long is followed by a longer pause. A message names jobs, datasets and DAGs, as far as the listener may see
them, and nothing of what they hold: that is asked for with the usual calls and their rights.

A stream ends after two minutes at most, and the browser opens the next one by itself. Who listens is checked again
before each message: a token or session that has ended hears nothing more, and other roles count at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access, access_of
from traceplane.errors import Forbidden, PlatformError, TooManyRequests, Unauthenticated
from traceplane.http_service.routes import Call, Push, Route, Stream
from traceplane.postgres import changes
from traceplane.postgres.changes import Thing
from traceplane.postgres.database import OrgDatabases
from traceplane.wire.graph import Changed, ChangesQuery

_PAUSE_SECONDS = 1.0
_PAUSE_PER_LOOK = 20.0
"""A look takes a twentieth of the time at most."""
_QUIET_SECONDS = 15.0
_MOST_NAMED = 500
"""In one message; if more changed, the message says so by naming none."""
_MOST_LISTENERS = 200
"""Of one organization at one gateway."""
_MOST_OF_ONE_CALLER = 40
"""So that nobody takes the streams of the others."""
_ECHOES = frozenset({"created"})
"""Prints that end by themselves; that they are gone is no change."""


@dataclass(slots=True)
class _Watched:
    """An organization that somebody listens to."""

    listeners: dict[asyncio.Queue[frozenset[Thing]], str] = field(default_factory=dict)
    """With whom each is counted as."""
    look: asyncio.Task[None] | None = None


class ChangesApi:
    def __init__(self, orgs: OrgDatabases, check_again: Callable[[Call[None]], Awaitable[Caller]]) -> None:
        """`check_again`: who calls, as it would be if the call came now."""
        self._orgs, self._check_again = orgs, check_again
        self._watched: dict[UUID, _Watched] = {}
        self._ended = False

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/changes", None, Stream, self.changes, "reader",
                  "Which things change, as server-sent events.", query=ChangesQuery),
        ]  # fmt: skip

    def end(self) -> None:
        """Ends all streams: the gateway stops, and waits for nobody who only listens."""
        self._ended = True
        for watched in self._watched.values():
            for heard in watched.listeners:
                heard.put_nowait(frozenset())

    async def changes(self, call: Call[None]) -> Stream:
        caller: Caller = call.principal
        query: ChangesQuery = call.query
        self._check_room(caller)

        async def write(push: Push) -> None:
            ends = time.monotonic() + query.for_seconds
            async with self._listening(caller) as heard:
                await push(b"retry: 1000\nevent: ready\ndata: {}\n\n")
                while (left := ends - time.monotonic()) > 0 and not self._ended:
                    things: frozenset[Thing] = frozenset()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(left, _QUIET_SECONDS)):
                            things = await heard.get()
                    if self._ended:
                        break
                    try:
                        now = await self._check_again(call)
                    except (Unauthenticated, Forbidden, TooManyRequests):
                        break  # the next call says why
                    if not things:
                        await push(b": nothing\n\n")
                        continue
                    message = changed(things, await self._access(now))
                    if message != Changed():
                        await push(b"event: changed\ndata: %s\n\n" % msgspec.json.encode(message))

        # Proxies that would collect an answer before they send it are told not to.
        return Stream(write, "text/event-stream; charset=utf-8", ((b"x-accel-buffering", b"no"),))

    def _check_room(self, caller: Caller) -> None:
        watched = self._watched.get(caller.org_id)
        listeners = [] if watched is None else list(watched.listeners.values())
        for most, there, where in (
            (_MOST_OF_ONE_CALLER, listeners.count(caller.counted_as), "of yours are open"),
            (_MOST_LISTENERS, len(listeners), "are open in the organization"),
        ):
            if there >= most:
                raise TooManyRequests(
                    "changes.too_many",
                    f"{most} streams of changes {where}",
                    next_step="close some, or try again later",
                    retry_after_seconds=10,
                )

    async def _access(self, caller: Caller) -> Access:
        async with self._orgs.of(caller.org_id).snapshot() as tx:
            return await access_of(tx, caller.org, caller)

    @contextlib.asynccontextmanager
    async def _listening(self, caller: Caller) -> AsyncIterator[asyncio.Queue[frozenset[Thing]]]:
        # Again, and counted in the same step: many connections may have been opened since the first check.
        self._check_room(caller)
        watched = self._watched.setdefault(caller.org_id, _Watched())
        heard: asyncio.Queue[frozenset[Thing]] = asyncio.Queue()
        watched.listeners[heard] = caller.counted_as
        if watched.look is None or watched.look.done():
            watched.look = asyncio.create_task(self._watch(caller.org_id, caller.org, watched))
        try:
            yield heard
        finally:
            del watched.listeners[heard]
            if not watched.listeners and watched.look is not None:
                watched.look.cancel()
                self._watched.pop(caller.org_id, None)

    async def _watch(self, org_id: UUID, org: str, watched: _Watched) -> None:
        before: dict[Thing, str] | None = None
        while True:
            begun = time.monotonic()
            try:
                async with self._orgs.of(org_id).snapshot() as tx:
                    now = await changes.prints(tx, org)
            except PlatformError as error:
                telemetry.emit("changes.unavailable", "warning", org=org, code=error.code)
            else:
                if before is not None and (things := differing(before, now)):
                    for heard in watched.listeners:
                        heard.put_nowait(things)
                before = now
            took = time.monotonic() - begun
            await asyncio.sleep(max(_PAUSE_SECONDS, took * _PAUSE_PER_LOOK))


def differing(before: dict[Thing, str], now: dict[Thing, str]) -> frozenset[Thing]:
    """The things whose print is another one, or is there only before or now."""
    gone = {thing for thing in before.keys() - now.keys() if thing[0] not in _ECHOES}
    return frozenset(gone | {thing for thing, print_ in now.items() if before.get(thing) != print_})


def changed(things: frozenset[Thing], access: Access) -> Changed:
    """What of it the listener may know."""
    jobs, datasets, dags = set[str](), set[str](), set[str]()
    alerts = letters = False
    for kind, first, second in things:
        match kind:
            case "tasks" | "created" | "held" | "paused":
                if access.sees(first, second):
                    jobs.add(f"{first}/{second}")
            case "rows":
                if access.reads(first):
                    datasets.add(first)
            case "versions":
                if access.sees(first, second):
                    dags.add(first)
            case "alerts":
                alerts = not access.is_limited
            case "letters":
                letters = not access.is_limited
    return Changed(
        jobs=_named(jobs), datasets=_named(datasets), dags=_named(dags), alerts=alerts, dead_letters=letters
    )


def _named(names: set[str]) -> list[str]:
    return sorted(names) if len(names) <= _MOST_NAMED else ["*"]
