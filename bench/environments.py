"""Virtual environments of the peers, one each, built from pinned and hashed requirement files.

`bench/peers/<peer>.in` names what is wanted and `<peer>.txt` is its resolution. A peer never shares an
environment with Traceplane or another peer. An environment is rebuilt when its requirement file changes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent
INSTALL_TIMEOUT = 300


class PeerUnavailableError(Exception):
    """The peer cannot be installed here; the message says why."""


def requirements(peer: str) -> Path:
    return ROOT / "peers" / f"{peer}.txt"


def pinned_version(peer: str) -> str:
    found = re.search(rf"^{peer}==(\S+)", requirements(peer).read_text(), re.MULTILINE)
    return found.group(1) if found else "?"


def prepare(peer: str) -> Path:
    """The Python of the peer's environment, which is built if it is missing or out of date."""
    folder = ROOT / ".venvs" / peer
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    wanted = hashlib.sha256(requirements(peer).read_bytes() + sys.version.encode()).hexdigest()
    if ready.exists() and ready.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    install = ["pip", "sync", "--quiet", "--python", str(python), "--require-hashes"]
    _uv(*install, str(requirements(peer)))
    ready.write_text(wanted)
    return python


def _uv(*arguments: str) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if not uv:
        raise PeerUnavailableError("uv is not installed")
    try:
        subprocess.run([uv, *arguments], check=True, timeout=INSTALL_TIMEOUT, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailableError(f"installation took more than {INSTALL_TIMEOUT} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise PeerUnavailableError(" ".join(line.strip() for line in lines[-4:])) from error
