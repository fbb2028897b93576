"""Ending every process that something started, and knowing that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from traceplane.linux.confine import take_uid


def end_all(uid: int | None) -> bool:
    """Kill and reap everything below this process, or of that uid; whether there was anything.

    This process adopts every orphan below it (process 1 of a pid namespace, or a child subreaper), so having no
    children proves that there is nothing left.
    """
    found = False
    while True:
        _kill_all(uid)
        found = _reap_all() or found
        if not has_children():
            return found


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _kill_all(uid: int | None) -> None:
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    elif uid is not None:
        _in_child(lambda: _kill_everything_of(uid))
    else:
        _kill_descendants(os.getpid())


def _kill_everything_of(uid: int) -> None:
    if uid == 0:
        raise ValueError("this would kill every process of the machine")
    take_uid(uid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _in_child(act: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _reap_all() -> bool:
    """Wait for every child that is dead or about to be; whether there was one."""
    reaped = False
    deadline = time.monotonic() + 0.05
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return reaped
        if pid:
            reaped = True
        elif time.monotonic() > deadline:
            return True  # still dying; the caller kills again
        else:
            time.sleep(0.0005)


def _kill_descendants(ancestor: int) -> None:
    """Stop first, so that none can fork while the others are being found; then kill."""
    stopped: set[int] = set()
    while found := _descendants(ancestor) - stopped:
        for pid in found:
            send_signal(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)


def _descendants(ancestor: int) -> set[int]:
    parents = _living_parents()
    found: set[int] = set()
    grew = True
    while grew:
        below = {pid for pid, parent in parents.items() if parent == ancestor or parent in found}
        grew = not below <= found
        found |= below
    return found


def _living_parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    return parents
