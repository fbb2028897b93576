"""The object store, as far as the catalog looks after it: what garbage collection needs and nothing else.

Workers write files below a prefix of their attempt, `{dataset}/{generation}/staging/{task}/{attempt}/`, and a commit
makes them visible; nothing is ever renamed. Paths are relative to the store's root, with slashes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class StagingPrefix:
    """Where one attempt of one task writes."""

    path: str
    task_id: UUID
    attempt: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    bytes: int


class ObjectStore(Protocol):
    def staging_prefixes(self) -> AsyncIterator[list[StagingPrefix]]:
        """All of them, in batches; what does not look like one is not named."""
        ...

    async def files_below(self, prefix: str) -> list[StoredFile]: ...

    async def sizes(self, paths: Sequence[str]) -> list[StoredFile]:
        """Those of the files that are there."""
        ...

    async def delete(self, paths: Sequence[str]) -> None:
        """Removes files, and the folders that are empty without them; what is gone already is no error."""
        ...

    async def delete_empty(self, prefix: str) -> None:
        """Removes a prefix that holds no file, where the store has such a thing."""
        ...
