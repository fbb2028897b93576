"""Keys and tokens in Postgres: what is stored, sealed or hashed, and how each is rotated."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceplane.auth import keyring, opaque
from traceplane.auth.keyring import Keyring, SigningKey
from traceplane.auth.opaque import Principal, Role, TokenBook, TokenRecord
from traceplane.errors import NotFound
from traceplane.postgres import tokens
from traceplane.postgres.database import Transaction


def read_master_key(path: Path) -> bytes:
    """The key that seals signing keys; made on first use, readable by its owner only."""
    if not path.exists():
        _make_master_key(path)
    return bytes.fromhex(path.read_text().strip())


def _make_master_key(path: Path) -> None:
    """Writes a key under another name and links it into place: `path` is absent or whole, at any moment.

    It is on disk before anything is sealed with it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:  # mode 0600
        file.write(os.urandom(keyring.MASTER_KEY_BYTES).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first, and its key is the key
            os.link(file.name, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


async def load_keyring(tx: Transaction, master_key: bytes) -> Keyring:
    """The stored keys; the very first call makes the first key."""
    rows = await tokens.signing_keys(tx)
    if not rows:
        await tokens.lock_signing_keys(tx)
        rows = await tokens.signing_keys(tx)
    if rows:
        return Keyring(tuple(_signing_key(row, master_key) for row in rows))
    first = Keyring((keyring.generate(await tokens.clock(tx)),))
    await _store_keys(tx, first, master_key)
    return first


async def rotate_signing_key(tx: Transaction, master_key: bytes, overlap_seconds: float) -> Keyring:
    """A ring with a new key (see `keyring.rotate`).

    An overlap of zero opens none of the old keys, so it is also the way on from a lost master key.
    """
    await tokens.lock_signing_keys(tx)
    now = await tokens.clock(tx)
    if overlap_seconds == 0:
        await tokens.retire_signing_keys(tx)
        current = Keyring(())
    else:
        current = await load_keyring(tx, master_key)
    rotated = keyring.rotate(current, now, overlap_seconds)
    kept = {key.kid for key in rotated.keys}
    dropped = tuple(replace(key, retires_at=now) for key in current.keys if key.kid not in kept)
    await _store_keys(tx, Keyring((*rotated.keys, *dropped)), master_key)
    return rotated


async def load_token_book(tx: Transaction) -> TokenBook:
    return TokenBook(tuple(_record(row) for row in await tokens.access_tokens(tx)))


async def issue_token(
    tx: Transaction,
    principal: Principal,
    *,
    org: str,
    name: str,
    role: Role | None = None,
    lifetime_seconds: float | None = None,
    sees_pii: bool = False,
) -> str:
    known = await tokens.organizations(tx)
    if org not in known:
        raise NotFound(
            "org.unknown",
            "there is no such organization",
            value=org,
            next_step=f"set org (TRACEPLANE_ORG) to one that there is: {', '.join(known)}",
        )
    now = await tokens.clock(tx)
    expires_at = None if lifetime_seconds is None else now + lifetime_seconds
    token, record = opaque.issue(
        principal, org=org, name=name, now=now, role=role, expires_at=expires_at, sees_pii=sees_pii
    )
    await _store_record(tx, record)
    return token


async def rotate_token(
    tx: Transaction, principal: Principal, *, org: str, name: str, overlap_seconds: float
) -> str:
    """A successor of the newest live token of this name, with a life of the same length.

    Every token that was live before ends with the overlap.
    """
    await tokens.lock_access_tokens(tx)
    now = await tokens.clock(tx)
    live = [r for r in await _unrevoked(tx, principal, org, name) if not r.expired(now)]
    if not live:
        raise NotFound("token.not_found", f"there is no live {principal} token of that name", value=name)
    newest = max(live, key=lambda r: (r.created_at, _end(r)))
    expires_at = None if newest.expires_at is None else now + newest.expires_at - newest.created_at
    rotation = opaque.rotate(newest, now, overlap_seconds, expires_at=expires_at)
    for record in live:
        await _store_record(tx, replace(record, expires_at=min(_end(record), now + overlap_seconds)))
    await _store_record(tx, rotation.record)
    return rotation.token


async def revoke_tokens(tx: Transaction, principal: Principal, *, org: str, name: str) -> int:
    """Refuses every token of this name from now on, a predecessor in its overlap included."""
    await tokens.lock_access_tokens(tx)
    now = await tokens.clock(tx)
    chosen = await _unrevoked(tx, principal, org, name)
    for record in chosen:
        await _store_record(tx, opaque.revoke(record, now))
    return len(chosen)


async def _unrevoked(tx: Transaction, principal: Principal, org: str, name: str) -> list[TokenRecord]:
    book = await load_token_book(tx)
    return [
        r
        for r in book.records
        if (r.principal, r.org, r.name) == (principal, org, name) and r.revoked_at is None
    ]


def _end(record: TokenRecord) -> float:
    return math.inf if record.expires_at is None else record.expires_at


def _signing_key(row: dict[str, Any], master_key: bytes) -> SigningKey:
    return SigningKey(
        keyring.unseal(row["sealed_private_key"], row["kid"], master_key),
        created_at=row["created_at"],
        activates_at=row["activates_at"],
        retires_at=row["retires_at"],
    )


async def _store_keys(tx: Transaction, ring: Keyring, master_key: bytes) -> None:
    for key in ring.keys:
        sealed = keyring.seal(key.private_key, master_key)
        await tokens.store_signing_key(
            tx, key.kid, sealed, dict(key.public_jwk), key.created_at, key.activates_at, key.retires_at
        )


def _record(row: dict[str, Any]) -> TokenRecord:
    return TokenRecord(
        token_hash=row["token_hash"],
        principal=Principal(row["principal"]),
        org=row["org"],
        name=row["name"],
        role=Role(row["role"]) if row["role"] else None,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        sees_pii=row["sees_pii"],
    )


async def _store_record(tx: Transaction, r: TokenRecord) -> None:
    await tokens.store_access_token(
        tx,
        r.token_hash,
        r.principal,
        r.org,
        r.name,
        r.role,
        r.created_at,
        r.expires_at,
        r.revoked_at,
        r.sees_pii,
    )
