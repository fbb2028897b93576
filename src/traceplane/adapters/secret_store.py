"""Where the values of secrets are. Who may use them is in Postgres, wherever the values are."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from traceplane.errors import Conflict, PlatformError
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.secrets import SecretPlace

LONGEST_VALUE = 64 << 10
NAMESPACES = ("platform", "user")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")

Reading = Callable[[], Awaitable[Mapping[SecretPlace, str | PlatformError]]]
"""Reads values after a transaction. What does not exist is left out; an error concerns one secret."""


Writing = Callable[[], Awaitable[int | str | None]]
"""Writes a value after a transaction, if that did not do it already; the version that it became."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """What a store says of a secret; None: it does not know."""

    place: SecretPlace
    version: int | str | None = None
    set_by: str | None = None
    set_at: datetime | None = None


class SecretStore(Protocol):
    """What needs an answer of the store at once takes a database rather than a transaction, and what takes a
    transaction leaves the rest for after it: no other service is waited for while rows are locked."""

    async def check(self) -> None:
        """Raises if it cannot be used; called when a process starts."""

    async def close(self) -> None: ...

    async def put(self, tx: Transaction, place: SecretPlace, value: str, by: str) -> Writing: ...

    async def remove(self, place: SecretPlace) -> bool:
        """Whether there was one here; what is in Postgres goes with its rights."""

    async def listed(self, database: Database, org: str) -> list[StoredSecret]: ...

    async def existing(self, database: Database, places: Collection[SecretPlace]) -> set[SecretPlace]: ...

    async def look_up(self, tx: Transaction, places: Collection[SecretPlace]) -> Reading: ...


def is_place(place: SecretPlace) -> bool:
    """Whether a secret can have this name: others may keep more where the secrets are."""
    return place.namespace in NAMESPACES and _NAME.fullmatch(place.name) is not None


def unreadable(place: SecretPlace, why: str) -> PlatformError:
    return PlatformError(
        "secret.unreadable",
        f"a secret cannot be read: {why}",
        value=f"{place.namespace}/{place.name}",
        next_step="store text in UTF-8 of at most 64 KiB",
    )


def read_only(place: SecretPlace, why: str, next_step: str) -> Conflict:
    return Conflict("secret.read_only", why, value=f"{place.namespace}/{place.name}", next_step=next_step)
