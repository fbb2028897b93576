"""Secrets as they are stored: sealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("secrets")


@dataclass(frozen=True, slots=True)
class ListedSecret:
    namespace: str
    name: str
    allowed_jobs: tuple[str, ...] | None
    last_used_at: datetime | None
    version: int
    set_by: str
    set_at: datetime


@dataclass(frozen=True, slots=True)
class SealedVersion:
    secret_id: UUID
    version: int
    sealed_value: bytes
    sealed_key: bytes
    master_key_id: str
    allowed_jobs: tuple[str, ...] | None = None


async def add_version(
    tx: Transaction,
    org: str,
    namespace: str,
    name: str,
    allowed_jobs: Sequence[str] | None,
    *,
    allow_anew: bool,
) -> tuple[UUID, int]:
    """A new version of a secret, still without its value; `allow_anew`: the jobs that may use it change too."""
    allowed = None if allowed_jobs is None else list(allowed_jobs)
    row = await tx.row(_SQL["add_version"], org, namespace, name, allowed, allow_anew)
    assert row is not None
    return row["secret_id"], row["newest"]


async def store_version(tx: Transaction, version: SealedVersion, set_by: str) -> None:
    await tx.rows(
        _SQL["store_version"],
        *(version.secret_id, version.version, version.sealed_value, version.sealed_key),
        *(version.master_key_id, set_by),
    )
    await tx.rows(_SQL["forget_versions"], version.secret_id, version.version)


async def listed(tx: Transaction, org: str) -> list[ListedSecret]:
    return await tx.rows_as(ListedSecret, _SQL["listed"], org)


async def remove(tx: Transaction, org: str, namespace: str, name: str) -> bool:
    return bool(await tx.value(_SQL["removed"], org, namespace, name))


async def newest(tx: Transaction, names: Sequence[tuple[str, str, str]]) -> list[SealedVersion | None]:
    """For each (organization, namespace, name), the newest version; None: there is no such secret."""
    found: list[SealedVersion | None] = [None for _ in names]
    rows = await tx.rows(
        _SQL["newest"],
        [org for org, _, _ in names],
        [space for _, space, _ in names],
        [name for _, _, name in names],
    )
    for r in rows:
        allowed = None if r["allowed_jobs"] is None else tuple(r["allowed_jobs"])
        found[r["number"]] = SealedVersion(
            *(r["secret_id"], r["version"], r["sealed_value"], r["sealed_key"], r["master_key_id"]), allowed
        )
    return found


async def note_use(tx: Transaction, secret_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["used"], list(secret_ids))


async def sealed_with_others(tx: Transaction, master_key_id: str, limit: int) -> list[SealedVersion]:
    rows = await tx.rows(_SQL["sealed_with_others"], master_key_id, limit)
    return [
        SealedVersion(r["secret_id"], r["version"], b"", r["sealed_key"], r["master_key_id"]) for r in rows
    ]


async def seal_anew(tx: Transaction, versions: Sequence[SealedVersion], master_key_id: str) -> None:
    await tx.rows(
        _SQL["seal_anew"],
        [v.secret_id for v in versions],
        [v.version for v in versions],
        [v.sealed_key for v in versions],
        master_key_id,
    )
