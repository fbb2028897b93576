"""Keys and tokens in Postgres: what is stored, sealed or hashed, and how each is rotated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from traceplane.auth import keyring, opaque
from traceplane.auth.keyring import Keyring, SigningKey
from traceplane.auth.opaque import Member, Principal, TokenBook, TokenRecord
from traceplane.auth.roles import Role, RoleMeaning, rights
from traceplane.errors import Conflict, InvalidInput, NotFound, Unauthenticated
from traceplane.model.near_names import near
from traceplane.postgres import tokens
from traceplane.postgres.database import Transaction
from traceplane.postgres.tokens import NewToken, StoredKey, StoredToken


async def load_keyring(tx: Transaction, master_keys: Sequence[bytes]) -> Keyring:
    """The stored keys; the very first call creates the first key. The first master key seals, and all of them open."""
    rows = await tokens.signing_keys(tx)
    if not rows:
        await tokens.lock_signing_keys(tx)
        rows = await tokens.signing_keys(tx)
    if rows:
        return Keyring(tuple(_signing_key(row, master_keys) for row in rows))
    first = Keyring((keyring.generate(await tokens.clock(tx)),))
    await _store_keys(tx, first, master_keys[0])
    return first


MasterKeys = Callable[[], Sequence[bytes]]
"""Asked when it is this command's turn: another one may have replaced them meanwhile."""


async def lock_keys(tx: Transaction) -> None:
    """One command at a time changes signing keys, or the master keys that they are sealed with."""
    await tokens.lock_signing_keys(tx)


async def rotate_signing_key(tx: Transaction, master_keys: MasterKeys, overlap_seconds: float) -> Keyring:
    """A ring with a new key (see `keyring.rotate`).

    An overlap of zero opens none of the old keys, so it also recovers from a lost master key.
    """
    await lock_keys(tx)
    keys, now = master_keys(), await tokens.clock(tx)
    if overlap_seconds == 0:
        await tokens.retire_signing_keys(tx)
        current = Keyring(())
    else:
        current = await load_keyring(tx, keys)
    rotated = keyring.rotate(current, now, overlap_seconds)
    remaining = {key.kid for key in rotated.keys}
    dropped = tuple(replace(key, retires_at=now) for key in current.keys if key.kid not in remaining)
    await _store_keys(tx, Keyring((*rotated.keys, *dropped)), keys[0])
    return rotated


async def seal_signing_keys_anew(tx: Transaction, master_keys: MasterKeys) -> None:
    """With the first of the master keys."""
    await lock_keys(tx)
    keys = master_keys()
    await _store_keys(tx, await load_keyring(tx, keys), keys[0])


async def are_sealed_with(tx: Transaction, master_key: bytes) -> bool:
    """Whether no signing key needs another master key."""
    try:
        await load_keyring(tx, [master_key])
    except InvalidInput:
        return False
    return True


BY_SIGN_IN = "sign-in"
"""By whom tokens of people who signed in were made."""
BY_CODE = "browser link"
"""By whom codes for browsers were made."""

RolesOfOrgs = Mapping[UUID, Mapping[str, RoleMeaning]]


async def load_roles(tx: Transaction) -> RolesOfOrgs:
    """What the roles of each organization mean, by their names."""
    defined: dict[UUID, dict[str, RoleMeaning]] = {}
    for r in await tokens.roles(tx):
        defined.setdefault(r.org_id, {})[r.name] = RoleMeaning(Role(r.includes), r.sees_pii)
    return defined


async def load_token_book(tx: Transaction, defined: RolesOfOrgs | None = None) -> TokenBook:
    """`defined`: the roles, if they were loaded before."""
    if defined is None:
        defined = await load_roles(tx)
    return TokenBook(tuple(_record(row, defined) for row in await tokens.access_tokens(tx)))


async def create_organization(tx: Transaction, slug: str) -> str:
    """The token of its first admin."""
    if not await tokens.add_organization(tx, slug):
        raise Conflict(
            "org.exists",
            "there is an organization of this name",
            value=slug,
            next_step="issue tokens for it with `traceplane token issue`, with TRACEPLANE_ORG set to its name",
        )
    return await issue_token(tx, Principal.USER, org=slug, name="admin", role=Role.ADMIN)


