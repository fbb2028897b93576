"""The fork server: a clean Python that forks, so that no task pays for starting an interpreter.

It is started with an empty environment and one descriptor, holds no secret, never runs user code,
and imports what operators are likely to need once. It probes what isolation this machine offers,
says so, and then forks one slot (see `slot_main`) for each request. It ends when the wrapper
does; its slots end when it does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import socket
import sys
import time
from typing import NoReturn

import msgspec

from traceplane.linux import kernel
from traceplane.linux.connect_supervisor import Destinations, name_servers
from traceplane.sandbox import confinement, private_root, runner
from traceplane.sandbox.confinement import NAMESPACES, SUPERVISED_NETWORK, Isolation
from traceplane.sandbox.frames import Configure, Hello, OpenSlot, Reach, receive, send
from traceplane.sandbox.slot_main import ServerState, start_slot

_KILL_ME_FIRST = "1000"


def main(control_descriptor: int) -> NoReturn:
    control = socket.socket(fileno=control_descriptor)
    confinement.close_descriptors((control_descriptor,))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_KILL_ME_FIRST)  # when memory runs out, an operator goes before the platform
    os.umask(0o022)  # folders of a private root must be passable for operators
    confinement.protect_this_process()
    try:
        body, private_network = receive(control)
        state = _prepare(msgspec.json.decode(body, type=Configure), private_network)
        isolation = state.isolation
        send(control, Hello(list(isolation.active), isolation.missing, isolation.landlock_abi))
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the wrapper ended, or closed its sandbox, before this one was up
    _serve(control, state)


def _prepare(configure: Configure, private_network: list[int]) -> ServerState:
    isolation = confinement.probe(configure, private_network)
    spare_processes = confinement.processes_not_of_the_task(isolation)
    confinement.enter_server_namespaces(isolation, private_network)
    for descriptor in private_network:
        os.close(descriptor)
    template = None
    if isolation.has(NAMESPACES):
        template = private_root.Template(configure.folder, configure.uids)
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    for module in configure.preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    _tidy_interpreter(configure)
    # Collected and frozen, the heap is shared with every child instead of being copied by its collector.
    gc.collect()
    gc.freeze()
    gc.disable()
    return ServerState(
        isolation=isolation,
        hidden=tuple(configure.hidden),
        template=template,
        system_calls=confinement.system_call_filter(isolation),
        destinations=_destinations(isolation),
        spare_processes=spare_processes,
    )


def _destinations(isolation: Isolation) -> Destinations | None:
    if not isolation.has(SUPERVISED_NETWORK) or not isinstance(isolation.network, Reach):
        return None
    reach = isolation.network
    return Destinations((*reach.allowed, *name_servers()), reach.denied, reach.never)


def _tidy_interpreter(configure: Configure) -> None:
    """What every child would otherwise do for itself."""
    os.environ.clear()
    os.environ.update(confinement.clean_environment(configure.network))
    time.tzset()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    private_root.interpreter_folders()
    runner.rehearse()


def _serve(control: socket.socket, state: ServerState) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is the wrapper's to handle
    lifeline_reader, lifeline_writer = os.pipe()
    while True:
        try:
            body, descriptors = receive(control)
        except (EOFError, OSError):
            os._exit(0)
        slot_control = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            os.close(lifeline_writer)
            control.close()
            start_slot(msgspec.json.decode(body, type=OpenSlot), state, slot_control, lifeline_reader)
        slot_control.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
