"""The network that a worker's Spark servers and their tasks share, and nobody else can use.

    python -I -m traceplane.spark.network CONTROL

Created once, by a process that ends immediately; it lives as long as the worker holds its descriptors.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import dataclass

from traceplane.linux import network_namespace
from traceplane.sandbox import confinement


@dataclass
class PrivateNetwork:
    descriptors: tuple[int, ...]
    """Empty if there is no such network here; then tasks reach Spark over this machine's own network."""
    missing: str | None = None
    """Why there is none."""

    @classmethod
    async def make(cls) -> PrivateNetwork:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-m", "traceplane.spark.network", str(theirs.fileno())),
                    env={},
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            try:
                await process.wait()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
            message, descriptors, _, _ = socket.recv_fds(ours, 1000, 2)
        return cls(tuple(descriptors), None if descriptors else message.decode() or "it could not be created")

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


def main(control_descriptor: int) -> None:
    control = socket.socket(fileno=control_descriptor)
    try:
        descriptors = network_namespace.make(confinement.enter_user_namespace)
    except OSError as error:
        control.sendall(str(error).encode()[:900])
        return
    socket.send_fds(control, [b"."], descriptors)


if __name__ == "__main__":
    main(int(sys.argv[1]))
