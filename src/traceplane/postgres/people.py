"""Members of an organization, their roles and their tokens. All of it needs a session that acts for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.tokens import revoke_made_from

_SQL = statements("people")


@dataclass(frozen=True, slots=True)
class StoredRole:
    name: str
    includes: str
    sees_pii: bool
    created_at: datetime
    created_by: str
    members: int


@dataclass(frozen=True, slots=True)
class Grant:
    role: str
    granted_by: str
    expires_at: str | None
    by_claim: bool


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: UUID
    kind: str
    name: str
    email: str | None
    issuer: str | None
    created_at: datetime
    created_by: str
    disabled_at: datetime | None
    last_seen_at: datetime | None
    roles: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class LockedMember:
    member_id: UUID
    disabled: bool


@dataclass(frozen=True, slots=True)
class ListedToken:
    token_id: UUID
    name: str
    member: str | None
    roles: list[str] | None
    datasets: list[str] | None
    sees_pii: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None


async def roles(tx: Transaction) -> list[StoredRole]:
    return await tx.rows_as(StoredRole, _SQL["roles"])


async def define_role(tx: Transaction, name: str, includes: str, *, sees_pii: bool, by: str) -> None:
    await tx.rows(_SQL["define_role"], name, includes, sees_pii, by)


async def uses_of_role(tx: Transaction, name: str, limit: int) -> list[str]:
    """Datasets and secrets that name it, in words."""
    return [row["named"] for row in await tx.rows(_SQL["uses_of_role"], name, limit)]


async def lock_roles(tx: Transaction, names: Sequence[str]) -> set[str]:
    """Those that there are. None of them is deleted before the end of the transaction."""
    return {row["name"] for row in await tx.rows(_SQL["lock_roles"], list(names))}


async def delete_role(tx: Transaction, name: str) -> bool:
    await tx.rows(_SQL["lock_role_to_delete"], name)
    return await tx.value(_SQL["delete_role"], name) is not None


async def members(tx: Transaction, name: str | None = None) -> list[StoredMember]:
    return [
        StoredMember(**{**row, "roles": tuple(Grant(**grant) for grant in row["roles"])})
        for row in await tx.rows(_SQL["members"], name)
    ]


async def add_member(tx: Transaction, kind: str, name: str, email: str | None, *, by: str) -> bool:
    return await tx.value(_SQL["add_member"], kind, name, email, by) is not None


async def lock_member(tx: Transaction, name: str) -> LockedMember | None:
    return await tx.row_as(LockedMember, _SQL["lock_member"], name)


async def enable_member(tx: Transaction, member_id: UUID) -> bool:
    """Whether it was disabled."""
    return await _set_disabled(tx, member_id, disabled=False)


async def disable_member(tx: Transaction, member_id: UUID) -> None:
    """Its tokens and sessions end for good, so that enabling it later does not bring back any that were forgotten."""
    await _set_disabled(tx, member_id, disabled=True)
    await tx.rows(_SQL["revoke_tokens_of_member"], member_id)
    await tx.rows(_SQL["end_sessions_of_member"], member_id)


async def _set_disabled(tx: Transaction, member_id: UUID, *, disabled: bool) -> bool:
    """Whether that changed it."""
    return await tx.value(_SQL["disable_member"], member_id, disabled) is not None


async def grant(tx: Transaction, member_id: UUID, role: str, *, by: str, lasts: timedelta | None) -> None:
    await tx.rows(_SQL["grant"], member_id, role, by, lasts)


async def withdraw(tx: Transaction, member_id: UUID, role: str) -> bool:
    return await tx.value(_SQL["withdraw"], member_id, role) is not None


async def tokens(tx: Transaction, *, of_member: UUID | None = None) -> list[ListedToken]:
    return await tx.rows_as(ListedToken, _SQL["tokens"], of_member)


async def revoke_token(tx: Transaction, token_id: UUID, *, of_member: UUID | None = None) -> str | None:
    """Its name; None if there is no such token to revoke. Browsers that it signed in are signed out."""
    name: str | None = await tx.value(_SQL["revoke_token"], token_id, of_member)
    if name is not None:
        await revoke_made_from(tx, token_id)
    return name
