"""An app with a route of every kind, served on a loopback port, for tests of the HTTP toolkit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from traceplane.errors import Conflict, DatabaseUnavailable, Unauthenticated
from traceplane.http_service.app import App
from traceplane.http_service.routes import PUBLIC, Call, Incoming, Push, Reply, Route, Stream
from traceplane.http_service.server import serve


class Fence(msgspec.Struct):
    task_id: str
    attempt: int


class Batch(msgspec.Struct):
    tasks: list[Fence]
    config: dict[str, Any] = {}


class Counted(msgspec.Struct):
    tasks: int
    text: str = ""


class Page(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10
    after: str | None = None
    state: list[str] = []


async def count_tasks(call: Call[Batch]) -> Counted:
    msgspec.json.encode(call.body.config)
    return Counted(len(call.body.tasks), str(call.principal or ""))


async def echo_path(call: Call[None]) -> Counted:
    return Counted(0, call.path_params["name"])


async def list_page(call: Call[None]) -> Page:
    assert isinstance(call.query, Page)
    return call.query


async def echo_raw(call: Call[bytes]) -> Reply:
    return Reply(
        call.body, "application/octet-stream", headers=((b"x-kind", (call.header("X-Kind") or "").encode()),)
    )


async def in_pieces(call: Call[None]) -> Stream:
    async def write(push: Push) -> None:
        for number in range(int(call.path_params["count"])):
            await push(b"piece %d\n" % number)
        if call.path_params["end"] == "fails":
            raise Conflict("dag.busy", "a deploy is under way")

    return Stream(write, "text/csv")


async def remove(call: Call[None]) -> None:
    return None


async def breaks(call: Call[None]) -> Counted:
    raise RuntimeError("the password is hunter2")


async def conflicts(call: Call[None]) -> Counted:
    raise Conflict("dag.busy", "a deploy is under way", value="chain", next_step="wait for it")


async def no_database(call: Call[None]) -> Counted:
    raise DatabaseUnavailable("database.unavailable", "the database does not answer")


async def authenticate(incoming: Incoming) -> str:
    if incoming.header("authorization") != f"Bearer {incoming.auth}-token":
        raise Unauthenticated("auth.invalid_token", "the token cannot be trusted")
    return incoming.auth


ROUTES = [
    Route("POST", "/tasks", Batch, Counted, count_tasks, PUBLIC, "Count the tasks."),
    Route("POST", "/internal/tasks", Batch, Counted, count_tasks, "worker", "Count, for a worker."),
    Route("GET", "/dags/{name}", None, Counted, echo_path, PUBLIC, "One DAG."),
    Route("DELETE", "/dags/{name}", None, None, remove, PUBLIC, "Remove a DAG."),
    Route("POST", "/dags/active", None, Counted, conflicts, PUBLIC, "Switch."),
    Route("GET", "/runs", None, Page, list_page, PUBLIC, "Runs.", query=Page),
    Route("POST", "/hooks/{name}", bytes, Reply, echo_raw, PUBLIC, "A webhook."),
    Route("GET", "/pieces/{count}/{end}", None, Stream, in_pieces, PUBLIC, "Pieces."),
    Route("GET", "/breaks", None, Counted, breaks, PUBLIC, "Fails."),
    Route("GET", "/no-database", None, Counted, no_database, PUBLIC, "Fails for now."),
]


def make_app(**options: Any) -> App:
    return App(
        ROUTES, authenticate=authenticate, title="Test", version="1", max_body_bytes=200_000, **options
    )


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncIterator[int]:
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, port=0, stop=stop, bound=bound, **options))
    try:
        yield await bound
    finally:
        stop.set()
        await asyncio.wait_for(server, 60)


async def status(answer: Awaitable[aiohttp.ClientResponse]) -> int:
    """The status of an answer whose body does not matter."""
    async with await answer as response:
        return response.status
