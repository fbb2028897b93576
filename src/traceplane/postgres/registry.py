"""What is deployed, as rows. `registry.apply` decides; these functions only read and write."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from traceplane.model.dag import Execution, Job, Priority, ScalingMode
from traceplane.postgres.database import Transaction, statements

_SQL = statements("registry")

_BACKFILL_WINDOW_FACTOR = 10


async def lock_dag(tx: Transaction, org: str, name: str) -> tuple[UUID, UUID]:
    """(dag_id, org_id) of the DAG, made if new and locked for this transaction."""
    row = await tx.row(_SQL["lock_dag"], org, name)
    assert row is not None, f"no such organization: {org}"
    return row["dag_id"], row["org_id"]


async def active_version(tx: Transaction, org: str, name: str) -> dict[str, Any] | None:
    row = await tx.row(_SQL["active_version"], org, name)
    return dict(row) if row is not None else None


async def add_version(
    tx: Transaction,
    dag_id: UUID,
    spec: dict[str, Any],
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


async def datasets_by_id(tx: Transaction, org: str, dataset_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {r["dataset_id"]: dict(r) for r in await tx.rows(_SQL["datasets_by_id"], org, list(dataset_ids))}


async def add_dataset(
    tx: Transaction, org_id: UUID, dataset_id: str, dag_id: UUID, definition: dict[str, Any]
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
    """`rows_of`: the generation to read when the new one holds ranges rather than rows."""
    generation: UUID = await tx.value(_SQL["add_generation"], dataset_uuid, fingerprint, rows_of, position)
    return generation


async def map_dataset(
    tx: Transaction, version_id: UUID, dataset_uuid: UUID, generation_id: UUID, definition: dict[str, Any]
) -> None:
    await tx.rows(_SQL["map_dataset"], version_id, dataset_uuid, generation_id, definition)


async def generations_of(tx: Transaction, version_id: UUID) -> dict[str, UUID]:
    return {r["dataset_id"]: r["generation_id"] for r in await tx.rows(_SQL["generations_of"], version_id)}


async def serving_jobs(tx: Transaction, dag_id: UUID) -> dict[str, UUID]:
    """The jobs of a DAG that make what readers see, by name."""
    return {r["name"]: r["job_id"] for r in await tx.rows(_SQL["serving_jobs"], dag_id)}


async def add_job(
    tx: Transaction, dag_id: UUID, job: Job, fingerprint: str, definition: dict[str, Any], window: int
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
        definition,
        *_execution_fields(job.execution, window),
    )
    return job_id


def _execution_fields(execution: Execution, window: int) -> tuple[object, ...]:
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
    )


async def clear_pressure(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["clear_pressure"], list(job_ids))


async def add_job_input(
    tx: Transaction,
    job_id: UUID,
    index: int,
    name: str,
    dataset_uuid: UUID,
    generation_id: UUID,
    where: dict[str, Any],
    columns: Sequence[str],
) -> None:
    await tx.rows(
        _SQL["add_job_input"], job_id, index, name, dataset_uuid, generation_id, where, list(columns)
    )


async def add_job_output(
    tx: Transaction, job_id: UUID, index: int, name: str, dataset_uuid: UUID, generation_id: UUID
) -> None:
    await tx.rows(_SQL["add_job_output"], job_id, index, name, dataset_uuid, generation_id)


async def datasets_of_dag(tx: Transaction, org: str, dag_id: UUID) -> list[dict[str, Any]]:
    """Datasets of a DAG (`own`) and virtual ones of others, with their `sql`."""
    return [dict(r) for r in await tx.rows(_SQL["datasets_of_dag"], org, dag_id)]


async def pipelines_of_dag(tx: Transaction, org: str, dag: str) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["pipelines_of_dag"], org, dag)]


async def readers_of_virtual(
    tx: Transaction, org: str, dag: str, dataset_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """Jobs of other DAGs that read these virtual datasets: dag, job, dataset_ids and definition."""
    if not dataset_ids:
        return []
    return [dict(r) for r in await tx.rows(_SQL["readers_of_virtual"], org, dag, list(dataset_ids))]


async def virtual_readers_to_follow(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[dict[str, Any]]:
    """Jobs that may have to read something else when a DAG moves to a version: org, job_id, definition, reads."""
    return [dict(r) for r in await tx.rows(_SQL["virtual_readers_to_follow"], dag_id, version_id)]


async def rewrite_virtual(tx: Transaction, job_id: UUID, definition: dict[str, Any] | None) -> None:
    """What makes a job's virtual inputs; its rows of inputs are gone, and to be added anew."""
    await tx.rows(_SQL["rewrite_virtual"], job_id, definition)


async def set_strategy(tx: Transaction, job_id: UUID, strategy: str) -> None:
    """Of a job that keeps its data under another execution strategy."""
    await tx.rows(_SQL["set_strategy"], job_id, strategy)


async def map_job(tx: Transaction, version_id: UUID, job_id: UUID, execution: Execution, window: int) -> None:
    await tx.rows(_SQL["map_job"], version_id, job_id, *_execution_fields(execution, window))


async def job_payloads(tx: Transaction, job_ids: Sequence[UUID]) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["job_payloads"], list(job_ids))]


async def manual_targets(
    tx: Transaction, datasets: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, Any]]:
    """By organization and dataset, since calls of several organizations are committed together."""
    rows = await tx.rows(_SQL["manual_target"], [org for org, _ in datasets], [name for _, name in datasets])
    return {(r["org"], r["dataset_id"]): dict(r) for r in rows}


async def backfill_target(tx: Transaction, org: str, dataset_id: str) -> dict[str, Any] | None:
    """generation_id, job_id, job, activation, runtime and range_size; the job's are None if nothing produces it."""
    row = await tx.row(_SQL["backfill_target"], org, dataset_id)
    return dict(row) if row is not None else None


async def overview(tx: Transaction, org: str) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["overview"], org)]
