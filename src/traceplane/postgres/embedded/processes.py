"""Programs of Postgres, run as the server's user; and what the kernel knows of processes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Nothing of the caller's environment reaches the server, its credentials least of all.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class ServerUser:
    """Whom root runs the server as."""

    uid: int
    gid: int


def run_as(user: ServerUser | None, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run in a session of its own, from a folder that everybody may enter, with a bare environment."""
    if "stdout" not in options:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("env", ENVIRONMENT)
    return subprocess.run(
        command,
        user=user.uid if user is not None else None,
        group=user.gid if user is not None else None,
        extra_groups=[] if user is not None else None,
        cwd="/",
        umask=0o077,
        start_new_session=True,
        text=True,
        check=False,
        **options,
    )


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def command_line(pid: int) -> list[str]:
    """Empty for a process that is gone or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def children(parent: int) -> list[int]:
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pids.append(int(entry.parent.name))
    return pids
