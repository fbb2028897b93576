"""Blocking calls of a gateway: one answer of a type, or an answer in pieces."""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit
from uuid import UUID, uuid4

import msgspec

from traceplane.errors import InvalidInput, PlatformError
from traceplane.http_service.client import as_error, caller_context, error_after, unreachable
from traceplane.http_service.routes import ERROR_MARK
from traceplane.model.invalid_values import in_words

Answer = TypeVar("Answer")
Item = TypeVar("Item")
_PIECE_BYTES = 1 << 20
_MOST_PER_PAGE = 1000


class Connection:
    """Where a gateway is, and who calls it. Each call is a connection of its own, so threads may share one."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float,
        trusted: Callable[[], Path | None],
        unreached: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`trusted`: the file with certificate authorities, which is looked up if the gateway has TLS.
        `unreached`: what to do if it cannot be reached, if more is known than that it should be running."""
        self._url = _address(url)
        self._token = token
        self._timeout = timeout_seconds
        self._unreached = unreached
        if self._url.scheme == "https":
            self._trusted = caller_context(trusted())

    def ask(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: msgspec.Struct | None = None,
        /,
        **query: object,
    ) -> Answer:
        parameters = {name: _as_text(value) for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        raw = b"".join(self.pieces(method, target, body))
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as error:
            raise PlatformError(
                "service.bad_answer", f"the service answered with something unexpected: {error}", value=path
            ) from error

    def _connection(self) -> http.client.HTTPConnection:
        if self._url.scheme == "http":
            return http.client.HTTPConnection(self._url.netloc, timeout=self._timeout)
        return http.client.HTTPSConnection(self._url.netloc, timeout=self._timeout, context=self._trusted)

    def pieces(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | None,
        check: Callable[[http.client.HTTPResponse], None] = lambda answer: None,
    ) -> Iterator[bytes]:
        """The answer as it arrives; raises at its end if it is not complete. `check` gets it before it is read."""
        content = _encoded(body) if body is not None else None
        connection = self._connection()
        mark, held = uuid4().hex, b""
        try:
            connection.request(
                method,
                self._url.path.rstrip("/") + path,
                content,
                {
                    "authorization": f"Bearer {self._token}",
                    "content-type": "application/json",
                    ERROR_MARK: mark,
                },
            )
            answer = connection.getresponse()
            if answer.status >= 400:
                raise as_error(answer.status, answer.read())
            check(answer)
            # One piece behind, because the error of an answer that is cut off may begin in the piece before.
            while piece := answer.read(_PIECE_BYTES):
                if held:
                    yield held
                held = piece
            if held:
                yield held
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, http.client.IncompleteRead):
                reason = error_after(mark.encode(), held + error.partial)
                if reason is not None:
                    raise reason from None
            message = "the service did not answer, or its answer was cut off"
            raise unreachable(self._url.geturl(), message, error, self._unreached()) from error
        finally:
            connection.close()


def every(page: Callable[[Any, int], tuple[Sequence[Item], Any]], limit: int | None) -> Iterator[Item]:
    """Items page by page, as they are asked for. `page` gets the place where it begins and its size, and returns its
    items and where the next one begins, or None."""
    place, left = None, limit
    while left is None or left > 0:
        size = _MOST_PER_PAGE if left is None else min(left, _MOST_PER_PAGE)
        items, place = page(place, size)
        yield from items
        if place is None:
            return
        left = None if left is None else left - len(items)


def quoted(name: str | UUID) -> str:
    """A name as a segment of a path."""
    return quote(str(name), safe="")


@contextlib.contextmanager
def checked_arguments() -> Iterator[None]:
    """Around the making of a body whose fields exclude each other."""
    try:
        yield
    except ValueError as error:
        raise bad_argument(str(error), None) from None


def uuid_of(text: UUID | str, name: str, where: str) -> UUID:
    """`where`: a call that lists such ids."""
    try:
        return UUID(str(text))
    except ValueError:
        raise InvalidInput(
            "client.bad_argument",
            f"`{name}` must be a UUID",
            value=text,
            next_step=f"use an id from `{where}`",
        ) from None


def _as_text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _encoded(body: msgspec.Struct) -> bytes:
    """The body as it is sent, checked here: the arguments of a call become its fields, and Python checks no types."""
    try:
        content = msgspec.json.encode(body)
        msgspec.json.decode(content, type=type(body))
    except msgspec.ValidationError as error:
        text = in_words(error)
        place = re.match(r"`(\w+)", text)
        value = getattr(body, place[1], None) if place is not None else None
        raise bad_argument(text, value) from None
    except (TypeError, ValueError) as error:  # a value that JSON cannot hold
        raise bad_argument(f"an argument cannot be sent: {error}", body) from None
    return content


def bad_argument(message: str, value: object) -> InvalidInput:
    return InvalidInput(
        "client.bad_argument", message, value=repr(value), next_step="see docs/reference/client.md"
    )


def _address(url: str) -> SplitResult:
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise InvalidInput(
            "client.bad_argument",
            "the address of a gateway must start with http:// or https://, and name a host",
            value=url,
            next_step="for example http://127.0.0.1:7461",
        )
    return address
