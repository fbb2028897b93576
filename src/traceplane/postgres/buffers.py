"""Buffered datasets: what attempts have published, completed attempts that wait for a sink, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.tasks import LeaseFence
from traceplane.wire.tasks import OutputManifest, TaskError

_SQL = statements("buffers")

CHANNEL = "traceplane_buffer"


@dataclass(frozen=True, slots=True)
class BufferedReport:
    """The completion of an attempt, which a sink is to commit."""

    fence: LeaseFence
    generation_id: UUID
    report: JsonObject
    tries: int = 0


async def publish(tx: Transaction, batches: Sequence[tuple[LeaseFence, int, OutputManifest]]) -> None:
    await tx.rows(
        _SQL["publish"],
        [fence.task_id for fence, _, _ in batches],
        [fence.attempt for fence, _, _ in batches],
        [batch for _, batch, _ in batches],
        [msgspec.to_builtins(output) for _, _, output in batches],
    )


async def published(tx: Transaction, fences: Sequence[LeaseFence]) -> dict[UUID, list[OutputManifest]]:
    found: dict[UUID, list[OutputManifest]] = {}
    for row in await tx.rows(_SQL["published"], [f.task_id for f in fences], [f.attempt for f in fences]):
        found.setdefault(row["task_id"], []).append(msgspec.convert(row["output"], OutputManifest))
    return found


async def hand_over(tx: Transaction, reports: Sequence[BufferedReport]) -> None:
    await tx.rows(
        _SQL["hand_over"],
        [r.fence.task_id for r in reports],
        [r.fence.attempt for r in reports],
        [r.fence.lease_token for r in reports],
        [r.generation_id for r in reports],
        [r.report for r in reports],
    )


async def lease(tx: Transaction, holder: UUID, lasts: timedelta) -> list[UUID]:
    return [row["generation_id"] for row in await tx.rows(_SQL["lease"], holder, lasts)]


async def release(tx: Transaction, holder: UUID) -> None:
    await tx.run(_SQL["release"], holder)


async def waiting(tx: Transaction, generation_id: UUID, holder: UUID, most: int) -> list[BufferedReport]:
    return [
        BufferedReport(
            LeaseFence(row["task_id"], row["attempt"], row["lease_token"]),
            generation_id,
            row["report"],
            row["tries"],
        )
        for row in await tx.rows(_SQL["waiting"], generation_id, holder, most)
    ]


async def settle(tx: Transaction, over: Sequence[UUID], dead: Mapping[UUID, TaskError]) -> None:
    await tx.rows(_SQL["settle"], list(over), list(dead), _failures(dead))


async def postpone(tx: Transaction, failures: Mapping[UUID, TaskError]) -> None:
    await tx.rows(_SQL["postpone"], list(failures), _failures(failures))


def _failures(errors: Mapping[UUID, TaskError]) -> list[JsonObject]:
    return [msgspec.to_builtins(error) for error in errors.values()]
