"""Bundles of user code, by their hash. `model.code_bundle` defines the format."""

from __future__ import annotations

from collections.abc import Sequence

from traceplane.postgres.database import Transaction, statements

_SQL = statements("code_bundles")


async def add(tx: Transaction, bundle_hash: str, content: str) -> None:
    await tx.rows(_SQL["add"], bundle_hash, content)


async def load(tx: Transaction, bundle_hash: str, orgs: Sequence[str] | None) -> str | None:
    """None: there is none, or no job of these organizations (None: of all) runs it."""
    content: str | None = await tx.value(_SQL["load"], bundle_hash, orgs)
    return content
