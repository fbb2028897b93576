"""Processes of the command line, forked from one that has imported what they import.

Importing a dispatcher or a gateway costs most of a second, and the tests start hundreds of them. Such a process runs
what the command runs and differs in one thing: in /proc it has the command line and the first environment of the
server that it was forked from.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class ForkedCommand:
    """Has what the tests use of an asyncio.subprocess.Process."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read_end)

    def _read_end(self) -> None:
        self._loop.remove_reader(self._end)
        code = os.read(self._end, 64)
        os.close(self._end)
        self.returncode = (
            int(code) if code else -signal.SIGKILL
        )  # nothing, if the server died, and it took all along
        self._ended.set()

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


def fork_command(arguments: Sequence[str], environment: Mapping[str, str], log: int) -> ForkedCommand:
    reader, writer = os.pipe()
    try:
        call = json.dumps([list(arguments), dict(environment)]).encode()
        socket.send_fds(_server(), [call], [log, writer])
    finally:
        os.close(writer)
    pid = b""
    while not pid.endswith(b"\n"):
        byte = os.read(reader, 1)
        assert byte, "the server of forked commands has died"
        pid += byte
    return ForkedCommand(int(pid), reader)


@functools.cache
def _server() -> socket.socket:
    """One for all tests of this process, and ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # -P: a folder in which a `platform.py` stands must not come before the standard library.
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("forking_server.py")), str(theirs.fileno())],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