async def organizations(tx: Transaction) -> dict[str, UUID]:
    return await tokens.organizations(tx)


async def issue_token(
    tx: Transaction,
    principal: Principal,
    *,
    org: str,
    name: str,
    role: Role | None = None,
    lifetime_seconds: float | None = None,
    sees_pii: bool = False,
    roles: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    member_id: UUID | None = None,
    created_by: str = "traceplane",
    serves: Sequence[str] | None = None,
) -> str:
    """`serves`: the organizations whose tasks a worker gets; None: all."""
    orgs = await tokens.organizations(tx)
    if org not in orgs:
        raise NotFound(
            "org.unknown",
            "the organization does not exist",
            value=org,
            next_step=f"set org (TRACEPLANE_ORG) to an existing one: {', '.join(orgs)}",
        )
    for served in serves or ():
        if served not in orgs:
            raise NotFound(
                "org.unknown",
                "the organization does not exist",
                value=served,
                next_step=f"name existing ones: {', '.join(orgs)}",
            )
    now = await tokens.clock(tx)
    expires_at = None if lifetime_seconds is None else now + lifetime_seconds
    token, record = opaque.issue(
        principal,
        org=org,
        name=name,
        now=now,
        role=role,
        expires_at=expires_at,
        sees_pii=sees_pii,
        roles=roles,
        datasets=datasets,
        member_id=member_id,
        created_by=created_by,
        serves=None if serves is None else tuple(dict.fromkeys(serves)),
    )
    await _store_record(tx, record)
    return token


async def add_code(tx: Transaction, record: TokenRecord, code_hash: str, lifetime_seconds: float) -> None:
    """A code that may be exchanged, once, for a token with the rights of this one. It is stored like a token, so that
    what revokes the one revokes the other, by a hash that no token has."""
    assert record.token_id is not None
    await tokens.forget_codes(tx, BY_CODE)
    if not await tokens.hold_token(tx, record.token_id):
        raise Unauthenticated("token.revoked", "the token was revoked", value=record.name)
    now = await tokens.clock(tx)
    draft = _copy(record, now, lifetime_seconds, created_by=BY_CODE)[1]
    await _store_record(tx, replace(draft, token_hash=code_hash, made_from=record.token_id))


async def exchange_code(
    tx: Transaction, code_hash: str, lifetime_seconds: float, *, created_by: str
) -> tuple[str, TokenRecord] | None:
    """A new token for a code, and the code's record; None if it was exchanged before, is too old or unknown."""
    book = await load_token_book(tx)
    record = book.by_hash(code_hash)
    if record is None or record.made_from is None or not await tokens.hold_token(tx, record.made_from):
        return None
    maker = next((one for one in book.records if one.token_id == record.made_from), None)
    if maker is None:
        return None
    if not await tokens.spend_code(tx, code_hash, BY_CODE):
        return None
    now = await tokens.clock(tx)
    # Not as short as the code itself.
    token, made = _copy(
        replace(record, expires_at=maker.expires_at), now, lifetime_seconds, created_by=created_by
    )
    await _store_record(tx, replace(made, made_from=record.made_from))
    return token, record


def _copy(
    record: TokenRecord, now: float, lifetime_seconds: float, *, created_by: str
) -> tuple[str, TokenRecord]:
    """A token of the same name and rights, which lasts no longer."""
    return opaque.issue(
        record.principal,
        org=record.org,
        name=record.name,
        now=now,
        roles=record.named_roles,
        expires_at=min(_end(record), now + lifetime_seconds),
        sees_pii=record.sees_pii,
        datasets=record.datasets,
        member_id=record.member_id,
        created_by=created_by,
    )


