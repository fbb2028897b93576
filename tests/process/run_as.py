"""Runs a command as root or as another user, with the interpreter within that user's reach.

An interpreter installed below a private home directory cannot be executed by others; in a mount
namespace of its own, the folders above it are replaced by ones that can be passed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from traceplane.linux import kernel
from traceplane.worker import private_root


def closed_ancestor(path: Path) -> Path | None:
    """The outermost folder above `path` that other users cannot pass."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)


def open_the_way_to(path: Path) -> None:
    ancestor = closed_ancestor(path)
    if ancestor is None:
        return
    aside = tempfile.mkdtemp()
    kernel.bind(str(path), aside)
    kernel.mount("tmpfs", str(ancestor), "tmpfs", 0, "mode=755")
    path.mkdir(parents=True)
    kernel.bind(aside, str(path))


def main(user: str, uid: int, command: list[str]) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    for folder in private_root.interpreter_folders():
        open_the_way_to(Path(folder))
    if user != "root":
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
