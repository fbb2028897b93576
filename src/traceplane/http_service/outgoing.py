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
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from traceplane.errors import InvalidInput, PlatformError
from traceplane.linux.connect_supervisor import Address, Endpoints

if TYPE_CHECKING:
    from aiohttp import AddrInfoType, ClientResponse
    from aiohttp.abc import ResolveResult

Decoded = TypeVar("Decoded")
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

SECONDS = 10.0
LONGEST_ANSWER = 1 << 20
MAIL_PORTS = (25, 465, 587, 2525)
_BEGINNING_BYTES, _BEGINNING_SECONDS = 2048, 1.0
"""Of the answer to a message: enough for the reason of a refusal."""
_LONGEST_URL, _LONGEST_HOST = 2000, 253
_HOST_NAME = re.compile(r"(?!-)[a-zA-Z0-9_-]{1,63}(?:\.[a-zA-Z0-9_-]{1,63})*\.?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_PLAIN_URL = re.compile(r"[!-~]+")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_ENDS_WITH_IPV4 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_NEVER_PUBLIC = [
    ipaddress.ip_network(text)
    for text in ("168.63.129.16", "192.0.0.0/24", "198.18.0.0/15", "64:ff9b:1::/48", "3fff::/20", "5f00::/16")
]
"""What Python's own table has only in later versions; and the service of a cloud for its machines, whose address is
otherwise a public one."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
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
    ) -> None:
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
        self._resolve = resolve or _resolve
        self._tls = tls

    @property
    def seconds(self) -> float:
        """How long one call may take."""
        return self._seconds

    @functools.cached_property
    def tls(self) -> ssl.SSLContext:
        """Whose certificates are trusted."""
        return self._tls or ssl.create_default_context()

    def check(self, url: str) -> Destination:
        """What can be said of a URL without looking its host up; raises InvalidInput."""
        destination = parse_url(url)
        if not destination.has_tls and not self._may_be_allowed(destination):
            raise _refused(url, "the address must begin with https://", "use https")
        self._check_literal(url, destination)
        return destination

    def check_mail_server(self, host: str, port: int, *, tls: bool) -> Destination:
        """What can be said of a mail server without looking its host up; raises InvalidInput."""
        destination, place = Destination("smtps" if tls else "smtp", host, port), f"{host}:{port}"
        if len(host) > _LONGEST_HOST or not _is_host(host) or not 0 < port < 65536:
            raise _bad_host(place, "the mail server is not a host and a port", "write a name and a port")
        if not self._may_be_allowed(destination):
            if not tls:
                raise _bad_host(
                    place, "a mail server must be called with TLS", "use starttls or implicit TLS"
                )
            if port not in MAIL_PORTS:
                ports = ", ".join(map(str, MAIL_PORTS))
                raise _bad_host(place, "this is not a port of mail servers", f"use one of {ports}")
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
                addresses = await self._checked_addresses(url, destination)
                async with self._answer(method, url, addresses, headers or {}, body) as answer:
                    return await self._whole(url, answer)

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a message, whatever its status, with the beginning of its body only: once the other side has
        said that it has the message, nothing that it sends after that may make the message be sent again."""
        destination = self.check(url)
        with _failures(url):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._seconds):
                    addresses = await self._checked_addresses(url, destination)
                    answer = await stack.enter_async_context(
                        self._answer("POST", url, addresses, headers, body)
                    )
                beginning = await _beginning(answer)
                return Answer(
                    answer.status, answer.content_type, beginning, answer.headers.get("retry-after")
                )

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
        addresses = await self._resolve(destination.host, destination.port)
        if not addresses:
            raise _failed(url, "the host has no address")
        for address in addresses:
            if not self._permits(destination, address):
                # The address itself would tell the caller what is inside the network.
                raise _not_public(url)
        return addresses

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        url: str,
        addresses: Sequence[Address],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> AsyncIterator[ClientResponse]:
        import aiohttp
        from aiohttp.abc import AbstractResolver
        from yarl import URL

        connections = contextlib.AsyncExitStack()

        class Pinned(AbstractResolver):
            async def resolve(
                self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
            ) -> list[ResolveResult]:
                return [_result(host, port, address) for address in addresses]

            async def close(self) -> None:
                pass

        def opened(place: AddrInfoType) -> socket.socket:
            connections.callback(_shut_down, connection := socket.socket(*place[:3]))
            return connection

        connector = aiohttp.TCPConnector(
            socket_factory=opened,
            resolver=Pinned(),
            use_dns_cache=False,
            force_close=True,
            limit=1,
            family=socket.AF_UNSPEC,
            ssl=self._tls or True,
        )
        async with (
            connections,
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,  # or a short answer could become a long one
                timeout=aiohttp.ClientTimeout(total=self._seconds),
            ) as session,
            session.request(
                method,
                URL(url, encoded=True),
                data=body,
                headers={"accept": "application/json", "accept-encoding": "identity", **headers},
                allow_redirects=False,
            ) as answer,
        ):
            yield answer

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
        return Answer(answer.status, answer.content_type, bytes(received))

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


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host) if "%" not in host else None
    except ValueError:
        return None


async def _resolve(host: str, port: int) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(str(end[0]).partition("%")[0]) for *_, end in found))


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


def _shut_down(connection: socket.socket) -> None:
    """Now: a connection is otherwise kept until the other side has read everything, which may be never."""
    with contextlib.suppress(OSError):  # it is closed
        connection.shutdown(socket.SHUT_RDWR)


async def _beginning(answer: ClientResponse) -> bytes:
    import aiohttp

    received = bytearray()
    if _is_compressed(answer):
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
