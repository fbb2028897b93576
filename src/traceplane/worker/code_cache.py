"""The code that jobs were deployed with, in folders of this worker.

A bundle is fetched once, checked against its name, which is its hash, and unpacked beside its final place. A rename
makes it visible as a whole, so workers of one machine may share the folder. An existing bundle is checked before
this process first uses it. Only the platform's own user can write to the folders.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.model import code_bundle
from traceplane.runtime.locked_folder import remove_tree

_FOLDER_MODE, _FILE_MODE = 0o755, 0o444
_RENAMES_TRIED = 3


@dataclass(frozen=True, slots=True)
class JobCode:
    paths: tuple[Path, ...]
    """Where to import from, in this order."""
    bundled: tuple[str, ...] = ()
    """The modules that come from the job's own bundle."""

    def with_packages(self, packages: Path) -> JobCode:
        """After the job's own bundle, and before what other jobs of the worker may use."""
        own = 1 if self.bundled else 0
        return replace(self, paths=(*self.paths[:own], packages, *self.paths[own:]))


class CodeCache:
    def __init__(
        self, folder: Path, own_paths: tuple[Path, ...], fetch: Callable[[str], Awaitable[str]]
    ) -> None:
        self._folder = folder
        self._own_paths = own_paths
        self._fetch = fetch
        self._ready: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        """The names of their modules, by bundle."""

    async def code_of(self, bundle: str | None) -> JobCode:
        """Where a job's code is imported from: its bundle first, then the worker's own folders."""
        if bundle is None:
            return JobCode(self._own_paths)
        task = self._ready.get(bundle)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._ready[bundle] = asyncio.ensure_future(self._prepare(bundle))
        names = await asyncio.shield(task)  # several tasks may wait for it, and one of them may be canceled
        own_paths = (path for path in self._own_paths if path.is_dir())
        return JobCode((self._folder / bundle, *own_paths), names)

    async def _prepare(self, bundle: str) -> tuple[str, ...]:
        place = self._folder / bundle
        names = await asyncio.to_thread(_names_if_intact, place, bundle)
        if names is None:
            content = await self._fetch(bundle)
            if code_bundle.hash_of(content) != bundle:
                raise _damaged(bundle, "its hash does not match its name")
            try:
                files = code_bundle.decode(content)
            except ValueError as error:
                raise _damaged(bundle, str(error)) from None
            await asyncio.to_thread(_unpack, files, place, bundle)
            names = _names(files)
            telemetry.emit("worker.code_fetched", bundle=bundle, modules=len(files))
        return names


def _names(files: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(code_bundle.module_name(path) for path in files))


def _names_if_intact(place: Path, bundle: str) -> tuple[str, ...] | None:
    if not place.is_dir():
        return None
    try:
        files = {
            path.relative_to(place).as_posix(): path.read_bytes().decode()
            for path in place.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
    except (OSError, UnicodeDecodeError):
        return None
    return _names(files) if code_bundle.hash_of(code_bundle.encode(files)) == bundle else None


def _unpack(files: dict[str, str], place: Path, bundle: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
    try:
        draft.chmod(_FOLDER_MODE)
        for path, text in files.items():
            folder = draft
            for part in path.split("/")[:-1]:
                folder = folder / part
                folder.mkdir(exist_ok=True)
                folder.chmod(_FOLDER_MODE)
            target = draft / path
            target.write_bytes(text.encode())
            target.chmod(_FILE_MODE)
        for _ in range(_RENAMES_TRIED):
            try:
                os.rename(draft, place)
                return
            except OSError as error:
                if _names_if_intact(place, bundle) is not None:
                    return  # another worker was faster
                problem = error
            remove_tree(place)
        raise PlatformError(
            "code.not_unpacked",
            f"code cannot be unpacked: {problem.strerror}",
            value=place,
            next_step="check that the worker may write below its home, and remove what is there",
        )
    finally:
        if draft.exists():
            remove_tree(draft)


def _damaged(bundle: str, why: str) -> PlatformError:
    return PlatformError(
        "code.damaged",
        f"the code that the dispatcher sent for a job differs from what was deployed: {why}",
        value=bundle,
        next_step="restore the row of code_bundles from a backup",
    )
