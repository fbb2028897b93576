"""Uids for operators, each held by one worker of the host at a time.

Two workers on one machine must not run tasks under the same uid: they could read each other's
folders, and the cleanup of one would kill the tasks of the other. A lock file for each uid prevents
that, kept open as long as the uid is held; the kernel releases it when the process ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from traceplane.errors import PlatformError

_LOCKS = Path("/run/traceplane/uids")


class UidLease:
    def __init__(self, first: int, last: int, count: int) -> None:
        self._locks: list[int] = []
        self.uids: list[int] = []
        _LOCKS.mkdir(parents=True, exist_ok=True, mode=0o700)
        for uid in range(first, last + 1):
            if len(self.uids) == count:
                return
            self._try(uid)
        if len(self.uids) < count:
            self.release()
            raise PlatformError(
                "sandbox.no_uids",
                f"fewer than {count} uids between {first} and {last} are free",
                next_step="widen the range, or run fewer workers or slots on this host",
            )

    def _try(self, uid: int) -> None:
        fd = os.open(_LOCKS / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return
        self._locks.append(fd)
        self.uids.append(uid)

    def release(self) -> None:
        for fd in self._locks:
            os.close(fd)
        self._locks, self.uids = [], []
