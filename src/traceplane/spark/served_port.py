"""A port on which a child of this process serves, and nobody else in its place.

Clients send a credential to whoever listens there. Somebody else may take the port before the child does, and when
the child has ended. So the child counts as the server once the kernel says that the listening socket is one of its
own. From then on the port is nobody else's as long as this process lives, since it has bound the port too, and no
longer shares it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from traceplane.sandbox import confinement

_LISTEN = "0A"


class ServedPort:
    """Free when this is made; the server is then to bind it itself, with SO_REUSEADDR."""

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server's own does
        self._held.bind(("127.0.0.1", 0))
        self.number = int(self._held.getsockname()[1])

    def is_served_by(self, process: int, uid: int | None) -> bool:
        listening = _listening_sockets(self.number)
        if not listening or not listening <= _sockets_of(process, uid):
            return False
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return True


def _listening_sockets(port: int) -> set[str]:
    """Inodes of all that listen on the port in this network, at whatever address."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/net/{name}") as file:
            next(file)
            for line in file:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def _sockets_of(process: int, uid: int | None) -> set[str]:
    """Inodes of the sockets that a child of this process has open; asked as its own user, who needs no privilege."""
    handle = os.pidfd_open(process)
    try:
        # The /proc that is mounted here may be one of another pid space, where it has another number.
        with open(f"/proc/self/fdinfo/{handle}") as file:
            name = next(line.split()[1] for line in file if line.startswith("Pid:"))
    finally:
        os.close(handle)
    reader, writer = os.pipe()
    looking = os.fork()
    if looking == 0:
        try:
            if uid is not None:
                confinement.take_uid(uid)
            os.write(writer, "\n".join(_socket_inodes(f"/proc/{name}/fd")).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = set(pipe.read().split())
    with contextlib.suppress(ChildProcessError):  # whoever collects children may have been faster
        os.waitpid(looking, 0)
    return found


def _socket_inodes(folder: str) -> Iterator[str]:
    for descriptor in os.listdir(folder):
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"{folder}/{descriptor}").partition(":[")
            if kind == "socket":
                yield inode.removesuffix("]")
