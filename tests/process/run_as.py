"""Runs a command as root or as another user, with the interpreter and this repository within that user's reach.

What lies below a private folder, such as a home directory, cannot be executed by others. In a mount namespace of its
own, private folders are covered by ones that can be passed, with what is needed in its place again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from traceplane.linux import kernel
from traceplane.sandbox import private_root

REPOSITORY = Path(__file__).resolve().parents[2]


def closed_ancestor(path: Path) -> Path | None:
    """The outermost folder above `path` that other users cannot pass."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)


def open_the_way_to(paths: Iterable[Path]) -> None:
    """All paths are held open before anything is covered: one may lie below what hides another."""
    closed = {path: ancestor for path in paths if (ancestor := closed_ancestor(path)) is not None}
    if not closed:
        return
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    held = {path: os.open(path, os.O_PATH) for path in closed}
    for covered in private_root.outermost(map(str, closed.values())):
        kernel.mount("tmpfs", covered, "tmpfs", 0, "mode=755")
    umask = os.umask(0o022)
    for path, descriptor in held.items():
        path.mkdir(parents=True)
        kernel.bind(f"/proc/self/fd/{descriptor}", str(path))
        os.close(descriptor)
    os.umask(umask)
    with contextlib.suppress(FileNotFoundError):
        os.chdir(os.getcwd())  # the same path, as it is now


def main(user: str, uid: int, command: list[str]) -> None:
    needed = private_root.outermost({*private_root.interpreter_folders(), str(REPOSITORY)})
    open_the_way_to(map(Path, needed))
    if user != "root":
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
