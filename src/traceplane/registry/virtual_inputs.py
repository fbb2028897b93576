"""Virtual datasets as inputs of jobs.

A job that reads a virtual dataset reads, and is woken by, the stored datasets below it: an event of one of them wakes
the job with that event's scope, and the SQL runs over the rows of that scope, as if it were the first step of the job.
So inputs, grants, replays and lineage refer to stored datasets, as with every other job.

The job stores its virtual inputs (`definition.virtual`). When another DAG changes a virtual dataset that it reads, its
inputs are rewritten in the transaction that moves that DAG's pointers, and everything is recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from traceplane.errors import Conflict, InvalidInput, UserError
from traceplane.model.dag import Dag, Input, Job
from traceplane.model.job_definition import InputView, VirtualInputs
from traceplane.model.runtimes import SPARK, Runtime
from traceplane.operators import catalog
from traceplane.postgres import registry
from traceplane.postgres.database import Transaction
from traceplane.postgres.registry import StoredDataset
from traceplane.registry.job_rows import Generation, add_inputs
from traceplane.sql import spark_dialect, virtual
from traceplane.sql.gate import Relation


def resolve(
    inputs: Sequence[Input], texts: Mapping[str, str], own: Mapping[str, str]
) -> tuple[list[Input], VirtualInputs | None]:
    """The stored datasets that a job reads, and how virtual inputs are computed from them.

    `texts` is the SQL of all virtual datasets, `own` of those that belong to the job's DAG.
    """
    relations = {
        used.name: Relation(f"tp_d{number}", used.dataset_id)
        for number, used in enumerate(inputs)
        if used.dataset_id in texts
    }
    if not relations:
        return list(inputs), None
    expanded = virtual.expand(relations.values(), lambda r: texts.get(r.dataset_id))
    below = sorted({relation.dataset_id for relation in expanded.stored})
    names = {
        dataset_id: f"#{number}" for number, dataset_id in enumerate(below)
    }  # the name of an input never contains #
    stored = [used for used in inputs if used.name not in relations]
    role = next(used.role for used in inputs if used.name in relations)
    stored += [Input(name, dataset_id, role=role) for dataset_id, name in names.items()]
    used_texts = sorted({view.relation.dataset_id for view in expanded.views})
    return stored, VirtualInputs(
        inputs=tuple(inputs),
        datasets=tuple(used_texts),
        own={dataset_id: own[dataset_id] for dataset_id in used_texts if dataset_id in own},
        views=tuple(
            InputView(
                view.relation.name,
                spark_dialect.translated(view.sql, [r.name for r in view.reads]),
                {r.name: names[r.dataset_id] for r in view.reads if r.dataset_id in names},
                view.relation.dataset_id,
            )
            for view in expanded.views
        ),
        given={name: relation.name for name, relation in relations.items()},
    )


async def load(
    tx: Transaction, org: str, dataset_ids: Iterable[str], own: Mapping[str, str], mine: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, StoredDataset]]:
    """The SQL of these datasets if they are virtual and of all virtual datasets below them, and the rows of datasets
    that are not `mine`. `own` is the SQL of the virtual ones among `mine`."""
    texts, rows = dict(own), dict[str, StoredDataset]()
    waiting, seen = {*dataset_ids, *own}, set[str]()
    while waiting:
        seen |= waiting
        stored = await registry.datasets_by_id(tx, org, sorted(waiting - own.keys() - set(mine)))
        rows |= stored
        texts |= {i: row.sql for i, row in stored.items() if row.sql is not None}
        waiting = {read for i in waiting if i in texts for read in virtual.reads(texts[i])} - seen
    return texts, rows


# --- what a deploy refuses --------------------------------------------------------------------------


async def refused(
    tx: Transaction,
    org: str,
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    texts: Mapping[str, str],
    rows: Mapping[str, StoredDataset],
) -> UserError | None:
    own = dag.virtual
    mine = {dataset.dataset_id for dataset in dag.datasets}
    try:
        for dataset_id in own:
            virtual.expand([Relation("tp_d0", dataset_id)], lambda r: texts.get(r.dataset_id))
        for dataset_id in texts.keys() - own.keys():
            # Its order within this DAG, and what to rebuild with it, could not be determined.
            below = virtual.expand([Relation("tp_d0", dataset_id)], lambda r: texts.get(r.dataset_id))
            if loops := sorted({r.dataset_id for r in below.stored} & mine):
                return _loops_back(dataset_id, rows[dataset_id].dag, loops[0], dag.name)
        for job in dag.jobs:
            if any(used.dataset_id in texts for used in job.inputs):
                if refusal := _refused_job(job, runtimes, texts):
                    return refusal
                resolve(job.inputs, texts, own)
        for reader in await registry.readers_of_virtual(tx, org, dag.name, sorted(own)):
            before = reader.virtual
            stored, _ = await _resolved_again(tx, org, before, own)
            if own_dataset := await _owned(tx, org, stored, reader.dag, before):
                name = next(i for i in before.datasets if i in own)
                return _loops_back(name, dag.name, own_dataset, reader.dag)
    except UserError as error:
        return InvalidInput(error.code, error.message, value=error.value, next_step=error.next_step)
    return None


def _refused_job(job: Job, runtimes: Mapping[str, Runtime], texts: Mapping[str, str]) -> UserError | None:
    operator = catalog.find(job.operator)
    if operator is not None and operator.virtual_inputs and SPARK in runtimes[job.runtime].capabilities:
        return None
    if job.operator == "scopes":  # it only needs to know which datasets are read
        return None
    bulk = f" (generated for the Bulk job {job.generated_for})" if job.generated_for else ""
    return InvalidInput(
        "deploy.virtual_input_unsupported",
        f"job {job.name}{bulk}: only sql and pyspark jobs read virtual datasets",
        value=next(used.dataset_id for used in job.inputs if used.dataset_id in texts),
        next_step="read the datasets that its SQL reads, or put a sql job in between",
    )


def _loops_back(dataset_id: str, owner: str, below: str, dag: str) -> Conflict:
    return Conflict(
        "deploy.virtual_loops_back",
        f"the virtual dataset of DAG {owner} reads {below} of DAG {dag}, which reads it",
        value=dataset_id,
        next_step="declare the virtual dataset in the DAG that produces what it reads",
    )


async def _owned(
    tx: Transaction, org: str, inputs: Sequence[Input], dag: str, before: VirtualInputs
) -> str | None:
    """A dataset of the job's own DAG that it would read only through virtual datasets."""
    direct = {i.dataset_id for i in before.inputs}
    rows = await registry.datasets_by_id(tx, org, [i.dataset_id for i in inputs])
    return next((i for i, row in rows.items() if row.dag == dag and i not in direct), None)


