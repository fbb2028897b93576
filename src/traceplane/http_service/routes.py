"""What a service is made of, as data: routes, calls, replies, streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from traceplane.errors import TraceplaneError, UserError

PUBLIC = "public"
WORKER = "worker"
CAPABILITY = "capability"
"""Sent per item in the body, since one call may cover many tasks. A worker's token in the headers also keeps its
connection open when there are too many."""
JSON = "application/json"
FROM_BODY = object()
"""What `Authenticate` returns if the headers do not say who calls, and the handler will find it in the body."""

Body = TypeVar("Body")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Incoming(msgspec.Struct, frozen=True):
    """A call before its body is read: what it is checked by."""

    auth: str
    """The principal that the route names."""
    method: str
    label: str
    """Of the route: its method and path."""
    path_params: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    remote: str | None
    """The caller's address."""
    request_id: str = ""

    def header(self, name: str) -> str | None:
        return header_text(self.headers.get(name.lower().encode("latin-1")))


Authenticate = Callable[[Incoming], Awaitable[object] | object]
"""Returns who calls, or raises."""
Decoded = Callable[[Any, Any], None]
"""Is told the caller and the body of each call, before its handler runs."""
Refused = Callable[[Incoming, Any, UserError], None]
"""Is told of each refusal because of who calls (401, 403, 429), with the caller, or None if there is none."""


class MethodNotAllowed(UserError):
    status = 405

    def __init__(self, method: str, allowed: set[str]) -> None:
        self.allow = ", ".join(sorted(allowed))
        super().__init__(
            "request.method_not_allowed",
            "this path does not answer this method",
            value=method,
            next_step=f"use {self.allow}",
        )


class UnsupportedMediaType(UserError):
    status = 415


class TooSlow(UserError):
    status = 408


def header_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


class Call(msgspec.Struct, Generic[Body], frozen=True):
    """One request, as its handler sees it."""

    body: Body
    path_params: dict[str, str]
    query: Any
    principal: Any
    raw_headers: Mapping[bytes, bytes]
    receive: Receive
    headers_sent: Sequence[tuple[bytes, bytes]] = ()
    """All headers, with those that were sent twice."""
    remote: str | None = None
    """The caller's address."""
    request_id: str = ""

    async def hung_up(self) -> None:
        """Returns when the caller is gone; for a handler that waits and should not wait for nobody."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, for a route with `reads_own_body`."""
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message["more_body"]
            yield message["body"]

    def header(self, name: str) -> str | None:
        return header_text(self.raw_headers.get(name.lower().encode("latin-1")))


Push = Callable[[bytes], Awaitable[None]]

ERROR_MARK = "traceplane-error-mark"
"""A request header: text of the caller's choice, which precedes the error in a streamed answer that is cut off."""


class Stream(msgspec.Struct, frozen=True):
    """An answer in pieces, each sent as it comes.

    What `write` raises before its first piece is answered as an error; later, the connection is cut, and the caller
    sees that the answer is not complete. A caller that sent an `ERROR_MARK` finds it at the end of what it received,
    then the status and the error. When the caller hangs up, `write` is canceled.
    """

    write: Callable[[Push], Awaitable[None]]
    content_type: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """An answer that is not the JSON of a struct: a page, a file, a status of its own."""

    body: bytes
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()


Page = Callable[[bytes, Mapping[bytes, bytes]], Reply | None]
"""A file for browsers by path and headers of the request, if there is one."""


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    value: str | int | float | bool | None = None
    next_step: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """What the body of an error looks like: its type, and how it is made from the error."""

    type: type[msgspec.Struct]
    make: Callable[[TraceplaneError], object]


OUR_ERRORS = ErrorShape(ErrorBody, lambda error: {"error": error.as_dict()})


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    `request` is None for no body, `bytes` for the raw one. `response` is None for an empty 204, or `Reply` or `Stream`
    where the handler makes its own. `auth` names who may call: `WORKER`, `CAPABILITY`, or the role that a user needs;
    the service's `authenticate` gets it, and `PUBLIC` needs none. A path parameter is a whole segment, `/dags/{name}`.
    """

    method: str
    path: str
    request: Any
    response: Any
    handler: Callable[[Call[Any]], Awaitable[object]]
    auth: str
    summary: str
    query: type[msgspec.Struct] | None = None
    reads_own_body: bool = False
    """Whether the handler reads the raw body itself (`Call.pieces`), after it has looked at the headers."""
    statuses: tuple[int, ...] = ()
    """That it answers with besides the usual ones: 303, or 401 and 403 of a public route."""
    errors: ErrorShape = OUR_ERRORS
    """Another shape than ours: of a protocol that is not ours."""


class Health(msgspec.Struct, frozen=True):
    status: str = "ok"


class ClientGone(Exception):
    """The caller hung up; nobody is left to answer."""


REQUEST_ID = "traceplane.request_id"
"""In the scope: the caller's X-Request-Id, or a new one."""

KNOWN_CALLER = "traceplane.known_caller"
"""In the scope of a call whose headers have shown a token."""
