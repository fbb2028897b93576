"""What tasks produced: outputs become part of their generation, in the transaction that ends the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from traceplane.postgres.database import Transaction, statements

_SQL = statements("commits")


@dataclass(frozen=True, slots=True)
class OutputCommit:
    task_id: UUID
    output_index: int
    generation_id: UUID
    partition_key: str | None
    start: int
    end: int
    files: list[dict[str, Any]]
    row_count: int
    bytes: int
    schema_hash: str


async def record(tx: Transaction, outputs: Sequence[OutputCommit]) -> None:
    if not outputs:
        return
    await tx.rows(
        _SQL["record"],
        [o.task_id for o in outputs],
        [o.output_index for o in outputs],
        [o.generation_id for o in outputs],
        [o.partition_key for o in outputs],
        [o.start for o in outputs],
        [o.end for o in outputs],
        [msgspec.json.encode(o.files).decode() for o in outputs],  # a list in an array would add a dimension
        [o.row_count for o in outputs],
        [o.bytes for o in outputs],
        [o.schema_hash for o in outputs],
    )


async def input_files(
    tx: Transaction, task_ids: Sequence[UUID]
) -> dict[tuple[UUID, int], list[dict[str, Any]]]:
    """Per task and input, the committed files that overlap the task's scope."""
    files: dict[tuple[UUID, int], list[dict[str, Any]]] = {}
    for row in await tx.rows(_SQL["for_tasks"], task_ids):
        files.setdefault((row["task_id"], row["input_index"]), []).extend(row["files"])
    return files


async def summary(tx: Transaction) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["summary"])]
