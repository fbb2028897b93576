"""Deploy: a DAG becomes rows, in one transaction.

`prepare` reads what is deployed and decides; `deploy` applies. The same file twice changes nothing. A change that
produces other data (a `-/+` in the plan) gives the job and all that is downstream of it new generations and new
jobs, which receive events from now on, and for the past get tasks by the dispatcher, while the old ones go on serving.
When nothing is missing from the new ones, `cutover` lets them serve. Without such a change it does so at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from traceplane.chain.operators import config as chain_config
from traceplane.errors import Conflict, InvalidInput, NotFound, UserError
from traceplane.model.dag import Dag, Dataset, Job, Priority, SourceKind, Storage, UpdateStrategy, WriteMode
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.hot_table import HotColumn, HotTable
from traceplane.model.runtimes import (
    DISPATCHER_OPERATORS,
    GROUPING_OPERATORS,
    PYTHON_OPERATORS,
    READS_HISTORY,
    SPARK,
    SPARK_OPERATORS,
    Driver,
    Network,
    Runtime,
)
from traceplane.postgres import code_bundles, coverage, generation_schemas, hot_tables, registry, versions
from traceplane.postgres.database import Database, Transaction, again_if_concurrent
from traceplane.postgres.events import notify_dispatchers
from traceplane.registry import compaction, cutover, fingerprint, job_checks, spec, virtual_inputs
from traceplane.registry.code_identity import DeployedCode
from traceplane.registry.plan import (
    Deployed,
    Plan,
    changed_fields,
    plan,
    render,
    with_deployed_strategies,
)
from traceplane.registry.sql_identity import with_deployed_queries

_SHARE_OF_A_BUILD = 8
"""A job that is being built has this part of the window that it will have, so that the serving ones come first."""


@dataclass(frozen=True, slots=True)
class Prepared:
    dag: Dag
    """As asked for, but with the deployed text of queries that say the same."""
    plan: Plan
    consequences: Consequences
    text: str
    deployed_version: int | None
    active_version_id: UUID | None
    fingerprints: dict[str, str]
    definition_fingerprints: dict[str, str]
    refusal: UserError | None
    """Why the plan cannot be applied."""
    texts: dict[str, str]
    """The SQL of all virtual datasets that it has or reads, directly or through others."""
    kept_virtual: frozenset[str]
    """Its virtual datasets that are what they were."""
    carried_on: frozenset[str]
    """Datasets of sources that keep their generation, with all that was said of them, under another job."""


@dataclass(frozen=True, slots=True)
class Done:
    version: int
    changed: bool
    building: bool
    """Whether it has to be built before it serves."""
    text: str


async def prepare(
    tx: Transaction,
    org: str,
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    code: DeployedCode | None = None,
    *,
    no_rematerialize: bool = False,
) -> Prepared:
    """`no_rematerialize`: jobs that differ in nothing but their `execution_strategy` keep their data."""
    row = await registry.active_version(tx, org, dag.name)
    deployed = None
    if row is not None:
        deployed = Deployed(
            row["number"],
            spec.from_normalized(row["spec"]),
            row["job_fingerprints"],
            row["definition_fingerprints"],
        )
        dag = await asyncio.to_thread(with_deployed_queries, dag, deployed.dag)
    hashes = code.hashes if code is not None else {}
    fingerprints = fingerprint.job_fingerprints(dag, code_hash=lambda job: hashes.get(job.name, ""))
    definitions = fingerprint.definition_fingerprints(dag, code_hash=lambda job: hashes.get(job.name, ""))
    compared = fingerprints, definitions
    carried_on: dict[str, bool] = {}
    if deployed is not None:
        carried_on = fingerprint.carried_on(deployed.dag, dag)
        # As if the strategies were the deployed ones: so neither the job nor what is downstream of it is rebuilt.
        as_before = with_deployed_strategies(dag, deployed.dag) if no_rematerialize else dag
        made_by = {
            o.dataset_id: deployed.fingerprints.get(j.name, "") for j in deployed.dag.jobs for o in j.outputs
        }
        compared = (
            fingerprint.job_fingerprints(
                as_before,
                code_hash=lambda job: hashes.get(job.name, ""),
                carried_on={d: made_by[d] for d, unnoticed in carried_on.items() if unnoticed},
            ),
            fingerprint.definition_fingerprints(as_before, code_hash=lambda job: hashes.get(job.name, "")),
        )
    steps = plan(deployed, dag, fingerprints=compared[0], definition_fingerprints=compared[1])
    mine = {dataset.dataset_id for dataset in dag.datasets}
    texts, rows = await virtual_inputs.load(tx, org, dag.external_datasets, dag.virtual, mine)
    refusal = (
        _refused_jobs(dag, runtimes)
        or _refused_hot_data(dag, runtimes)
        or await _refused_datasets(tx, org, dag, runtimes)
        or _refused_sources(steps)
        or await virtual_inputs.refused(tx, org, dag, runtimes, texts, rows)
        or (_refused_rebuild(steps) if no_rematerialize else None)
    )
    if refusal is None and not steps.is_noop:
        refusal = await _refused_while_building(tx, org, dag.name)
    consequences = await _consequences(
        tx, org, steps, deployed.dag if deployed else None, dag, carried_on.keys()
    )
    return Prepared(
        dag,
        steps,
        consequences,
        render(steps) + consequences.text(),
        deployed.version if deployed else None,
        row["dag_version_id"] if row is not None else None,
        fingerprints,
        definitions,
        refusal,
        texts,
        frozenset(
            dataset_id
            for dataset_id in dag.virtual
            if deployed is not None
            and deployed.fingerprints.get(key := fingerprint.virtual_key(dataset_id)) == compared[0][key]
        ),
        frozenset(carried_on),
    )


def _refused_rebuild(steps: Plan) -> UserError | None:
    if not steps.rebuilt:
        return None
    changed = next((r for r in steps.rebuilt if r.changes), steps.rebuilt[0])
    return Conflict(
        "deploy.needs_rematerialize",
        f"job {changed.job.name} differs in more than its execution_strategy, so its data has to be computed anew",
        value=", ".join(changed_fields(changed.changes)[:5]) or "upstream",
        next_step="deploy without --no-rematerialize, or deploy that change by itself first",
    )


def _refused_jobs(dag: Dag, runtimes: Mapping[str, Runtime]) -> UserError | None:
    for job in dag.jobs:
        if job.operator == "query":
            return InvalidInput(
                "deploy.unknown_operator",
                f"job {job.name}: this operator is for queries that were handed over, and is not for DAG files",
                value=job.operator,
                next_step="use sql, or give your operator another name",
            )
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
        if job.execution.network and (refusal := _refused_network(job, runtimes[job.runtime])):
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


def _refused_network(job: Job, runtime: Runtime) -> UserError | None:
    if runtime.network is Network.ALWAYS:
        return None
    if runtime.network is Network.NEVER:
        next_step = 'use another runtime, or set its network to "job"'
    elif SPARK in runtime.capabilities:
        next_step = "fetch in a job of the runtime python and read its dataset here"
    else:
        return None
    return InvalidInput(
        "deploy.no_network",
        f"job {job.name}: operators of its runtime have no network",
        value=job.runtime,
        next_step=next_step,
    )


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
        if job.operator in READS_HISTORY and hot & reads:
            return InvalidInput(
                "deploy.hot_input_unsupported",
                f"job {job.name}: {job.operator} reads what came before its scope, which hot tables do not give",
                value=", ".join(sorted(hot & reads)),
                next_step="keep the dataset as Parquet, or read a compacted one",
            )
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


async def _refused_while_building(tx: Transaction, org: str, dag: str) -> UserError | None:
    found = await versions.lock(tx, org, dag)
    if found is None or found.building is None:
        return None
    return Conflict(
        "deploy.building",
        f"version {found.building} of {dag} is being built",
        value=found.building,
        next_step=f"wait for it (`traceplane versions {dag}`), or give it up (`traceplane abort {dag}`)",
    )


@dataclass(frozen=True, slots=True)
class Weight:
    """What of a dataset is computed anew."""

    dataset_id: str
    scopes: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Concerned:
    """A job of another DAG that reads what changes."""

    dag: str
    job: str
    dataset_id: str
    loses_it: bool
    """Whether nobody will produce the dataset any more; else the job follows, and computes everything anew."""
    broken_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Consequences:
    """What a deploy costs, and whom it concerns."""

    computed_anew: tuple[Weight, ...]
    """Beside what serves; they are cut over together."""
    readers: tuple[Concerned, ...]
    sources: tuple[str, ...] = ()
    """What sets off sources whose kind promises more than this installation does."""

    def text(self) -> str:
        lines = [f"! {told}" for told in self.sources]
        if self.computed_anew:
            lines += ["", "Computed anew beside what serves, and cut over together:"]
            lines += [
                f"      {w.dataset_id}: {w.scopes:,} scopes, {w.rows:,} rows, {w.bytes:,} bytes"
                for w in self.computed_anew
            ]
        for reader in self.readers:
            told = f"! DAG {reader.dag}, job {reader.job} reads {reader.dataset_id}"
            if reader.loses_it:
                lines.append(f"{told}, which nobody will produce any more")
            else:
                lines.append(f"{told}: it follows at the cutover, and computes everything anew")
            lines += [f"      {problem}" for problem in reader.broken_columns]
        return "\n".join([*lines, ""]) if lines else ""


async def _consequences(
    tx: Transaction, org: str, steps: Plan, before: Dag | None, after: Dag, carried_on: Collection[str]
) -> Consequences:
    written = [(r.job, o.dataset_id) for r in steps.rebuilt for o in r.job.outputs]
    # A job that was renamed is a new one, which has to make all that is served.
    written += [
        (job, o.dataset_id)
        for job in steps.added
        for o in job.outputs
        if o.dataset_id not in steps.datasets_added
    ]
    written = [(job, dataset_id) for job, dataset_id in written if dataset_id not in carried_on]
    anew = [dataset_id for job, dataset_id in written if job.runtime != "dispatcher"]
    weights = await versions.weight(tx, org, anew) if anew else []
    other_sql = {c.dataset_id for c in steps.datasets_changed if any(f.field == "sql" for f in c.changes)}
    readers = [
        Concerned(reader["dag"], reader["job"], dataset_id, loses_it=False)
        for reader in await registry.readers_of_virtual(tx, org, after.name, sorted(other_sql))
        for dataset_id in sorted(other_sql.intersection(reader["definition"]["virtual"]["datasets"]))
    ]
    changed = [dataset_id for _, dataset_id in written]
    broken = _broken_columns(before, after)
    for reader in await versions.readers_elsewhere(tx, org, [*changed, *steps.datasets_removed]):
        dataset_id = reader["dataset_id"]
        lost = dataset_id in steps.datasets_removed
        problems = () if lost else tuple(broken.get(dataset_id, ()))
        readers.append(Concerned(reader["dag"], reader["job"], dataset_id, lost, problems))
    return Consequences(
        tuple(Weight(w["dataset_id"], w["scopes"], w["rows"], w["bytes"]) for w in weights),
        tuple(readers),
        tuple(
            f"job {job.name}: {_SET_OFF_BY[job.source.kind]}"
            for job in after.jobs
            if job.source is not None and job.source.kind in _SET_OFF_BY
        ),
    )


_SET_OFF_BY = {
    SourceKind.CRON: "nothing here serves its schedule; its events come from `traceplane emit` or POST /v1/events",
    SourceKind.WEBHOOK: "it has no URL of its own; its events come by POST /v1/events, with a token of a writer",
}


def _broken_columns(before: Dag | None, after: Dag) -> dict[str, list[str]]:
    """Declared columns that readers may rely on and that are gone or have another type."""
    if before is None:
        return {}
    now = {d.dataset_id: {c.name: c.type for c in d.columns} for d in after.datasets}
    broken: dict[str, list[str]] = {}
    for dataset in before.datasets:
        types = now.get(dataset.dataset_id) or {}
        for column in dataset.columns if types else ():
            if types.get(column.name) != column.type:
                became = types.get(column.name) or "gone"
                broken.setdefault(dataset.dataset_id, []).append(
                    f"column {column.name}: {column.type} → {became}"
                )
    return broken


def _refused_sources(steps: Plan) -> UserError | None:
    """A source that nothing here would ever set off; one that is deployed already goes on as it is."""
    begun = [
        *steps.added,
        *(r.job for r in steps.rebuilt if any(c.field == "source.kind" for c in r.changes)),
    ]
    for job in begun:
        if job.source is not None and job.source.kind is SourceKind.CRON:
            schedule = job.source.schedule
            return InvalidInput(
                "deploy.schedule_unserved",
                f"job {job.name}: nothing in this installation serves the schedules of sources, so it never runs",
                value=schedule,
                next_step="write kind: pipeline in place of kind: cron, and have it run by "
                f"`traceplane pipelines create --schedule '{schedule}'`; or write kind: manual, and let a cron of "
                "your own call `traceplane emit`",
            )
    return None


async def _refused_datasets(
    tx: Transaction, org: str, dag: Dag, runtimes: Mapping[str, Runtime]
) -> UserError | None:
    known = await registry.datasets_by_id(
        tx, org, [d.dataset_id for d in dag.datasets] + list(dag.external_datasets)
    )
    for dataset in dag.datasets:
        owner = known.get(dataset.dataset_id)
        if owner is not None and owner["dag"] != dag.name and not owner["free"]:
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
    return _refused_queries(dag, runtimes, known)


def _refused_queries(
    dag: Dag, runtimes: Mapping[str, Runtime], known: Mapping[str, Mapping[str, Any]]
) -> UserError | None:
    """What a query names of datasets of other DAGs; of its own, the file was enough to tell."""
    elsewhere = {
        dataset_id: [column["name"] for column in known[dataset_id]["definition"].get("columns") or ()]
        for dataset_id in dag.external_datasets
        if not known[dataset_id]["definition"].get("sql")
    }
    for job in dag.jobs:
        for fault in job_checks.query_faults(job, dag, runtimes, elsewhere):
            return InvalidInput(
                fault.code,
                f"job {job.name}: {fault.message}",
                value=".".join(fault.at[1:]),
                next_step=fault.suggestion,
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
    manual_cutover: bool = False,
    drop_missing: bool = False,
    code: DeployedCode | None = None,
    no_rematerialize: bool = False,
) -> Done:
    """`drop_missing`: it may serve less than what it replaces."""

    async def once() -> Done:
        async with database.transaction("deploy") as tx:
            dag_id, org_id = await registry.lock_dag(tx, org, dag.name)
            prepared = await prepare(tx, org, dag, runtimes, code, no_rematerialize=no_rematerialize)
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
                return Done(prepared.deployed_version, False, False, prepared.text)
            apply = _Apply(tx, org, org_id, dag_id, prepared, window, manual_cutover, drop_missing, code)
            version_id, number = await apply.run()
            building = await versions.replaces(tx, version_id)
            if building:
                await coverage.add_catch_ups(tx, version_id)
            else:
                await cutover.move(tx, dag_id, version_id)
            await versions.add_replays(tx, apply.replays)
            await versions.stop_the_stream(tx)
            await notify_dispatchers(tx)
        return Done(number, True, building, prepared.text)

    return await again_if_concurrent(once)


class _Apply:
    """A version as rows, in one transaction: it is built, and serves nobody yet."""

    def __init__(
        self,
        tx: Transaction,
        org: str,
        org_id: UUID,
        dag_id: UUID,
        prepared: Prepared,
        window: int,
        manual_cutover: bool,
        drop_missing: bool,
        code: DeployedCode | None,
    ) -> None:
        self.tx, self.org, self.org_id, self.dag_id, self.dag = tx, org, org_id, dag_id, prepared.dag
        self.prepared, self.window = prepared, window
        self.manual_cutover, self.drop_missing = manual_cutover, drop_missing
        self.code = code
        kept = prepared.plan
        self.kept = {job.name for job in kept.unchanged} | {c.job.name for c in kept.execution_changed}
        self.generations: dict[str, tuple[UUID, UUID]] = {}
        self.new: set[UUID] = set()
        """Generations that begin with this version."""
        self.replays: list[tuple[UUID, UUID]] = []
        """New jobs, and the generations whose past they have to be told; what begins now will tell them itself."""

    async def run(self) -> tuple[UUID, int]:
        version_id, number = await registry.add_version(
            self.tx,
            self.dag_id,
            spec.dump_normalized(self.dag),
            self.prepared.fingerprints,
            self.prepared.definition_fingerprints,
            self.manual_cutover,
            self.drop_missing,
        )
        await self._externals()
        await self._datasets(version_id)
        await self._jobs(version_id)
        return version_id, number

    async def _datasets(self, version_id: UUID) -> None:
        declared = {dataset.dataset_id: dataset for dataset in self.dag.datasets}
        serving: dict[str, UUID] = {}
        if self.prepared.active_version_id is not None:
            serving = await registry.generations_of(self.tx, self.prepared.active_version_id)
        for job in self.dag.jobs:  # upstream first, so that what it groups is there before it
            groups = job.runtime == "dispatcher" and job.operator in GROUPING_OPERATORS
            rows_of = self.generations[job.inputs[0].dataset_id][1] if groups else None
            for output in job.outputs:
                dataset = declared[output.dataset_id]
                definition = asdict(dataset)
                dataset_uuid = await registry.add_dataset(
                    self.tx, self.org_id, output.dataset_id, self.dag_id, definition
                )
                if job.name in self.kept or output.dataset_id in self.prepared.carried_on:
                    generation_id = serving[output.dataset_id]
                else:
                    made_by = self.prepared.fingerprints[job.name]
                    generation_id = await registry.add_generation(
                        self.tx, dataset_uuid, made_by, rows_of, dataset.position
                    )
                    await self._hot_table(generation_id, dataset, job)
                    self.new.add(generation_id)
                await registry.map_dataset(self.tx, version_id, dataset_uuid, generation_id, definition)
                self.generations[output.dataset_id] = (dataset_uuid, generation_id)
        for dataset_id in self.dag.virtual:
            await self._virtual(version_id, declared[dataset_id], serving)

    async def _virtual(self, version_id: UUID, dataset: Dataset, serving: Mapping[str, UUID]) -> None:
        """A generation that nothing is ever written to: the pointer by which readers see one definition or another."""
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
        """Its table is there before its first commit, and its schema before its first reader."""
        if dataset.storage is not Storage.POSTGRES or dataset.position is None:
            return
        columns = tuple(HotColumn(c.name, c.type, c.nullable) for c in dataset.columns)
        keys = job.unique_key if job.update_strategy is UpdateStrategy.APPEND else ()
        await hot_tables.create(self.tx, HotTable(generation_id, columns, dataset.position, keys))
        schema = tuple(SchemaColumn(c.name, c.arrow_type, c.nullable) for c in columns)
        await generation_schemas.save(self.tx, {generation_id: (schema, 0)})

    async def _externals(self) -> None:
        mine = {dataset.dataset_id for dataset in self.dag.datasets}
        _, rows = await virtual_inputs.load(
            self.tx, self.org, self.dag.external_datasets, self.dag.virtual, mine
        )
        for dataset_id, row in rows.items():
            self.generations[dataset_id] = (row["dataset_uuid"], row["current_generation_id"])

    async def _jobs(self, version_id: UUID) -> None:
        serving = await registry.serving_jobs(self.tx, self.dag_id)
        for job in self.dag.jobs:
            job_id = serving[job.name] if job.name in self.kept else await self._add_job(job)
            if job.name in self.kept:
                await registry.set_strategy(self.tx, job_id, job.execution_strategy)
            await registry.map_job(self.tx, version_id, job_id, job.execution, self.window)

    async def _add_job(self, job: Job) -> UUID:
        definition: dict[str, Any] = {
            "config": job.config,
            "execution_strategy": job.execution_strategy,
            "update_strategy": job.update_strategy,
            "unique_key": list(job.unique_key),
            "generated_for": job.generated_for,
        }
        if self.code is not None and job.name in self.code.hashes:
            await code_bundles.add(self.tx, self.code.bundle_hash, self.code.content)
            definition["code_bundle"] = self.code.bundle_hash
        inputs, made_of = virtual_inputs.resolve(job.inputs, self.prepared.texts, self.dag.virtual)
        if made_of is not None:
            definition["virtual"] = made_of
        made_by = self.prepared.fingerprints[job.name]
        behind = replace(job, execution=replace(job.execution, priority=Priority.BACKFILL))
        window = max(1, self.window // _SHARE_OF_A_BUILD)
        job_id = await registry.add_job(self.tx, self.dag_id, behind, made_by, definition, window)
        for index, used in enumerate(inputs):
            dataset_uuid, generation_id = self.generations[used.dataset_id]
            await registry.add_job_input(
                self.tx,
                job_id,
                index,
                used.name,
                dataset_uuid,
                generation_id,
                used.where,
                used.columns,
            )
            if generation_id not in self.new:
                self.replays.append((job_id, generation_id))
        for index, output in enumerate(job.outputs):
            await registry.add_job_output(
                self.tx, job_id, index, output.name, *self.generations[output.dataset_id]
            )
        return job_id
