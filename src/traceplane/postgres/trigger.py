"""What the trigger stores in the database: offsets, pipelines, launches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("trigger")

CHANNEL = "traceplane_pipelines"


@dataclass(frozen=True, slots=True)
class StoredPipeline:
    pipeline_id: UUID
    org_id: UUID
    tickers: Sequence[str]
    subscriptions: Any
    rules: Any
    live: bool
    """Whether signals may launch it at all."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """Offsets of one partition: where this consumer left it, and where it continues."""

    partition: int
    expected: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class LaunchResult:
    holds: bool
    """Whether the offsets were where this consumer left them; if not, nothing was changed."""
    launched: Sequence[UUID]
    """Pipelines that were launched."""
    idle: int
    """Pipelines that were idle."""
    without_job: int
    """Pipelines whose job is not deployed."""
    held_back: int
    """Pipelines that may not be launched now: a limit is reached, or they are no longer active."""
    repeated: Sequence[UUID]
    """Idle pipelines that the passed signal launched before. Nothing was changed: pass more of their signals."""


async def stored_offsets(
    tx: Transaction, group: str, topic: str, partitions: Collection[int]
) -> dict[int, int]:
    rows = await tx.rows(_SQL["stored_offsets"], group, topic, list(partitions))
    return {r["partition"]: r["next_offset"] for r in rows}


async def begin_partitions(tx: Transaction, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    await tx.run(_SQL["begin_partitions"], group, topic, list(offsets), list(offsets.values()))


async def changed_pipelines(tx: Transaction, since: int) -> tuple[int, Sequence[UUID]]:
    """The point to read from next time, and the changes since the previous point (0: all). Both, and the result of
    `pipelines`, must come from one snapshot, so `tx` is one."""
    return await tx.value(_SQL["oldest_open_transaction"]), await tx.value(_SQL["changed_pipelines"], since)


async def pipelines(tx: Transaction, pipeline_ids: Sequence[UUID]) -> list[StoredPipeline]:
    return [
        StoredPipeline(
            *(r["pipeline_id"], r["org_id"], r["tickers"] or ()),
            *(r["signal_subscriptions"], r["rules"], r["live"]),
        )
        for r in await tx.rows(_SQL["pipelines"], pipeline_ids)
    ]


async def launch(
    tx: Transaction,
    group: str,
    topic: str,
    moved: Sequence[OffsetMove],
    matched: Sequence[UUID],
    signal_of: Sequence[int],
    signals: Sequence[Any],
    *,
    exhaustive: bool,
) -> LaunchResult:
    """`signal_of` has for each matched pipeline the signal that launches it. A pipeline may occur several times;
    `exhaustive`: no signal of the batch that may launch one was left out."""
    row = await tx.row(
        _SQL["launch"],
        group,
        topic,
        [m.partition for m in moved],
        [m.expected for m in moved],
        [m.next_offset for m in moved],
        matched,
        signal_of,
        signals,
        exhaustive,
    )
    assert row is not None
    return LaunchResult(
        row["holds"],
        row["launched"],
        row["idle"],
        row["without_job"],
        row["held_back"],
        row["repeated"] or (),
    )
