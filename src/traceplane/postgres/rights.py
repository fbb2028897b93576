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


@dataclass(frozen=True, slots=True)
class DatasetRoles:
    dataset_id: str
    dag: str
    read_roles: tuple[str, ...] | None
    write_roles: tuple[str, ...] | None
    owner: tuple[str, tuple[str, ...] | None] | None
    """The dataset whose rows it shows, and its read_roles; None: its own."""
    writers: tuple[JobOfDataset, ...]
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
            None if row["owner"] is None else (row["owner"], roles_of(row["owner_roles"])),
            msgspec.convert(row["writers"], tuple[JobOfDataset, ...]),
            msgspec.convert(row["readers"], tuple[JobOfDataset, ...]),
        )
        for row in rows
    ]


def roles_of(stored: list[str] | None) -> tuple[str, ...] | None:
    """As the definition of a dataset stores them; those of older platforms have none."""
    return None if stored is None else tuple(stored)
