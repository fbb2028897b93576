"""Identity providers, the people who sign in with them, and the sessions of their browsers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.tokens import revoke_made_from

_SQL = statements("sign_in")


@dataclass(frozen=True, slots=True)
class StoredProvider:
    org_id: UUID
    org: str
    name: str
    issuer: str
    client_id: str
    client_secret: str | None
    audience: str | None
    roles_claim: str | None
    role_map: Mapping[str, str]
    default_role: str | None
    required_claims: Mapping[str, str | int | bool]
    scopes: Sequence[str]
    set_by: str
    set_at: datetime | None = None
    """None until it is stored."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    member_id: UUID
    name: str
    kind: str
    disabled: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """Whoever calls with a JWT."""

    member_id: UUID | None
    """None: no call of it was accepted yet."""
    name: str
    """As a member, or as it would be called then. Members of an earlier issuer may have the name of its subject."""
    kind: str


@dataclass(frozen=True, slots=True)
class StoredSession:
    org_id: UUID
    org: str
    member_id: UUID
    name: str
    kind: str
    csrf_hash: str
    revoked: bool
    expired: bool
    expires_at: datetime
    long_unseen: bool
    disabled: bool
    roles: list[str]


async def providers(tx: Transaction) -> list[StoredProvider]:
    return await tx.rows_as(StoredProvider, _SQL["providers"])


async def providers_of_org(tx: Transaction, org_id: UUID) -> list[StoredProvider]:
    return await tx.rows_as(StoredProvider, _SQL["providers_of_org"], org_id)


async def set_provider(tx: Transaction, provider: StoredProvider) -> None:
    p = provider
    await tx.rows(
        _SQL["set_provider"],
        *(p.org_id, p.name, p.issuer, p.client_id, p.client_secret, p.audience, p.roles_claim),
        *(dict(p.role_map), p.default_role, dict(p.required_claims), list(p.scopes), p.set_by),
    )


async def remove_provider(tx: Transaction, org_id: UUID, name: str) -> bool:
    return bool(await tx.value(_SQL["remove_provider"], org_id, name))


async def end_sessions_of_issuer(tx: Transaction, org_id: UUID, issuer: str) -> None:
    """Unless another provider of the organization has the same issuer."""
    await tx.rows(_SQL["end_sessions_of_issuer"], org_id, issuer)


async def role_names(tx: Transaction, org_id: UUID) -> list[str]:
    return [r["name"] for r in await tx.rows(_SQL["role_names"], org_id)]


async def disabled_subjects(tx: Transaction) -> frozenset[tuple[UUID, str, str]]:
    """Organization, issuer and subject of members that are disabled."""
    rows = await tx.rows(_SQL["disabled_subjects"])
    return frozenset((r["org_id"], r["issuer"], r["subject"]) for r in rows)


async def roles_of_machines(tx: Transaction) -> dict[tuple[UUID, str, str], frozenset[str]]:
    """Those that admins gave, by organization, issuer and subject."""
    rows = await tx.rows(_SQL["roles_of_machines"])
    return {(r["org_id"], r["issuer"], r["subject"]): frozenset(r["roles"]) for r in rows}


async def machine(tx: Transaction, org_id: UUID, issuer: str, subject: str, name: str) -> Machine:
    """`name`: what it is called if nobody else is."""
    found = await tx.row_as(Machine, _SQL["machine"], org_id, issuer, subject, name)
    assert found is not None
    return found


async def note_member(tx: Transaction, org_id: UUID, issuer: str, subject: str) -> SignedIn | None:
    """Notes a call; None if there is no such member."""
    return await tx.row_as(SignedIn, _SQL["note_member"], org_id, issuer, subject)


async def sign_in_member(
    tx: Transaction,
    org_id: UUID,
    *,
    issuer: str,
    subject: str,
    name: str,
    name_if_taken: str,
    email: str | None,
    kind: str = "user",
) -> SignedIn:
    member = await tx.row_as(
        SignedIn, _SQL["sign_in_member"], org_id, name, name_if_taken, issuer, subject, email, kind
    )
    assert member is not None
    return member


async def disabled_of_email(tx: Transaction, org_id: UUID, email: str) -> bool:
    """Whether a disabled member of the organization has this address."""
    return bool(await tx.value(_SQL["disabled_of_email"], org_id, email))


async def forget_roles_of_subject(tx: Transaction, org_id: UUID, issuer: str, subject: str) -> str | None:
    """Takes away the roles that claims gave; the member's name, None if there is no such member."""
    name: str | None = await tx.value(_SQL["forget_roles_of_subject"], org_id, issuer, subject)
    return name


async def set_claimed_roles(
    tx: Transaction, org_id: UUID, member_id: UUID, roles: Collection[str], *, by: str
) -> None:
    """The roles that claims give are these now; those that an admin gave stay."""
    await tx.rows(_SQL["forget_claimed_roles"], member_id, list(roles))
    await tx.rows(_SQL["give_claimed_roles"], org_id, member_id, list(roles), by)


async def complete(tx: Transaction, attempt_hash: str, org_id: UUID) -> bool:
    """Whether it was not completed before."""
    await tx.rows(_SQL["forget_completed"])
    return bool(await tx.value(_SQL["complete"], attempt_hash, org_id))


async def add_session(
    tx: Transaction, session_hash: str, org_id: UUID, member_id: UUID, *, csrf_hash: str, seconds: float
) -> None:
    await tx.rows(_SQL["forget_sessions"])
    await tx.rows(_SQL["add_session"], session_hash, org_id, member_id, csrf_hash, seconds)


async def session(tx: Transaction, session_hash: str) -> StoredSession | None:
    found = await tx.row_as(StoredSession, _SQL["session"], session_hash)
    if found is not None and found.long_unseen and not found.expired:
        await tx.rows(_SQL["note_session"], session_hash)
    return found


async def end_session(tx: Transaction, session_hash: str) -> None:
    await tx.rows(_SQL["end_session"], session_hash)


async def end_token(tx: Transaction, token_hash: str) -> bool:
    """Whether there was such a token of a sign-in, not revoked yet."""
    token_id: UUID | None = await tx.value(_SQL["end_token"], token_hash)
    if token_id is not None:
        await revoke_made_from(tx, token_id)
    return token_id is not None
