"""The wrapper's side of the fork server: start it, ask it for slots, notice its end, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import msgspec

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.sandbox import frames
from traceplane.sandbox.confinement import Isolation
from traceplane.sandbox.frames import Configure, Hello, OpenSlot

_START_TIMEOUT_SECONDS = 60.0
_STOP_TIMEOUT_SECONDS = 10.0


class ForkServer:
    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._complaints = asyncio.create_task(_forward_complaints(process))
        self.isolation = Isolation((), {})

    @classmethod
    async def start(cls, configure: Configure, private_network: tuple[int, ...] = ()) -> ForkServer:
        """A clean interpreter with an empty environment and one descriptor, and those of the network that it is to
        enter. Raises `sandbox.not_started`."""
        ours, theirs = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-m", "traceplane.sandbox.fork_server_main", str(theirs.fileno())),
            env={},
            cwd="/",
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        theirs.close()
        server = cls(process, ours)
        try:
            await server._introduce(configure, private_network)
        except BaseException:
            await server.stop()
            raise
        return server

    async def _introduce(self, configure: Configure, private_network: tuple[int, ...]) -> None:
        self._control.settimeout(_START_TIMEOUT_SECONDS)
        try:
            hello = await asyncio.to_thread(_exchange, self._control, configure, private_network)
        except (EOFError, OSError, msgspec.MsgspecError) as error:
            await self.stop()
            said = f"{await self._complaints}{error}"
            raise PlatformError("sandbox.not_started", "the fork server did not start", value=said) from error
        self.isolation = Isolation(tuple(hello.active), hello.missing, hello.landlock_abi, configure.network)

    @property
    def pid(self) -> int:
        return self._process.pid

    def open_slot(self, index: int, uid: int | None) -> socket.socket:
        """Ask for a slot; the control socket of it is the caller's. Raises OSError if the server is gone."""
        ours, theirs = socket.socketpair()
        try:
            frames.send(self._control, OpenSlot(index, uid), (theirs.fileno(),))
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """It ends when its control socket does; if not, it is killed."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also for a thread that may still be reading
        self._control.close()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._complaints


def _exchange(control: socket.socket, configure: Configure, descriptors: tuple[int, ...]) -> Hello:
    frames.send(control, configure, descriptors)
    body, _ = frames.receive(control)
    return msgspec.json.decode(body, type=Hello)


async def _forward_complaints(process: asyncio.subprocess.Process) -> str:
    """Log what the fork server writes to its standard error; returns the end of it."""
    assert process.stderr is not None
    tail = ""
    while data := await process.stderr.read(4096):
        text = data.decode(errors="replace")
        telemetry.emit("sandbox.server_says", "warning", text=text)
        tail = (tail + text)[-4000:]
    return tail