# --- following another DAG --------------------------------------------------------------------------


async def _resolved_again(
    tx: Transaction, org: str, before: VirtualInputs, changed: Mapping[str, str] = {}
) -> tuple[list[Input], VirtualInputs | None]:
    own = {**changed, **before.own}
    texts, _ = await load(tx, org, [i.dataset_id for i in before.inputs], own)
    return resolve(before.inputs, texts, before.own)


async def follow(tx: Transaction, dag_id: UUID, version_id: UUID) -> list[tuple[UUID, UUID]]:
    """Rewrites the inputs of jobs whose virtual datasets changed when the pointers moved. Returns these jobs, with all
    generations that they read."""
    replays: list[tuple[UUID, UUID]] = []
    for reader in await registry.virtual_readers_to_follow(tx, dag_id, version_id):
        before = reader.virtual
        try:
            stored, resolved = await _resolved_again(tx, reader.org, before)
        except UserError:
            continue  # it keeps reading what it read before
        # Without virtual datasets it keeps its declared inputs, to follow a rollback that brings them back.
        virtual_inputs = resolved or replace(before, datasets=(), views=(), given={})
        if virtual_inputs == before:
            continue
        rows = await registry.datasets_by_id(tx, reader.org, [i.dataset_id for i in stored])
        generations: dict[str, Generation] = {}
        for dataset_id, row in rows.items():
            read = reader.reads.get(dataset_id)
            generation_id = UUID(read) if read is not None else row.current_generation_id
            if generation_id is not None:
                generations[dataset_id] = Generation(row.dataset_uuid, generation_id)
        if any(i.dataset_id not in generations for i in stored):
            continue
        reads = [(i, generations[i.dataset_id]) for i in stored]
        await registry.redefine_inputs(tx, reader.job_id, replace(reader.definition, virtual=virtual_inputs))
        await add_inputs(tx, reader.job_id, reads)
        replays += [(reader.job_id, generation.generation_id) for _, generation in reads]
    return replays
