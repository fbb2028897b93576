"""Bundles of user code, by their hash. `model.code_bundle` defines the format."""

from __future__ import annotations

from traceplane.postgres.database import Transaction, statements

_SQL = statements("code_bundles")


async def add(tx: Transaction, bundle_hash: str, content: str) -> None:
    await tx.rows(_SQL["add"], bundle_hash, content)


async def load(tx: Transaction, bundle_hash: str) -> str | None:
    content: str | None = await tx.value(_SQL["load"], bundle_hash)
    return content