async def rotate_token(
    tx: Transaction, principal: Principal, *, org: str, name: str, overlap_seconds: float
) -> str:
    """A successor of the newest live token of this name, with a lifetime of the same length.

    Every token that was live before ends with the overlap.
    """
    await tokens.lock_access_tokens(tx)
    now = await tokens.clock(tx)
    live = [r for r in await _unrevoked(tx, principal, org, name) if not r.expired(now)]
    lasting = [r for r in live if r.created_by not in (BY_CODE, BY_SIGN_IN)]
    if not lasting:
        raise NotFound(
            "token.not_found",
            f"there is no live {principal} token with this name",
            value=name,
            next_step=near(name, await token_names(tx, principal, org=org))
            or f"issue one with `traceplane token issue {principal}`",
        )
    newest = max(lasting, key=lambda r: (r.created_at, _end(r)))
    expires_at = None if newest.expires_at is None else now + newest.expires_at - newest.created_at
    rotation = opaque.rotate(newest, now, overlap_seconds, expires_at=expires_at)
    for record in live:
        await _store_record(tx, replace(record, expires_at=min(_end(record), now + overlap_seconds)))
    await _store_record(tx, rotation.record)
    return rotation.token


async def revoke_tokens(tx: Transaction, principal: Principal, *, org: str, name: str) -> int:
    """Revokes every token of this name from now on, including a predecessor in its overlap."""
    await tokens.lock_access_tokens(tx)
    now = await tokens.clock(tx)
    chosen = await _unrevoked(tx, principal, org, name)
    for record in chosen:
        await _store_record(tx, opaque.revoke(record, now))
    return len(chosen)


async def live_tokens(tx: Transaction, principal: Principal, *, org: str, name: str) -> int:
    """How many tokens of this name are valid."""
    now = await tokens.clock(tx)
    return sum(not record.expired(now) for record in await _unrevoked(tx, principal, org, name))


async def token_names(tx: Transaction, principal: Principal, *, org: str) -> list[str]:
    """Of all tokens that were ever issued."""
    book = await load_token_book(tx)
    return sorted({r.name for r in book.records if (r.principal, r.org) == (principal, org)})


async def _unrevoked(tx: Transaction, principal: Principal, org: str, name: str) -> list[TokenRecord]:
    book = await load_token_book(tx)
    return [
        r
        for r in book.records
        if (r.principal, r.org, r.name) == (principal, org, name) and r.revoked_at is None
    ]


def _end(record: TokenRecord) -> float:
    return math.inf if record.expires_at is None else record.expires_at


def _signing_key(key: StoredKey, master_keys: Sequence[bytes]) -> SigningKey:
    return SigningKey(
        keyring.unseal(key.sealed_private_key, key.kid, master_keys),
        created_at=key.created_at,
        activates_at=key.activates_at,
        retires_at=key.retires_at,
    )


async def _store_keys(tx: Transaction, ring: Keyring, master_key: bytes) -> None:
    for key in ring.keys:
        stored = StoredKey(
            kid=key.kid,
            sealed_private_key=keyring.seal(key.private_key, master_key),
            public_jwk=key.public_jwk,
            created_at=key.created_at,
            activates_at=key.activates_at,
            retires_at=key.retires_at,
        )
        await tokens.store_signing_key(tx, stored)


def _record(token: StoredToken, defined: RolesOfOrgs) -> TokenRecord:
    return TokenRecord(
        token_hash=token.token_hash,
        principal=Principal(token.principal),
        org=token.org,
        name=token.name,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        sees_pii=token.sees_pii,
        named_roles=None if token.roles is None else tuple(token.roles),
        datasets=None if token.datasets is None else tuple(token.datasets),
        created_by=token.created_by,
        made_from=token.made_from,
        member_id=token.member_id,
        serves=None if token.serves is None else tuple(token.serves),
        member=None if token.member_name is None else Member(str(token.member_kind), token.member_name),
        token_id=token.token_id,
        org_id=token.org_id,
        rights=rights(defined.get(token.org_id, {}), token.member_roles, token.roles),
    )


async def _store_record(tx: Transaction, record: TokenRecord) -> None:
    await tokens.store_access_token(
        tx,
        NewToken(
            token_hash=record.token_hash,
            principal=str(record.principal),
            org=record.org,
            name=record.name,
            created_at=record.created_at,
            expires_at=record.expires_at,
            revoked_at=record.revoked_at,
            sees_pii=record.sees_pii,
            roles=record.named_roles,
            datasets=record.datasets,
            created_by=record.created_by,
            member_id=record.member_id,
            serves=record.serves,
            made_from=record.made_from,
        ),
    )
