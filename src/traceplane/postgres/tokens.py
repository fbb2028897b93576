"""Signing keys and opaque tokens, as stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("tokens")

ACCESS_CHANGED = "traceplane_access"
"""The channel that tells of a token, a member or a role that was added, changed or removed."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    kid: str
    sealed_private_key: bytes
    public_jwk: dict[str, str]
    created_at: float
    activates_at: float
    retires_at: float | None


@dataclass(frozen=True, slots=True)
class NewToken:
    token_hash: str
    principal: str
    org: str
    name: str
    sees_pii: bool
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    roles: Sequence[str] | None
    datasets: Sequence[str] | None
    created_by: str
    member_id: UUID | None
    serves: Sequence[str] | None
    made_from: UUID | None
    """The token whose end is the end of this one."""


@dataclass(frozen=True, slots=True)
class StoredToken(NewToken):
    token_id: UUID
    org_id: UUID
    member_kind: str | None
    member_name: str | None
    member_roles: list[str] | None
    """That its member holds now; None: it is nobody's."""


@dataclass(frozen=True, slots=True)
class DefinedRole:
    org_id: UUID
    name: str
    includes: str
    sees_pii: bool


async def clock(tx: Transaction) -> float:
    return float(await tx.value(_SQL["clock"]))


async def organizations(tx: Transaction) -> dict[str, UUID]:
    """By name, in its order, with their ids."""
    return {r["slug"]: r["org_id"] for r in await tx.rows(_SQL["organizations"])}


async def add_organization(tx: Transaction, slug: str) -> bool:
    return await tx.value(_SQL["add_organization"], slug) is not None


async def signing_keys(tx: Transaction) -> list[StoredKey]:
    return await tx.rows_as(StoredKey, _SQL["signing_keys"])


async def lock_signing_keys(tx: Transaction) -> None:
    await tx.run(_SQL["lock_signing_keys"])


async def retire_signing_keys(tx: Transaction) -> None:
    await tx.run(_SQL["retire_signing_keys"])


async def store_signing_key(tx: Transaction, key: StoredKey) -> None:
    await tx.rows(
        _SQL["store_signing_key"],
        *(key.kid, key.sealed_private_key, key.public_jwk, key.created_at, key.activates_at, key.retires_at),
    )


async def access_tokens(tx: Transaction) -> list[StoredToken]:
    return await tx.rows_as(StoredToken, _SQL["access_tokens"])


async def roles(tx: Transaction) -> list[DefinedRole]:
    return await tx.rows_as(DefinedRole, _SQL["roles"])


async def note_use(tx: Transaction, token_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["note_use"], list(token_ids))


async def lock_access_tokens(tx: Transaction) -> None:
    await tx.run(_SQL["lock_access_tokens"])


async def store_access_token(tx: Transaction, token: NewToken) -> None:
    await tx.rows(
        _SQL["store_access_token"],
        *(token.token_hash, token.principal, token.org, token.name),
        *(token.created_at, token.expires_at, token.revoked_at, token.sees_pii),
        *(token.roles, token.datasets, token.created_by, token.member_id, token.serves, token.made_from),
    )


async def hold_token(tx: Transaction, token_id: UUID) -> bool:
    """Whether it is not revoked; nobody revokes it before the transaction ends."""
    return bool(await tx.value(_SQL["hold_token"], token_id))


async def revoke_made_from(tx: Transaction, token_id: UUID) -> None:
    """After the token itself: what was made from it at the same moment is then there to be found."""
    await tx.rows(_SQL["revoke_made_from"], token_id)


async def forget_codes(tx: Transaction, created_by: str) -> None:
    await tx.rows(_SQL["forget_codes"], created_by)


async def spend_code(tx: Transaction, code_hash: str, created_by: str) -> bool:
    """Whether it was there to be spent."""
    return bool(await tx.value(_SQL["spend_code"], code_hash, created_by))
