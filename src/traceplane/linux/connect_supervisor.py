"""Connections of a process that may use the network, made by a supervisor that checks their targets.

The process runs under a system call filter that hands every `connect` to a listener (`seccomp.Filter` with
`Sockets.SUPERVISED`). The supervisor copies the address out of the caller's memory, decides, and connects a copy of
the caller's socket itself. It reads the caller's memory only once, so the address cannot change between check and
use. A caller with a blocking socket continues when the connection is established; until then its socket does not
block.

The process can only create TCP sockets, so this is all the network that it has. Names are also resolved over TCP
(`RESOLVER_ENVIRONMENT`).
"""

from __future__ import annotations

import contextlib
import copy
import errno
import fcntl
import ipaddress
import os
import selectors
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from traceplane.linux import kernel

RESOLVER_ENVIRONMENT = {"RES_OPTIONS": "use-vc"}

_RECEIVE, _ANSWER, _STILL_WAITS = 0xC0502100, 0xC0182101, 0x40082102
_NOTICE = struct.Struct("=QIIiIQ6Q")
_REPLY = struct.Struct("=QqiI")
_LONGEST_ADDRESS = 128
_IPV4, _IPV6 = struct.Struct("!2xH4s"), struct.Struct("!2xH4x16s")

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ITSELF = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/127",
    "fe80::/10",
    "ff00::/8",
    # Where clouds serve an instance its credentials, if not at a link-local address.
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "fd00:42::42/128",
    "fd00:ec2::/32",
    "fd20:ce::254/128",
)
"""This machine itself, its link, and broadcast and multicast."""


@dataclass(frozen=True)
class Endpoints:
    """All addresses of a network, at one port or any."""

    network: Network
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Endpoints:
        """`127.0.0.1:8545`, `10.0.0.0/8`, `[::1]:8545`, `fd00::/8`; raises ValueError."""
        port: str | None = None
        if text.startswith("["):
            text, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") if rest else None
        elif text.count(":") == 1:
            text, _, port = text.partition(":")
        if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{port!r} is not a port")
        return cls(ipaddress.ip_network(text, strict=False), None if port is None else int(port))

    def __contains__(self, place: tuple[Address, int]) -> bool:
        address, port = place
        return address.version == self.network.version and (
            address in self.network and self.port in (None, port)
        )


class Destinations:
    """Where a process may connect: everywhere but to this machine, its link and denied targets; also to allowed ones
    among these; and never to `never`."""

    def __init__(
        self, allowed: Iterable[str] = (), denied: Iterable[str] = (), never: Iterable[str] = ()
    ) -> None:
        allowed = list(allowed)
        self._all = "*" in allowed
        self._allowed = [Endpoints.parse(text) for text in allowed if text != "*"]
        self._denied = [Endpoints.parse(text) for text in (*ITSELF, *denied)]
        self._never = [Endpoints.parse(text) for text in never]

    def with_loopback_port(self, port: int) -> Destinations:
        """The same, plus a service of this machine; 0 for none."""
        if not port:
            return self
        wider = copy.copy(self)
        wider._allowed = [*self._allowed, Endpoints.parse(f"127.0.0.1:{port}")]
        return wider

    def permit(self, address: Address, port: int) -> bool:
        if isinstance(address, ipaddress.IPv6Address):
            address = _inner(address)
        place = (address, port)
        if any(place in endpoints for endpoints in self._never):
            return False
        if self._all or any(place in endpoints for endpoints in self._allowed):
            return True
        return not any(place in endpoints for endpoints in self._denied) and not _is_this_machine(address)


def _inner(address: ipaddress.IPv6Address) -> Address:
    """The IPv4 address that an IPv6 address maps, if any."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_this_machine(address: Address) -> bool:
    """Whether an interface has it: to reach itself, a machine uses the target address as its source."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError:
        return False  # there is no route, and the connection will report that


def name_servers() -> list[str]:
    """Name servers of this machine, as endpoints; one may be at a loopback address."""
    servers = []
    with contextlib.suppress(OSError), open("/etc/resolv.conf") as file:
        for line in file:
            fields = line.split()
            if len(fields) > 1 and fields[0] == "nameserver":
                with contextlib.suppress(ValueError):
                    address = ipaddress.ip_address(fields[1].partition("%")[0])
                    servers.append(f"[{address}]:53" if address.version == 6 else f"{address}:53")
    return servers


