"""A port that a child serves belongs to no other process, neither before nor after it has served."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from traceplane.spark.served_port import ServedPort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked who listens")

_LISTENS = """
import ctypes, os, socket, sys
if sys.argv[2]:
    os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3); os.setresuid(*[int(sys.argv[2])] * 3)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as if it had been executed by that user
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
sys.stdin.read()
"""
UID = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


@pytest.fixture
def port() -> Iterator[ServedPort]:
    with contextlib.closing(ServedPort()) as made:
        yield made


@contextlib.contextmanager
def listening(port: int) -> Iterator[subprocess.Popen[str]]:
    """A process that does; as Java does it, it shares the address with those who do not listen."""
    command = [sys.executable, "-I", "-S", "-c", _LISTENS, str(port), str(UID or "")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_process_that_takes_the_port_first_is_not_trusted_as_the_server(port: ServedPort) -> None:
    with subprocess.Popen(["/bin/sleep", "1000"]) as child:
        try:
            assert not port.is_served_by(child.pid, None)
            with listening(port.number):
                assert not port.is_served_by(child.pid, None)
        finally:
            child.kill()


def test_no_process_gets_the_port_of_a_server_that_has_ended(port: ServedPort) -> None:
    with listening(port.number) as child:
        assert port.is_served_by(child.pid, UID)
        child.send_signal(signal.SIGKILL)
        child.wait()
    for shared in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, shared, 1)
                with pytest.raises(OSError, match="Address already in use"):
                    stranger.bind((address, port.number))
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port.number)) != 0
