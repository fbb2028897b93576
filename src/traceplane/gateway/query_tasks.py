"""A query that is too large for an answer: a task on Spark, whose result is a dataset.

It becomes a DAG of its own with one job, of the operator `query`, that reads the generations which serve when it is
accepted. No event ever wakes that job, and no cutover moves its inputs; its one task is made here. `gc` lets go of the
DAG when the result is old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from uuid import UUID, uuid4

from traceplane.auth.rights import may_write
from traceplane.errors import Conflict, Forbidden
from traceplane.model.dag import (
    Activation,
    Dag,
    Dataset,
    ExecutionSettings,
    ExecutionStrategy,
    Input,
    Job,
    Output,
    UpdateStrategy,
)
from traceplane.model.job_definition import OperatorFacts
from traceplane.operators.processing import QUERY
from traceplane.postgres import registry, tasks
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import notify_dispatchers
from traceplane.query.datasets import AsOf, QueryCaller
from traceplane.query.job import JobQuery, as_job
from traceplane.registry import cutover, job_rows
from traceplane.registry.job_rows import Generation
from traceplane.registry.spec import normalized
from traceplane.wire.queries import QueryTask, QueryTaskRequest

_ATTEMPTS = 3


async def start(
    database: Database,
    caller: QueryCaller,
    asked: QueryTaskRequest,
    *,
    window: int,
    columns: Sequence[str],
    pinned_at: datetime | None = None,
) -> QueryTask:
    """`columns`: the names of the result's; empty: as Spark has them. `pinned_at`: the moment whose files it reads;
    None: the requested time, or what is there when the task starts."""
    files_at = pinned_at or asked.as_of_time

    async def once() -> QueryTask:
        async with database.transaction("deploy") as tx:
            query = await as_job(tx, caller, asked.sql, AsOf(asked.as_of_version, asked.as_of_time))
            if not may_write(caller, asked.dataset, None):
                raise Forbidden(
                    "access.dataset_write",
                    "your token is cut down to other datasets",
                    value=asked.dataset,
                    next_step="choose a name that it allows",
                )
            existing = (await registry.datasets_by_id(tx, caller.org, [asked.dataset])).get(asked.dataset)
            if existing is not None and existing.current_generation_id is not None:
                raise Conflict(
                    "query.dataset_exists",
                    "there is a dataset of this name",
                    value=asked.dataset,
                    next_step="choose another name, or wait until `traceplane gc` has let go of an old result",
                )
            dag = _dag(asked, query, columns)
            (job,), (dataset,) = dag.jobs, dag.datasets
            dag_id, org_id = await registry.lock_dag(tx, caller.org, dag.name)
            version_id, _ = await registry.add_version(tx, dag_id, normalized.dump(dag), {}, {})
            made_by = dag.name
            dataset_uuid = await registry.add_dataset(tx, org_id, asked.dataset, dag_id, asdict(dataset))
            generation_id = await registry.add_generation(tx, dataset_uuid, made_by)
            await registry.map_dataset(tx, version_id, dataset_uuid, generation_id, asdict(dataset))
            job_id = await job_rows.add_job(
                tx,
                dag_id,
                job,
                fingerprint=made_by,
                window=window,
                reads=await _reads(tx, caller.org, query, job),
                writes=[Generation(dataset_uuid, generation_id)],
                views=query.views,
                as_of=files_at,
            )
            await registry.map_job(tx, version_id, job_id, job, window, OperatorFacts())
            await cutover.move(tx, dag_id, version_id)
            task_id: UUID = await tasks.create_for_everything(tx, job_id)
            await notify_dispatchers(tx)
            return QueryTask(task_id, asked.dataset, dag.name, files_at)

    return await retry_on_conflict(once)


async def _reads(tx: Transaction, org: str, query: JobQuery, job: Job) -> list[tuple[Input, Generation]]:
    rows = await registry.datasets_by_id(tx, org, [i.dataset.dataset_id for i in query.inputs])
    reads = []
    for declared, used in zip(job.inputs, query.inputs, strict=True):
        assert used.dataset.generation_id is not None
        dataset_uuid = rows[declared.dataset_id].dataset_uuid
        reads.append((declared, Generation(dataset_uuid, used.dataset.generation_id)))
    return reads


def _dag(asked: QueryTaskRequest, query: JobQuery, columns: Sequence[str]) -> Dag:
    job = Job(
        name="query",
        activation=Activation.REACTIVE,
        runtime="spark",
        operator=QUERY.name,
        config={"sql": asked.sql, "columns": list(columns)},
        inputs=tuple(Input(i.name, i.dataset.dataset_id, {}, i.columns) for i in query.inputs),
        outputs=(Output("result", asked.dataset),),
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        update_strategy=UpdateStrategy.REPLACE,
        execution=ExecutionSettings(max_attempts=_ATTEMPTS),
    )
    return Dag(
        name=f"query-{uuid4().hex[:16]}",
        jobs=(job,),
        datasets=(Dataset(asked.dataset, description="The result of a query", read_roles=query.read_roles),),
        external_datasets=tuple(sorted({i.dataset.dataset_id for i in query.inputs})),
    )
