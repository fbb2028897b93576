"""A small HTTP toolkit for the internal and the public API: routes are data, bodies are msgspec types.

A service lists its `Route`s and gives them to `App`, a plain ASGI application; `serve` runs it. The order of
a call is fixed: find the route, authenticate from the headers alone, read the body up to its limit, decode it
into the declared type, run the handler, encode its answer. Every failure on the way is the same JSON,
`{"error": {"code", "message", "value"?, "next_step"?}}`, with the status of its class in `errors`; one that
nobody foresaw is a 500 that carries a reference to the log line and nothing else.

What Postgres cannot hold is refused here, by path: NUL characters in text and integers beyond 64 bits.

Paths are matched as they were sent, without percent-decoding, so an encoded slash stays inside its path
parameter and `/internal%2Fevents` is no other way to write `/internal/events`.

A connection costs its sender nothing, so it has to be used: a head and a body must arrive in time, an answer must be
read, an idle connection is closed after a while, and there are only so many at once, in all and of one address
(`ConnectionLimits`). How long an answer takes is the handler's own affair. Where there are too many connections, those
go first whose caller has shown no token and keeps the server waiting, with a body or by not reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import ipaddress
import os
import re
import resource
import socket
import stat
import struct
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Generic, NoReturn, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec
import uvicorn
from starlette.datastructures import Headers
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from traceplane import telemetry
from traceplane.errors import (
    InvalidInput,
    NotFound,
    PlatformError,
    TooLarge,
    TraceplaneError,
    Unauthenticated,
    UserError,
)
from traceplane.runtime.process import describe, listen
from traceplane.settings import Settings

PUBLIC = "public"
JSON = "application/json"
LONGEST_HEAD = 64 * 1024
MOST_PIPELINED = 16
"""Requests that may wait on a connection for the answer before them."""
FROM_BODY = object()
"""What `Authenticate` returns if the headers do not say who calls, and the handler will find it in the body."""

Body = TypeVar("Body")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Authenticate = Callable[[str, Headers], Awaitable[object] | object]


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


class Call(msgspec.Struct, Generic[Body], frozen=True):
    """One request, as its handler sees it."""

    body: Body
    path_params: dict[str, str]
    query: Any
    principal: Any
    raw_headers: Mapping[bytes, bytes]
    receive: Receive

    async def hung_up(self) -> None:
        """Returns when the caller is gone; for a handler that waits and should not wait for nobody."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def header(self, name: str) -> str | None:
        value = self.raw_headers.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")


Push = Callable[[bytes], Awaitable[None]]


class Stream(msgspec.Struct, frozen=True):
    """An answer in pieces, each sent as it comes.

    What `write` raises before its first piece is answered as an error; later, the connection is cut, and the caller
    sees that the answer is not complete. When the caller hangs up, `write` is canceled.
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


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    `request` is None for no body, `bytes` for the raw one. `response` is None for an empty 204, or `Reply` or `Stream`
    where the handler makes its own. `auth` names the principal that may call: the service's `authenticate`
    gets it, and `PUBLIC` needs none. A path parameter is a whole segment, `/dags/{name}`.
    """

    method: str
    path: str
    request: Any
    response: Any
    handler: Callable[[Call[Any]], Awaitable[object]]
    auth: str
    summary: str
    query: type[msgspec.Struct] | None = None
    status: int = 200
    max_body_bytes: int | None = None


