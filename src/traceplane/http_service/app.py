"""Routes become a plain ASGI application: find, authenticate, read, decode, run, encode."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from traceplane import telemetry
from traceplane.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    TooLarge,
    TooManyRequests,
    TraceplaneError,
    Unauthenticated,
    UserError,
)
from traceplane.http_service.allowed_values import allowed_values
from traceplane.http_service.openapi import openapi
from traceplane.http_service.routes import (
    ERROR_MARK,
    FROM_BODY,
    JSON,
    KNOWN_CALLER,
    OUR_ERRORS,
    PUBLIC,
    REQUEST_ID,
    Authenticate,
    Call,
    ClientGone,
    Decoded,
    ErrorShape,
    Health,
    Incoming,
    MethodNotAllowed,
    Page,
    Receive,
    Refused,
    Reply,
    Route,
    Scope,
    Send,
    Stream,
    UnsupportedMediaType,
    header_text,
)
from traceplane.model.invalid_values import field_at, in_words
from traceplane.runtime.process import describe


class App:
    """One service as an ASGI application: its routes, and /healthz, /readyz and /openapi.json.

    `ready` raises, best a PlatformError, while the service cannot do its work. `page` answers for what is no part of
    the API: files for browsers, which everybody may have.
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
        decoded: Decoded | None = None,
        refused: Refused | None = None,
        page: Page | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._decoded, self._refused = decoded, refused
        self._page = page
        self._max_body_bytes = max_body_bytes
        self._exact: dict[bytes, dict[str, _PreparedRoute]] = {}
        self._patterns: dict[int, dict[re.Pattern[bytes], dict[str, _PreparedRoute]]] = {}
        described = [*routes, *_service_routes(ready)]
        document = _encoder.encode(openapi(described, title, version))
        for declared in [*described, _document_route(document)]:
            self._add(_PreparedRoute(declared))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        label, errors = "unmatched", OUR_ERRORS
        reply: Reply | Stream
        headers = dict(scope["headers"])
        request_id = scope[REQUEST_ID] = _request_id(headers)
        telemetry.set_request_id(request_id)
        try:
            page = self._page_at(scope, headers)
            if page is not None:
                label, reply = "page", page
            else:
                route, path_params = self._find(scope["method"], scope["raw_path"])
                label, errors = route.label, route.errors
                reply = await self._answer(route, path_params, scope, receive, headers)
        except NotFound as error:
            reply = self._page_of_nothing(scope, headers, label) or _failure(error, label, request_id, errors)
        except ClientGone:
            telemetry.count("http_requests_total", route=label, status=499)
            return
        except Exception as error:
            reply = _failure(error, label, request_id, errors)
        answered = answer_headers(request_id, reply.headers, over_tls=scope.get("scheme") == "https")
        status = (
            await _send_stream(reply, label, answered, scope, receive, send)
            if isinstance(reply, Stream)
            else await _send(reply, answered, send)
        )
        telemetry.count("http_requests_total", route=label, status=status)
        telemetry.observe("http_request_seconds", time.perf_counter() - started, route=label)

    async def _answer(
        self,
        route: _PreparedRoute,
        path_params: dict[str, str],
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
    ) -> Reply | Stream:
        client = scope.get("client")
        remote = client[0] if client else None
        if route.auth == PUBLIC:
            return await self._handle(route, path_params, scope, receive, headers, remote, None)
        sent_twice = len(headers) < len(scope["headers"])
        if sent_twice and sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
            # A proxy may have checked the other one.
            raise InvalidInput(
                "request.two_authorizations",
                "the call has more than one Authorization header",
                next_step="send one",
            )
        incoming = Incoming(
            route.auth, route.method, route.label, path_params, headers, remote, scope[REQUEST_ID]
        )
        principal = None
        try:
            principal = self._authenticate(incoming)
            if isinstance(principal, Awaitable):
                principal = await principal
            if principal is None:
                raise Unauthenticated(
                    "auth.required", "this call needs a token", next_step="send a bearer token"
                )
            if principal is not FROM_BODY:
                scope[KNOWN_CALLER] = True
            return await self._handle(route, path_params, scope, receive, headers, remote, principal)
        except (Unauthenticated, Forbidden, TooManyRequests) as error:
            if self._refused is not None:
                self._refused(incoming, None if isinstance(principal, Awaitable) else principal, error)
            raise

    async def _handle(
        self,
        route: _PreparedRoute,
        path_params: dict[str, str],
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        remote: str | None,
        principal: Any,
    ) -> Reply | Stream:
        query = None if route.query is None else route.decode_query(scope["query_string"])
        raw = b""
        if route.reads_body:
            route.check_content_type(headers.get(b"content-type"))
            raw = await _read_body(receive, headers.get(b"content-length"), self._max_body_bytes)
        body = raw if route.decoder is None else route.decode_body(raw)
        if self._decoded is not None and principal is not None:
            self._decoded(principal, body)
        try:
            result = await route.handler(
                Call(
                    body,
                    path_params,
                    query,
                    principal,
                    headers,
                    receive,
                    scope["headers"],
                    remote,
                    scope[REQUEST_ID],
                )
            )
        except RecursionError:
            if raw.count(b"[") + raw.count(b"{") > 100:  # a body that could be decoded, but not walked
                raise _too_deep() from None
            raise
        if isinstance(result, Reply | Stream):
            return result
        return Reply(b"" if route.status == 204 else _encoder.encode(result), status=route.status)

    def _page_at(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Reply | None:
        if self._page is None or scope["method"] not in ("GET", "HEAD"):
            return None
        return self._page(scope["raw_path"], headers)

    def _page_of_nothing(self, scope: Scope, headers: Mapping[bytes, bytes], label: str) -> Reply | None:
        """Somebody who mistyped an address gets the page that says so, with the menu."""
        if label != "unmatched" or b"text/html" not in headers.get(b"accept", b""):
            return None
        page = None if scope["raw_path"].startswith(_API) else self._page_at({**scope, "raw_path": b"/"}, {})
        return msgspec.structs.replace(page, status=404) if page is not None and page.status == 200 else None

    def _add(self, route: _PreparedRoute) -> None:
        path = route.path.encode()
        if b"{" in path:
            pattern = re.compile(re.sub(rb"\\\{(\w+)\\\}", rb"(?P<\1>[^/]+)", re.escape(path)))
            methods = self._patterns.setdefault(path.count(b"/"), {}).setdefault(pattern, {})
        else:
            methods = self._exact.setdefault(path, {})
        if route.method in methods:
            raise ValueError(f"two routes for {route.label}")
        methods[route.method] = route

    def _find(self, method: str, path: bytes) -> tuple[_PreparedRoute, dict[str, str]]:
        if method == "HEAD":
            method = "GET"
        methods = self._exact.get(path, {})
        if method in methods:
            return methods[method], {}
        allowed = set(methods)
        for pattern, methods in self._patterns.get(path.count(b"/"), {}).items():
            if (match := pattern.fullmatch(path)) is not None:
                if method in methods:
                    return methods[method], _path_params(match.groupdict())
                allowed.update(methods)
        if allowed:
            raise MethodNotAllowed(method, allowed)
        raise NotFound("request.unknown_path", "there is nothing at this path", value=path.decode("latin-1"))


# --- what every answer carries ----------------------------------------------------------------------


_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
_OVER_TLS = (*_SECURITY_HEADERS, (b"strict-transport-security", b"max-age=31536000"))
_REQUEST_ID = re.compile(rb"[!-~]{1,64}")


def answer_headers(
    request_id: str, own: Sequence[tuple[bytes, bytes]] = (), *, over_tls: bool
) -> list[tuple[bytes, bytes]]:
    """Those of the answer itself, then those of every answer that it does not replace."""
    common = _OVER_TLS if over_tls else _SECURITY_HEADERS
    headers = [*own, (b"x-request-id", request_id.encode())]
    if own:
        replaced = {name for name, _ in own}
        headers += [header for header in common if header[0] not in replaced]
    else:
        headers += common
    return headers


def new_request_id() -> str:
    """It need not be hard to guess, and each fork draws anew."""
    return f"{random.getrandbits(64):016x}"


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own, if it can stand in a log line; otherwise a new one."""
    own = headers.get(b"x-request-id")
    return own.decode() if own is not None and _REQUEST_ID.fullmatch(own) else new_request_id()


async def _send(reply: Reply, headers: list[tuple[bytes, bytes]], send: Send) -> int:
    if reply.status not in (204, 304):
        headers.append((b"content-type", reply.content_type.encode()))
        headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
    return reply.status


_LONGEST_MARK = 100


def _error_mark(scope: Scope) -> bytes | None:
    mark: bytes | None = dict(scope["headers"]).get(ERROR_MARK.encode())
    return mark if mark and len(mark) <= _LONGEST_MARK else None


async def _send_stream(
    stream: Stream,
    label: str,
    headers: list[tuple[bytes, bytes]],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> int:
    """Sends the pieces; the status that came of it."""
    begun = False
    error_mark, request_id = _error_mark(scope), scope[REQUEST_ID]

    async def push(piece: bytes) -> None:
        nonlocal begun
        if not begun:
            begun = True
            headers.append((b"content-type", stream.content_type.encode()))
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
        failure = _failure(error, label, request_id)
        own = answer_headers(request_id, failure.headers, over_tls=scope.get("scheme") == "https")
        return await _send(failure, own, send)
    # The server closes a connection whose answer is not complete, so nobody takes it for a whole one.
    telemetry.emit("http.stream_broken", "warning", route=label, **describe(error))
    if error_mark is None or not isinstance(error, Exception):
        return 500
    failure = _failure(error, label, request_id)
    await push(b"%s%d %s" % (error_mark, failure.status, failure.body))
    return failure.status


class _PreparedRoute:
    """A route with everything prepared that does not depend on the call."""

    def __init__(self, route: Route) -> None:
        self.method, self.path, self.auth, self.handler = route.method, route.path, route.auth, route.handler
        self.label = f"{route.method} {route.path}"
        self.status = 204 if route.response is None else 200
        self.reads_body = route.request is not None and not route.reads_own_body
        self.decoder = None if route.request in (None, bytes) else msgspec.json.Decoder(route.request)
        self.query, self.errors = route.query, route.errors
        self.query_lists = _list_fields(route.query)

    def check_content_type(self, given: bytes | None) -> None:
        if given == b"application/json" or self.decoder is None:
            return
        text = header_text(given) or ""
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
            raise InvalidInput(
                "request.invalid",
                f"the body is not valid: {in_words(error, partial(allowed_values, self.decoder.type))}",
                next_step=_SEE_API,  # not the value: bodies hold configs and tokens
            ) from None
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
        values: dict[str, str | list[str]] = {}
        try:
            given = parse_qs(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=200)
            for name, texts in given.items():
                if name not in self.query_lists and len(texts) > 1:
                    raise InvalidInput(
                        "request.invalid",
                        f"the query parameter `{name}` is given twice",
                        value=", ".join(texts),
                        next_step="give it once",
                    )
                values[name] = texts if name in self.query_lists else texts[0]
            query = msgspec.convert(values, self.query, strict=False)
            _refuse_unstorable(msgspec.to_builtins(query))
        except ValueError as error:  # msgspec's and UnicodeDecodeError are ValueErrors too
            problem = in_words(error, partial(allowed_values, self.query))
            parameter = re.match(r"`(\w+)", problem)
            raise InvalidInput(
                "request.invalid",
                f"the query is not valid: {problem}",
                value=values.get(parameter[1]) if parameter is not None else None,
                next_step=_SEE_API,
            ) from None
        return query


_encoder = msgspec.json.Encoder()
_API = b"/api/"
"""Where programs get an error that they can read, also in a browser."""
_SEE_API = "correct it; see docs/reference/api.md"

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
    """Find what Postgres cannot hold, and name its place: `tasks[3].name`."""
    waiting: list[tuple[str, object]] = [("$", value)]
    while waiting:
        path, value = waiting.pop()
        match value:
            case str() if "\0" in value:
                raise InvalidInput(
                    "request.invalid", f"text cannot contain the NUL character: `{field_at(path)}`"
                )
            case int() if not -(2**63) <= value < 2**63:
                raise InvalidInput(
                    "request.invalid", f"the whole number does not fit 64 bits: `{field_at(path)}`"
                )
            case dict():
                waiting.extend((f"{path} (a key)", key) for key in value)
                waiting.extend((f"{path}.{key}", item) for key, item in value.items())
            case list():
                waiting.extend((f"{path}[{index}]", item) for index, item in enumerate(value))


def _too_deep() -> InvalidInput:
    return InvalidInput("request.invalid", "the body is nested too deeply")


def _path_params(groups: Mapping[str, bytes]) -> dict[str, str]:
    params = {name: unquote(value.decode("latin-1")) for name, value in groups.items()}
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


def _failure(error: Exception, route: str, request_id: str, shape: ErrorShape = OUR_ERRORS) -> Reply:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    match error:
        case PlatformError():
            headers = ((b"retry-after", b"1"),)
            telemetry.emit("http.unavailable", "warning", route=route, **describe(error))
        case Unauthenticated():
            headers = ((b"www-authenticate", b"Bearer"),)
        case TooManyRequests():
            headers = ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_seconds))),)
        case MethodNotAllowed():
            headers = ((b"allow", error.allow.encode()),)
        case UserError():
            pass
        case _:
            telemetry.emit("http.error", "error", route=route, **describe(error))
            error = TraceplaneError(
                "internal.unexpected",
                "something went wrong on our side",
                value=request_id,
                next_step="try again; if it stays, report the reference above",
            )
    return Reply(_encoder.encode(shape.make(error)), status=error.status, headers=headers)


# --- what every service answers ---------------------------------------------------------------------


def _service_routes(ready: Callable[[], Awaitable[None]] | None) -> Iterator[Route]:
    async def healthz(_: Call[None]) -> Health:
        return Health()

    async def readyz(_: Call[None]) -> Health:
        if ready is not None:
            await ready()
        return Health()

    yield Route("GET", "/healthz", None, Health, healthz, PUBLIC, "The process is alive.")
    yield Route("GET", "/readyz", None, Health, readyz, PUBLIC, "The service can do its work.")


def _document_route(document: bytes) -> Route:
    async def serve_document(_: Call[None]) -> Reply:
        return Reply(document)

    return Route("GET", "/openapi.json", None, Reply, serve_document, PUBLIC, "This API, described.")
