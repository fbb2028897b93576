"""The object store, which holds the files of datasets: a folder, or an S3 bucket.

Workers write files below the prefix of their attempt, and a commit makes them visible; nothing is ever renamed or
overwritten. Paths are relative to the store's root, with slashes:

    o/{organization}/{dataset}/{generation}/staging/{task}/{attempt}/…

Those of generations that are older than the folders of organizations begin with the dataset. Files below `iceberg/` are
derived from the catalog, and can be made again (`traceplane.iceberg`):

    iceberg/{organization}/{dataset}/{generation}/{day}/…

Files in a folder are read and written in place. Files in a bucket pass through the worker's cache
(`adapters.object_cache`), so that operator code and Spark see local files and hold no credentials. Or
the executors of a Spark cluster read and write them, with credentials for the files of their task
(`worker.direct_store`).

Every failure is a PlatformError with a code `object_store.…`, and the call may be retried.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Protocol
from uuid import UUID

from traceplane.errors import PlatformError

ORGANIZATIONS = "o"
"""The folder that has one for each organization."""
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_STAGED = re.compile(
    rf"((?:{ORGANIZATIONS}/{_UUID}/)?{_UUID}/{_UUID}/staging/({_UUID})/([1-9][0-9]{{0,9}})/)"
)


DERIVED = "iceberg"
"""The folder of what is derived from the catalog."""
_DERIVED_ON = re.compile(rf"{DERIVED}/{_UUID}/{_UUID}/{_UUID}/([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})/[^/]+")


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StagingPrefix:
    """Where one attempt of a task writes, and its files."""

    path: str
    task_id: UUID
    attempt: int
    files: list[StoredFile] = field(default_factory=list)

    @property
    def generation_id(self) -> UUID:
        return UUID(self.path.partition("/staging/")[0].rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """Credentials of S3 for some files and folders, for a while."""

    access_key: str
    secret_key: str
    session_token: str
    expires_at: datetime
    region: str
    endpoint_url: str | None


class ObjectStore(Protocol):
    async def check(self) -> None:
        """Raises unless the store exists and is readable."""
        ...

    async def get(self, file: StoredFile, target: Path) -> None:
        """Copies a file to a new local one, completely; fails if the size differs from the catalog's."""
        ...

    async def read(self, file: StoredFile, start: int, count: int) -> bytes:
        """A part of a file, which must lie within it; fails if the file's size differs from the catalog's."""
        ...

    async def put(self, source: Path, path: str) -> None:
        """Copies a local file into the store, atomically."""
        ...

    def staging_prefixes(self) -> AsyncIterator[list[StagingPrefix]]:
        """All staging prefixes, in batches; paths that do not look like one are left out."""
        ...

    async def sizes(self, paths: Sequence[str]) -> list[StoredFile]:
        """The files that exist."""
        ...

    async def delete(self, paths: Sequence[str]) -> None:
        """Removes files, and folders that become empty; missing files are no error."""
        ...

    async def delete_empty(self, prefix: str) -> None:
        """Removes the rest of a prefix without files: empty folders, aborted uploads."""
        ...

    def below(self, prefix: str) -> AsyncIterator[list[StoredFile]]:
        """All files below a prefix, in batches."""
        ...

    def location(self, path: str) -> str:
        """Where readers elsewhere find a file, or a folder, as a URI."""
        ...

    async def read_access(self, folders: Sequence[str], reader: str) -> BucketAccess | None:
        """For a reader elsewhere, by name: all files in these folders, and no others. None: the file system decides."""
        ...

    async def close(self) -> None: ...


def staging_prefix_of(path: str) -> StagingPrefix | None:
    """The attempt that a path belongs to; None if the path does not look like one."""
    match = _STAGED.match(path)
    return StagingPrefix(match[1], UUID(match[2]), int(match[3])) if match else None


def derived_on(path: str) -> date | None:
    """The day for which a file was derived from the catalog; None of other files."""
    match = _DERIVED_ON.fullmatch(path)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None


def relative(path: str) -> str:
    """The path, if it stays inside the store, whoever wrote it."""
    first = path.partition("/")[0]
    if first in ("", ".", "..") or posixpath.normpath(path) != path.removesuffix("/"):
        raise outside(path)
    return path


def outside(path: str) -> PlatformError:
    return PlatformError("object_store.outside", "a path leads outside the object store", value=path)


def missing(path: str) -> PlatformError:
    return PlatformError(
        "object_store.missing",
        "a file is missing in the object store",
        value=path,
        next_step="if `traceplane gc` ran with a short grace period, retry; else restore the file",
    )


def changed(path: str) -> PlatformError:
    return PlatformError(
        "files.changed",
        "a file was changed after it was listed",
        value=path,
        next_step="wait: the next listing finds it, and its partition is computed again",
    )


def size_mismatch(file: StoredFile, actual: int) -> PlatformError:
    return PlatformError(
        "object_store.size_mismatch",
        f"a file has {actual} bytes, but the catalog says {file.bytes}",
        value=file.path,
        next_step="find out what else writes to the object store, and restore the file",
    )
