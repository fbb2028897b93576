"""The wrapper's side of the operators' fork server: start it, request slots, notice its end, stop it."""

from __future__ import annotations

import asyncio
import os
import socket

import msgspec

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.linux.fork_server import ForkServer
from traceplane.sandbox.confinement import Isolation
from traceplane.sandbox.frames import Configure, Hello, OpenSlot


class SandboxServer:
    def __init__(self, server: ForkServer, isolation: Isolation) -> None:
        self._server = server
        self.isolation = isolation

    @classmethod
    async def start(cls, configure: Configure, private_network: tuple[int, ...] = ()) -> SandboxServer:
        """`private_network`: descriptors of the network for it to enter. Raises `sandbox.not_started`."""
        server = ForkServer("traceplane.sandbox.server_process", _complain)
        setup = msgspec.json.encode(configure)
        try:
            hello = msgspec.json.decode(
                await asyncio.to_thread(server.greet, setup, private_network), type=Hello
            )
        except (OSError, msgspec.MsgspecError) as error:
            await asyncio.to_thread(server.close)
            value = f"{server.complaints}{error}"
            raise PlatformError(
                "sandbox.not_started", "the fork server did not start", value=value
            ) from error
        except BaseException:
            await asyncio.to_thread(server.close)
            raise
        isolation = Isolation(tuple(hello.active), hello.missing, hello.landlock_abi, configure.network)
        return cls(server, isolation)

    @property
    def pid(self) -> int:
        return self._server.pid

    def open_slot(self, index: int, uid: int | None) -> socket.socket:
        """Request a slot; the caller owns its control socket. Raises OSError if the server has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._server.fork(f"slot {index}", theirs, msgspec.json.encode(OpenSlot(index, uid)))
            except OSError:
                ours.close()
                raise
        return ours

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self._server.exit_code is None:
            await _end_of(self._server.pid)
            await asyncio.to_thread(self._server.ended_within, 60.0)
        code = self._server.exit_code
        assert code is not None
        return code

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.close)


async def _end_of(pid: int) -> None:
    """Waits without a thread."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _complain(text: str) -> None:
    telemetry.emit("sandbox.server_says", "warning", text=text)
