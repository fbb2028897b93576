"""The operators' fork server: a clean Python that forks, so that no task pays for starting an interpreter.

It is a `linux.fork_server` that imports what operators are likely to need, probes and reports the isolation that this
machine offers, and forks one slot (see `slot_process`) for each request. Its slots are not just killed with it: they
notice its end and leave no process of a task behind.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import os
import socket
import sys
import time
from typing import NoReturn

import msgspec

from traceplane.linux import fork_server, kernel
from traceplane.linux.connect_supervisor import Destinations, name_servers
from traceplane.linux.fork_server import Readiness
from traceplane.sandbox import confinement, private_root, runner
from traceplane.sandbox.confinement import NAMESPACES, SUPERVISED_NETWORK, Isolation
from traceplane.sandbox.frames import Configure, Hello, OpenSlot, Reach
from traceplane.sandbox.slot_process import ServerState, start_slot


def _prepare(setup: bytes, private_network: list[int]) -> Readiness:
    state = _state(msgspec.json.decode(setup, type=Configure), private_network)
    isolation = state.isolation
    hello = Hello(list(isolation.active), isolation.missing, isolation.landlock_abi)
    lifeline, _ = os.pipe()  # only this process has the other end, so the pipe closes when it ends

    def run(control: socket.socket, work: bytes) -> NoReturn:
        start_slot(msgspec.json.decode(work, type=OpenSlot), state, control, lifeline)

    return Readiness(msgspec.json.encode(hello), run, kept=(lifeline,))


def _state(configure: Configure, private_network: list[int]) -> ServerState:
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
    gc.disable()  # until a child runs a task
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
    """Work that every child would otherwise repeat."""
    os.environ.clear()
    os.environ.update(confinement.clean_environment(configure.network))
    time.tzset()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable()  # a child that crashes in native code writes where to its output
    private_root.interpreter_folders()
    runner.rehearse()


if __name__ == "__main__":
    fork_server.main(_prepare)