class Health(msgspec.Struct, frozen=True):
    status: str = "ok"


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    value: str | int | float | bool | None = None
    next_step: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class App:
    """One service as an ASGI application: its routes, and /healthz, /readyz, /metrics and /openapi.json.

    `ready` raises, best a PlatformError, while the service cannot do its work.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        authenticate: Authenticate,
        title: str,
        version: str,
        ready: Callable[[], Awaitable[None]] | None = None,
        max_body_bytes: int = 4 * 1024 * 1024,
        metrics: bool = True,
    ) -> None:
        self._authenticate = authenticate
        self._exact: dict[bytes, dict[str, _Endpoint]] = {}
        self._patterns: dict[int, dict[re.Pattern[bytes], dict[str, _Endpoint]]] = {}
        described = [*routes, *_service_routes(ready, metrics)]
        document = _encoder.encode(openapi(described, title, version))
        for route in [*described, _document_route(document)]:
            self._add(_Endpoint(route, route.max_body_bytes or max_body_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        label = "unmatched"
        try:
            endpoint, path_params = self._find(scope["method"], scope["raw_path"])
            label = endpoint.label
            reply = await self._answer(endpoint, path_params, scope, receive)
        except ClientGone:
            telemetry.count("http_requests_total", route=label, status=499)
            return
        except Exception as error:
            reply = _failure(error, label)
        status = (
            await _send_stream(reply, label, receive, send)
            if isinstance(reply, Stream)
            else await _send(reply, send)
        )
        telemetry.count("http_requests_total", route=label, status=status)
        telemetry.observe("http_request_seconds", time.perf_counter() - started, route=label)

    async def _answer(
        self, endpoint: _Endpoint, path_params: dict[str, str], scope: Scope, receive: Receive
    ) -> Reply | Stream:
        principal = None
        if endpoint.auth != PUBLIC:
            principal = self._authenticate(endpoint.auth, Headers(raw=scope["headers"]))
            if isinstance(principal, Awaitable):
                principal = await principal
            if principal is None:
                raise Unauthenticated(
                    "auth.required", "this call needs a token", next_step="send a bearer token"
                )
            if principal is not FROM_BODY:
                scope[_KNOWN_CALLER] = True
        query = None if endpoint.query is None else endpoint.decode_query(scope["query_string"])
        headers = dict(scope["headers"])
        raw = b""
        if endpoint.reads_body:
            endpoint.check_content_type(headers.get(b"content-type"))
            raw = await _read_body(receive, headers.get(b"content-length"), endpoint.max_body_bytes)
        body = raw if endpoint.decoder is None else endpoint.decode_body(raw)
        try:
            result = await endpoint.handler(Call(body, path_params, query, principal, headers, receive))
        except RecursionError:
            if raw.count(b"[") + raw.count(b"{") > 100:  # a body that could be decoded, but not walked
                raise _too_deep() from None
            raise
        if isinstance(result, Reply | Stream):
            return result
        return Reply(b"" if endpoint.status == 204 else _encoder.encode(result), status=endpoint.status)

    def _add(self, endpoint: _Endpoint) -> None:
        path = endpoint.path.encode()
        if b"{" in path:
            pattern = re.compile(re.sub(rb"\\\{(\w+)\\\}", rb"(?P<\1>[^/]+)", re.escape(path)))
            methods = self._patterns.setdefault(path.count(b"/"), {}).setdefault(pattern, {})
        else:
            methods = self._exact.setdefault(path, {})
        if endpoint.method in methods:
            raise ValueError(f"two routes for {endpoint.label}")
        methods[endpoint.method] = endpoint

    def _find(self, method: str, path: bytes) -> tuple[_Endpoint, dict[str, str]]:
        if method == "HEAD":
            method = "GET"
        methods = self._exact.get(path, {})
        if method in methods:
            return methods[method], {}
        allowed = set(methods)
        for pattern, methods in self._patterns.get(path.count(b"/"), {}).items():
            if (found := pattern.fullmatch(path)) is not None:
                if method in methods:
                    return methods[method], _path_params(found.groupdict())
                allowed.update(methods)
        if allowed:
            raise MethodNotAllowed(method, allowed)
        raise NotFound("request.unknown_path", "there is nothing at this path", value=path.decode("latin-1"))


async def _send(reply: Reply, send: Send) -> int:
    headers = [*reply.headers]
    if reply.status != 204:
        headers.append((b"content-type", reply.content_type.encode()))
        headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
    return reply.status


async def _send_stream(stream: Stream, label: str, receive: Receive, send: Send) -> int:
    """Sends the pieces; the status that came of it."""
    begun = False

    async def push(piece: bytes) -> None:
        nonlocal begun
        if not begun:
            begun = True
            headers = [*stream.headers, (b"content-type", stream.content_type.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def pump() -> None:
        await stream.write(push)
        await push(b"")
        await send({"type": "http.response.body", "body": b""})

    async def hung_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    pumping, leaving = asyncio.create_task(pump()), asyncio.create_task(hung_up())
    try:
        await asyncio.wait((pumping, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not pumping.done():
            return 499
        error = pumping.exception()
    finally:
        for task in (pumping, leaving):
            task.cancel()
        await asyncio.gather(pumping, leaving, return_exceptions=True)
    if error is None:
        return 200
    if not begun and isinstance(error, Exception):
        return await _send(_failure(error, label), send)
    # The server closes a connection whose answer is not complete, so nobody takes it for a whole one.
    telemetry.emit("http.stream_broken", "warning", route=label, **describe(error))
    return 500


class ClientGone(Exception):
    """The caller hung up; nobody is left to answer."""


class _Endpoint:
    """A route with everything prepared that does not depend on the call."""

    def __init__(self, route: Route, max_body_bytes: int) -> None:
        self.method, self.path, self.auth, self.handler = route.method, route.path, route.auth, route.handler
        self.label = f"{route.method} {route.path}"
        self.status = 204 if route.response is None else route.status
        self.max_body_bytes = max_body_bytes
        self.reads_body = route.request is not None
        self.decoder = None if route.request in (None, bytes) else msgspec.json.Decoder(route.request)
        self.query = route.query
        self.query_lists = _list_fields(route.query)

    def check_content_type(self, given: bytes | None) -> None:
        if given == b"application/json" or self.decoder is None:
            return
        text = (given or b"").decode("latin-1")
        kind = text.partition(";")[0].strip().lower()
        if kind != JSON and not kind.endswith("+json"):
            raise UnsupportedMediaType(
                "request.unsupported_media_type",
                "the body must be JSON",
                value=text or None,
                next_step=f"send content-type: {JSON}",
            )

    def decode_body(self, raw: bytes) -> Any:
        assert self.decoder is not None
        try:
            if not raw.isascii():
                raw.decode()
            body = self.decoder.decode(raw)
            # Both signs of a value that cannot be stored are rare, and quick to look for in the raw bytes.
            if b"\\u0000" in raw or _NINETEEN_DIGITS in raw.translate(_DIGITS_TO_ZERO):
                _refuse_unstorable(msgspec.json.decode(raw))
        except msgspec.ValidationError as error:
            raise InvalidInput("request.invalid", f"the body is not valid: {error}") from None
        except msgspec.DecodeError as error:
            raise InvalidInput("request.malformed_json", f"the body is not JSON: {error}") from None
        except UnicodeDecodeError as error:
            message = f"the body is not UTF-8: {error.reason} at byte {error.start}"
            raise InvalidInput("request.malformed_json", message) from None
        except RecursionError:
            raise _too_deep() from None
        return body

    def decode_query(self, raw: bytes) -> Any:
        assert self.query is not None
        try:
            given = parse_qs(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=200)
            values: dict[str, Any] = {}
            for name, texts in given.items():
                if name not in self.query_lists and len(texts) > 1:
                    raise InvalidInput("request.invalid", f"the query parameter `{name}` is given twice")
                values[name] = texts if name in self.query_lists else texts[0]
            query = msgspec.convert(values, self.query, strict=False)
            _refuse_unstorable(msgspec.to_builtins(query))
        except ValueError as error:  # msgspec's and UnicodeDecodeError are ValueErrors too
            raise InvalidInput("request.invalid", f"the query is not valid: {error}") from None
        return query


_encoder = msgspec.json.Encoder()

_DIGITS_TO_ZERO = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_NINETEEN_DIGITS = b"0" * 19  # the length from which an integer may pass 64 bits


async def _read_body(receive: Receive, declared: bytes | None, limit: int) -> bytes:
    size = 0 if declared is None else int(declared)
    parts: list[bytes] = []
    more = True
    while more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message["body"])
        more = message["more_body"]
        if declared is None:
            size += len(message["body"])
    if size > limit:
        raise TooLarge(
            "request.too_large", f"the body is longer than {limit} bytes", next_step="send less at once"
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _refuse_unstorable(value: object) -> None:
    """Find what Postgres cannot hold, and name its place: `$.tasks[3].name`."""
    waiting: list[tuple[str, object]] = [("$", value)]
    while waiting:
        path, value = waiting.pop()
        match value:
            case str() if "\0" in value:
                raise InvalidInput("request.invalid", f"text cannot contain the NUL character - at `{path}`")
            case int() if not -(2**63) <= value < 2**63:
                raise InvalidInput("request.invalid", f"the integer does not fit 64 bits - at `{path}`")
            case dict():
                waiting.extend((f"{path} (a key)", key) for key in value)
                waiting.extend((f"{path}.{key}", item) for key, item in value.items())
            case list():
                waiting.extend((f"{path}[{index}]", item) for index, item in enumerate(value))


def _too_deep() -> InvalidInput:
    return InvalidInput("request.invalid", "the body is nested too deeply")


def _path_params(found: Mapping[str, bytes]) -> dict[str, str]:
    params = {name: unquote(value.decode("latin-1")) for name, value in found.items()}
    for name, value in params.items():
        if "\0" in value:
            raise InvalidInput("request.invalid", f"the path's `{name}` cannot contain the NUL character")
    return params


def _list_fields(query: type[msgspec.Struct] | None) -> frozenset[str]:
    if query is None:
        return frozenset()
    info = msgspec.inspect.type_info(query)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(
        field.encode_name
        for field in info.fields
        if isinstance(
            field.type, msgspec.inspect.ListType | msgspec.inspect.VarTupleType | msgspec.inspect.SetType
        )
    )


# --- failures ---------------------------------------------------------------------------------------


def _failure(error: Exception, route: str) -> Reply:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    match error:
        case PlatformError():
            headers = ((b"retry-after", b"1"),)
            telemetry.emit("http.unavailable", "warning", route=route, **describe(error))
        case Unauthenticated():
            headers = ((b"www-authenticate", b"Bearer"),)
        case MethodNotAllowed():
            headers = ((b"allow", error.allow.encode()),)
        case UserError():
            pass
        case _:
            reference = os.urandom(8).hex()
            telemetry.emit("http.error", "error", route=route, reference=reference, **describe(error))
            error = TraceplaneError(
                "internal.unexpected",
                "something went wrong on our side",
                value=reference,
                next_step="try again; if it stays, report the reference above",
            )
    return Reply(_encoder.encode({"error": error.as_dict()}), status=error.status, headers=headers)


# --- what every service answers ---------------------------------------------------------------------


def _service_routes(ready: Callable[[], Awaitable[None]] | None, metrics: bool) -> Iterator[Route]:
    async def healthz(_: Call[None]) -> Health:
        return Health()

    async def readyz(_: Call[None]) -> Health:
        if ready is not None:
            await ready()
        return Health()

    async def render(_: Call[None]) -> Reply:
        return Reply(telemetry.render_metrics(), telemetry.METRICS_CONTENT_TYPE)

    yield Route("GET", "/healthz", None, Health, healthz, PUBLIC, "The process is alive.")
    yield Route("GET", "/readyz", None, Health, readyz, PUBLIC, "The service can do its work.")
    if metrics:
        yield Route("GET", "/metrics", None, Reply, render, PUBLIC, "Metrics in Prometheus's text format.")


def _document_route(document: bytes) -> Route:
    async def serve_document(_: Call[None]) -> Reply:
        return Reply(document)

    return Route("GET", "/openapi.json", None, Reply, serve_document, PUBLIC, "This API, described.")


_ERRORS = {
    400: "A value is malformed or out of range.",
    401: "No token, or one that cannot be trusted.",
    403: "The token does not grant this.",
    404: "No such thing.",
    409: "The state of the world does not allow it now.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    500: "Something went wrong on our side; the value is a reference to report.",
    503: "Something the service needs is not there; try again after Retry-After seconds.",
}


def openapi(routes: Sequence[Route], title: str, version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 description of `routes`, made from their msgspec types."""
    types: list[Any] = [ErrorBody]
    for route in routes:
        types += [
            t for t in (route.request, route.response, route.query) if t not in (None, bytes, Reply, Stream)
        ]
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = {type_: _as_int64(schema) for type_, schema in zip(types, found, strict=True)}
    components = _as_int64(components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    error = {JSON: {"schema": schemas[ErrorBody]}}
    principals = sorted({route.auth for route in routes} - {PUBLIC})
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                f"Error{code}": {"description": why, "content": error} for code, why in _ERRORS.items()
            },
            "securitySchemes": {
                name: {**bearer, "description": f"{_article(name)} {name} token."} for name in principals
            },
        },
    }


