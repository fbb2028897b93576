"""One slot of the fork server: runs tasks one after another, each in a fresh child or in one of its job.

A slot always keeps one child: forked and half confined, so that a task need not wait for a fork, or confined
to a job and waiting for its next task. The wrapper decides which task goes where; on request, the slot
reports whether a child is alone. It never runs user code itself and stays out of reach of the code it
starts: another uid, or process 1 of the pid namespace, or (at least) outside the child's Landlock domain.

After each child, however it ended, none of its processes are left: `Exited` is sent only when the kernel
confirms that. With a pid namespace the slot is process 1 in it and kills every other process; with its own
uid it kills everything of that uid; without either it adopts orphans (child subreaper) and stops,
then kills, all descendants. When the wrapper or the fork server disappears, the slot ends its child
and itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from traceplane.linux import kernel, seccomp
from traceplane.linux.connect_supervisor import ConnectSupervisor, Destinations
from traceplane.sandbox import confinement, private_root, process_tree, runner
from traceplane.sandbox.confinement import NAMESPACES, Isolation
from traceplane.sandbox.frames import (
    Exited,
    Inspect,
    Inspected,
    Kill,
    OpenSlot,
    Ready,
    SlotRequest,
    receive,
    send,
)

_MEMORY_UNIT = 1024
"""Linux reports the peak resident size in KiB."""
_PAGE_BYTES = resource.getpagesize()
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED, as clock_getcpuclockid(3) makes it."""
_requests: msgspec.json.Decoder[SlotRequest] = msgspec.json.Decoder(SlotRequest)


@dataclass(frozen=True)
class ServerState:
    """What the fork server prepared once for all its slots."""

    isolation: Isolation
    hidden: tuple[str, ...]
    template: private_root.Template | None
    system_calls: seccomp.Filter | None
    destinations: Destinations | None
    """Where tasks may connect, if their connections are supervised."""
    spare_processes: int
    """Added to a task's process limit if the kernel also counts processes that are not the task's."""


