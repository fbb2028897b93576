"""Secrets as they are stored: sealed, with who may use and set them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("secrets")


@dataclass(frozen=True, slots=True, order=True)
class SecretPlace:
    """Names a secret on a platform with several organizations."""

    org: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class SecretRights:
    allowed_jobs: tuple[str, ...] | None = None
    """As dag/job or dag/*; None: every job."""
    roles: tuple[str, ...] = ()
    """Whose members may set and list it, besides admins."""


NO_RIGHTS_SET = SecretRights()


@dataclass(frozen=True, slots=True)
class UsedSecret:
    rights: SecretRights
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class ListedVersion:
    namespace: str
    name: str
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


# Rights and use --------------------------------------------------------------------------------------


async def grant(
    tx: Transaction,
    place: SecretPlace,
    *,
    jobs: tuple[Sequence[str] | None] | None = None,
    roles: Sequence[str] | None = None,
) -> None:
    """Changes what is given; `jobs` is a tuple with the jobs that may use it, or with None for every job."""
    allowed = None if jobs is None or jobs[0] is None else list(jobs[0])
    await tx.rows(
        _SQL["grant"],
        *(place.org, place.namespace, place.name),
        *(allowed, jobs is not None),
        *(list(roles or ()), roles is not None),
    )


async def rights(tx: Transaction, places: Collection[SecretPlace]) -> dict[SecretPlace, SecretRights]:
    """Of those that have any."""
    asked = list(places)
    rows = await tx.rows(_SQL["rights"], *_columns(asked))
    return {asked[r["number"]]: _rights(r["allowed_jobs"], r["roles"]) for r in rows}


async def rights_of_org(tx: Transaction, org: str) -> dict[SecretPlace, UsedSecret]:
    return {
        SecretPlace(org, r["namespace"], r["name"]): UsedSecret(
            _rights(r["allowed_jobs"], r["roles"]), r["last_used_at"]
        )
        for r in await tx.rows(_SQL["rights_of_org"], org)
    }


def _rights(allowed_jobs: Sequence[str] | None, roles: Sequence[str]) -> SecretRights:
    return SecretRights(None if allowed_jobs is None else tuple(allowed_jobs), tuple(roles))


async def note_use(tx: Transaction, places: Collection[SecretPlace]) -> None:
    await tx.rows(_SQL["used"], *_columns(places))


async def add_unknown(tx: Transaction, places: Collection[SecretPlace]) -> None:
    await tx.rows(_SQL["add_unknown"], *_columns(places))


async def remove(tx: Transaction, place: SecretPlace) -> bool:
    """With its rights and all its versions."""
    return bool(await tx.value(_SQL["removed"], place.org, place.namespace, place.name))


# Sealed values ---------------------------------------------------------------------------------------


async def next_version(tx: Transaction, place: SecretPlace) -> tuple[UUID, int]:
    """Of a secret whose rights were granted; still without a value."""
    row = await tx.row(_SQL["next_version"], place.org, place.namespace, place.name)
    assert row is not None
    return row["secret_id"], row["newest"]


async def store_version(tx: Transaction, version: SealedVersion, set_by: str) -> None:
    await tx.rows(
        _SQL["store_version"],
        *(version.secret_id, version.version, version.sealed_value, version.sealed_key),
        *(version.master_key_id, set_by),
    )
    await tx.rows(_SQL["forget_versions"], version.secret_id, version.version)


async def listed(tx: Transaction, org: str) -> list[ListedVersion]:
    return await tx.rows_as(ListedVersion, _SQL["listed"], org)


async def newest(tx: Transaction, places: Collection[SecretPlace]) -> dict[SecretPlace, SealedVersion]:
    """The newest version of each that there is, all as of one moment."""
    asked = list(places)
    return {
        asked[r["number"]]: SealedVersion(
            r["secret_id"], r["version"], r["sealed_value"], r["sealed_key"], r["master_key_id"]
        )
        for r in await tx.rows(_SQL["newest"], *_columns(asked))
    }


async def begin_sealing(tx: Transaction) -> None:
    await tx.rows(_SQL["begin_sealing"])


async def await_sealing(tx: Transaction) -> None:
    await tx.rows(_SQL["await_sealing"])


async def is_sealed_with_others(tx: Transaction, master_key_id: str) -> bool:
    return bool(await tx.value(_SQL["is_sealed_with_others"], master_key_id))


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


def _columns(places: Collection[SecretPlace]) -> tuple[list[str], list[str], list[str]]:
    return [p.org for p in places], [p.namespace for p in places], [p.name for p in places]