def _article(word: str) -> str:
    return "An" if word[0] in "aeio" else "A"  # "a user"


def _operation(route: Route, schemas: Mapping[Any, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    codes = {400, 404, 409, 500, 503}
    text = {"type": "string"}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": text}
            for name in re.findall(r"\{(\w+)\}", route.path)
        ],
    }
    if route.query is not None:
        query = components[schemas[route.query]["$ref"].rpartition("/")[2]]
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
            for name, schema in query["properties"].items()
        ]
    if route.request is not None:
        codes |= {413, 415}
        content = {"*/*": {}} if route.request is bytes else {JSON: {"schema": schemas[route.request]}}
        operation["requestBody"] = {"required": route.request is not bytes, "content": content}
    if route.auth != PUBLIC:
        codes |= {401, 403}
        operation["security"] = [{route.auth: []}]
    answer: dict[str, Any] = {"description": "Done."}
    if route.response is not None:
        answer["content"] = (
            {"*/*": {}} if route.response in (Reply, Stream) else {JSON: {"schema": schemas[route.response]}}
        )
    status = 204 if route.response is None else route.status
    failures = {str(code): {"$ref": f"#/components/responses/Error{code}"} for code in sorted(codes)}
    operation["responses"] = {str(status): answer, **failures}
    return operation


