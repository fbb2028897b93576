"""The names of partitions of datasets that are partitioned by name, each with its position.

A name has the same position in all datasets of an organization, so that they can be joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceplane.postgres.database import Transaction, statements

_SQL = statements("partition_names")


async def load(tx: Transaction, org: str) -> tuple[str, ...]:
    """In the order of their positions, which begin at 0."""
    return tuple(row["name"] for row in await tx.rows(_SQL["load"], org))


async def register(tx: Transaction, org: str, names: Sequence[str]) -> None:
    """Gives the next positions to names that have none."""
    await tx.rows(_SQL["lock"], org)
    # A separate statement: only now does it see what others have registered.
    await tx.rows(_SQL["register"], org, list(names))
