"""The files that file sources list and their jobs read: in a folder, or below a prefix in S3.

Only places that the setting `file_source_allow` names, or that lie below one of them. Links are not followed: whoever
may write to an allowed folder must not show others a different one.

A file is known by its size and its version: the time of its last change, or the ETag of an object. Whoever fetches a
file says which version, and gets that one or an error.

Every failure is a PlatformError, and the call may be retried.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import posixpath
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from traceplane.adapters.object_store import StoredFile, changed
from traceplane.errors import PlatformError
from traceplane.linux.plain_files import open_plain
from traceplane.model import file_places
from traceplane.settings import Settings

if TYPE_CHECKING:
    from traceplane.adapters.object_store_s3 import S3ObjectStore

_PAGE = 5_000
_COPIED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class WatchedFile:
    path: str
    """With the folder, or the bucket and the prefix, that it was found below."""
    bytes: int
    version: str
    modified_at: datetime


class WatchedFiles:
    def __init__(self, settings: Settings, *, page: int = _PAGE) -> None:
        self._settings = settings
        self._page = page
        self._buckets: dict[str, S3ObjectStore] = {}

    async def close(self) -> None:
        for bucket in self._buckets.values():
            await bucket.close()

    async def pages(self, place: str, beginning: str, folders: int) -> AsyncIterator[list[WatchedFile]]:
        """Files that are so many folders below a place, in pages; at least those whose paths below it begin so."""
        self._check(place)
        within = posixpath.dirname(beginning)
        if (in_s3 := file_places.bucket_and_prefix(place)) is not None:
            bucket, prefix = in_s3
            below = posixpath.join(prefix, within) if within else prefix
            async for objects in self._bucket(bucket).listing(below):
                page = [
                    WatchedFile(f"s3://{bucket}/{o.path}", o.bytes, o.etag, o.modified_at)
                    for o in objects
                    if o.path.removeprefix(f"{prefix}/" if prefix else "").count("/") == folders
                ]
                for start in range(0, len(page), self._page):
                    yield page[start : start + self._page]
            return
        root = await asyncio.to_thread(self._folder, place)
        files = _files_below(root, place, within, folders)
        while batch := await asyncio.to_thread(lambda: list(itertools.islice(files, self._page))):
            yield batch

    async def get(self, file: WatchedFile, target: Path) -> None:
        """Copies a file to a new local one."""
        place, name = posixpath.split(file.path)
        self._check(place)
        if (in_s3 := file_places.bucket_and_prefix(place)) is not None:
            bucket, prefix = in_s3
            stored = StoredFile(posixpath.join(prefix, name), file.bytes)
            try:
                await self._bucket(bucket).get(stored, target, etag=file.version)
            except PlatformError as error:
                raise _missing(file.path) if error.code == "object_store.missing" else error from None
            return
        await asyncio.to_thread(self._copy, file, place, name, target)

    def _copy(self, file: WatchedFile, place: str, name: str, target: Path) -> None:
        root = self._folder(place)
        try:
            with open_plain(root / name) as source, target.open("xb") as copy:
                _expect(file, os.fstat(source.fileno()))
                shutil.copyfileobj(source, copy, _COPIED_AT_ONCE)
                _expect(file, os.fstat(source.fileno()))
        except FileNotFoundError:
            raise _missing(file.path) from None
        except OSError as error:
            raise _unavailable(file.path, error) from error

    # Places ----------------------------------------------------------------------------------------

    def _check(self, place: str) -> None:
        if file_places.problem(place) or not file_places.is_allowed(place, self._settings.file_source_allow):
            raise _not_allowed(place)

    def _folder(self, place: str) -> Path:
        """Where a folder is, links resolved; it must still be an allowed one."""
        try:
            root = Path(place).resolve(strict=True)
            allowed = [
                str(Path(one).resolve()) for one in self._settings.file_source_allow if one.startswith("/")
            ]
        except OSError as error:
            raise _unavailable(place, error) from error
        if not file_places.is_allowed(str(root), allowed):
            raise _not_allowed(place)
        return root

    def _bucket(self, bucket: str) -> S3ObjectStore:
        if bucket not in self._buckets:
            from traceplane.adapters.object_stores import bucket_for  # boto is an optional extra

            self._buckets[bucket] = bucket_for(self._settings, bucket)
        return self._buckets[bucket]


def _files_below(root: Path, place: str, within: str, folders: int) -> Iterator[WatchedFile]:
    start = root / within if within else root
    depth = within.count("/") + 1 if within else 0
    try:
        yield from _walked(start, posixpath.join(place, within), folders - depth)
    except FileNotFoundError as error:
        if start == root or not root.is_dir():
            raise _unavailable(place, error) from error
    except OSError as error:
        raise _unavailable(place, error) from error


def _walked(folder: Path, shown: str, folders: int) -> Iterator[WatchedFile]:
    if folder.is_symlink():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            path = posixpath.join(shown, entry.name)
            if folders:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walked(folder / entry.name, path, folders - 1)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed in the meantime
                continue
            if stat.S_ISREG(status.st_mode):
                yield WatchedFile(path, status.st_size, _version(status), _modified(status))


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}"


def _modified(status: os.stat_result) -> datetime:
    return datetime.fromtimestamp(min(max(status.st_mtime, 0.0), 253_402_214_400.0), UTC)


def _expect(file: WatchedFile, status: os.stat_result) -> None:
    if (status.st_size, _version(status)) != (file.bytes, file.version):
        raise changed(file.path)


def _not_allowed(place: str) -> PlatformError:
    return PlatformError(
        "files.not_allowed",
        "file sources may not list this place",
        value=place,
        next_step="add it to the setting file_source_allow of dispatchers, workers and gateways, and restart them",
    )


def _missing(path: str) -> PlatformError:
    return PlatformError(
        "files.missing",
        "a file of the source is gone",
        value=path,
        next_step="if the file is gone for good, acknowledge the task with `traceplane task ack`;"
        " otherwise put it back",
    )


def _unavailable(place: str, error: OSError) -> PlatformError:
    return PlatformError(
        "files.unavailable",
        f"the files of a source cannot be read: {error.strerror}",
        value=place,
        next_step="check that the folder exists, is mounted, and that the platform's user may read it",
    )
