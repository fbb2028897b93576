"""Files that were derived from the catalog, in the object store, below `iceberg/{…}/{day}/`.

A file's name is a hash of what it is made from, so it is written once and never changed. Days are those of the
database's clock. Nothing refers to files of an earlier day: what is loaded today is made of today's files.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from traceplane.adapters.object_store import ObjectStore

_MOST_REMEMBERED = 50_000


def hashed(*parts: object) -> str:
    """A name for what is made from these parts, which are JSON."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:40]


class DerivedFiles:
    """Remembers the sizes of files that are there."""

    def __init__(self, open_store: Callable[[], ObjectStore], scratch: Path) -> None:
        self._open_store, self._scratch = open_store, scratch
        self._store: ObjectStore | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()

    @property
    def store(self) -> ObjectStore:
        if self._store is None:
            self._store = self._open_store()
        return self._store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    async def ensure(self, path: str, make: Callable[[], bytes]) -> int:
        """The size of a file, which is made unless it is there."""
        size = self._sizes.get(path)
        if size is None:
            found = await self.store.sizes([path])
            size = found[0].bytes if found else await self._put(path, await asyncio.to_thread(make))
        self._sizes[path] = size
        self._sizes.move_to_end(path)
        if len(self._sizes) > _MOST_REMEMBERED:
            self._sizes.popitem(last=False)
        return size

    async def _put(self, path: str, content: bytes) -> int:
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix="iceberg-", dir=self._scratch) as file:
            file.write(content)
            file.flush()
            await self.store.put(Path(file.name), path)
        return len(content)
