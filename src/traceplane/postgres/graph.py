"""What is deployed as one graph, and what is going on in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.postgres.database import Transaction, statements

_SQL = statements("graph")

Change = Literal["added", "rebuilt", "in_place"]


@dataclass(frozen=True, slots=True)
class GraphJob:
    dag: str
    version: int
    job: str
    runtime: str
    operator: str
    activation: str
    source_kind: str | None
    max_concurrency: int | None
    max_queue_depth: int | None
    max_queue_age_seconds: float | None
    generated_for: str | None
    reads: list[JsonObject]
    """`dataset` and `role` of each stored dataset that it reads."""
    writes: list[str]
    declared_reads: list[str]
    """What it reads as its DAG file has it, if virtual datasets are among that."""
    hold_level: int | None
    hold_dag: str | None
    hold_job: str | None
    hold_metric: str | None
    hold_figure: float | None
    hold_threshold: float | None
    paused_by: str | None
    pause_reason: str | None


@dataclass(frozen=True, slots=True)
class GraphDataset:
    dataset_id: str
    dag: str
    storage: str
    sql: str | None


@dataclass(frozen=True, slots=True)
class GraphDag:
    dag: str
    version: int
    jobs: int
    datasets: list[str]
    reads: list[str]
    """Datasets of other DAGs."""
    virtual: list[str]
    """The SQL of its virtual datasets, which may read others."""


async def jobs(
    tx: Transaction, org: str, dag: str | None, *, building: bool = False, waiting: bool = False
) -> list[GraphJob]:
    """`waiting`: only those that are held or paused."""
    return await tx.rows_as(GraphJob, _SQL["jobs"], org, dag, building, waiting)


async def used(tx: Transaction, org: str, dag: str) -> set[str]:
    return {row["dataset_id"] for row in await tx.rows(_SQL["used"], org, dag)}


async def dags(tx: Transaction, org: str, *, without: Sequence[UUID] = ()) -> list[GraphDag]:
    """`without`: jobs that are not counted."""
    return await tx.rows_as(GraphDag, _SQL["dags"], org, list(without))


async def changes(tx: Transaction, org: str, dag: str | None) -> dict[tuple[str, str], Change]:
    """What jobs of versions that are being built are to those that serve, by DAG and job; without those that are the
    same."""
    return {(row["dag"], row["job"]): row["change"] for row in await tx.rows(_SQL["changes"], org, dag)}


async def datasets(tx: Transaction, org: str) -> list[GraphDataset]:
    return await tx.rows_as(GraphDataset, _SQL["datasets"], org)
