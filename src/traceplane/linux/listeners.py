"""Whose processes listen at an address of this machine, as the kernel knows it."""

from __future__ import annotations

import contextlib
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address

_LISTEN = "0A"

Address = IPv4Address | IPv6Address


def listening_users(address: Address, port: int) -> set[int]:
    """The users whose sockets take connections to it; a socket of this very address comes before one of all."""
    of_this: set[int] = set()
    of_all: set[int] = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/net/{name}") as file:
            next(file)
            for line in file:
                fields = line.split()
                host, _, number = fields[1].partition(":")
                if fields[3] != _LISTEN or int(number, 16) != port:
                    continue
                listening = _address(host)
                if listening == address:
                    of_this.add(int(fields[7]))
                elif listening.is_unspecified and listening.version >= address.version:
                    of_all.add(int(fields[7]))
    return of_this or of_all


def _address(text: str) -> Address:
    """Words of 32 bits in the order of this machine."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[n : n + 4][::-1] for n in range(0, len(raw), 4))
    address = ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
