"""A job as rows: its definition, and its edges to the generations that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from traceplane.model.checks import Check
from traceplane.model.dag import Input, Job
from traceplane.model.job_definition import InputView, JobDefinition, OperatorFacts, VirtualInputs
from traceplane.postgres import registry
from traceplane.postgres.database import Transaction


class Generation(NamedTuple):
    dataset_uuid: UUID
    generation_id: UUID


async def add_job(
    tx: Transaction,
    dag_id: UUID,
    job: Job,
    *,
    fingerprint: str,
    window: int,
    reads: Sequence[tuple[Input, Generation]],
    writes: Sequence[Generation],
    facts: OperatorFacts = OperatorFacts(),  # noqa: B008 -- frozen
    code_bundle: str | None = None,
    environment: str | None = None,
    virtual: VirtualInputs | None = None,
    views: tuple[InputView, ...] = (),
    checks: Mapping[str, tuple[Check, ...]] = {},
    cluster_by: Mapping[str, tuple[str, ...]] = {},
    as_of: datetime | None = None,
) -> UUID:
    """`reads` are stored datasets, even if the job declares virtual ones; `writes` follow the order of its outputs."""
    definition = JobDefinition(
        config=job.config,
        execution_strategy=job.execution_strategy,
        update_strategy=job.update_strategy,
        unique_key=job.unique_key,
        generated_for=job.generated_for,
        code_bundle=code_bundle,
        environment=environment,
        virtual=virtual,
        lineage=job.lineage,
        views=views,
        checks=dict(checks),
        cluster_by=dict(cluster_by),
        as_of=as_of,
        spark=job.execution.spark,
        **asdict(facts),
    )
    job_id = await registry.add_job(tx, dag_id, job, fingerprint, definition, window)
    await add_inputs(tx, job_id, reads)
    for index, (output, generation) in enumerate(zip(job.outputs, writes, strict=True)):
        await registry.add_job_output(tx, job_id, index, output.name, *generation)
    return job_id


async def add_inputs(tx: Transaction, job_id: UUID, reads: Sequence[tuple[Input, Generation]]) -> None:
    for index, (used, generation) in enumerate(reads):
        await registry.add_job_input(tx, job_id, index, *generation, used)
