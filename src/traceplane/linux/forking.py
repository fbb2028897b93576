"""A server that forks a confined process for each piece of work: its own side, and that of the process that owns it.

The server is a clean interpreter with an empty environment and one descriptor. It imports what the work needs once,
holds no secret and never does the work itself. Its owner hands it one end of a socket for each process; what is said
over it is theirs. The end of the owner's connection is the end of the server, and of all that it forked.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

from traceplane.linux import kernel, landlock, seccomp

_START_SECONDS = 60.0
_END_SECONDS = 5.0


class ForkingServer:
    """The owner's side. Starting one raises OSError if it cannot be started."""

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        ours.settimeout(_START_SECONDS)
        try:
            self.hello = ours.recv(4096)
            """What it says of itself once it is ready."""
            if not self.hello:
                raise ConnectionResetError("it ended at once")
        except OSError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def fork(self, name: str, conversation: socket.socket) -> None:
        """A process that converses over its end of the socket. Raises OSError if the server is gone."""
        socket.send_fds(self._control, [f"run {name}".encode()], [conversation.fileno()])

    def kill(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._control.send(f"kill {name}".encode())

    def ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        self._control.close()
        if not self.ended_within(_END_SECONDS):
            self._process.kill()
            self._process.wait()


def serve(control: socket.socket, hello: bytes, run: Callable[[socket.socket], NoReturn]) -> NoReturn:
    """`run NAME` with a descriptor forks a process for it, `kill NAME` ends it; the end of the connection ends all."""
    gc.collect()
    gc.freeze()  # what is there is shared with every process instead of being copied by its collector
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # the owner's to handle: it closes the connection
    running: dict[str, int] = {}
    control.sendall(hello)
    while True:
        ready, _, _ = select.select([control.fileno(), reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            _reap(running)
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            for pid in running.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        verb, _, name = message.decode().partition(" ")
        if verb == "kill":
            if name in running:  # not reaped, so the number is still that process's
                os.kill(running[name], signal.SIGKILL)
            continue
        conversation = socket.socket(fileno=descriptors[0])
        if (pid := os.fork()) == 0:
            _become_child(control, reader, writer)
            run(conversation)
        running[name] = pid
        conversation.close()


def confine(
    abi: int, system_calls: seccomp.Filter | None, *, readable: list[str], writable: list[str]
) -> None:
    """Leaves this process these folders, no network, and none of its rights."""
    if sys.platform != "linux":
        return
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if abi:
        rules = landlock.Ruleset(abi, tcp=landlock.Tcp.GRANTED_PORTS)
        rules.allow_read(readable)
        rules.allow_write(writable)
        rules.enforce()
    kernel.drop_capabilities()
    if system_calls is not None:
        system_calls.enforce()


def confinement() -> tuple[int, seccomp.Filter | None]:
    """What this machine has to confine a process with, made ready before any is forked."""
    if sys.platform != "linux":
        return 0, None
    abi = landlock.supported_abi()
    if not seccomp.supported():
        return abi, None
    return abi, seccomp.Filter(sockets=seccomp.Sockets.NONE, keep_attributes=True)


def _become_child(control: socket.socket, reader: int, writer: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    control.close()
    os.close(reader)
    os.close(writer)
    os.setsid()
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when memory runs out, such a process goes before the platform


def _reap(running: dict[str, int]) -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for name, known in list(running.items()):
            if known == pid:
                del running[name]
