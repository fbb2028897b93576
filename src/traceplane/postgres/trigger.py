"""What the trigger keeps in the database: offsets, pipelines, launches."""

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
    tickers: Sequence[str]
    subscriptions: Any
    rules: Any
    live: bool
    """Whether signals may launch it at all."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Offsets of one partition: where this consumer left it, and where it goes on."""

    partition: int
    expected: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    holds: bool
    """Whether the offsets were where this consumer left them; if not, nothing was done."""
    launched: Sequence[UUID]
    """Pipelines that run now."""
    idle: int
    """Pipelines that did not run."""
    without_job: int
    """Pipelines whose job is not deployed."""
    held_back: int
    """Pipelines that may not be launched now: a limit is reached, or they are no longer active."""
    repeated: Sequence[UUID]
    """Idle pipelines that the signal named for them launched before. Nothing was done: name more of theirs."""


async def stored_offsets(
    tx: Transaction, group: str, topic: str, partitions: Collection[int]
) -> dict[int, int]:
    rows = await tx.rows(_SQL["stored_offsets"], group, topic, list(partitions))
    return {r["partition"]: r["next_offset"] for r in rows}


async def begin_partitions(tx: Transaction, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    await tx.run(_SQL["begin_partitions"], group, topic, list(offsets), list(offsets.values()))


async def changed_pipelines(tx: Transaction, since: int) -> tuple[int, Sequence[UUID]]:
    """The point to ask from next time, and what was written since the one that was told last time (0: all).
    Both, and what `pipelines` tells then, belong to one snapshot, so `tx` is one."""
    return await tx.value(_SQL["oldest_open_transaction"]), await tx.value(_SQL["changed_pipelines"], since)


async def pipelines(tx: Transaction, pipeline_ids: Sequence[UUID]) -> list[StoredPipeline]:
    return [
        StoredPipeline(r["pipeline_id"], r["tickers"] or (), r["signal_subscriptions"], r["rules"], r["live"])
        for r in await tx.rows(_SQL["pipelines"], pipeline_ids)
    ]


async def launch(
    tx: Transaction,
    group: str,
    topic: str,
    moved: Sequence[Moved],
    matched: Sequence[UUID],
    signal_of: Sequence[int],
    signals: Sequence[Any],
    *,
    exhaustive: bool,
) -> Launch:
    """`signal_of` says for each matched pipeline which of the signals launches it. A pipeline may be there several
    times; `exhaustive` says that no signal of the batch was left out that may launch one."""
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
    return Launch(
        row["holds"],
        row["launched"],
        row["idle"],
        row["without_job"],
        row["held_back"],
        row["repeated"] or (),
    )
