"""A private network: only a loopback interface, shared by the processes inside.

The namespace lives as long as a descriptor of it is open. Without root it belongs to a user namespace, which must be
entered first; the process that created it may enter it, unless it has entered another one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence

from traceplane.linux import kernel

_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 0x1
_REQUEST = struct.Struct("16sh22x")


def make(enter_user_namespace: Callable[[], None]) -> list[int]:
    """Descriptors of a new namespace, in the order in which `enter` takes them. Call it in a separate process."""
    if os.geteuid() != 0:
        enter_user_namespace()
    kernel.unshare(kernel.CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        loopback = _REQUEST.pack(b"lo", 0)
        _, flags = _REQUEST.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, loopback))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _REQUEST.pack(b"lo", flags | _IFF_UP))
    kinds = ("net",) if os.geteuid() == 0 else ("user", "net")
    return [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]


def enter(descriptors: Sequence[int]) -> None:
    """Enters the user namespace, if there is one, then the network; requires a single-threaded process."""
    if len(descriptors) > 1:
        kernel.setns(descriptors[0], kernel.CLONE_NEWUSER)
    kernel.setns(descriptors[-1], kernel.CLONE_NEWNET)
