"""Calls to addresses that users name: identity providers, and receivers of deliveries.

Whoever may name an address must not reach through it what only this machine reaches. So a call goes over https to
public addresses only. Its host is resolved once, every address is checked, and the connection is made to one of those:
a name that resolves to another address a moment later changes nothing. Redirects are not followed, proxies and cookies
are not used, and answers have a size and a time. The setting `outgoing_allow` names hosts and networks for which https
and a public address are not required. Mail servers are connected to under the same rules, with TLS in place of https.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import ipaddress
import itertools
import re
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from traceplane.errors import InvalidInput, PlatformError
from traceplane.http_service.lookups import Lookups, TooManyLookups
from traceplane.linux.connect_supervisor import Address, Endpoints

if TYPE_CHECKING:
    from aiohttp import AddrInfoType, ClientResponse
    from aiohttp.abc import ResolveResult
    from yarl import URL

Decoded = TypeVar("Decoded")
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

SECONDS = 10.0
LONGEST_ANSWER = 1 << 20
MAIL_PORTS = (25, 465, 587, 2525)
_BEGINNING_BYTES, _BEGINNING_SECONDS = 2048, 1.0
"""Of the answer to a message: enough for the reason of a refusal."""
_KEPT_SECONDS, _OLDEST_LINE_SECONDS = 1.0, 30.0
"""Few servers close an idle connection sooner."""
_MOST_CONNECTIONS, _SHARE_OF_FILES = 4096, 8
_MOST_HEADS = 16
"""Of one answer: the last one, and those that only say that it will come."""
_LONGEST_URL, _LONGEST_HOST = 2000, 253
_HOST_NAME = re.compile(r"(?!-)[a-zA-Z0-9_-]{1,63}(?:\.[a-zA-Z0-9_-]{1,63})*\.?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_PLAIN_URL = re.compile(r"[!-~]+")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_ENDS_WITH_IPV4 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Only here has IANA given addresses away; Python takes others, such as those of sites (fec0::/10), for public."""
_NEVER_PUBLIC = [
    ipaddress.ip_network(text)
    for text in ("168.63.129.16", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "3fff::/20")
]
"""What Python's own table has only in later versions; relays into IPv6, which are of the network that one is in; and
the service of a cloud for its machines, whose address is otherwise a public one."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a URL leads, without what it asks for there; or a mail server."""

    scheme: str
    host: str
    port: int

    @property
    def has_tls(self) -> bool:
        return self.scheme in ("https", "smtps")


