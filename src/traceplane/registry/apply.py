"""Deploy: a DAG becomes rows, in one transaction.

`prepare` reads what is deployed and decides; `deploy` applies. The same file twice changes nothing. What a
deploy may do today: add jobs, remove jobs, and change how jobs are metered. A change that would produce
other data (a `-/+` in the plan) needs a rebuild beside the old data and an atomic cutover; that is refused
here rather than done by halves. Its place is clear: generations exist, each version has its own pointer set
(`dag_version_datasets`) and its own jobs, and activation moves pointers and version in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from traceplane.chain.operators import config as chain_config
from traceplane.errors import Conflict, InvalidInput, NotFound, UserError
from traceplane.model.dag import Dag, Dataset, Job, SourceKind, Storage, UpdateStrategy, WriteMode
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.hot_table import HotColumn, HotTable
from traceplane.model.runtimes import (
    DISPATCHER_OPERATORS,
    GROUPING_OPERATORS,
    PYTHON_OPERATORS,
    SPARK,
    SPARK_OPERATORS,
    Driver,
    Runtime,
)
from traceplane.postgres import generation_schemas, hot_tables, registry, tasks
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.events import notify_dispatchers
from traceplane.registry import compaction, fingerprint, spec
from traceplane.registry.plan import Deployed, Plan, plan, render


@dataclass(frozen=True, slots=True)
class Prepared:
    plan: Plan
    text: str
    deployed_version: int | None
    fingerprints: dict[str, str]
    definition_fingerprints: dict[str, str]
    refusal: UserError | None
    """Why the plan cannot be applied."""


@dataclass(frozen=True, slots=True)
class Done:
    version: int
    changed: bool
    text: str


async def prepare(tx: Transaction, org: str, dag: Dag, runtimes: Mapping[str, Runtime]) -> Prepared:
    row = await registry.active_version(tx, org, dag.name)
    deployed = None
    if row is not None:
        deployed = Deployed(
            row["number"],
            spec.from_normalized(row["spec"]),
            row["job_fingerprints"],
            row["definition_fingerprints"],
        )
    fingerprints = fingerprint.job_fingerprints(dag, code_hash=fingerprint.no_code_hash)
    definitions = fingerprint.definition_fingerprints(dag, code_hash=fingerprint.no_code_hash)
    steps = plan(deployed, dag, fingerprints=fingerprints, definition_fingerprints=definitions)
    refusal = (
        _refused_jobs(dag, runtimes)
        or _refused_hot_data(dag, runtimes)
        or _refused_rebuild(steps)
        or await _refused_datasets(tx, org, dag)
    )
    return Prepared(
        steps, render(steps), deployed.version if deployed else None, fingerprints, definitions, refusal
    )


def _refused_jobs(dag: Dag, runtimes: Mapping[str, Runtime]) -> UserError | None:
    for job in dag.jobs:
        if job.runtime == "dispatcher" and job.operator not in DISPATCHER_OPERATORS:
            return InvalidInput(
                "deploy.unknown_operator",
                f"job {job.name}: the dispatcher cannot run this operator",
                value=job.operator,
                next_step=f"use one of {', '.join(sorted(DISPATCHER_OPERATORS))}, or another runtime",
            )
        if SPARK in runtimes[job.runtime].capabilities and job.operator not in SPARK_OPERATORS:
            return InvalidInput(
                "deploy.unknown_operator",
                f"job {job.name}: there is no such Spark operator",
                value=job.operator,
                next_step=f"use one of {', '.join(sorted(SPARK_OPERATORS))}, or another runtime",
            )
        if job.runtime == "python" and (refusal := _refused_code(job)):
            return refusal
        needed = "source" if job.source and job.source.kind is SourceKind.ALWAYS_ON else "reactive"
        if needed not in runtimes[job.runtime].capabilities:
            able = sorted(name for name, runtime in runtimes.items() if needed in runtime.capabilities)
            return InvalidInput(
                "deploy.runtime_lacks_capability",
                f"job {job.name}: its runtime cannot run {needed} jobs",
                value=job.runtime,
                next_step=f"use one of {', '.join(able)}, or give the runtime the capability {needed!r}",
            )
    return None


def _refused_code(job: Job) -> UserError | None:
    """Of a job that Python workers run: an operator they do not have, or a config that cannot work."""
    if job.operator == "python":
        return None
    if job.operator not in PYTHON_OPERATORS:
        return InvalidInput(
            "deploy.unknown_operator",
            f"job {job.name}: Python workers do not have this operator",
            value=job.operator,
            next_step=f"use python with config.entrypoint, or one of {', '.join(sorted(PYTHON_OPERATORS))}",
        )
    try:
        chain_config.check(job)
    except UserError as error:
        return InvalidInput(
            "deploy.config_invalid",
            f"job {job.name}: {error.message}",
            value=error.value,
            next_step=f"correct the job; see the page of {job.operator} in the docs",
        )
    return None


def _refused_hot_data(dag: Dag, runtimes: Mapping[str, Runtime]) -> UserError | None:
    hot = {d.dataset_id for d in dag.datasets if d.storage is Storage.POSTGRES}
    for dataset in dag.datasets:
        if dataset.write_mode is WriteMode.BUFFERED:
            return InvalidInput(
                "deploy.buffered_unsupported",
                "there are no sinks yet that would write this dataset",
                value=dataset.dataset_id,
                next_step="set write_mode: direct, so that rows are written with the task's commit",
            )
    for job in dag.jobs:
        if job.operator == "compact" and (problem := compaction.problem(job, dag)):
            return InvalidInput(
                "deploy.config_invalid",
                f"job {job.name}: {problem}",
                value=job.name,
                next_step="correct the job; see the page of compact in the docs",
            )
        if job.update_strategy is UpdateStrategy.APPEND and (refusal := _refused_keys(job, dag)):
            return refusal
        reads = {compaction.rows_of(used.dataset_id, dag) for used in job.inputs}
        if runtimes[job.runtime].driver is Driver.INVOKE and hot & reads:
            return InvalidInput(
                "deploy.hot_input_unsupported",
                f"job {job.name}: a function that is invoked cannot read a hot table",
                value=", ".join(sorted(hot & reads)),
                next_step="use a runtime with workers, or read a compacted dataset",
            )
    return None


def _refused_keys(job: Job, dag: Dag) -> UserError | None:
    """A hot table tells rows of an `append` job apart by an index."""
    written = {output.dataset_id for output in job.outputs}
    for dataset in dag.datasets:
        if dataset.dataset_id in written and dataset.storage is Storage.POSTGRES:
            missing = sorted(set(job.unique_key) - {column.name for column in dataset.columns})
            if missing:
                return InvalidInput(
                    "deploy.config_invalid",
                    f"job {job.name}: columns of its unique_key are not in {dataset.dataset_id}",
                    value=", ".join(missing),
                    next_step="declare them under datasets, or correct unique_key",
                )
    return None


def _refused_rebuild(steps: Plan) -> UserError | None:
    if not steps.rebuilt:
        return None
    return Conflict(
        "deploy.needs_rebuild",
        "these jobs would produce other data than before, and rebuilding beside the old data is not there yet",
        value=", ".join(r.job.name for r in steps.rebuilt),
        next_step="deploy the change under a new DAG name, or change execution-only fields",
    )


async def _refused_datasets(tx: Transaction, org: str, dag: Dag) -> UserError | None:
    known = await registry.datasets_by_id(
        tx, org, [d.dataset_id for d in dag.datasets] + list(dag.external_datasets)
    )
    for dataset in dag.datasets:
        owner = known.get(dataset.dataset_id)
        if owner is not None and owner["dag"] != dag.name:
            return Conflict(
                "deploy.dataset_owned",
                f"the dataset is produced by DAG {owner['dag']}; one DAG owns a dataset",
                value=dataset.dataset_id,
                next_step="choose another dataset id, or read it with from: {dataset: …}",
            )
    for dataset_id in dag.external_datasets:
        if dataset_id not in known or known[dataset_id]["current_generation_id"] is None:
            return NotFound(
                "deploy.unknown_dataset",
                "an input reads a dataset that no deployed DAG produces",
                value=dataset_id,
                next_step="deploy its producer first",
            )
    for job in dag.jobs:
        for used in job.inputs:
            columns = (known.get(used.dataset_id) or {"definition": {}})["definition"].get("columns") or ()
            unknown = sorted(set(used.columns) - {column["name"] for column in columns})
            if columns and unknown and used.dataset_id in dag.external_datasets:
                return InvalidInput(
                    "deploy.config_invalid",
                    f"job {job.name}: the dataset {used.dataset_id} has no such column",
                    value=unknown[0],
                    next_step="correct the columns of the input",
                )
    return None


async def deploy(
    database: Database,
    org: str,
    dag: Dag,
    *,
    runtimes: Mapping[str, Runtime],
    window: int,
    expect_version: int | None = None,
) -> Done:
    async with database.transaction("deploy") as tx:
        dag_id, org_id = await registry.lock_dag(tx, org, dag.name)
        prepared = await prepare(tx, org, dag, runtimes)
        if expect_version is not None and expect_version != (prepared.deployed_version or 0):
            raise Conflict(
                "deploy.version_moved",
                f"version {prepared.deployed_version or 0} of {dag.name} is deployed by now",
                value=expect_version,
                next_step="plan again",
            )
        if prepared.refusal is not None:
            raise prepared.refusal
        if prepared.plan.is_noop:
            assert prepared.deployed_version is not None
            return Done(prepared.deployed_version, False, prepared.text)
        version = await _Apply(tx, org, org_id, dag_id, dag, prepared, window).run()
        await notify_dispatchers(tx)
    return Done(version, True, prepared.text)


class _Apply:
    """The steps of one deploy, in order, on one transaction."""

    def __init__(
        self, tx: Transaction, org: str, org_id: UUID, dag_id: UUID, dag: Dag, prepared: Prepared, window: int
    ) -> None:
        self.tx, self.org, self.org_id, self.dag_id, self.dag = tx, org, org_id, dag_id, dag
        self.prepared, self.window = prepared, window
        self.generations: dict[str, tuple[UUID, UUID]] = {}

    async def run(self) -> int:
        version_id, number = await registry.add_version(
            self.tx,
            self.dag_id,
            spec.dump_normalized(self.dag),
            self.prepared.fingerprints,
            self.prepared.definition_fingerprints,
        )
        await self._externals()
        await self._datasets(version_id)
        await self._jobs(version_id)
        await registry.activate_version(self.tx, self.dag_id, version_id)
        return number

    async def _datasets(self, version_id: UUID) -> None:
        declared = {dataset.dataset_id: dataset for dataset in self.dag.datasets}
        for job in self.dag.jobs:  # upstream first, so that what it groups is there before it
            groups = job.runtime == "dispatcher" and job.operator in GROUPING_OPERATORS
            rows_of = self.generations[job.inputs[0].dataset_id][1] if groups else None
            for output in job.outputs:
                dataset_uuid, generation_id = await registry.add_dataset(
                    self.tx, self.org_id, output.dataset_id, self.dag_id, asdict(declared[output.dataset_id])
                )
                if generation_id is None:
                    made_by = self.prepared.fingerprints[job.name]
                    generation_id = await registry.add_generation(self.tx, dataset_uuid, made_by, rows_of)
                    await registry.point_dataset(self.tx, dataset_uuid, generation_id)
                    await self._hot_table(generation_id, declared[output.dataset_id], job)
                await registry.map_dataset(self.tx, version_id, dataset_uuid, generation_id)
                self.generations[output.dataset_id] = (dataset_uuid, generation_id)

    async def _hot_table(self, generation_id: UUID, dataset: Dataset, job: Job) -> None:
        """Its table is there before its first commit, and its schema before its first reader."""
        if dataset.storage is not Storage.POSTGRES or dataset.position is None:
            return
        columns = tuple(HotColumn(c.name, c.type, c.nullable) for c in dataset.columns)
        keys = job.unique_key if job.update_strategy is UpdateStrategy.APPEND else ()
        await hot_tables.create(self.tx, HotTable(generation_id, columns, dataset.position, keys))
        schema = tuple(SchemaColumn(c.name, c.arrow_type, c.nullable) for c in columns)
        await generation_schemas.save(self.tx, {generation_id: (schema, 0)})

    async def _externals(self) -> None:
        rows = await registry.datasets_by_id(self.tx, self.org, list(self.dag.external_datasets))
        for dataset_id, row in rows.items():
            self.generations[dataset_id] = (row["dataset_uuid"], row["current_generation_id"])

    async def _jobs(self, version_id: UUID) -> None:
        routed = await registry.routed_jobs(self.tx, self.dag_id)
        gone = [
            job_id
            for name, (job_id, _) in routed.items()
            if name in {j.name for j in self.prepared.plan.removed}
        ]
        if gone:
            await registry.retire_jobs(self.tx, gone)
            await tasks.cancel_jobs(self.tx, gone)
        changed = {c.job.name for c in self.prepared.plan.execution_changed}
        for job in self.dag.jobs:
            if job.name in routed:
                job_id = routed[job.name][0]
                if job.name in changed:
                    await registry.update_job_execution(self.tx, job_id, job.execution, self.window)
            else:
                job_id = await self._add_job(job)
            await registry.map_job(self.tx, version_id, job_id)

    async def _add_job(self, job: Job) -> UUID:
        definition: dict[str, Any] = {
            "config": job.config,
            "execution_strategy": job.execution_strategy,
            "update_strategy": job.update_strategy,
            "unique_key": list(job.unique_key),
            "generated_for": job.generated_for,
        }
        made_by = self.prepared.fingerprints[job.name]
        job_id = await registry.add_job(self.tx, self.dag_id, job, made_by, definition, self.window)
        for index, used in enumerate(job.inputs):
            await registry.add_job_input(
                self.tx,
                job_id,
                index,
                used.name,
                *self.generations[used.dataset_id],
                used.where,
                used.columns,
            )
        for index, output in enumerate(job.outputs):
            await registry.add_job_output(
                self.tx, job_id, index, output.name, *self.generations[output.dataset_id]
            )
        return job_id
