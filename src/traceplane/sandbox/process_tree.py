"""Ends every process of a tree, and proves that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from traceplane.linux.confine import take_uid


def end_all(uid: int | None) -> bool:
    """Kill and reap everything below this process, or of that uid; returns whether there was anything.

    This process adopts every orphan below it (process 1 of a pid namespace, or a child subreaper), so having no
    children proves that there is nothing left.
    """
    had_processes = False
    while True:
        _kill_all(uid)
        had_processes = _reap_all() or had_processes
        if not has_children():
            return had_processes


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
    """Wait for every child that is dead or dying; returns whether there was one."""
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
    """Stop them first, so that none can fork while the others are being found; then kill."""
    stopped: set[int] = set()
    while running := _descendants(ancestor) - stopped:
        for pid in running:
            send_signal(pid, signal.SIGSTOP)
        stopped |= running
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)


def _descendants(ancestor: int) -> set[int]:
    parents = _living_parents()
    descendants: set[int] = set()
    grew = True
    while grew:
        below = {pid for pid, parent in parents.items() if parent == ancestor or parent in descendants}
        grew = not below <= descendants
        descendants |= below
    return descendants


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