class Outgoing:
    """Calls to addresses that users name."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        seconds: float = SECONDS,
        longest_answer: int = LONGEST_ANSWER,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        keeps_connections: bool = False,
    ) -> None:
        """`keeps_connections`: between messages that follow each other; then it must be closed."""
        self._networks: list[Endpoints] = []
        self._hosts: set[tuple[str, int | None]] = set()
        for text in allow:
            with contextlib.suppress(ValueError):
                self._networks.append(Endpoints.parse(text))
                continue
            host, _, port = text.lower().partition(":")
            self._hosts.add((host, int(port) if port else None))
        self._seconds = seconds
        self._longest_answer = longest_answer
        self._resolve = resolve
        self._lookups = Lookups()
        self._caller = ""
        self._tls = tls
        self._kept = _KeptLines() if keeps_connections else None
        self._checked = functools.lru_cache(256)(self._check)

    async def close(self) -> None:
        if self._kept is not None:
            await self._kept.close()

    @property
    def seconds(self) -> float:
        """How long one call may take."""
        return self._seconds

    def of(self, caller: str) -> Outgoing:
        """The same, for the calls of one organization, or of whoever else must not hold up others."""
        one = copy.copy(self)
        one._caller = caller
        return one

    @property
    def tls(self) -> ssl.SSLContext:
        """Whose certificates are trusted."""
        return self._tls or _usual_tls()

    def check(self, url: str) -> Destination:
        """What can be said of a URL without looking its host up; raises InvalidInput."""
        return self._checked(url)

    def _check(self, url: str) -> Destination:
        destination = parse_url(url)
        if not destination.has_tls and not self._may_be_allowed(destination):
            step = (
                "use https, or, if the host may be called without TLS, add it to the setting outgoing_allow"
            )
            raise _refused(url, "the address must begin with https://", step)
        self._check_literal(url, destination)
        return destination

    def check_mail_server(self, host: str, port: int, *, tls: bool) -> Destination:
        """What can be said of a mail server without looking its host up; raises InvalidInput."""
        destination, place = Destination("smtps" if tls else "smtp", host, port), f"{host}:{port}"
        if len(host) > _LONGEST_HOST or not _is_host(host) or not 0 < port < 65536:
            raise _bad_host(place, "the mail server is not a host and a port", "write a name and a port")
        if not self._may_be_allowed(destination):
            if not tls:
                step = "use starttls or implicit TLS, or add the server to the setting outgoing_allow"
                raise _bad_host(place, "a mail server must be called with TLS", step)
            if port not in MAIL_PORTS:
                step = f"use one of {', '.join(map(str, MAIL_PORTS))}, or add the server to the setting outgoing_allow"
                raise _bad_host(place, "this is not a port of mail servers", step)
        self._check_literal(place, destination)
        return destination

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.call("GET", url, headers=headers)

    async def post_form(
        self, url: str, fields: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return await self.call(
            "POST", url, headers=kind | dict(headers or {}), body=urlencode(fields).encode()
        )

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """InvalidInput: the address may not be called; PlatformError: there was no answer that can be used."""
        destination = self.check(url)
        with _failures(url):
            async with asyncio.timeout(self._seconds):
                line = await self._line(url, destination)
                async with (
                    contextlib.aclosing(line),
                    await line.begin(method, url, headers or {}, body) as answer,
                ):
                    return await self._whole(url, answer)

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a message, whatever its status, with the beginning of its body only: once the other side has
        said that it has the message, nothing that it sends after that may make the message be sent again."""
        destination = self.check(url)
        with _failures(url):
            line = None if self._kept is None else self._kept.take(destination)
            if line is not None:
                answer = await self._post_over_kept(line, destination, url, headers, body)
                if answer is not None:
                    return answer
            async with asyncio.timeout(self._seconds):
                line = await self._line(url, destination)
            return await self._post_over(line, destination, url, headers, body)

    async def _post_over_kept(
        self, line: _Line, destination: Destination, url: str, headers: Mapping[str, str], body: bytes
    ) -> Answer | None:
        """None: the other side closed the connection that was kept, perhaps just when the message was sent."""
        import aiohttp

        try:
            return await self._post_over(line, destination, url, headers, body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return None

    async def _post_over(
        self, line: _Line, destination: Destination, url: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """The line is closed after it, or kept."""
        is_kept = False
        try:
            async with await line.begin("POST", url, headers, body) as answer:
                beginning = await _beginning(answer)
                is_whole = answer.content.at_eof()
            is_kept = self._kept is not None and is_whole and self._kept.keep(destination, line)
        finally:
            if not is_kept:
                await line.aclose()
        return Answer(answer.status, beginning, answer.headers.get("retry-after"))

    async def _line(self, url: str, destination: Destination) -> _Line:
        addresses = await self._checked_addresses(url, destination)
        return _Line(addresses, self._seconds, self._tls, stays_open=self._kept is not None)

    async def connect(self, destination: Destination) -> socket.socket:
        """A connection to a mail server that `check_mail_server` accepted."""
        place = f"{destination.host}:{destination.port}"
        with _failures(place):
            async with asyncio.timeout(self._seconds):
                addresses = await self._checked_addresses(place, destination)
                return await _connected(addresses, destination.port, self._seconds)

    def _check_literal(self, place: str, destination: Destination) -> None:
        literal = _literal(destination.host)
        if literal is not None and not self._permits(destination, literal):
            raise _not_public(place)

    async def _checked_addresses(self, url: str, destination: Destination) -> Sequence[Address]:
        literal = _literal(destination.host)
        if literal is not None:
            return (literal,)  # `check` has looked at it
        addresses = await self._addresses(url, destination)
        if not addresses:
            raise _failed(url, "the host has no address")
        for address in addresses:
            if not self._permits(destination, address):
                # The address itself would tell the caller what is inside the network.
                raise _not_public(url)
        return addresses

    async def _addresses(self, url: str, destination: Destination) -> Sequence[Address]:
        if self._resolve is not None:
            return await self._resolve(destination.host, destination.port)
        try:
            return await self._lookups.addresses(destination.host, asker=self._caller)
        except TooManyLookups:
            raise _failed(
                url, "too many hosts are being looked up whose name servers do not answer"
            ) from None

    async def _whole(self, url: str, answer: ClientResponse) -> Answer:
        if 300 <= answer.status < 400:
            raise _failed(url, "the answer is a redirect, which is not followed")
        if _is_compressed(answer):
            raise _failed(url, "the answer is compressed, which nobody asked for")
        received = bytearray()
        async for piece in answer.content.iter_any():
            received += piece
            if len(received) > self._longest_answer:
                raise _failed(url, f"the answer is longer than {self._longest_answer} bytes")
        return Answer(answer.status, bytes(received))

    def _may_be_allowed(self, destination: Destination) -> bool:
        """Whether the setting names the host, or may name its addresses once they are known."""
        return self._names(destination) or bool(self._networks)

    def _names(self, destination: Destination) -> bool:
        host = destination.host.lower().removesuffix(".")
        return bool({(host, None), (host, destination.port)} & self._hosts)

    def _permits(self, destination: Destination, address: Address) -> bool:
        place = (_plain(address), destination.port)
        if self._names(destination) or any(place in network for network in self._networks):
            return True
        usual_port = destination.scheme != "smtps" or destination.port in MAIL_PORTS
        return destination.has_tls and usual_port and is_public(address)


class _Line:
    """At most one connection at a time, to one of the addresses that were checked."""

    def __init__(
        self, addresses: Sequence[Address], seconds: float, tls: ssl.SSLContext | None, *, stays_open: bool
    ) -> None:
        import aiohttp
        from aiohttp.abc import AbstractResolver

        self.made_at = time.monotonic()
        self.last_used_at = 0.0
        self._connections: list[socket.socket] = []

        class Pinned(AbstractResolver):
            async def resolve(
                self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
            ) -> list[ResolveResult]:
                return [_result(host, port, address) for address in addresses]

            async def close(self) -> None:
                pass

        def opened(place: AddrInfoType) -> socket.socket:
            self._connections.append(connection := socket.socket(*place[:3]))
            return connection

        connector = aiohttp.TCPConnector(
            socket_factory=opened,
            resolver=Pinned(),
            use_dns_cache=False,
            force_close=not stays_open,
            limit=1,
            family=socket.AF_UNSPEC,
            ssl=tls or True,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,  # or a short answer could become a long one
            response_class=_response_class(),
            timeout=aiohttp.ClientTimeout(total=seconds),
        )

    async def begin(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> ClientResponse:
        """The head of the answer, within the time that one call may take; to be released."""
        return await self._session.request(
            method,
            _as_it_is(url),
            data=body,
            headers={"accept": "application/json", "accept-encoding": "identity", **headers},
            allow_redirects=False,
        )

    async def aclose(self) -> None:
        await self._session.close()
        for connection in self._connections:
            _shut_down(connection)


class _KeptLines:
    """Lines that the next message may use. A host is looked up again once its line is some seconds old."""

    def __init__(self) -> None:
        self._lines: dict[Destination, list[_Line]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._most = most_connections()
        self._count = 0

    def take(self, destination: Destination) -> _Line | None:
        """The one that was used last: it is the least likely to be closed on the other side."""
        lines = self._lines.get(destination, [])
        while lines:
            line = lines.pop()
            self._count -= 1
            if self._is_good(line):
                return line
            self._close(line)
        return None

    def keep(self, destination: Destination, line: _Line) -> bool:
        if not self._is_young(line) or self._count >= self._most:
            return False
        self._count += 1
        line.last_used_at = time.monotonic()
        self._lines.setdefault(destination, []).append(line)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._close_old)
        return True

    async def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for line in itertools.chain.from_iterable(self._lines.values()):
            self._close(line)
        self._lines.clear()
        self._count = 0
        await asyncio.gather(*self._closing)

    def _is_young(self, line: _Line) -> bool:
        return time.monotonic() - line.made_at < _OLDEST_LINE_SECONDS

    def _is_good(self, line: _Line) -> bool:
        return time.monotonic() - line.last_used_at < _KEPT_SECONDS and self._is_young(line)

    def _close_old(self) -> None:
        self._sweep = None
        for destination, lines in list(self._lines.items()):
            good = [line for line in lines if self._is_good(line)]
            for line in lines:
                if line not in good:
                    self._count -= 1
                    self._close(line)
            if good:
                self._lines[destination] = good
            else:
                del self._lines[destination]
        if self._lines:
            self._sweep = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._close_old)

    def _close(self, line: _Line) -> None:
        task = asyncio.create_task(line.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


@functools.cache
def _response_class() -> type[ClientResponse]:
    import aiohttp
    from aiohttp.connector import Connection

    class Response(aiohttp.ClientResponse):
        """Of few heads: a server could otherwise announce its answer without end, and keep this process busy."""

        async def start(self, connection: Connection) -> aiohttp.ClientResponse:
            protocol = connection.protocol
            assert protocol is not None
            read, left = protocol.read, iter(range(_MOST_HEADS))

            async def counted() -> object:
                if next(left, None) is None:
                    raise aiohttp.ClientPayloadError("the answer is announced too often")
                return await read()

            protocol.read = counted  # type: ignore[method-assign,assignment]
            try:
                return await super().start(connection)
            finally:
                del protocol.read

    return Response


@functools.lru_cache(256)
def _as_it_is(url: str) -> URL:
    """Nothing in it is encoded once more."""
    from yarl import URL

    return URL(url, encoded=True)


@functools.lru_cache(256)
def parse_url(url: str) -> Destination:
    """Only what every program understands the same way: no user, no fragment, no unusual spelling of a host."""
    if len(url) > _LONGEST_URL or not _PLAIN_URL.fullmatch(url) or "\\" in url:
        raise _refused(url, "the address is too long, or has characters that a URL cannot have", "correct it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused(url, "the address is not a URL", "write it like https://login.example.com") from None
    host = parts.hostname or ""
    if parts.scheme not in ("https", "http") or not host:
        raise _refused(url, "the address is not a URL", "write it like https://login.example.com")
    if "@" in parts.netloc or "#" in url:
        raise _refused(url, "the address must not contain a user or a fragment", "remove it")
    if port == 0:
        raise _refused(url, "the port is not valid", "correct it")
    in_brackets = _literal(host) is not None and ":" in host
    if not _is_host(host) or in_brackets is not ("[" in parts.netloc):
        raise _refused(url, "the host is not a name or an address", "write it in its usual form")
    return Destination(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))


def _is_host(host: str) -> bool:
    """A resolver would also take 2130706433, 0x7f.1 and 0177.0.0.1 for addresses."""
    if _literal(host) is not None:
        return True
    last = host.removesuffix(".").rpartition(".")[2]
    return bool(_HOST_NAME.fullmatch(host)) and not _NUMBER.fullmatch(last)


def is_public(address: Address) -> bool:
    """Whether it is an address that anybody on the internet could reach, also as what it stands for."""
    address = _plain(address)
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not any(
        address in network for network in _NEVER_PUBLIC if network.version == address.version
    )


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if any."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if any(address in network for network in _ENDS_WITH_IPV4) and int(address) > 1:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _TEREDO:
        return ipaddress.IPv4Address(~int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@functools.lru_cache(256)
def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host) if "%" not in host else None
    except ValueError:
        return None


@functools.cache
def _usual_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _connected(addresses: Sequence[Address], port: int, seconds: float) -> socket.socket:
    """To the first that answers; each gets its share of the time."""
    loop = asyncio.get_running_loop()
    failure = OSError("the host has no address")
    for address in addresses:
        connection = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(seconds / len(addresses)):
                await loop.sock_connect(connection, (str(address), port))
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


def most_connections() -> int:
    """That calls may have at once in this process: a small part of the files that it may open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = _MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed // _SHARE_OF_FILES
    return max(1, min(_MOST_CONNECTIONS, share))


def _shut_down(connection: socket.socket) -> None:
    """Now: a connection is otherwise kept until the other side has read everything, which may be never."""
    with contextlib.suppress(OSError):  # it is closed
        connection.shutdown(socket.SHUT_RDWR)


async def _beginning(answer: ClientResponse) -> bytes:
    import aiohttp

    received = bytearray()
    if answer.content.at_eof() or _is_compressed(answer):
        return b""
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError, ValueError):
        async with asyncio.timeout(_BEGINNING_SECONDS):
            async for piece in answer.content.iter_any():
                received += piece
                if len(received) >= _BEGINNING_BYTES:
                    break
    return bytes(received[:_BEGINNING_BYTES])


def _is_compressed(answer: ClientResponse) -> bool:
    return answer.headers.get("content-encoding", "identity").lower() != "identity"


def _result(host: str, port: int, address: Address) -> ResolveResult:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return {
        "hostname": host,
        "host": str(address),
        "port": port,
        "family": family,
        "proto": 0,
        "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    }


def _shown(url: str) -> str:
    """Without what may be secret in it."""
    return url.partition("?")[0][:200] if "@" not in url else "(with a user)"


def _refused(url: str, message: str, next_step: str) -> InvalidInput:
    return InvalidInput("outgoing.bad_url", message, value=_shown(url), next_step=next_step)


def _not_public(url: str) -> InvalidInput:
    return InvalidInput(
        "outgoing.not_allowed",
        "the host is not on the public internet, or is called without TLS",
        value=_shown(url),
        next_step="if it may be called, add it to the setting outgoing_allow",
    )


def _bad_host(place: str, message: str, next_step: str) -> InvalidInput:
    return InvalidInput("outgoing.bad_host", message, value=place[:200], next_step=next_step)


def _failed(url: str, message: str) -> PlatformError:
    return PlatformError("outgoing.failed", message, value=_shown(url), next_step="check the other side")


@contextlib.contextmanager
def _failures(url: str) -> Iterator[None]:
    import aiohttp

    try:
        yield
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        raise _failed(url, f"the call failed: {type(error).__name__}") from error


def json_of(answer: Answer, url: str, kind: type[Decoded]) -> Decoded:
    """The body of an answer as this type; PlatformError if it is another."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _failed(url, "the answer is not the JSON that was expected") from None