class ConnectSupervisor:
    """Serves one listener through a selector whose keys carry callbacks."""

    def __init__(
        self,
        listener: int,
        destinations: Destinations,
        selector: selectors.BaseSelector,
        process_of: Callable[[int], int | None],
    ) -> None:
        self._listener = listener
        self._destinations = destinations
        self._selector = selector
        self._process_of = process_of
        self._connecting: dict[int, socket.socket] = {}
        selector.register(listener, selectors.EVENT_READ, self._on_notice)

    def close(self) -> None:
        """Pending and later calls fail as if the call did not exist."""
        self._selector.unregister(self._listener)
        os.close(self._listener)
        for waiting in self._connecting.values():
            self._selector.unregister(waiting)
            waiting.close()
        self._connecting.clear()

    def _on_notice(self) -> None:
        try:
            notice = _NOTICE.unpack(fcntl.ioctl(self._listener, _RECEIVE, bytes(_NOTICE.size)))
        except OSError:  # it ended, or was interrupted, before it was received
            return
        number, thread, arguments = notice[0], notice[1], notice[6:]
        try:
            outcome = self._connect(number, thread, arguments[0], arguments[1], arguments[2])
        except OSError as error:
            outcome = error.errno or errno.EACCES
        except ValueError:
            outcome = errno.EINVAL
        if outcome is not None:
            self._answer(number, outcome)

    def _connect(self, number: int, thread: int, descriptor: int, address_at: int, length: int) -> int | None:
        """The error number, 0, or None if the answer must wait."""
        length &= 0xFFFFFFFF
        if not 2 <= length <= _LONGEST_ADDRESS:
            return errno.EINVAL
        raw = kernel.read_memory(thread, address_at, length)
        fcntl.ioctl(
            self._listener, _STILL_WAITS, struct.pack("=Q", number)
        )  # or the thread id may have been reused
        if not self._permitted(raw):
            return errno.EACCES
        handle = kernel.handle_of_thread(thread, self._process_of(thread))
        try:
            theirs = socket.socket(fileno=kernel.descriptor_of(handle, descriptor & 0xFFFFFFFF))
        finally:
            os.close(handle)
        keep = False
        try:
            if theirs.family not in (socket.AF_INET, socket.AF_INET6) or theirs.type != socket.SOCK_STREAM:
                return errno.EACCES
            blocks = os.get_blocking(theirs.fileno())
            os.set_blocking(theirs.fileno(), False)
            outcome = kernel.connect(theirs.fileno(), raw)
            if outcome == errno.EINPROGRESS and blocks:
                self._connecting[number] = theirs
                self._selector.register(
                    theirs, selectors.EVENT_WRITE, lambda: self._on_connected(number, theirs)
                )
                keep = True
                return None
            if blocks:
                os.set_blocking(theirs.fileno(), True)
            return outcome
        finally:
            if not keep:
                theirs.close()

    def _permitted(self, raw: bytes) -> bool:
        family = int.from_bytes(raw[:2], "little")
        if family == socket.AF_UNSPEC:
            return True  # ends a connection
        if family == socket.AF_INET and len(raw) >= _IPV4.size:
            port, packed = _IPV4.unpack_from(raw)
        elif family == socket.AF_INET6 and len(raw) >= _IPV6.size:
            port, packed = _IPV6.unpack_from(raw)
        else:
            return False
        return self._destinations.permit(ipaddress.ip_address(packed), port)

    def _on_connected(self, number: int, theirs: socket.socket) -> None:
        self._selector.unregister(theirs)
        del self._connecting[number]
        outcome = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        os.set_blocking(theirs.fileno(), True)
        theirs.close()
        self._answer(number, outcome)

    def _answer(self, number: int, outcome: int) -> None:
        with contextlib.suppress(OSError):  # the caller may have ended
            fcntl.ioctl(self._listener, _ANSWER, _REPLY.pack(number, 0, -outcome, 0))
