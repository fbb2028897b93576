"""Prints of an organization's things, by which changes are noticed."""

from __future__ import annotations

from traceplane.postgres.database import Transaction, statements

_SQL = statements("changes")

Thing = tuple[str, str, str]
"""Its kind and its names: a job by DAG and job, a dataset or a DAG by its own."""


async def prints(tx: Transaction, org: str) -> dict[Thing, str]:
    return {(r["kind"], r["first"], r["second"]): r["print"] for r in await tx.rows(_SQL["prints"], org)}
