"""What is deployed, as rows. The package `registry` decides; these functions only read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from traceplane.model.checks import Check
from traceplane.model.dag import ExecutionSettings, Input, InputRole, Job, Priority, ScalingMode, SourceKind
from traceplane.model.edges import Edge, Read
from traceplane.model.job_definition import JobDefinition, OperatorFacts, VirtualInputs
from traceplane.model.json_object import JsonObject
from traceplane.model.near_names import MOST_NAMES
from traceplane.model.partitions import Partitions
from traceplane.operators import catalog
from traceplane.postgres.database import Row, Transaction, statements

_SQL = statements("registry")

_BACKFILL_WINDOW_FACTOR = 10
_KEPT_SHARE = 4
"""One in so many slots is kept for new events."""


async def lock_dag(tx: Transaction, org: str, name: str) -> tuple[UUID, UUID]:
    """(dag_id, org_id) of the DAG, created if new and locked for this transaction."""
    row = await tx.row(_SQL["lock_dag"], org, name)
    assert row is not None, f"no such organization: {org}"
    return row["dag_id"], row["org_id"]


@dataclass(frozen=True, slots=True)
class DeployedVersion:
    """A version as it was deployed."""

    dag_version_id: UUID
    number: int
    spec: JsonObject
    job_fingerprints: dict[str, str]
    definition_fingerprints: dict[str, str]


async def active_version(tx: Transaction, org: str, name: str) -> DeployedVersion | None:
    return await tx.row_as(DeployedVersion, _SQL["active_version"], org, name)


async def building_version(tx: Transaction, org: str, name: str) -> DeployedVersion | None:
    return await tx.row_as(DeployedVersion, _SQL["building_version"], org, name)


async def add_version(
    tx: Transaction,
    dag_id: UUID,
    spec: JsonObject,
    fingerprints: dict[str, str],
    definitions: dict[str, str],
    manual_cutover: bool = False,
    drop_missing: bool = False,
) -> tuple[UUID, int]:
    row = await tx.row(
        _SQL["add_version"], dag_id, spec, fingerprints, definitions, manual_cutover, drop_missing
    )
    assert row is not None
    return row["dag_version_id"], row["number"]


@dataclass(frozen=True, slots=True)
class StoredDataset:
    dataset_uuid: UUID
    dataset_id: str
    dag: str
    """Its owner."""
    current_generation_id: UUID | None
    definition: JsonObject
    free: bool
    """Its DAG was deleted, and another may own it."""

    @property
    def partitions(self) -> Partitions:
        return partitions_of(self.definition.get("partitions"))

    @property
    def sql(self) -> str | None:
        """Of a virtual one."""
        return self.definition.get("sql") or None

    @property
    def columns(self) -> list[str]:
        """Those that are declared."""
        return [column["name"] for column in self.definition.get("columns") or ()]


async def datasets_by_id(tx: Transaction, org: str, dataset_ids: Sequence[str]) -> dict[str, StoredDataset]:
    rows = await tx.rows_as(StoredDataset, _SQL["datasets_by_id"], org, list(dataset_ids))
    return {row.dataset_id: row for row in rows}


async def dataset_names(tx: Transaction, org: str, *, like: str) -> list[str]:
    """Those that serve and are about as long as `like`, which somebody may have misspelled."""
    rows = await tx.rows(_SQL["dataset_names"], org, like, MOST_NAMES)
    return [row["dataset_id"] for row in rows]


async def job_names(tx: Transaction, org: str) -> dict[str, set[str]]:
    """Of all DAGs by name, including those that are no longer deployed."""
    return {row["dag"]: set(row["jobs"]) for row in await tx.rows(_SQL["job_names"], org)}


async def add_dataset(
    tx: Transaction, org_id: UUID, dataset_id: str, dag_id: UUID, definition: JsonObject
) -> UUID:
    dataset_uuid: UUID = await tx.value(_SQL["add_dataset"], org_id, dataset_id, dag_id, definition)
    return dataset_uuid


async def add_generation(
    tx: Transaction,
    dataset_uuid: UUID,
    fingerprint: str,
    rows_of: UUID | None = None,
    position: str | None = None,
) -> UUID:
    """`rows_of`: the generation to read if the new one has ranges rather than rows."""
    generation: UUID = await tx.value(_SQL["add_generation"], dataset_uuid, fingerprint, rows_of, position)
    return generation


async def map_dataset(
    tx: Transaction, version_id: UUID, dataset_uuid: UUID, generation_id: UUID, definition: JsonObject
) -> None:
    await tx.rows(_SQL["map_dataset"], version_id, dataset_uuid, generation_id, definition)


async def generations_of(tx: Transaction, version_id: UUID) -> dict[str, UUID]:
    return {r["dataset_id"]: r["generation_id"] for r in await tx.rows(_SQL["generations_of"], version_id)}


async def serving_jobs(tx: Transaction, dag_id: UUID) -> dict[str, UUID]:
    """The jobs of a DAG that produce what readers see, by name."""
    return {r["name"]: r["job_id"] for r in await tx.rows(_SQL["serving_jobs"], dag_id)}


async def add_job(
    tx: Transaction, dag_id: UUID, job: Job, fingerprint: str, definition: JobDefinition, window: int
) -> UUID:
    job_id: UUID = await tx.value(
        _SQL["add_job"],
        dag_id,
        job.name,
        fingerprint,
        job.activation,
        job.source.kind if job.source else None,
        job.runtime,
        job.operator,
        _stored(definition),
        *_execution_fields(job.execution, window),
    )
    return job_id


def _stored(definition: JobDefinition) -> JsonObject:
    """Without keys whose value is null: an index finds the jobs that have a key `virtual`."""
    fields: JsonObject = msgspec.to_builtins(definition)
    return {name: value for name, value in fields.items() if value is not None}


def _execution_fields(execution: ExecutionSettings, window: int) -> tuple[object, ...]:
    """As columns of jobs: priority, max_concurrency, dispatch_window and so on."""
    backfill = execution.scaling_mode is ScalingMode.BACKFILL
    age = execution.max_queue_age_seconds
    return (
        1 if execution.priority is Priority.BACKFILL else 0,
        execution.max_concurrency,
        window * _BACKFILL_WINDOW_FACTOR if backfill else window,
        execution.max_queue_depth,
        timedelta(seconds=age) if age is not None else None,
        timedelta(seconds=execution.timeout_seconds),
        timedelta(seconds=execution.lease_seconds),
        execution.max_attempts,
        timedelta(seconds=execution.retry_base_seconds),
        timedelta(seconds=execution.retry_max_seconds),
        execution.network,
        _backfill_concurrency(execution),
        execution.function,
        asdict(execution.requires) if execution.requires else None,
        execution.secrets or None,
    )


def _backfill_concurrency(execution: ExecutionSettings) -> int | None:
    """A steady job keeps some of its slots for new events, which would otherwise wait for tasks of a backfill to end.
    A job whose work is all backfill has nothing to keep them for."""
    limit = execution.max_concurrency
    steady = execution.scaling_mode is ScalingMode.STEADY and execution.priority is Priority.NORMAL
    return limit - limit // _KEPT_SHARE if limit is not None and steady else None


async def clear_pressure(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["clear_pressure"], list(job_ids))


async def add_job_input(
    tx: Transaction,
    job_id: UUID,
    index: int,
    dataset_uuid: UUID,
    generation_id: UUID,
    used: Input,
) -> None:
    await tx.rows(
        _SQL["add_job_input"],
        job_id,
        index,
        used.name,
        dataset_uuid,
        generation_id,
        used.where,
        list(used.columns),
        {} if used.read.is_plain else asdict(used.read),
        str(used.role),
    )


async def add_job_output(
    tx: Transaction, job_id: UUID, index: int, name: str, dataset_uuid: UUID, generation_id: UUID
) -> None:
    await tx.rows(_SQL["add_job_output"], job_id, index, name, dataset_uuid, generation_id)


@dataclass(frozen=True, slots=True)
class ServingDataset:
    dataset_id: str
    own: bool
    """Whether it belongs to the DAG that was asked for."""
    dag: str
    sql: str | None


async def datasets_of_dag(tx: Transaction, org: str, dag_id: UUID) -> list[ServingDataset]:
    """Datasets of a DAG, and virtual ones of others."""
    return await tx.rows_as(ServingDataset, _SQL["datasets_of_dag"], org, dag_id)


@dataclass(frozen=True, slots=True)
class PipelineName:
    user_id: str
    name: str


async def pipelines_of_dag(tx: Transaction, org: str, dag: str) -> list[PipelineName]:
    return await tx.rows_as(PipelineName, _SQL["pipelines_of_dag"], org, dag)


@dataclass(frozen=True, slots=True)
class VirtualReader:
    """A job that reads virtual datasets."""

    org: str
    dag: str
    job: str
    job_id: UUID
    definition: JobDefinition
    reads: dict[str, str]
    """The generations that it reads, by dataset."""

    @property
    def virtual(self) -> VirtualInputs:
        assert self.definition.virtual is not None, "the statements select jobs with virtual inputs"
        return self.definition.virtual


async def readers_of_virtual(
    tx: Transaction, org: str, dag: str, dataset_ids: Sequence[str]
) -> list[VirtualReader]:
    """Jobs of other DAGs that read these virtual datasets."""
    if not dataset_ids:
        return []
    rows = await tx.rows(_SQL["readers_of_virtual"], org, dag, list(dataset_ids))
    return [_with_definition(VirtualReader, row) for row in rows]


async def virtual_readers_to_follow(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[VirtualReader]:
    """Jobs whose inputs may change when a DAG moves to a version."""
    rows = await tx.rows(_SQL["virtual_readers_to_follow"], dag_id, version_id)
    return [_with_definition(VirtualReader, row) for row in rows]


async def redefine_inputs(tx: Transaction, job_id: UUID, definition: JobDefinition) -> None:
    """Replaces the definition of a locked job, and deletes its inputs, which the caller adds again."""
    await tx.rows(_SQL["redefine_inputs"], job_id, _stored(definition))


async def map_job(
    tx: Transaction,
    version_id: UUID,
    job_id: UUID,
    job: Job,
    window: int,
    facts: OperatorFacts,
    checks: Mapping[str, Sequence[Check]] = {},
    cluster_by: Mapping[str, Sequence[str]] = {},
) -> None:
    """A job as this version meters and configures it, and fires it if it is a cron source: what changes in place takes
    effect when the version begins to serve, and ends with it."""
    is_cron = job.source is not None and job.source.kind is SourceKind.CRON
    source = asdict(job.source) if job.source is not None and is_cron else None
    in_place = {
        "config": job.config,
        "execution_strategy": str(job.execution_strategy),
        "lineage": job.lineage,
        "checks": msgspec.to_builtins(checks),
        "cluster_by": msgspec.to_builtins(cluster_by),
        "spark": asdict(job.execution.spark),
        **asdict(facts),
    }
    limits = _execution_fields(job.execution, window)
    await tx.rows(_SQL["map_job"], version_id, job_id, *limits, source, in_place)


@dataclass(frozen=True, slots=True)
class InputEdge:
    """How a job reads a generation."""

    input_index: int
    generation_id: UUID
    row_generation_id: UUID
    """The generation whose rows are read."""
    role: InputRole
    read: Read
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class JobRow:
    """What workers need to know of a job; static under one revision."""

    job_id: UUID
    revision: int
    name: str
    runtime: str
    operator: str
    definition: JobDefinition
    activation: str
    source_kind: str | None
    org: str
    dag: str
    timeout_seconds: float
    lease_seconds: float
    max_attempts: int
    network: bool
    function: str | None
    requires: JsonObject | None
    secrets: dict[str, str] | None
    inputs: list[JsonObject]
    """As `wire.tasks.InputRef`."""
    row_generations: list[UUID]
    """Per input, the generation whose rows are read."""
    input_columns: list[list[JsonObject]]
    """Per input, the columns that its dataset declares."""
    reads_files: bool
    outputs: list[JsonObject]
    """As `wire.tasks.OutputRef`."""
    job_inputs: list[InputEdge]
    """All of its inputs, also those that it has no rows of."""
    partitions: Partitions
    """Those of what it writes."""

    def edges(self) -> list[tuple[InputEdge, Edge]]:
        return [(i, Edge(i.read, i.partitions, self.partitions)) for i in self.job_inputs]


async def job_payloads(tx: Transaction, job_ids: Sequence[UUID]) -> list[JobRow]:
    rows = await tx.rows(_SQL["job_payloads"], list(job_ids))
    return [_with_definition(JobRow, _with_inputs(row)) for row in rows]


def _with_inputs(row: asyncpg.Record) -> dict[str, Any]:
    return {**_with_partitions(row), "job_inputs": msgspec.convert(row["job_inputs"], list[InputEdge])}


def _with_partitions(row: asyncpg.Record) -> dict[str, Any]:
    return {**row, "partitions": partitions_of(row["partitions"])}


async def partitions_written(tx: Transaction, org: str, dag: str, job: str | None) -> list[Partitions]:
    """How the datasets are partitioned that jobs of a DAG compute, each way once."""
    rows = await tx.rows(_SQL["partitions_written"], org, dag, job)
    return [partitions_of(row["partitions"]) for row in rows]


def partitions_of(stored: JsonObject | None, names: Mapping[str, int] | None = None) -> Partitions:
    """As the definition of a dataset stores them; those of older platforms have none. `names`: some of them, with
    their positions."""
    partitions = msgspec.convert(stored or {}, Partitions)
    return partitions if names is None else partitions.with_names(names)


def _with_definition(kind: Callable[..., Row], row: Mapping[str, Any]) -> Row:
    return kind(**{**row, "definition": msgspec.convert(row["definition"], JobDefinition)})


@dataclass(frozen=True, slots=True)
class ManualTarget:
    """A dataset that events are emitted for, and the job that produces it."""

    org: str
    dataset_id: str
    generation_id: UUID | None
    """The one that serves."""
    job: str | None
    source_kind: str | None
    voice: UUID | None
    """The first source of the generation, in whose name its events are emitted."""
    partitions: Partitions


async def manual_targets(
    tx: Transaction, datasets: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], ManualTarget]:
    """By organization and dataset, since calls of several organizations are committed together."""
    orgs, names = [org for org, _ in datasets], [name for _, name in datasets]
    rows = await tx.rows(_SQL["manual_target"], orgs, names)
    targets = [ManualTarget(**_with_partitions(row)) for row in rows]
    return {(target.org, target.dataset_id): target for target in targets}


@dataclass(frozen=True, slots=True)
class BackfillTarget:
    """A dataset's generation and the job that produces it."""

    generation_id: UUID
    job_id: UUID
    job: str
    activation: str
    runtime: str
    range_size: int | None
    """The size of the ranges that feed the job."""
    partitions: Partitions
    open_batches: bool
    """Whether batches without a fixed size feed the job."""
    batched: bool
    """Whether an aggregator feeds it directly."""


async def backfill_target(tx: Transaction, org: str, dataset_id: str) -> BackfillTarget | None:
    """None if no job produces such a dataset."""
    row = await tx.row(_SQL["backfill_target"], org, dataset_id, catalog.batching())
    return None if row is None else BackfillTarget(**_with_partitions(row))


@dataclass(frozen=True, slots=True)
class DeployedJob:
    dag: str
    version: int
    job: str
    runtime: str
    operator: str
    activation: str
    source_kind: str | None
    max_concurrency: int | None
    hold_level: int | None
    next_tick: datetime | None
    """Of a cron source."""
    last_tick: datetime | None
    time_zone: str | None
    """Of a cron source."""
    paused: bool


async def overview(tx: Transaction, org: str) -> list[DeployedJob]:
    return await tx.rows_as(DeployedJob, _SQL["overview"], org)
