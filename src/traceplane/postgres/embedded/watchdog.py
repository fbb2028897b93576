"""Takes a server down once all of its owners are gone, however they ended.

    python -I -S watchdog.py OWNERS PID_FILE PID UID GID

An owner holds a shared lock on the file OWNERS until its death. When nobody does, the server is shut down as a crash
would. The lock is held until the server is gone, so that no new owner joins a dying one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

_POLL_SECONDS = 0.2
_SHUTDOWN_SECONDS = 10.0


def main(owners: str, pid_file: str, pid: int, uid: int, gid: int) -> None:
    if os.fork():
        os._exit(0)
    lock = os.open(owners, os.O_RDWR)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    while _is_serving(pid, pid_file) and _is_owned(lock):
        time.sleep(_POLL_SECONDS)
    if _is_serving(pid, pid_file):
        os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + _SHUTDOWN_SECONDS
    while _is_serving(pid, pid_file) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_serving(pid: int, pid_file: str) -> bool:
    try:
        os.kill(pid, 0)
        with open(pid_file) as file:
            return int(file.readline()) == pid
    except (OSError, ValueError):
        return False


def _is_owned(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
