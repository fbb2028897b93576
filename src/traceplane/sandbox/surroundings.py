"""What a child restores before it runs another task of its job.

This is housekeeping, not isolation: it happens in the operator's own process, where nothing can be
enforced. Jobs are isolated because they never share a process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence

_LOOK_AT_ALL_EVERY_SECONDS = 1.0


class Surroundings:
    """The process state that every operator finds as the first one did."""

    def __init__(self, folder: str, umask: int) -> None:
        self._folder = folder
        self._umask = umask
        self._environment = dict(os.environ)
        self._path = list(sys.path)
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._arguments = list(sys.argv)
        self._in_folder = frozenset(os.listdir(folder))
        """Mount points, which belong to the platform."""

    def restore(self) -> None:
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        os.chdir(self._folder)
        os.umask(self._umask)
        sys.path[:] = self._path
        sys.argv[:] = self._arguments
        sys.stdin, sys.stdout, sys.stderr = self._streams
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for name in set(os.listdir(self._folder)) - self._in_folder:
            path = os.path.join(self._folder, name)
            with contextlib.suppress(OSError):
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.unlink(path)


class LoadedCode:
    """The user's modules in this process, and whether their files have changed since they were loaded.

    The entrypoint's own file is checked before every task, the others once a second.
    """

    def __init__(self, code_paths: Sequence[str], entrypoint: str) -> None:
        self._code_paths = tuple(path.rstrip("/") + "/" for path in code_paths)
        self._module = entrypoint.partition(":")[0]
        self._known: dict[str, tuple[int, int] | None] = {}
        self._entrypoint: str | None = None
        self._modules = 0
        self._looked = 0.0

    def note(self, loaded_since_ns: int) -> None:
        """Remember the loaded files; one written after `loaded_since_ns` may differ from what was loaded."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file not in self._known and file.startswith(self._code_paths):
                version = _version_of(file)
                too_new = version is not None and version[0] > loaded_since_ns
                self._known[file] = None if too_new else version
        entrypoint = getattr(sys.modules.get(self._module), "__file__", None)
        self._entrypoint = entrypoint if entrypoint in self._known else None

    def has_changed(self) -> bool:
        if self._entrypoint is not None and self._differs(self._entrypoint):
            return True
        if time.monotonic() - self._looked < _LOOK_AT_ALL_EVERY_SECONDS:
            return False
        self._looked = time.monotonic()
        return any(self._differs(file) for file in self._known)

    def _differs(self, file: str) -> bool:
        loaded_version = self._known[file]
        return loaded_version is None or _version_of(file) != loaded_version


def _version_of(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
