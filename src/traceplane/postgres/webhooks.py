"""Webhook sources: where deliveries go, which of them are new, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from traceplane.model.partitions import Partitions
from traceplane.postgres import commits, coverage, hot_tables
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of
from traceplane.webhooks.config import WebhookConfig

_SQL = statements("webhooks")


SourceAsRead = tuple[UUID, str]
"""A job, and the config that deliveries to it were checked by."""


@dataclass(frozen=True, slots=True)
class WebhookSource:
    org: str
    dag: str
    job: str
    """As its DAG file names it."""
    job_id: UUID
    config: WebhookConfig
    config_hash: str
    dataset_uuid: UUID
    dataset_id: str
    generation_id: UUID
    voice: UUID
    """In whose name its events are emitted."""
    partitions: Partitions

    @property
    def as_read(self) -> SourceAsRead:
        return self.job_id, self.config_hash


async def sources(tx: Transaction) -> list[WebhookSource]:
    """Of all organizations."""
    return [
        WebhookSource(
            **{
                **row,
                "config": msgspec.convert(row["config"], WebhookConfig),
                "partitions": partitions_of(row["partitions"]),
            }
        )
        for row in await tx.rows(_SQL["sources"])
    ]


@dataclass(frozen=True, slots=True)
class TakenPath:
    path: str
    dag: str
    job: str


async def paths_elsewhere(tx: Transaction, org: str, dag: str, paths: Sequence[str]) -> list[TakenPath]:
    """Which of the paths other DAGs have; until the transaction ends, no other deploy takes one."""
    if not paths:
        return []
    await tx.rows(_SQL["lock_paths"], org)
    return await tx.rows_as(TakenPath, _SQL["paths_elsewhere"], org, dag, list(paths))


async def add_keys(
    tx: Transaction, sources: Sequence[WebhookSource], keys: Sequence[tuple[SourceAsRead, str]]
) -> tuple[set[SourceAsRead], set[tuple[SourceAsRead, str]]]:
    """The sources that are still as they were read, and the keys of theirs that no delivery had before."""
    row = await tx.row(
        _SQL["add_keys"],
        [source.job_id for source in sources],
        [source.generation_id for source in sources],
        [source.config_hash for source in sources],
        [job_id for (job_id, _), _ in keys],
        [config_hash for (_, config_hash), _ in keys],
        [key for _, key in keys],
    )
    assert row is not None
    serving = set(zip(row["jobs"] or (), row["config_hashes"] or (), strict=True))
    by_dataset = {source.dataset_uuid: source.as_read for source in sources if source.as_read in serving}
    added = zip(row["datasets"] or (), row["keys"] or (), strict=True)
    return serving, {(by_dataset[dataset_uuid], key) for dataset_uuid, key in added}


async def forget_keys(tx: Transaction, older_than: timedelta, limit: int) -> int:
    return len(await tx.rows(_SQL["forget_keys"], older_than, limit))


class KeptDelivery(msgspec.Struct, frozen=True):
    key: str
    headers: str
    """A JSON object."""
    body: str
    """JSON."""


async def keep(
    tx: Transaction, deliveries: Mapping[UUID, tuple[UUID, Sequence[KeptDelivery]]]
) -> dict[UUID, int]:
    """Adds deliveries to the tables of their generations, each with the job that receives them, and numbers them.
    Returns the number of the first one of each generation; the others follow it without gaps."""
    generations = sorted(deliveries)
    # As commits of tasks do: the table first, then the cursors.
    await hot_tables.lock(tx, generations)
    last = {r["generation_id"]: r["position"] for r in await tx.rows(_SQL["last_numbers"], generations)}
    first = {generation_id: last.get(generation_id, -1) + 1 for generation_id in generations}
    outputs = []
    for generation_id in generations:
        job_id, kept = deliveries[generation_id]
        await hot_tables.add_deliveries(
            tx,
            generation_id,
            first[generation_id],
            [delivery.key for delivery in kept],
            [delivery.headers for delivery in kept],
            [delivery.body for delivery in kept],
        )
        outputs.append(_commit(generation_id, job_id, first[generation_id], kept))
    await commits.record(tx, outputs)
    await coverage.add(tx, [], outputs)
    return first


def _commit(generation_id: UUID, job_id: UUID, first: int, kept: Sequence[KeptDelivery]) -> OutputCommit:
    last = first + len(kept) - 1
    return OutputCommit(
        task_id=job_id,
        output_index=0,
        generation_id=generation_id,
        partition_key=None if first == last else f"{first}-{last}",
        start=first,
        end=last,
        files=(),
        row_count=len(kept),
        bytes=sum(len(delivery.body) for delivery in kept),
        schema_hash="",
        replaces=False,
    )


@dataclass(frozen=True, slots=True)
class Refusals:
    dataset_uuid: UUID
    code: str
    count: int
    last_at: datetime


async def add_refusals(tx: Transaction, counts: Mapping[tuple[UUID, str], int]) -> None:
    await tx.rows(
        _SQL["add_refusals"],
        [dataset for dataset, _ in counts],
        [code for _, code in counts],
        list(counts.values()),
    )


async def refusals(tx: Transaction, org: str) -> list[Refusals]:
    return await tx.rows_as(Refusals, _SQL["refusals"], org)
