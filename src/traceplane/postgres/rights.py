"""Which datasets have roles, and which jobs they concern. `auth.rights` decides."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import msgspec

from traceplane.postgres.database import Transaction, statements

_SQL = statements("rights")


class JobOfDataset(msgspec.Struct, frozen=True):
    job_id: UUID
    dag: str
    job: str


Owner = tuple[str, tuple[str, ...] | None]
"""A dataset that has the rows which another one shows, or from which they were found; and its read_roles."""


@dataclass(frozen=True, slots=True)
class DatasetRoles:
    dataset_id: str
    dag: str
    read_roles: tuple[str, ...] | None
    write_roles: tuple[str, ...] | None
    owners: tuple[Owner, ...]
    """Other datasets that a reader must also have the right to read."""
    writers: tuple[JobOfDataset, ...]
    """Also jobs that read it and write nothing."""
    readers: tuple[JobOfDataset, ...]


async def dataset_roles(tx: Transaction, org: str, *, all_datasets: bool) -> list[DatasetRoles]:
    """Of the datasets that have any, or of all."""
    rows = await tx.rows(_SQL["datasets"], org, all_datasets)
    return [
        DatasetRoles(
            row["dataset_id"],
            row["dag"],
            roles_of(row["read_roles"]),
            roles_of(row["write_roles"]),
            owners_of(row["owners"]),
            msgspec.convert(row["writers"], tuple[JobOfDataset, ...]),
            msgspec.convert(row["readers"], tuple[JobOfDataset, ...]),
        )
        for row in rows
    ]


def owners_of(stored: list[tuple[str, list[str] | None]]) -> tuple[Owner, ...]:
    return tuple((dataset_id, roles_of(roles)) for dataset_id, roles in stored)


def roles_of(stored: list[str] | None) -> tuple[str, ...] | None:
    """As the definition of a dataset stores them; those of older platforms have none."""
    return None if stored is None else tuple(stored)
