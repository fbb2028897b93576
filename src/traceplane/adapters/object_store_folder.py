"""A folder as the object store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

from traceplane.adapters.object_store import (
    ORGANIZATIONS,
    BucketAccess,
    StagingPrefix,
    StoredFile,
    missing,
    outside,
    size_mismatch,
)
from traceplane.errors import PlatformError
from traceplane.linux.plain_files import open_plain

_BATCH = 500
_COPIED_AT_ONCE = 1 << 20
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT = re.compile(r"([1-9][0-9]{0,9})(-[0-9a-f]{16})?")
"""Where the attempt writes, or the first task of its child process wrote (`sandbox`)."""


class FolderObjectStore:
    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    async def check(self) -> None:
        await asyncio.to_thread(self._check)

    def _check(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            os.listdir(self._root)
        except OSError as error:
            raise _unavailable(self._root, error) from error

    async def close(self) -> None:
        pass

    async def get(self, file: StoredFile, target: Path) -> None:
        await asyncio.to_thread(self._get, file, target)

    def _get(self, file: StoredFile, target: Path) -> None:
        place = self._inside(file.path)
        size = _size(place)
        if size is None:
            raise missing(file.path)
        if size != file.bytes:
            raise size_mismatch(file, size)
        _copy(place, target)

    async def read(self, file: StoredFile, start: int, count: int) -> bytes:
        return await asyncio.to_thread(self._read, file, start, count)

    def _read(self, file: StoredFile, start: int, count: int) -> bytes:
        place = self._inside(file.path)
        try:
            with open_plain(place) as opened:
                if (size := os.fstat(opened.fileno()).st_size) != file.bytes:
                    raise size_mismatch(file, size)
                return os.pread(opened.fileno(), count, start)
        except (FileNotFoundError, NotADirectoryError):
            raise missing(file.path) from None
        except OSError as error:
            raise _unavailable(place, error) from error

    async def put(self, source: Path, path: str) -> None:
        await asyncio.to_thread(self._put, source, self._inside(path))

    def _put(self, source: Path, place: Path) -> None:
        draft = place.with_name(f".{uuid4()}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _copy(source, draft)
            draft.replace(place)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise _unavailable(place, error) from error

    async def staging_prefixes(self) -> AsyncIterator[list[StagingPrefix]]:
        prefixes = self._prefixes()
        while batch := await asyncio.to_thread(lambda: list(itertools.islice(prefixes, _BATCH))):
            yield batch

    def _prefixes(self) -> Iterator[StagingPrefix]:
        organizations = _folders(self._root / ORGANIZATIONS, _UUID)
        for dataset in itertools.chain.from_iterable(
            _folders(below, _UUID) for below in itertools.chain([self._root], organizations)
        ):
            for generation in _folders(dataset, _UUID):
                for task in _folders(generation / "staging", _UUID):
                    for attempt in _folders(task, _ATTEMPT):
                        path = attempt.relative_to(self._root).as_posix() + "/"
                        number = int(attempt.name.partition("-")[0])
                        yield StagingPrefix(path, UUID(task.name), number, list(self._files_below(attempt)))

    def _files_below(self, prefix: Path) -> Iterator[StoredFile]:
        for folder, _, names in os.walk(prefix):
            for file in (Path(folder) / name for name in sorted(names)):
                yield StoredFile(file.relative_to(self._root).as_posix(), _size(file) or 0)

    async def below(self, prefix: str) -> AsyncIterator[list[StoredFile]]:
        files = self._files_below(self._inside(prefix))
        while batch := await asyncio.to_thread(lambda: list(itertools.islice(files, _BATCH))):
            yield batch

    def location(self, path: str) -> str:
        return f"file://{self._inside(path)}"

    async def read_access(self, folders: Sequence[str], reader: str) -> BucketAccess | None:
        return None

    async def sizes(self, paths: Sequence[str]) -> list[StoredFile]:
        sizes = await asyncio.to_thread(lambda: [(path, _size(self._inside(path))) for path in paths])
        return [StoredFile(path, size) for path, size in sizes if size is not None]

    async def delete(self, paths: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, paths)

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            file = self._inside(path)
            try:
                file.unlink(missing_ok=True)
            except NotADirectoryError:
                continue
            except OSError as error:
                raise _cannot_delete(file, error) from error
            self._prune(file.parent)

    async def delete_empty(self, prefix: str) -> None:
        await asyncio.to_thread(self._delete_empty, self._inside(prefix))

    def _delete_empty(self, folder: Path) -> None:
        for below, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(below)
        self._prune(folder.parent)

    def _prune(self, folder: Path) -> None:
        """Removes empty folders upwards, up to the generation's staging folder, which attempts share."""
        while folder.name != "staging" and folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _inside(self, path: str) -> Path:
        """The location of a path; rejects one that leads outside the store, whoever wrote it."""
        place = Path(os.path.normpath(self._root / path))
        if self._root not in place.parents or not place.parent.resolve().is_relative_to(self._root):
            raise outside(path)
        return place


def _folders(folder: Path, names: re.Pattern[str]) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            matching = sorted(
                e.name for e in entries if names.fullmatch(e.name) and e.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in matching:
        yield folder / name


def _copy(source: Path, target: Path) -> None:
    """Never follows a link, since operators may have created it."""
    with open_plain(source) as original, open(target, "wb") as copy:
        shutil.copyfileobj(original, copy, _COPIED_AT_ONCE)


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _unavailable(path: Path, error: OSError) -> PlatformError:
    return PlatformError(
        "object_store.unavailable",
        f"the object store's folder cannot be used: {error.strerror}",
        value=str(path),
        next_step="check that its disk is mounted and has free space, and who owns the folder",
    )


def _cannot_delete(path: Path, error: OSError) -> PlatformError:
    return PlatformError(
        "object_store.cannot_delete",
        f"a file cannot be deleted: {error.strerror}",
        value=str(path),
        next_step="check who owns the object store's folder, and run the command as that user",
    )
