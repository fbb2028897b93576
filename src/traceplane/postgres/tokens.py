"""Signing keys and opaque tokens, as stored."""

from __future__ import annotations

from typing import Any

from traceplane.postgres.database import Transaction, statements

_SQL = statements("tokens")


async def clock(tx: Transaction) -> float:
    return float(await tx.value(_SQL["clock"]))


async def organizations(tx: Transaction) -> list[str]:
    return [r["slug"] for r in await tx.rows(_SQL["organizations"])]


async def signing_keys(tx: Transaction) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["signing_keys"])]


async def lock_signing_keys(tx: Transaction) -> None:
    await tx.run(_SQL["lock_signing_keys"])


async def retire_signing_keys(tx: Transaction) -> None:
    await tx.run(_SQL["retire_signing_keys"])


async def store_signing_key(
    tx: Transaction,
    kid: str,
    sealed: bytes,
    public_jwk: dict[str, Any],
    created_at: float,
    activates_at: float,
    retires_at: float | None,
) -> None:
    await tx.rows(_SQL["store_signing_key"], kid, sealed, public_jwk, created_at, activates_at, retires_at)


async def access_tokens(tx: Transaction) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["access_tokens"])]


async def lock_access_tokens(tx: Transaction) -> None:
    await tx.run(_SQL["lock_access_tokens"])


async def store_access_token(
    tx: Transaction,
    token_hash: str,
    principal: str,
    org: str,
    name: str,
    role: str | None,
    created_at: float,
    expires_at: float | None,
    revoked_at: float | None,
    sees_pii: bool,
) -> None:
    await tx.rows(
        _SQL["store_access_token"],
        token_hash,
        principal,
        org,
        name,
        role,
        created_at,
        expires_at,
        revoked_at,
        sees_pii,
    )