class SlotServer:
    def __init__(self, slot: OpenSlot, state: ServerState, control: socket.socket, lifeline: int) -> None:
        self._uid = slot.uid
        self._state = state
        self._root = state.template.raise_root() if state.template is not None else None
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._selector.register(lifeline, selectors.EVENT_READ, self._leave)
        self._wakeup, wakeup_writer = socket.socketpair()
        for end in (self._wakeup, wakeup_writer):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_child_signal)
        self._wakeup_writer = wakeup_writer
        self._child = 0
        self._ended: tuple[int, Any] | None = None
        self._kill_at: float | None = None
        self._own_resident = 0
        self._door: socket.socket | None = None
        """The socket over which a child hands over its connections; closed afterwards."""
        self._supervisor: ConnectSupervisor | None = None

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        self._end_everything()  # processes that a predecessor of this slot may have left behind
        while True:
            self._start_child()
            self._wait_for_child()
            self._report()

    def _start_child(self) -> None:
        ours, theirs = socket.socketpair()
        log_reader, log_writer = os.pipe()
        self._ended, self._kill_at = None, None
        parent = os.getpid()
        door, childs_door = socket.socketpair() if self._state.destinations is not None else (None, None)
        self._child = os.fork()
        if self._child == 0:
            self._become_child(theirs.fileno(), log_writer, childs_door, parent)
        theirs.close()
        if door is not None and childs_door is not None:
            childs_door.close()
            self._door = door
            self._selector.register(door, selectors.EVENT_READ, self._on_door)
        os.close(log_writer)
        handle = [os.pidfd_open(self._child)] if self._state.isolation.has(NAMESPACES) else []
        try:
            send(self._control, Ready(self._child), (ours.fileno(), log_reader, *handle))
        except OSError:
            self._leave()
        ours.close()
        for descriptor in (log_reader, *handle):
            os.close(descriptor)

    def _on_door(self) -> None:
        """The child has confined itself, or is gone."""
        assert self._door is not None
        assert self._state.destinations is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._door, confinement.SPARK_PORT.size, 1)
        except OSError:
            descriptors = []
        self._close_door()
        if descriptors:
            (spark_port,) = confinement.SPARK_PORT.unpack(message)
            destinations = self._state.destinations.with_loopback_port(spark_port)
            self._supervisor = ConnectSupervisor(
                descriptors[0], destinations, self._selector, self._process_of
            )

    def _close_door(self) -> None:
        if self._door is not None:
            self._selector.unregister(self._door)
            self._door.close()
            self._door = None

    def _end_supervision(self) -> None:
        self._close_door()
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def _process_of(self, thread: int) -> int | None:
        processes = self._root.at("/proc") if self._root is not None else "/proc"
        try:
            with open(f"{processes}/{thread}/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))
        except (OSError, StopIteration):
            return None

    def _become_child(self, channel: int, log: int, door: socket.socket | None, parent: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        state = self._state

        def make_cell(supervisor: socket.socket | None) -> confinement.Cell:
            return confinement.Cell(
                state.isolation,
                root=self._root,
                system_calls=state.system_calls,
                uid=self._uid,
                hidden=state.hidden,
                supervisor=supervisor,
            )

        try:
            gc.enable()
            outside_parent = 0 if state.isolation.has(NAMESPACES) else parent
            runner.serve(channel, log, door, make_cell, state.spare_processes, outside_parent)
        finally:
            os._exit(runner.EXIT_BROKEN)

    def _wait_for_child(self) -> None:
        while self._ended is None:
            timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                process_tree.send_signal(self._child, signal.SIGKILL)

    def _on_control(self) -> None:
        try:
            body, _ = receive(self._control)
        except (EOFError, OSError):
            self._leave()
        request = _requests.decode(body)
        if request.pid != self._child or self._ended is not None:
            return
        match request:
            case Kill(_, grace_seconds):
                process_tree.send_signal(self._child, signal.SIGTERM)
                self._kill_at = time.monotonic() + grace_seconds
            case Inspect():
                self._inspect()

    def _inspect(self) -> None:
        assert self._root is not None, "only requested where there are namespaces"
        alone = False
        try:
            processes = self._root.at("/proc")
            pids = {int(name) for name in os.listdir(processes) if name.isdigit()}
            if self._child in pids:
                alone = pids == {os.getpid(), self._child}
                usage = _usage_of(self._child, f"{processes}/{self._child}")
                own = f"{processes}/{os.getpid()}"
            else:  # hidden from unprivileged processes; the machine's own /proc shows it, under another number
                own = f"/proc/{os.readlink('/proc/self')}"
                children = _children_of(own)
                usage = _usage_of(self._child, f"/proc/{children[0]}")
                alone = len(children) == 1 and not _children_of(f"/proc/{children[0]}")
            self._own_resident = self._own_resident or _usage_of(os.getpid(), own).resident_bytes
        except (OSError, IndexError):  # it is ending, or there is no /proc to look at
            alone, usage = False, _Usage(0.0, 0)
        report = Inspected(
            pid=self._child,
            alone=alone,
            cpu_seconds=usage.cpu_seconds,
            resident_bytes=usage.resident_bytes,
            grown_bytes=usage.resident_bytes - self._own_resident,
        )
        self._send(report)

    def _on_child_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        self._collect_child()

    def _collect_child(self) -> None:
        if self._ended is not None:
            return
        pid, status, usage = os.wait4(self._child, os.WNOHANG)
        if pid == self._child:
            self._ended = (status, usage)

    def _report(self) -> None:
        assert self._ended is not None
        status, usage = self._ended
        self._end_supervision()
        leftovers = self._end_everything()
        if self._root is not None:
            self._root.sweep()
        code = os.waitstatus_to_exitcode(status)
        report = Exited(
            pid=self._child,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            max_rss_bytes=usage.ru_maxrss * _MEMORY_UNIT,
            leftovers=leftovers,
        )
        self._send(report)

    def _send(self, report: Inspected | Exited) -> None:
        try:
            send(self._control, report)
        except OSError:
            self._leave()

    def _leave(self) -> NoReturn:
        self._end_everything()
        os._exit(0)

    def _end_everything(self) -> bool:
        """Kill and reap whatever is left of the task; returns whether there was anything."""
        if not process_tree.has_children() and not self._may_have_strangers():
            return False
        if self._child and self._ended is None:
            # While it waits for a task it has not taken its uid yet.
            process_tree.send_signal(self._child, signal.SIGKILL)
        return process_tree.end_all(self._uid)

    def _may_have_strangers(self) -> bool:
        """Before the first task: processes of a killed predecessor are not this slot's children."""
        return self._child == 0 and self._uid is not None


@dataclass(frozen=True)
class _Usage:
    cpu_seconds: float
    resident_bytes: int


def _children_of(process: str) -> list[str]:
    """Children of all its threads."""
    children: list[str] = []
    for thread in os.listdir(f"{process}/task"):
        with open(f"{process}/task/{thread}/children") as file:
            children += file.read().split()
    return children


def _usage_of(pid: int, process: str) -> _Usage:
    """`process` is its folder in /proc."""
    with open(f"{process}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    of_its_children = (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND
    clock = (~pid << 3) | _PROCESS_CLOCK  # finer than the ticks, and kept by the kernel for every process
    return _Usage(time.clock_gettime(clock) + of_its_children, int(fields[21]) * _PAGE_BYTES)


def start_slot(slot: OpenSlot, state: ServerState, control: socket.socket, lifeline: int) -> NoReturn:
    """Turn this freshly forked process into a slot; never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the wrapper handles the terminal's interrupt
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)  # it watches the lifeline instead, and ends its task first
        confinement.enter_slot_namespaces(state.isolation)
        if state.isolation.has(NAMESPACES) and os.fork() != 0:
            os._exit(0)  # the new process is number 1 of the namespace; the fork server adopts it
        with contextlib.suppress(OSError):
            kernel.shrink_capability_bounds()  # not ours to shrink without privileges, nor needed then
        with contextlib.suppress(OSError):
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        SlotServer(slot, state, control, lifeline).serve()
    finally:
        os._exit(runner.EXIT_BROKEN)
