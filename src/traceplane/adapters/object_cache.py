"""Local copies of files in S3, so that operators, Spark and queries see folders and need no credentials.

    {cache}/files/…              files of the store by their paths: complete, immutable, shared by all workers
    {cache}/worker-…/outputs/    outputs of one worker's tasks, by their future paths in the store
    {cache}/worker-…/incoming/   its downloads in progress

The wrapper holds the inputs of a running task, and a gateway the files of a query: missing files are fetched, and all
are locked. Outputs are uploaded and then moved to `files`, where the next job of the cascade finds them.

A link creates each file under its path once, however many processes fetch it. A holder has a shared lock on it. To make
room, a worker takes an exclusive lock before it removes a file, least recently used first, so that no task loses a file
that it was given. The kernel drops the locks of a killed worker, and the next worker removes its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from traceplane import telemetry
from traceplane.adapters.object_store import ObjectStore, StoredFile, relative
from traceplane.errors import PlatformError
from traceplane.linux.confine import allow_many_open_files
from traceplane.linux.plain_files import open_plain
from traceplane.runtime.in_parallel import in_parallel
from traceplane.runtime.locked_folder import LockedFolder, remove_tree
from traceplane.runtime.retrying import pauses, retrying

Answer = TypeVar("Answer")

_TRANSFERS_AT_ONCE = 16
"""Per task."""
_LOOK_AGAIN_AFTER = 20
"""Workers count the bytes they add, and check the size of the whole cache after each twentieth of the limit."""
_LEFT_OF_TEN = 9
"""Tenths of the limit that remain after room is made."""
_TRIES = 5
_SMALL_BYTES = 1 << 20
_SMALL_PART_BYTES, _MOST_SMALL_PARTS = 64 << 10, 2048
_MOST_COUNTED = 100_000
_AWAY = ("object_store.unavailable", "object_store.refused")
_LONGEST_PAUSE_SECONDS = 10.0


class ObjectCache:
    """Created by `open`."""

    def __init__(self, store: ObjectStore, folder: Path, own: LockedFolder, limit_bytes: int) -> None:
        self._store = store
        self._folder = folder
        self._own = own
        self._limit_bytes = limit_bytes
        self._added_bytes = 0
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._making_room: asyncio.Task[None] | None = None
        self._read_of: dict[str, int] = {}
        """Bytes of files that were read in parts, by path."""
        self._small_parts: dict[tuple[str, int, int], bytes] = {}
        """Footers, mostly, which every query reads."""
        self.away = False
        """Whether the store failed recently: tasks claimed now would only use up their attempts."""
        self.files = folder / "files"
        self.outputs = own.path / "outputs"

    @classmethod
    async def open(cls, store: ObjectStore, folder: Path, *, limit_bytes: int) -> ObjectCache:
        """Raises unless the store can be reached: a worker without it would only use up attempts."""
        try:
            await store.check()
            allow_many_open_files()  # each held file is open
            cache = await asyncio.to_thread(
                _explained, lambda: cls._make(store, folder.resolve(), limit_bytes)
            )
        except BaseException:
            await store.close()
            raise
        try:
            await asyncio.to_thread(cache._own.remove_abandoned)
            await cache._make_room()
        except BaseException:
            await cache.close()
            raise
        return cache

    @classmethod
    def _make(cls, store: ObjectStore, folder: Path, limit_bytes: int) -> ObjectCache:
        folder.mkdir(parents=True, exist_ok=True)
        own = LockedFolder(folder, "worker-", ("outputs", "incoming"))
        _make_passable(folder, "files")
        return cls(store, folder, own, limit_bytes)

    async def close(self) -> None:
        background = [*self._fetching.values(), *([self._making_room] if self._making_room else [])]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await asyncio.to_thread(self._own.remove)
        await self._store.close()

    # Inputs ----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def holding(self, files: Sequence[StoredFile]) -> AsyncIterator[None]:
        """The files stay at their paths below `self.files` until the context ends."""
        locks = _Locks()
        try:
            absent = await asyncio.to_thread(_explained, lambda: self._hold_present(files, locks))
            if absent:
                with self._noticing_absence():
                    await in_parallel(lambda file: self._fetch(file, locks), absent, _TRANSFERS_AT_ONCE)
            yield
        finally:
            locks.close()

    @contextlib.asynccontextmanager
    async def holding_some(self, files: Sequence[StoredFile]) -> AsyncIterator[list[StoredFile]]:
        """As `holding`, for whoever can also `read` parts of files: yields those that are not held. A file is fetched
        if it is small, or if as much of it has been read in parts as it has bytes."""
        locks = _Locks()
        try:
            absent = await asyncio.to_thread(_explained, lambda: self._hold_present(files, locks))
            fetched, room = list[StoredFile](), self._limit_bytes // 2
            for file in absent:
                is_worth_it = file.bytes <= _SMALL_BYTES or self._read_of.get(file.path, 0) >= file.bytes
                if is_worth_it and file.bytes <= room:
                    fetched.append(file)
                    room -= file.bytes
            if fetched:
                with self._noticing_absence():
                    await in_parallel(lambda file: self._fetch(file, locks), fetched, _TRANSFERS_AT_ONCE)
            there = {file.path for file in fetched}
            yield [file for file in absent if file.path not in there]
        finally:
            locks.close()

    async def read(self, file: StoredFile, start: int, count: int) -> bytes:
        """A part of a file that is not held."""
        key = (file.path, start, count)
        if (known := self._small_parts.pop(key, None)) is None:
            with self._noticing_absence():
                known = await self._store.read(file, start, count)
            if len(self._read_of) >= _MOST_COUNTED:
                self._read_of.clear()
            self._read_of[file.path] = self._read_of.get(file.path, 0) + count
        if count <= _SMALL_PART_BYTES:
            self._small_parts[key] = known  # the last one used is the last in order
            while len(self._small_parts) > _MOST_SMALL_PARTS:
                del self._small_parts[next(iter(self._small_parts))]
        return known

    def _hold_present(self, files: Sequence[StoredFile], locks: _Locks) -> list[StoredFile]:
        return [file for file in files if not self._hold(file, locks)]

    def _hold(self, file: StoredFile, locks: _Locks) -> bool:
        """Whether the file exists and is now held."""
        place = self.files / relative(file.path)
        try:
            with open_plain(place) as opened:
                lock = os.dup(opened.fileno())
        except (FileNotFoundError, NotADirectoryError):
            return False
        fcntl.flock(lock, fcntl.LOCK_SH)
        status = os.fstat(lock)
        if status.st_nlink == 0 or status.st_size != file.bytes:
            os.close(lock)
            if status.st_nlink:
                place.unlink(missing_ok=True)  # damaged on disk; the store has the right one
            return False
        with contextlib.suppress(PermissionError):  # another user's worker fetched it
            os.utime(lock, ns=(time.time_ns(), status.st_mtime_ns))
        locks.add(lock)
        return True

    async def _fetch(self, file: StoredFile, locks: _Locks) -> None:
        for _ in range(_TRIES):
            if file.path not in self._fetching:
                fetching = asyncio.create_task(self._download(file))
                self._fetching[file.path] = fetching
                fetching.add_done_callback(lambda task: self._fetched(file.path, task))
            # Others may wait for the same file: a caller that gives up must not cancel it for them.
            await asyncio.shield(self._fetching[file.path])
            if await asyncio.to_thread(_explained, lambda: self._hold(file, locks)):
                return
        raise _failed("files are removed as fast as they are fetched", file.path)

    def _fetched(self, path: str, task: asyncio.Task[None]) -> None:
        self._fetching.pop(path, None)
        if not task.cancelled():
            task.exception()  # waiters get the error; having none is fine

    async def _download(self, file: StoredFile) -> None:
        draft = self._own.path / "incoming" / uuid4().hex
        try:
            with _explaining():
                await self._store.get(file, draft)
                await asyncio.to_thread(self._place, draft, file.path)
        finally:
            draft.unlink(missing_ok=True)
        self._grew(file.bytes)

    def _place(self, draft: Path, path: str) -> None:
        os.chmod(draft, 0o444)
        with contextlib.suppress(FileExistsError):  # another worker was faster
            self._into_files(path, functools.partial(os.link, draft))

    def _into_files(self, path: str, act: Callable[[Path], None]) -> None:
        for _ in range(_TRIES):
            _make_passable(self.files, os.path.dirname(path))
            with contextlib.suppress(FileNotFoundError):  # the empty folder was removed in the meantime
                act(self.files / path)
                return
        act(self.files / path)

    # Outputs ---------------------------------------------------------------------------------------

    async def upload(self, files: Sequence[StoredFile]) -> None:
        """Uploads a task's outputs below `self.outputs` to the same paths in the store."""
        with _explaining(), self._noticing_absence():
            await in_parallel(
                lambda file: self._store.put(self.outputs / file.path, file.path), files, _TRANSFERS_AT_ONCE
            )
            await asyncio.to_thread(self._adopt, files)
        self._grew(sum(file.bytes for file in files))

    def _adopt(self, files: Sequence[StoredFile]) -> None:
        for file in files:
            written = self.outputs / file.path
            self._into_files(file.path, functools.partial(os.rename, written))

    async def discard(self, prefixes: Sequence[str]) -> None:
        """Removes the remaining outputs of an attempt."""
        await asyncio.to_thread(self._discard, prefixes)

    def _discard(self, prefixes: Sequence[str]) -> None:
        for prefix in prefixes:
            folder = self.outputs / relative(prefix)
            remove_tree(folder)
            _prune(folder.parent, self.outputs)

    # The store itself ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _noticing_absence(self) -> Iterator[None]:
        try:
            yield
        except PlatformError as error:
            if error.code in _AWAY and not self.away:
                self.away = True
                telemetry.emit("object_store.away", "error", code=error.code, message=str(error))
            raise

    async def until_back(self) -> None:
        """Waits while the store is unavailable."""
        if not self.away:
            return
        await retrying(self._store.check, on=PlatformError, pauses=pauses(0.5, _LONGEST_PAUSE_SECONDS))
        if self.away:  # no other task has noticed yet
            self.away = False
            telemetry.emit("object_store.back")

    # Room ------------------------------------------------------------------------------------------

    def _grew(self, count: int) -> None:
        self._added_bytes += count
        if self._making_room is None or self._making_room.done():
            self._making_room = asyncio.create_task(self._make_room_if_grown())

    async def _make_room_if_grown(self) -> None:
        while self._added_bytes * _LOOK_AGAIN_AFTER > self._limit_bytes:
            await self._make_room()

    async def _make_room(self) -> None:
        self._added_bytes = 0
        try:
            count, size = await asyncio.to_thread(self._evict)
        except OSError as error:
            telemetry.emit("object_cache.failed", "error", error=str(error))
            return
        if count:
            telemetry.emit("object_cache.evicted", files=count, bytes=size)

    def _evict(self) -> tuple[int, int]:
        """Removes the least recently used files that nobody holds, in one worker at a time."""
        lock = os.open(self._folder / "evicting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            files = sorted(_files_below(str(self.files)))
            total = sum(size for _, size, _ in files)
            count = freed = 0
            if total > self._limit_bytes:
                for _, size, path in files:
                    if (total - freed) * 10 <= self._limit_bytes * _LEFT_OF_TEN:
                        break
                    if _remove_unless_held(Path(path), self.files):
                        count, freed = count + 1, freed + size
            return count, freed
        finally:
            os.close(lock)


class _Locks:
    """Open files, each locked. A thread may still add to them after its caller has given up."""

    def __init__(self) -> None:
        self._open: list[int] | None = []
        self._guard = threading.Lock()

    def add(self, lock: int) -> None:
        with self._guard:
            if self._open is None:
                os.close(lock)
            else:
                self._open.append(lock)

    def close(self) -> None:
        with self._guard:
            for lock in self._open or ():
                os.close(lock)
            self._open = None


def _files_below(folder: str) -> Iterator[tuple[int, int, str]]:
    """Last use, size and path of each file."""
    pending = [folder]
    while pending:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_atime_ns, status.st_size, entry.path


def _remove_unless_held(path: Path, root: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(lock)
    _prune(path.parent, root)
    return True


def _prune(folder: Path, root: Path) -> None:
    """Removes empty folders, except those that children may see: down to a generation's staging."""
    while folder.name != "staging" and folder != root:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _make_passable(root: Path, below: str) -> None:
    """Creates folders that operators of any uid can enter, whatever the umask."""
    folder = root
    for name in below.split("/"):
        folder = folder / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(error.strerror or str(error), error.filename) from error


def _explained(act: Callable[[], Answer]) -> Answer:
    with _explaining():
        return act()


def _failed(reason: str, value: object) -> PlatformError:
    step = "raise the worker's open file limit" if reason == os.strerror(errno.EMFILE) else None
    return PlatformError(
        "worker.cache_failed",
        f"the worker's cache of the object store cannot be used: {reason}",
        value=value,
        next_step=step
        or "check the free space and the owner of the folder `object_cache`, and its size in `object_cache_mb`",
    )
