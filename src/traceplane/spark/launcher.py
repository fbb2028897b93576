"""Starts the Spark server where it can reach only its tasks' data, and ends it with everything that it started.

    python -I -m traceplane.spark.launcher CONTROL

Users' code runs in the server: their functions, and whatever they make Spark do. So it is confined like operators, by
the same means (`confinement`): a separate uid if the worker is root, a root with only its own paths, its own pid space,
the worker's private network, Landlock, seccomp, no capabilities. This process stays outside of that, holds no secrets,
never runs users' code, and

- shows the server what tasks may read and write while they run (`Grant`, `Revoke`), if it has its own mounts;
- reports when the server listens: the server itself, according to the kernel, and no process that took its port first;
- keeps the port from others as long as tasks may still believe that the server is running;
- reports when the server has ended;
- ends every process that the server started, at its end or when the worker's end of the control socket closes.

The server's output goes to descriptors 1 and 2, which the worker reads: no log is opened where the server can write.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from traceplane.linux import kernel
from traceplane.linux.confine import close_descriptors, protect_this_process
from traceplane.sandbox import confinement, private_root, process_tree
from traceplane.sandbox.confinement import NAMESPACES, Isolation
from traceplane.sandbox.frames import Configure, RunLimits, ServeSpark, receive, send
from traceplane.spark.frames import (
    Answered,
    Confined,
    Ended,
    Grant,
    Launch,
    Listening,
    Revoke,
    SparkReport,
    SparkRequest,
    TooWeak,
    filled_in,
)
from traceplane.spark.served_port import ServedPort

_LIMITS = RunLimits(
    memory_bytes=None, open_files=1 << 16, processes=1 << 12, file_bytes=1 << 36, disk_bytes=None
)
"""The worker watches the disk. Threads count as processes: the JVM and its Python workers need some hundreds."""
_READABLE_BY_THE_TASK = 0o022
_OTHER_TEMP = "/scratch"
_LOOK_SECONDS = 0.05
_WITHOUT_MOUNTS = (
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system",
    "/sys/kernel/mm",
    "/etc/group",
    "/dev/shm",  # noqa: S108 -- a path to allow
)
_KILL_ME_FIRST = "900"

_requests: msgspec.json.Decoder[SparkRequest] = msgspec.json.Decoder(SparkRequest)


def main(control_descriptor: int) -> NoReturn:
    control = socket.socket(fileno=control_descriptor)
    close_descriptors((control_descriptor,))
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    protect_this_process()
    os.umask(0o022)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_KILL_ME_FIRST)
    try:
        body, private_network = receive(control)
    except (EOFError, OSError):
        os._exit(0)
    launch = msgspec.json.decode(body, type=Launch)
    uids = [] if launch.uid is None else [launch.uid]
    configure = Configure(launch.folder, ServeSpark(), uids, launch.disabled, [], [])
    isolation = confinement.probe(configure, private_network)
    if (weakness := isolation.weakness()) is not None and not launch.allow_weak:
        send(control, TooWeak(weakness))
        os._exit(1)
    others = confinement.processes_not_of_the_task(isolation)
    confinement.enter_server_namespaces(isolation, private_network)
    for descriptor in private_network:
        os.close(descriptor)
    root = None
    template = private_root.Template(launch.folder, uids) if isolation.has(NAMESPACES) else None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on it ends what it started, see `_leave`
    if template is not None:
        kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
        if child := os.fork():
            control.close()
            os.waitpid(child, 0)
            os._exit(0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        root = template.raise_root()
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    Launcher(launch, isolation, control, root, others).serve()


class Launcher:
    """Process 1 of the server's pid namespace, if it has one."""

    def __init__(
        self,
        launch: Launch,
        isolation: Isolation,
        control: socket.socket,
        root: private_root.PrivateRoot | None,
        others: int,
    ) -> None:
        self._launch = launch
        self._others = others
        self._isolation = isolation
        self._control = control
        self._root = root
        self._grants = None
        if root is not None:
            self._grants = root.open_from_outside(
                f"{launch.folder}/alias", (*launch.stores, *launch.environments)
            )
        self._server = 0
        self._listening = False
        self._port = ServedPort()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_request)
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_child_signal)

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        self._server = os.fork()
        if self._server == 0:
            self._become_server()
        self._report(Confined(self._server, list(self._isolation.active), self._isolation.missing))
        while True:
            for key, _ in self._selector.select(None if self._listening else _LOOK_SECONDS):
                key.data()
            if not self._listening and self._port.is_served_by(self._server, self._launch.uid):
                self._listening = True
                self._report(Listening(self._port.number))

    def _become_server(self) -> NoReturn:
        launch = self._launch
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            close_descriptors(())
            cell = confinement.Cell(
                self._isolation,
                root=self._root,
                system_calls=confinement.system_call_filter(self._isolation),
                uid=launch.uid,
                own_mounts=False,
            )
            readable = list(launch.readable)
            if self._root is None:
                readable += [*_WITHOUT_MOUNTS, *launch.stores, *launch.environments]
            paths = confinement.Paths(
                readable=tuple(path for path in readable if os.path.exists(path)),
                writable=tuple(launch.stores) if self._root is None else (),
                grantable=tuple(launch.stores),
                temp=launch.temp,
                temp_at=self._temp_point(),
            )
            temp = cell.temp_inside(paths)
            cell.confine(paths, _LIMITS, spare_processes=self._others)
            os.umask(_READABLE_BY_THE_TASK)
            fill_in = functools.partial(filled_in, temp=temp, port=self._port.number)
            command = [fill_in(argument) for argument in launch.command]
            environment = {name: fill_in(value) for name, value in launch.environment.items()}
            os.execve(command[0], command, environment)  # noqa: S606 -- a shell is not wanted
        except BaseException as error:
            os.write(2, f"the Spark server could not be confined: {error}\n".encode())
        finally:
            os._exit(1)

    def _temp_point(self) -> str:
        """Its /tmp, unless that would hide folders below /tmp that are shown later."""
        usual = private_root.TEMP
        shown = (*self._launch.stores, *self._launch.environments)
        hides = any(private_root.is_within(folder, usual) for folder in shown)
        return _OTHER_TEMP if hides else usual

    def _on_request(self) -> None:
        try:
            body, _ = receive(self._control)
        except (EOFError, OSError):
            self._leave()
        try:
            quiet = self._apply(_requests.decode(body))
            self._report(Answered(quiet=quiet))
        except OSError as error:
            self._report(Answered(problem=str(error)))

    def _apply(self, request: SparkRequest) -> bool:
        if self._grants is None:
            return True
        match request:
            case Grant():
                self._grants.show(request.readable, request.writable)
                return True
            case Revoke():
                return self._grants.hide(
                    request.grant.readable, request.grant.writable, sealed=request.sealed
                )

    def _on_child_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._server:
                process_tree.end_all(self._launch.uid)
                self._listening = True  # nor will it ever
                self._report(Ended(os.waitstatus_to_exitcode(status)))

    def _report(self, report: SparkReport) -> None:
        try:
            send(self._control, report)
        except OSError:
            self._leave()

    def _leave(self) -> NoReturn:
        process_tree.end_all(self._launch.uid)
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
