"""Typed JSON calls to a service, over one keep-alive session."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

from traceplane.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    SpecInvalid,
    SpecProblem,
    TooLarge,
    TooManyRequests,
    TraceplaneError,
    Unauthenticated,
)

if TYPE_CHECKING:
    import ssl

    import aiohttp
from traceplane.wire.scalars import Wire

Response = TypeVar("Response", bound=Wire)

_ERRORS: dict[int, type[TraceplaneError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: TooManyRequests,
}
_ENDED_WITHOUT_AN_ANSWER = frozenset(
    {"ServerDisconnectedError", "ClientResponseError", "RemoteDisconnected", "BadStatusLine"}
)
"""What clients raise when they speak plain HTTP to TLS."""


class Caller:
    """Typed JSON calls over one keep-alive HTTP session.

    The HTTP client is imported by the first call: a process that is only called starts in half the time without it.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeout_seconds: float = 90.0,
        tls_ca: Path | None = None,
        org: str | None = None,
    ) -> None:
        """`org`: the organization that the caller expects to work for."""
        self._base_url = base_url.rstrip("/")
        self._tls = caller_context(tls_ca) if self._base_url.startswith("https:") else None
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        if org is not None:
            self._headers["traceplane-org"] = org
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None
        self._encoder = msgspec.json.Encoder()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def stream(self, path: str, body: object) -> AsyncGenerator[bytes, None]:
        """The answer to a POST, piece by piece; raises if it is not complete."""
        import aiohttp

        try:
            async with self._opened().post(
                self._base_url + path, data=self._encoder.encode(body), headers=self._headers
            ) as answer:
                if answer.status >= 400:
                    raise as_error(answer.status, await answer.read())
                async for piece in answer.content.iter_any():
                    yield piece
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self._base_url + path, "the service did not answer", error) from error

    async def call(
        self,
        method: str,
        path: str,
        response: type[Response],
        body: object = None,
        query: dict[str, str] | None = None,
    ) -> Response:
        import aiohttp

        data = self._encoder.encode(body) if body is not None else None
        try:
            async with self._opened().request(
                method, self._base_url + path, data=data, params=query, headers=self._headers
            ) as answer:
                raw = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(self._base_url + path, "the service did not answer", error) from error
        if answer.status >= 400:
            raise as_error(answer.status, raw)
        try:
            return msgspec.json.decode(raw, type=response)
        except msgspec.DecodeError as error:
            raise PlatformError(
                "service.bad_answer", f"the service answered with something unexpected: {error}", value=path
            ) from error

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ssl=self._tls or True),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds, connect=5),
            )
        return self._session


def unreachable(url: str, message: str, error: BaseException, next_step: str | None = None) -> PlatformError:
    """What to say of a call that got no answer: a certificate and a wrong scheme do not mend themselves. `next_step`:
    what to do if it is none of these."""
    reason = f"{type(error).__name__} {error}"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return PlatformError(
            "tls.not_trusted",
            "the service's certificate is not trusted, or is for another host name",
            value=f"{url}: {reason}",
            next_step="set tls_ca to a PEM file with the authority that signed it, and use the host name it is for",
        )
    if url.startswith("https:") and ("WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason):
        next_step = "the service does not speak TLS: use http:// in its address"
    elif url.startswith("http:") and type(error).__name__ in _ENDED_WITHOUT_AN_ANSWER:
        next_step = (
            "if the service speaks TLS, use https:// in its address; otherwise check that it is running"
        )
    next_step = next_step or "check that it is running; the call may be retried"
    return PlatformError(
        "service.unreachable",
        message,
        value=f"{urlsplit(url).netloc}: {_shortly(error)}",
        next_step=next_step,
    )


def _shortly(error: BaseException) -> str:
    """The reason, without the words in which libraries repeat the address."""
    cause = getattr(error, "os_error", error)  # of aiohttp
    if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
        return "connection refused"
    if isinstance(cause, TimeoutError):
        return "timed out"
    if isinstance(cause, OSError) and cause.strerror and "[" not in cause.strerror:
        return cause.strerror
    return f"{type(error).__name__} {error}".strip()


def caller_context(ca: Path | None) -> ssl.SSLContext:
    """What a caller trusts: the certificate authorities of a file, or those of the system."""
    import ssl  # slow to import, and most calls of a laptop are not encrypted

    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        assert ca is not None
        reason = "is not PEM" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
        raise InvalidInput(
            "tls.ca_unusable",
            f"the file of the setting tls_ca {reason}",
            value=str(ca),
            next_step="set tls_ca to a PEM file with the authority that signed the service's certificate",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def error_after(mark: bytes, received: bytes) -> TraceplaneError | None:
    """The error at the end of an answer that was cut off, if its service could say why (`routes.ERROR_MARK`)."""
    status, _, raw = received.rpartition(mark)[2].partition(b" ")
    return as_error(int(status), raw) if mark in received and status.isdigit() else None


def as_error(status: int, raw: bytes) -> TraceplaneError:
    """The error that a service answered with."""
    try:
        body = msgspec.json.decode(raw)["error"]
        if body["code"] == "spec.invalid":
            return SpecInvalid(tuple(SpecProblem(**problem) for problem in body["problems"]))
        kind = _ERRORS.get(status, PlatformError)
        return kind(body["code"], body["message"], value=body.get("value"), next_step=body.get("next_step"))
    except (msgspec.DecodeError, KeyError, TypeError):
        return PlatformError(
            "service.bad_answer", "the service answered with something unexpected", value=raw[:200]
        )
