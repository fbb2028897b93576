"""Deploy: a DAG becomes rows, in one transaction.

`preparation` reads what is deployed and decides; `deploy` writes. Deploying the same file twice changes nothing,
whether its version serves or is still being built, and deploying the file of the serving version while another is being
built aborts that one. A change that produces other data (a `-/+` in the plan) gives the job and everything downstream
of it new generations and new jobs. These receive events from now on, and the dispatcher creates their tasks for the
past, while the old ones keep serving. Once nothing is missing from the new ones, `cutover` makes them serve. Without
such a change it does so at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from uuid import UUID

from traceplane.errors import Conflict
from traceplane.model import requirements
from traceplane.model.checks import Check
from traceplane.model.dag import Dag, Dataset, InputRole, Job, Priority, Storage, UpdateStrategy
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.hot_table import HotColumn, HotTable
from traceplane.model.runtimes import Runtime
from traceplane.operators.grouping import groups
from traceplane.postgres import (
    aggregator,
    code_bundles,
    coverage,
    generation_schemas,
    hot_tables,
    registry,
    versions,
)
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import notify_dispatchers
from traceplane.postgres.versions import Weight
from traceplane.registry import (
    batching,
    cutover,
    deploy_checks,
    fingerprint,
    job_rows,
    operator_facts,
    virtual_inputs,
)
from traceplane.registry.code_identity import DeployedCode
from traceplane.registry.consequences import amount
from traceplane.registry.job_rows import Generation
from traceplane.registry.plan import Declassified
from traceplane.registry.preparation import PreparedDeploy, prepare
from traceplane.registry.spec import normalized

_SHARE_OF_A_BUILD = 8
"""The share of its dispatch window that a job gets while it is being built, so that serving jobs come first."""


@dataclass(frozen=True, slots=True)
class DeployOutcome:
    version: int
    changed: bool
    building: bool
    """Whether the version has to be built before it serves."""
    text: str
    given_up: int | None = None
    """The version that was being built and was aborted, since the file is what serves."""
    declassified: tuple[Declassified, ...] = ()


async def deploy(
    database: Database,
    org: str,
    dag: Dag,
    *,
    runtimes: Mapping[str, Runtime],
    window: int,
    expect_version: int | None = None,
    manual_cutover: bool = False,
    drop_missing: bool = False,
    code: DeployedCode | None = None,
    locks: Mapping[str, str] = {},
    no_rematerialize: bool = False,
) -> DeployOutcome:
    """`drop_missing`: the new version may hold less data than the one it replaces, or drop a dataset. `locks`: of the
    packages that jobs need, by job."""

    async def once() -> DeployOutcome:
        async with database.transaction("deploy") as tx:
            dag_id, org_id = await registry.lock_dag(tx, org, dag.name)
            prepared = await prepare(tx, org, dag, runtimes, code, no_rematerialize=no_rematerialize)
            _raise_if_refused(prepared, expect_version, drop_missing=drop_missing)
            if prepared.joins is not None:
                return DeployOutcome(prepared.joins.number, False, True, prepared.text)
            if prepared.plan.is_noop:
                assert prepared.deployed_version is not None
                unchanged = DeployOutcome(prepared.deployed_version, False, False, prepared.text)
                if prepared.gives_up is None:
                    return unchanged
                # The file is what shall be served, so the version being built must not replace it.
                await cutover.give_up(tx, prepared.gives_up.dag_version_id)
                await notify_dispatchers(tx)
                given_up = prepared.gives_up.number
                text = f"{prepared.text}Version {given_up}, which was being built, was aborted.\n"
                return replace(unchanged, text=text, given_up=given_up)
            new = _NewVersion(
                tx, org, org_id, dag_id, prepared, window, manual_cutover, drop_missing, code, locks, runtimes
            )
            version_id, number = await new.write()
            if refused := await deploy_checks.personal_data_refusal(tx, prepared.dag, new.written):
                raise refused
            building = await versions.replaces(tx, version_id)
            if building:
                await coverage.add_catch_ups(tx, version_id)
            else:
                await cutover.move(tx, dag_id, version_id)
            await versions.add_replays(tx, new.replays)
            await versions.stop_the_stream(tx)
            await new.put_in_front(version_id)
            await notify_dispatchers(tx)
        return DeployOutcome(number, True, building, prepared.text, declassified=prepared.plan.declassified)

    return await retry_on_conflict(once)


def _raise_if_refused(prepared: PreparedDeploy, expect_version: int | None, *, drop_missing: bool) -> None:
    deployed = prepared.deployed_version or 0
    if expect_version is not None and expect_version != deployed:
        raise Conflict(
            "deploy.version_moved",
            f"version {deployed} of {prepared.dag.name} has been deployed in the meantime",
            value=expect_version,
            next_step="plan again",
        )
    if prepared.refusal is not None:
        raise prepared.refusal
    if prepared.consequences.dropped and not drop_missing and prepared.joins is None:
        raise _drops_data(prepared.consequences.dropped, prepared.consequences.renamed)
    if prepared.consequences.unmapped and not drop_missing and prepared.joins is None:
        raise _drops_partitions(prepared.consequences.unmapped)


def _drops_data(dropped: Sequence[Weight], renamed: Sequence[str]) -> Conflict:
    """`renamed`: the dropped datasets whose source now emits to another one."""
    put_back = "put their jobs back"
    if renamed:
        put_back = f"make the source emit to {' and '.join(renamed[:3])} as before"
        if len(renamed) < len(dropped):
            put_back += " and put the other jobs back"
    more = f" and {len(dropped) - 3} more" if len(dropped) > 3 else ""
    return Conflict(
        "deploy.drops_data",
        f"no job produces these datasets any more, so readers would lose them:"
        f" {'; '.join(amount(weight) for weight in dropped[:3])}{more}",
        value=", ".join(weight.dataset_id for weight in dropped),
        next_step=f"{put_back}, or deploy with --drop-missing to drop them; a rollback brings them back",
    )


def _drops_partitions(unmapped: Sequence[Weight]) -> Conflict:
    more = f" and {len(unmapped) - 3} more" if len(unmapped) > 3 else ""
    return Conflict(
        "deploy.drops_data",
        "what these datasets hold has no place among their new partitions, so readers would lose it:"
        f" {'; '.join(amount(weight) for weight in unmapped[:3])}{more}",
        value=", ".join(weight.dataset_id for weight in unmapped),
        next_step="keep their partitions, write the new ones to other datasets, or deploy with --drop-missing to begin"
        " anew; a rollback brings the old ones back",
    )


class _NewVersion:
    """Writes a version as rows, in one transaction. It is being built and serves nobody yet."""

    def __init__(
        self,
        tx: Transaction,
        org: str,
        org_id: UUID,
        dag_id: UUID,
        prepared: PreparedDeploy,
        window: int,
        manual_cutover: bool,
        drop_missing: bool,
        code: DeployedCode | None,
        locks: Mapping[str, str],
        runtimes: Mapping[str, Runtime],
    ) -> None:
        self.tx, self.org, self.org_id, self.dag_id, self.dag = tx, org, org_id, dag_id, prepared.dag
        self.prepared, self.window = prepared, window
        self.manual_cutover, self.drop_missing = manual_cutover, drop_missing
        self.code, self.locks, self.runtimes = code, locks, runtimes
        plan = prepared.plan
        self.kept_jobs = {job.name for job in plan.unchanged} | {c.job.name for c in plan.execution_changed}
        self.generations: dict[str, Generation] = {}
        """By dataset_id: the generations that the version's jobs read and write."""
        self.new: set[UUID] = set()
        """Generations that begin with this version."""
        self.replays: list[tuple[UUID, UUID]] = []
        """New jobs, with the older generations whose past events they need; new generations have no past."""
        self.in_front: list[tuple[UUID, str]] = []
        """New aggregators of jobs that keep their data, and these jobs."""

    async def write(self) -> tuple[UUID, int]:
        self.serving = await registry.serving_jobs(self.tx, self.dag_id)
        # A job that had batches before still has their aggregator in front of it.
        self.kept_jobs |= {
            job.name
            for job in self.dag.jobs
            if batching.batches(job) and job.generated_for in self.kept_jobs and job.name in self.serving
        }
        version_id, number = await registry.add_version(
            self.tx,
            self.dag_id,
            normalized.dump(self.dag),
            self.prepared.fingerprints,
            self.prepared.definition_fingerprints,
            self.manual_cutover,
            self.drop_missing,
        )
        await self._externals()
        await self._datasets(version_id)
        await self._jobs(version_id)
        return version_id, number

    @property
    def written(self) -> dict[str, UUID]:
        """The generations of all datasets, by their names."""
        return {dataset_id: generation.generation_id for dataset_id, generation in self.generations.items()}

    async def _datasets(self, version_id: UUID) -> None:
        declared = {dataset.dataset_id: dataset for dataset in self.dag.datasets}
        serving: dict[str, UUID] = {}
        if self.prepared.active_version_id is not None:
            serving = await registry.generations_of(self.tx, self.prepared.active_version_id)
        for job in self.dag.jobs:  # upstream first: the dataset that a job groups must exist before it
            grouped = self.generations[job.inputs[0].dataset_id].generation_id if groups(job) else None
            for output in job.outputs:
                dataset = declared[output.dataset_id]
                definition = asdict(dataset)
                dataset_uuid = await registry.add_dataset(
                    self.tx, self.org_id, output.dataset_id, self.dag_id, definition
                )
                if job.name in self.kept_jobs or output.dataset_id in self.prepared.carried_on:
                    generation_id = serving[output.dataset_id]
                else:
                    made_by = self.prepared.fingerprints[job.name]
                    generation_id = await registry.add_generation(
                        self.tx, dataset_uuid, made_by, grouped, dataset.position
                    )
                    await self._hot_table(generation_id, dataset, job)
                    self.new.add(generation_id)
                await registry.map_dataset(self.tx, version_id, dataset_uuid, generation_id, definition)
                self.generations[output.dataset_id] = Generation(dataset_uuid, generation_id)
        for dataset_id in self.dag.virtual:
            await self._virtual(version_id, declared[dataset_id], serving)

    async def _virtual(self, version_id: UUID, dataset: Dataset, serving: Mapping[str, UUID]) -> None:
        """A generation that nothing is ever written to: it only points readers at one definition or another."""
        definition = asdict(dataset)
        dataset_uuid = await registry.add_dataset(
            self.tx, self.org_id, dataset.dataset_id, self.dag_id, definition
        )
        if dataset.dataset_id in self.prepared.kept_virtual:
            generation_id = serving[dataset.dataset_id]
        else:
            made_by = self.prepared.fingerprints[fingerprint.virtual_key(dataset.dataset_id)]
            generation_id = await registry.add_generation(self.tx, dataset_uuid, made_by)
        await registry.map_dataset(self.tx, version_id, dataset_uuid, generation_id, definition)

    async def _hot_table(self, generation_id: UUID, dataset: Dataset, job: Job) -> None:
        """The table exists before its first commit, and the schema before its first reader."""
        if dataset.storage is not Storage.POSTGRES or dataset.position is None:
            return
        columns = tuple(HotColumn(c.name, c.type, c.nullable) for c in dataset.columns)
        keys = job.unique_key if job.update_strategy is UpdateStrategy.APPEND else ()
        table = HotTable(generation_id, columns, dataset.position, keys, key=dataset.unique_key)
        await hot_tables.create(self.tx, table, dataset.indexes)
        schema = tuple(SchemaColumn(c.name, c.arrow_type, c.nullable) for c in columns)
        await generation_schemas.save(self.tx, {generation_id: (schema, 0)})

    async def _externals(self) -> None:
        produced = {dataset.dataset_id for dataset in self.dag.datasets}
        _, rows = await virtual_inputs.load(
            self.tx, self.org, self.dag.external_datasets, self.dag.virtual, produced
        )
        for dataset_id, row in rows.items():
            if row.current_generation_id is not None:
                self.generations[dataset_id] = Generation(row.dataset_uuid, row.current_generation_id)

    async def _jobs(self, version_id: UUID) -> None:
        for job in self.dag.jobs:
            job_id = self.serving[job.name] if job.name in self.kept_jobs else await self._add_job(job)
            facts = operator_facts.of_job(job, self.runtimes)
            await registry.map_job(
                self.tx,
                version_id,
                job_id,
                job,
                self.window,
                facts,
                checks_of_rows(self.dag, job),
                cluster_by(self.dag, job),
            )
        if self.prepared.active_version_id is not None:
            await aggregator.keep_in_front(self.tx, self.prepared.active_version_id)

    async def put_in_front(self, version_id: UUID) -> None:
        """Gives jobs that keep their data the aggregators that are new; the stream is stopped."""
        for aggregator_id, name in self.in_front:
            if await aggregator.is_unready(self.tx, self.serving[name]):
                raise batching.not_ready(name)
            await aggregator.put_in_front(self.tx, aggregator_id, self.serving[name])
        if self.in_front:
            await aggregator.keep_in_front(self.tx, version_id)

    async def _add_job(self, job: Job) -> UUID:
        code_bundle = None
        if self.code is not None and job.name in self.code.hashes:
            await code_bundles.add(self.tx, self.code.bundle_hash, self.code.content)
            code_bundle = self.code.bundle_hash
        environment = None
        if (lock := self.locks.get(job.name)) is not None:
            environment = requirements.hash_of(lock)
            await code_bundles.add(self.tx, environment, lock)
        inputs, virtual = virtual_inputs.resolve(job.inputs, self.prepared.texts, self.dag.virtual)
        reads = [(used, self.generations[used.dataset_id]) for used in inputs]
        job_id = await job_rows.add_job(
            self.tx,
            self.dag_id,
            replace(job, execution=replace(job.execution, priority=Priority.BACKFILL)),
            fingerprint=self.prepared.fingerprints[job.name],
            window=max(1, self.window // _SHARE_OF_A_BUILD),
            reads=reads,
            writes=[self.generations[output.dataset_id] for output in job.outputs],
            facts=operator_facts.of_job(job, self.runtimes),
            code_bundle=code_bundle,
            environment=environment,
            virtual=virtual,
            checks=checks_of_rows(self.dag, job),
            cluster_by=cluster_by(self.dag, job),
        )
        if batching.batches(job) and job.generated_for in self.kept_jobs:
            self.in_front.append((job_id, job.generated_for))
            return job_id
        self.replays += [
            (job_id, generation.generation_id)
            for used, generation in reads
            if generation.generation_id not in self.new and used.role is not InputRole.READS
        ]
        return job_id


def checks_of_rows(dag: Dag, job: Job) -> dict[str, tuple[Check, ...]]:
    """What is computed of the rows that a job writes, by dataset."""
    checks = {
        output.dataset_id: tuple(c for c in dag.datasets_by_id[output.dataset_id].checks if c.is_of_rows)
        for output in job.outputs
    }
    return {dataset_id: found for dataset_id, found in checks.items() if found}


def cluster_by(dag: Dag, job: Job) -> dict[str, tuple[str, ...]]:
    """By what the rows that a job writes are sorted within files, by dataset."""
    columns = {o.dataset_id: dag.datasets_by_id[o.dataset_id].cluster_by for o in job.outputs}
    return {dataset_id: named for dataset_id, named in columns.items() if named}
