"""The object store: where the files of datasets are. A folder, or a bucket of S3.

Workers write files below a prefix of their attempt, `{dataset}/{generation}/staging/{task}/{attempt}/`, and a commit
makes them visible; nothing is ever renamed or overwritten. Paths are relative to the store's root, with slashes.

A folder's files are read and written where they are. Those of a bucket pass through the worker's cache
(`adapters.object_cache`), so that operator code and Spark see local files and hold no credentials.

Whatever fails is a PlatformError with one of the codes `object_store.…`, and may be repeated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from traceplane.errors import PlatformError

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_STAGED = re.compile(rf"({_UUID}/{_UUID}/staging/({_UUID})/([1-9][0-9]{{0,9}})/)")


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StagingPrefix:
    """Where one attempt of one task writes, and what it has written."""

    path: str
    task_id: UUID
    attempt: int
    files: list[StoredFile] = field(default_factory=list)


class ObjectStore(Protocol):
    async def check(self) -> None:
        """Raises unless the store is there and lets itself be read."""
        ...

    async def get(self, file: StoredFile, target: Path) -> None:
        """Copies a file to a new local one, whole: another size than the catalog's is refused."""
        ...

    async def put(self, source: Path, path: str) -> None:
        """Copies a local file into the store; it is there whole or not at all."""
        ...

    def staging_prefixes(self) -> AsyncIterator[list[StagingPrefix]]:
        """All of them, in batches; what does not look like one is not named."""
        ...

    async def sizes(self, paths: Sequence[str]) -> list[StoredFile]:
        """Those of the files that are there."""
        ...

    async def delete(self, paths: Sequence[str]) -> None:
        """Removes files, and the folders that are empty without them; what is gone already is no error."""
        ...

    async def delete_empty(self, prefix: str) -> None:
        """Removes what there is of a prefix that holds no file: empty folders, uploads that were broken off."""
        ...

    async def close(self) -> None: ...


def staging_prefix_of(path: str) -> StagingPrefix | None:
    """The attempt that a path belongs to, if it looks like one."""
    found = _STAGED.match(path)
    return StagingPrefix(found[1], UUID(found[2]), int(found[3])) if found else None


def relative(path: str) -> str:
    """The path, if it stays inside of the store whoever wrote it down."""
    first = path.partition("/")[0]
    if first in ("", ".", "..") or posixpath.normpath(path) != path.removesuffix("/"):
        raise outside(path)
    return path


def outside(path: str) -> PlatformError:
    return PlatformError("object_store.outside", "a path leads out of the object store", value=path)


def missing(path: str) -> PlatformError:
    return PlatformError(
        "object_store.missing",
        "a file is not in the object store",
        value=path,
        next_step="if `traceplane gc` ran with a short grace period, retry; else restore the file",
    )


def size_mismatch(file: StoredFile, found: int) -> PlatformError:
    return PlatformError(
        "object_store.size_mismatch",
        f"a file has {found} bytes, and the catalog says {file.bytes}",
        value=file.path,
        next_step="find out who wrote to the object store besides the workers, and restore the file",
    )
