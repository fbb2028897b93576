"""The working folder of one process, and cleanup of folders whose process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from traceplane.errors import InvalidInput
from traceplane.linux import operator_ids


def remove_tree(path: Path) -> None:
    """Remove a file or a tree of any depth, without following links."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
    except (OSError, RecursionError):
        # Deeper than Python's recursion limit, or paths longer than the system allows; rm handles both.
        command = ["rm", "-rf", "--", str(path)]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


def own_folder(path: Path) -> Path:
    """A folder of this user that nobody else can write to, created if it is missing.

    A folder of another user is refused, for root too: its owner could replace what is in it at any time.
    """
    if not path.is_symlink():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(path)
    path.chmod(path.stat().st_mode & 0o755)
    return path


def check_owner(path: Path) -> None:
    """Refuses what another user has put in the place of a file or folder of ours; a link of our own may lead to it."""
    try:
        owners = {path.lstat().st_uid}
    except FileNotFoundError:  # another process has just removed it
        return
    with contextlib.suppress(FileNotFoundError):
        owners.add(path.stat().st_uid)
    if owners != {os.geteuid()}:
        raise InvalidInput(
            "home.untrusted",
            "a file or folder where the platform keeps its own belongs to another user",
            value=path.absolute(),
            next_step="remove it if you do not know it, run as its owner,"
            " or choose another folder with --home or TRACEPLANE_HOME",
        )


def closed_folder(path: Path) -> Path:
    """A folder that other users of this machine cannot enter; operators of root's workers can pass through it."""
    own_folder(path)
    if os.geteuid() == 0:
        os.chown(path, -1, operator_ids.GROUP)
    path.chmod(0o710 if os.geteuid() == 0 else 0o700)
    return path


class LockedFolder:
    """A new folder; operators of any uid can pass through it but not list it.

    It stays locked while its process lives, so a later process can recognize and remove what a killed one left.
    """

    def __init__(self, parent: Path | None, prefix: str, below: Sequence[str]) -> None:
        parent = parent or Path(tempfile.gettempdir())
        parent.mkdir(parents=True, exist_ok=True)
        self._prefix = prefix
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
        for path in (self.path, *(self.path / name for name in below)):
            path.mkdir(exist_ok=True)
            path.chmod(0o711)
        unlocked = self.path / "unlocked"
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / "lock")  # so a file named `lock` is always locked when it appears

    def remove_abandoned(self) -> None:
        for folder in self.path.parent.glob(f"{self._prefix}*"):
            with contextlib.suppress(OSError):
                if folder != self.path and folder.lstat().st_uid == os.geteuid():
                    _remove_unless_locked(folder)

    def remove(self) -> None:
        remove_tree(self.path)
        os.close(self._lock)


def _remove_unless_locked(folder: Path) -> None:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(folder)
    finally:
        os.close(lock)
