"""The Python packages that jobs need, installed in folders of this worker: one for each lock.

    {environments}/{lock}-{tag}/packages/   what operators import; `tag` is the Python and processor that it is for
    {environments}/{lock}-{tag}/python      starts this Python with these packages, for functions that Spark runs
    {environments}/.locks/{lock}-{tag}      held by workers: shared while they use it, alone to build or remove it

uv unpacks the wheels that the lock names by their hashes; no code of them runs. It does so beside the final place, and
a rename makes the environment visible as a whole, so workers of one machine may share the folder, and none ever uses
half of one. One that exists is compared with what was built before this process first uses it. To make room, the least
recently used are removed that nobody holds; the kernel drops the locks of a killed worker. Only the platform's own user
can write to the folders: operators and Spark see the packages of their own job, and only to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import platform
import resource
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.model import requirements
from traceplane.model.requirements import Lock
from traceplane.runtime import uv_command
from traceplane.runtime.locked_folder import remove_tree

_BUILD_SECONDS = 900.0
_LOOK_SECONDS = 0.5
_KEPT_SECONDS = 1200.0
"""How long an environment stays held after its last task. A child that has imported from it lives no longer."""
_FOLDER_MODE, _FILE_MODE = 0o755, 0o444
_FILE_TOO_LARGE = os.strerror(errno.EFBIG).encode()
_TAG = f"{sys.implementation.cache_tag}-{sys.platform}-{platform.machine()}"
_START_PYTHON = """#!/bin/sh
here=${0%/*}
PYTHONPATH="$here/packages${PYTHONPATH:+:$PYTHONPATH}" exec @PYTHON@ "$@"
"""


@dataclass(frozen=True, slots=True)
class Environment:
    folder: Path

    @property
    def packages(self) -> Path:
        return self.folder / "packages"

    @property
    def python(self) -> Path:
        return self.folder / "python"


@dataclass(eq=False)
class _Held:
    """An environment that this process uses, or is building."""

    ready: asyncio.Task[int]
    """The descriptor of its shared lock."""
    users: int = 0
    used: float = field(default_factory=time.monotonic)


class EnvironmentCache:
    def __init__(self, folder: Path, fetch: Callable[[str], Awaitable[str]], *, limit_bytes: int) -> None:
        self._folder = folder
        self._locks = folder / ".locks"
        self._fetch = fetch
        self._limit_bytes = limit_bytes
        self._held: dict[str, _Held] = {}

    async def close(self) -> None:
        held, self._held = list(self._held.values()), {}
        for one in held:
            one.ready.cancel()
        for ready in await asyncio.gather(*(one.ready for one in held), return_exceptions=True):
            if isinstance(ready, int):
                os.close(ready)

    @contextlib.asynccontextmanager
    async def using(self, lock: str | None) -> AsyncIterator[Environment | None]:
        """The environment of a lock, which is built if it is not there; it stays until the context ends."""
        if lock is None:
            yield None
            return
        held = self._held.get(lock)
        if held is None or (held.ready.done() and (held.ready.cancelled() or held.ready.exception())):
            held = self._held[lock] = _Held(asyncio.ensure_future(self._prepare(lock)))
        held.users += 1
        try:
            await asyncio.shield(held.ready)  # several tasks may wait for it, and one of them may be canceled
            with contextlib.suppress(OSError):  # others see when it was last used
                os.utime(self._locks / _name(lock))
            yield Environment(self._folder / _name(lock))
        finally:
            held.users -= 1
            held.used = time.monotonic()

    async def _prepare(self, lock: str) -> int:
        place = self._folder / _name(lock)
        self._locks.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._locks / place.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                if _takes(descriptor, fcntl.LOCK_SH) and await asyncio.to_thread(_is_intact, place):
                    return descriptor
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # or two that wait for it would wait for each other
                if _takes(descriptor, fcntl.LOCK_EX) and not await asyncio.to_thread(_is_intact, place):
                    await self._build(lock, place)
                else:
                    await asyncio.sleep(_LOOK_SECONDS)  # another one builds it, or has
        except BaseException:
            os.close(descriptor)
            raise

    async def _build(self, lock: str, place: Path) -> None:
        content = await self._fetch(lock)
        if requirements.hash_of(content) != lock:
            raise _damaged(lock, "its hash does not match its name")
        try:
            wanted = requirements.decode_lock(content)
        except ValueError as error:
            raise _damaged(lock, str(error)) from None
        if wanted.python > sys.version_info[:2]:
            raise PlatformError(
                "environment.python_too_old",
                f"the packages of a job were locked for Python {wanted.python[0]}.{wanted.python[1]} or newer,"
                f" and this worker has {sys.version_info[0]}.{sys.version_info[1]}",
                value=lock,
                next_step="deploy the job with the Python that the workers have, or give them a newer one",
            )
        began = time.monotonic()
        draft = self._folder / f".draft-{place.name}"
        try:
            await asyncio.to_thread(_make_folders, draft)
            await self._install(wanted, draft)
            size = await asyncio.to_thread(_seal, draft)
            if size > self._limit_bytes:
                raise _too_large(lock, self._limit_bytes)
            await asyncio.to_thread(_put_in_place, draft, place)
        except OSError as error:
            raise _not_built(lock, error.strerror or str(error)) from None
        finally:
            await asyncio.to_thread(remove_tree, draft)
        seconds = round(time.monotonic() - began, 3)
        telemetry.emit(
            "worker.environment_built", lock=lock, packages=len(wanted.packages), bytes=size, seconds=seconds
        )
        self._let_go()
        await asyncio.to_thread(self._make_room, besides=place.name)

    async def _install(self, wanted: Lock, draft: Path) -> None:
        if not wanted.packages:
            return
        listed = draft / "requirements"
        listed.write_text("".join(f"{package.line}\n" for package in wanted.packages))
        command = uv_command.command(
            *("pip", "install", "--target", str(draft / "packages"), "--python", sys.executable),
            *("--requirements", str(listed), "--require-hashes", "--no-deps", *uv_command.NEVER_BUILD),
            *("--link-mode", "copy", "--compile-bytecode", "--quiet"),
        )
        # Hashes name the files, so what was downloaded before is as good, and no index need be reached.
        if await self._run([*command, "--offline"], draft) is None:
            return
        await asyncio.to_thread(remove_tree, draft / "packages")
        if (problem := await self._run(command, draft)) is not None:
            raise _not_built(draft.name.removeprefix(".draft-"), problem)

    async def _run(self, command: list[str], draft: Path) -> str | None:
        """What went wrong, if something did."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            # Compiled modules that count wherever the files are unpacked, whatever time these have there.
            env={**uv_command.environment(), "PYC_INVALIDATION_MODE": "UNCHECKED_HASH"},
            start_new_session=True,
            preexec_fn=self._limited,
        )
        talk = asyncio.ensure_future(process.communicate())
        try:
            async with asyncio.timeout(_BUILD_SECONDS):
                while not talk.done():
                    await asyncio.wait((talk,), timeout=_LOOK_SECONDS)
                    if not talk.done() and await asyncio.to_thread(_bytes, draft) > self._limit_bytes:
                        raise _too_large(draft.name, self._limit_bytes)
        except TimeoutError:
            return f"it took longer than {_BUILD_SECONDS:.0f} seconds"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            _, printed = await talk
        if process.returncode == -signal.SIGXFSZ or _FILE_TOO_LARGE in printed:
            raise _too_large(draft.name, self._limit_bytes)
        return uv_command.reason(printed) if process.returncode else None

    def _limited(self) -> None:
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit_bytes, self._limit_bytes))

    def _make_room(self, besides: str) -> None:
        """Removes what nobody uses, least recently used first, until the rest is within the limit."""
        found = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        sizes = {path: _recorded_bytes(path) for path in found}
        for path in sorted(found, key=lambda one: self._last_used(one.name)):
            if sum(sizes.values()) <= self._limit_bytes:
                return
            if path.name != besides and self._remove(path):
                telemetry.emit("worker.environment_removed", environment=path.name, bytes=sizes.pop(path))

    def _let_go(self) -> None:
        """Drops the locks of what has had no task for a while."""
        for lock, held in list(self._held.items()):
            idle = not held.users and time.monotonic() - held.used > _KEPT_SECONDS
            if idle and held.ready.done() and not held.ready.cancelled() and not held.ready.exception():
                del self._held[lock]
                os.close(held.ready.result())

    def _last_used(self, name: str) -> float:
        try:
            return (self._locks / name).stat().st_mtime
        except OSError:
            return 0.0

    def _remove(self, place: Path) -> bool:
        descriptor = os.open(self._locks / place.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _takes(descriptor, fcntl.LOCK_EX):
                return False
            # Never half of one at its place.
            aside = place.with_name(f".gone-{place.name}")
            remove_tree(aside)
            os.rename(place, aside)
            remove_tree(aside)
            return True
        finally:
            os.close(descriptor)


def _name(lock: str) -> str:
    return f"{lock}-{_TAG}"


def _takes(descriptor: int, lock: int) -> bool:
    """Whether a lock could be had at once."""
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_folders(draft: Path) -> None:
    remove_tree(draft)  # of a worker that was killed
    draft.mkdir(mode=0o700)
    (draft / "packages").mkdir()


def _tree(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _tree(Path(entry.path))


def _bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError):  # it is being written
        for entry in _tree(folder):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def _contents(packages: Path) -> dict[str, int]:
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in _tree(packages) if entry.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _seal(draft: Path) -> int:
    """Completes an environment, for others to read; returns its size."""
    packages = draft / "packages"
    packages.mkdir(exist_ok=True)
    (packages / ".lock").unlink(missing_ok=True)  # uv's own, which everybody could write to
    for entry in _tree(packages):
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            raise OSError(f"{entry.name} is not a plain file")
        executable = entry.stat().st_mode & 0o111
        os.chmod(entry.path, _FOLDER_MODE if entry.is_dir() else _FILE_MODE | executable)
    starter = draft / "python"
    starter.write_text(_START_PYTHON.replace("@PYTHON@", shlex.quote(sys.executable)))
    starter.chmod(_FOLDER_MODE)
    (draft / "requirements").unlink(missing_ok=True)
    contents = _contents(packages)
    (draft / "contents.json").write_text(json.dumps(contents))
    for folder in (packages, draft):
        folder.chmod(_FOLDER_MODE)
    os.sync()  # a rename may survive a failure of power that its files do not
    return contents["bytes"]


def _put_in_place(draft: Path, place: Path) -> None:
    remove_tree(place)
    os.rename(draft, place)


def _is_intact(place: Path) -> bool:
    try:
        return bool(json.loads((place / "contents.json").read_text()) == _contents(place / "packages"))
    except (OSError, ValueError):
        return False


def _recorded_bytes(place: Path) -> int:
    try:
        return int(json.loads((place / "contents.json").read_text())["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _damaged(lock: str, why: str) -> PlatformError:
    return PlatformError(
        "code.damaged",
        f"the lock that the dispatcher sent for a job differs from what was deployed: {why}",
        value=lock,
        next_step="restore the row of code_bundles from a backup",
    )


def _not_built(name: str, why: str) -> PlatformError:
    return PlatformError(
        "environment.not_built",
        f"the packages that a job needs cannot be installed: {why}",
        value=name,
        next_step="check the settings of uv for its indexes on the worker, its network and its disk",
    )


def _too_large(name: str, limit: int) -> PlatformError:
    return PlatformError(
        "environment.too_large",
        f"the packages that a job needs take more than {limit >> 20} MB",
        value=name,
        next_step="raise environments_mb on the workers, or need fewer packages",
    )