def _as_int64(schema: Any) -> Any:
    """Say in the schema what `_refuse_unstorable` does to integers."""
    match schema:
        case {"type": "integer"}:
            return {"format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1, **schema}
        case dict():
            return {key: _as_int64(value) for key, value in schema.items()}
        case list():
            return [_as_int64(value) for value in schema]
        case _:
            return schema


# --- serving ----------------------------------------------------------------------------------------


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
    uds: str | None = None,
    stop: asyncio.Event,
    bound: asyncio.Future[int] | None = None,
    grace: float = 10.0,
    limits: ConnectionLimits = DEFAULT_LIMITS,
) -> None:
    """Answer requests on a TCP port or a Unix socket until `stop` is set.

    `bound` is resolved with the port once connections are accepted (0 asks the system for a free one). At
    `stop` no new connection is taken, and calls under way have `grace` seconds to finish.
    """
    # uvloop sets TCP_NODELAY on every connection itself.
    listener = _listen_unix(uds) if uds is not None else _listen_tcp(host, port or 0)
    config = uvicorn.Config(
        app,
        http=_Connection,
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
    server = _Server(config, limits)

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

    helpers = [asyncio.create_task(end_at_stop()), asyncio.create_task(end_the_late())]
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
_MOST_UNSENT_BYTES = 128 * 1024
_TCP_NOTSENT_LOWAT = 25
_KNOWN_CALLER = "traceplane.known_caller"
"""In the scope of a call whose headers have shown a token."""
_OTHER_FILES = 256
"""Descriptors that are kept for the database, engines and files, where there are so many."""


def _most_connections(wanted: int) -> int:
    """So few that the process never runs out of descriptors: then not even a health check could be accepted."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, allowed - min(_OTHER_FILES, allowed // 2)))


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


def _listen_tcp(host: str, port: int) -> socket.socket:
    # uvloop sets TCP_NODELAY on every connection itself.
    listener = listen(host, port)
    if sys.platform == "linux":
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
        return self.answering is not None and _KNOWN_CALLER in self.answering.scope

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
        body = _encoder.encode({"error": error.as_dict()})
        status = HTTPStatus(error.status)
        head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


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
