"""Forks the processes of tests.forked_commands. Run as a script, which nothing of the tests is imported into.

A call is a message of arguments and environment with two descriptors: the process's log, and a pipe on which it is
told the process's id and, when it has ended, its exit code.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys

import traceplane.dispatcher.main
import traceplane.gateway.main
import traceplane.trigger.main
import traceplane.worker.main  # noqa: F401
from traceplane.cli.main import main


def next_command(caller: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """What a new process has to run; nothing in the server, when its caller is gone."""
    children: dict[int, tuple[int, int]] = {}
    events = select.poll()
    events.register(caller, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor in children:
                events.unregister(descriptor)
                os.close(descriptor)
                pid, told = children.pop(descriptor)
                os.write(told, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(told)
                continue
            call, descriptors, _, _ = socket.recv_fds(caller, 1 << 20, 2)
            if not call:
                return None
            log, told = descriptors
            if (pid := os.fork()) == 0:
                caller.close()
                os.dup2(log, 1)
                os.dup2(log, 2)
                arguments, environment = json.loads(call)
                return arguments, environment
            os.close(log)
            os.write(told, f"{pid}\n".encode())
            ended = os.pidfd_open(pid)
            children[ended] = (pid, told)
            events.register(ended, select.POLLIN)


if __name__ == "__main__":
    gc.freeze()
    if (command := next_command(socket.socket(fileno=int(sys.argv[1])))) is not None:
        os.closerange(3, 1024)
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        sys.argv = ["traceplane", *command[0]]
        os.environ.clear()
        os.environ.update(command[1])
        main()
