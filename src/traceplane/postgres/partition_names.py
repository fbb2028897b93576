"""The names of partitions of datasets that are partitioned by name, each with its position.

A name has the same position in all datasets of an organization, so that they can be joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceplane.postgres.database import Transaction, statements

_SQL = statements("partition_names")


async def find(tx: Transaction, org: str, names: Sequence[str]) -> dict[str, int]:
    """The positions of those that are registered."""
    return {row["name"]: row["position"] for row in await tx.rows(_SQL["find"], org, list(names))}


async def at(tx: Transaction, org: str, positions: Sequence[int]) -> dict[str, int]:
    """The names at these positions, with them."""
    return {row["name"]: row["position"] for row in await tx.rows(_SQL["at"], org, list(positions))}


async def register(tx: Transaction, org: str, names: Sequence[str]) -> dict[str, int]:
    """Gives the next positions to names that have none; the positions of all of them."""
    await tx.rows(_SQL["lock"], org)
    # A separate statement: only now does it see what others have registered.
    await tx.rows(_SQL["register"], org, list(names))
    return await find(tx, org, names)
