"""A port on which only a child of this process can serve.

Clients send a credential to whatever listens there. Another process may take the port before the child does, or after
the child has ended. So the child counts as the server only when the kernel says that the listening socket is its own.
From then on no other process can get the port as long as this process lives, since this process has bound it too and no
longer shares it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from traceplane.linux.confine import take_uid

_LISTEN = "0A"


class ServedPort:
    """Free when created; the server must then bind it itself, with SO_REUSEADDR."""

    def __init__(self) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server's own does
        self._held.bind(("127.0.0.1", 0))
        self.number = int(self._held.getsockname()[1])

    def close(self) -> None:
        """Any process may have the port from now on."""
        self._held.close()

    def is_served_by(self, process: int, uid: int | None) -> bool:
        listening = _listening_sockets(self.number)
        if not listening or not listening <= _sockets_of(process, uid):
            return False
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return True


def _listening_sockets(port: int) -> set[str]:
    """Inodes of all sockets that listen on the port in this network, at any address."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/net/{name}") as file:
            next(file)
            for line in file:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _sockets_of(process: int, uid: int | None) -> set[str]:
    """Inodes of the sockets that a child of this process has open; asked as its own user, who needs no privilege."""
    handle = os.pidfd_open(process)
    try:
        # The /proc mounted here may belong to another pid space, where the child has another number.
        with open(f"/proc/self/fdinfo/{handle}") as file:
            name = next(line.split()[1] for line in file if line.startswith("Pid:"))
    finally:
        os.close(handle)
    reader, writer = os.pipe()
    looking = os.fork()
    if looking == 0:
        try:
            if uid is not None:
                take_uid(uid)
            os.write(writer, "\n".join(_socket_inodes(f"/proc/{name}/fd")).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        inodes = set(pipe.read().split())
    with contextlib.suppress(ChildProcessError):  # another part of the process may have reaped it first
        os.waitpid(looking, 0)
    return inodes


def _socket_inodes(folder: str) -> Iterator[str]:
    for descriptor in os.listdir(folder):
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"{folder}/{descriptor}").partition(":[")
            if kind == "socket":
                yield inode.removesuffix("]")
