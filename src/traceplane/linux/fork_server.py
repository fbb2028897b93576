"""A server that forks a process for each piece of work: its owner's side, and its own.

The server is a clean interpreter with one descriptor and almost no environment. It holds no secrets, imports what the
work needs once, and never does the work itself. A message is one packet:

    owner ── setup, may carry descriptors ──► server ── hello ──► owner
    owner ── ForkProcess, carries the process's end of a socket; KillProcess ──► server

What goes over that socket is up to the owner and the process. When the owner's connection ends, so does the server, and
with it everything that it forked. Operators, queries and decoders each have a server.
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
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from traceplane.linux import kernel
from traceplane.linux.confine import allow_many_open_files, close_descriptors, protect_this_process

_START_SECONDS = 60.0
_END_SECONDS = 10.0
_LONGEST_MESSAGE = 128 << 10
_MOST_DESCRIPTORS = 4
_KILL_ME_FIRST = "1000"
_KEPT_COMPLAINTS = 4000


class ForkProcess(msgspec.Struct, frozen=True, tag=True):
    """Carries one descriptor: the process's end of a socket."""

    name: str
    work: msgspec.Raw


class KillProcess(msgspec.Struct, frozen=True, tag=True):
    """Ignored if that process has ended."""

    name: str


_requests: msgspec.json.Decoder[ForkProcess | KillProcess] = msgspec.json.Decoder(ForkProcess | KillProcess)


class ForkServer:
    """The owner's side. `on_complaint` gets what the server writes to its standard error, from a thread."""

    def __init__(
        self,
        module: str,
        on_complaint: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        allow_many_open_files()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        self.complaints = ""
        """The end of its standard error."""
        self._on_complaint = on_complaint
        self._listener = threading.Thread(target=self._listen, name=f"stderr of {module}", daemon=True)
        self._listener.start()

    def greet(self, setup: bytes = b"{}", descriptors: Sequence[int] = ()) -> bytes:
        """Waits until it is ready; returns what it reports about itself. Raises OSError if it does not start."""
        self._control.settimeout(_START_SECONDS)
        socket.send_fds(self._control, [setup], list(descriptors))
        hello = self._control.recv(_LONGEST_MESSAGE)
        if not hello:
            raise ConnectionResetError("it ended immediately")
        return hello

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def fork(self, name: str, conversation: socket.socket, work: bytes = b"null") -> None:
        """Forks a process that talks over its end of the socket. Raises OSError if the server has ended."""
        message = msgspec.json.encode(ForkProcess(name, msgspec.Raw(work)))
        socket.send_fds(self._control, [message], [conversation.fileno()])

    def kill(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._control.send(msgspec.json.encode(KillProcess(name)))

    def ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """It ends when its control socket closes; otherwise it is killed."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also for a thread that may still be reading
        self._control.close()
        self._process.terminate()  # one that is preparing would notice late; one that serves ignores it
        if not self.ended_within(_END_SECONDS):
            self._process.kill()
            self._process.wait()
        self._listener.join(_END_SECONDS)  # its children may still be ending

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            while data := os.read(stderr.fileno(), 4096):
                text = data.decode(errors="replace")
                self.complaints = (self.complaints + text)[-_KEPT_COMPLAINTS:]
                self._on_complaint(text)


@dataclass(frozen=True, slots=True)
class Readiness:
    """The server's state after its setup."""

    hello: bytes
    run: Callable[[socket.socket, bytes], NoReturn]
    """Run in the forked process: does the work over the socket."""
    kept: tuple[int, ...] = ()
    """Descriptors that forked processes inherit, besides 0, 1, 2 and their socket."""


def main(prepare: Callable[[bytes, list[int]], Readiness]) -> NoReturn:
    """The server's side; the command line names its control socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(
            _KILL_ME_FIRST
        )  # when memory runs out, the kernel kills these processes before the platform
    os.umask(0o022)
    protect_this_process()
    try:
        setup, descriptors, _, _ = socket.recv_fds(control, _LONGEST_MESSAGE, _MOST_DESCRIPTORS)
        if not setup:
            os._exit(0)  # the owner ended before this process started
        readiness = prepare(setup, descriptors)
        gc.collect()
        gc.freeze()  # keeps the collector of each child from copying shared pages
        control.sendall(readiness.hello)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
    _serve(control, readiness)


def _serve(control: socket.socket, readiness: Readiness) -> NoReturn:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # the owner handles it and closes the connection
    running: dict[str, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            _reap(running)
        if control.fileno() not in ready:
            continue
        try:
            message, descriptors, _, _ = socket.recv_fds(control, _LONGEST_MESSAGE, 1)
        except OSError:
            message = b""
        if not message:
            os._exit(0)  # and with it everything that it forked
        match _requests.decode(message):
            case KillProcess(name):
                if name in running:  # not reaped, so the pid is still its own
                    os.kill(running[name], signal.SIGKILL)
            case ForkProcess(name, work):
                running[name] = _fork(control, descriptors[0], bytes(work), readiness)


def _fork(control: socket.socket, descriptor: int, work: bytes, readiness: Readiness) -> int:
    parent = os.getpid()
    if (pid := os.fork()) != 0:
        os.close(descriptor)
        return pid
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    control.detach()
    close_descriptors((descriptor, *readiness.kept))
    os.setsid()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before its death could be signalled
    try:
        readiness.run(socket.socket(fileno=descriptor), work)
    finally:
        os._exit(1)


def _reap(running: dict[str, int]) -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for name, running_pid in list(running.items()):
            if running_pid == pid:
                del running[name]
