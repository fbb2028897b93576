"""The command line on a terminal, many times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import socket
import subprocess
import sys
import tty
from collections.abc import AsyncIterator

from tests.platform import Platform

COMMAND_SERVER = """
import json, os, socket, sys
import aiohttp
from traceplane.cli import main
from traceplane.postgres import database
caller = socket.socket(fileno=int(sys.argv[1]))
while True:
    call, descriptors, _, _ = socket.recv_fds(caller, 1 << 20, 1)
    if not call:
        break
    if os.fork() == 0:
        arguments, environment = json.loads(call)
        for number in (1, 2):
            os.dup2(descriptors[0], number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["traceplane", *arguments]
        main.main()
        sys.exit()
    os.close(descriptors[0])
    os.wait()
"""


class Commands:
    """Commands in processes that are forked from one which has imported them: there are many, and each start of Python
    would cost half a second."""

    def __init__(self, platform: Platform) -> None:
        self._environment = {
            **platform.environment,
            "TRACEPLANE_USER_TOKEN": platform.user_token,
            "TRACEPLANE_STATE_URL": platform.url,
        }
        self._server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND_SERVER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, platform: Platform) -> AsyncIterator[Commands]:
        commands = cls(platform)
        try:
            yield commands
        finally:
            commands._server.close()
            commands._process.wait()

    async def on_a_terminal(self, *arguments: str) -> str:
        """What a command writes to a terminal."""
        ours, theirs = pty.openpty()
        tty.setraw(theirs)  # so that the kernel changes nothing
        call = json.dumps([arguments, self._environment]).encode()
        socket.send_fds(self._server, [call], [theirs])
        os.close(theirs)
        return await asyncio.to_thread(_read, ours)


def _read(descriptor: int) -> str:
    pieces = []
    try:
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)
    except OSError:  # nobody is left on the other side
        pass
    os.close(descriptor)
    return b"".join(pieces).decode()
