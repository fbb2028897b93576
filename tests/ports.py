"""Ports that nobody else takes between their choice and their use.

A port that the kernel chooses can be given again to the next who asks, before the process it was meant for listens on
it; that one then fails, or its callers reach a stranger. So every test process has a range of its own, below those
that the kernel gives away.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

_KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _PORTS = 12_000, 200


def free_port() -> int:
    for port in _own_range():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("unreachable: the range repeats itself")


@cache
def _own_range() -> itertools.cycle[int]:
    """Held by a lock until this process ends."""
    folder = Path(tempfile.gettempdir()) / f"traceplane-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    highest = int(_KERNELS.read_text().split()[0]) if _KERNELS.exists() else 32_768
    for first in range(_LOWEST, highest - _PORTS, _PORTS):
        lock = os.open(folder / str(first), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return itertools.cycle(range(first, first + _PORTS))
    raise AssertionError(f"no range of ports below {highest} is free: {folder}")
