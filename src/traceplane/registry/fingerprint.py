"""A hash of what a job would produce: equal fingerprints mean that the data need not be rebuilt.

A job's fingerprint covers its own definition and the fingerprints of the jobs of the same DAG that it reads from, so a
change propagates downstream. Scheduling and limits (`Execution`), descriptions, declared lineage, a dataset's write
mode, its roles, its checks and its marks of personal data do not change data and are left out. Config fields that the
operator's spec declares as not changing data are included: plans compare jobs as if those fields had their deployed
values, so a deployed job keeps its fingerprint when a spec starts to declare such a field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from traceplane.model.dag import Dag, Dataset, Input, InputRole, Job, Output, SourceKind
from traceplane.model.edges import same_periods
from traceplane.model.partitions import Partitions
from traceplane.sql import virtual

CodeHash = Callable[[Job], str]


def definitions(dag: Dag) -> dict[str, dict[str, Any]]:
    """The parts of each job that determine its data, as plain JSON values."""
    datasets = {dataset.dataset_id: dataset for dataset in dag.datasets}
    return {job.name: _definition(job, datasets) for job in dag.jobs}


def definition_fingerprints(dag: Dag, *, code_hash: CodeHash) -> dict[str, str]:
    """A hash of each job and virtual dataset alone, to distinguish a changed job from one downstream of a change."""
    own = definitions(dag)
    return {
        **{job.name: _hash({"definition": own[job.name], "code": code_hash(job)}) for job in dag.jobs},
        **{virtual_key(dataset_id): _hash({"sql": sql}) for dataset_id, sql in dag.virtual.items()},
    }


def virtual_key(dataset_id: str) -> str:
    """The key of a virtual dataset's fingerprint among those of jobs, whose names contain no colon."""
    return f"dataset:{dataset_id}"


def job_fingerprints(
    dag: Dag, *, code_hash: CodeHash, carried_on: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A hash of each job and virtual dataset, and of everything in the DAG that it is made from.

    `carried_on`: datasets that continue unchanged under another job, with the fingerprint of the job before it.
    """
    own = definition_fingerprints(dag, code_hash=code_hash)
    fingerprints: dict[str, str] = {}
    produced: dict[str, str] = {}
    texts = dag.virtual

    @cache
    def made_of(dataset_id: str) -> str | None:
        """Changes whenever this DAG changes the dataset; called once the fingerprints upstream are known."""
        if dataset_id not in texts:
            return produced.get(dataset_id)
        upstream = {read: made_of(read) for read in virtual.reads(texts[dataset_id])}
        return _hash({"own": own[virtual_key(dataset_id)], "upstream": upstream})

    for job in dag.jobs:  # upstream first, as a Dag promises
        upstream = {used.dataset_id: made_of(used.dataset_id) for used in job.inputs}
        fingerprints[job.name] = _hash({"own": own[job.name], "upstream": upstream})
        produced.update((output.dataset_id, fingerprints[job.name]) for output in job.outputs)
        produced.update(carried_on or {})
    for dataset_id in texts:
        fingerprints[virtual_key(dataset_id)] = made_of(dataset_id) or ""
    return fingerprints


def carried_on(before: Dag, after: Dag) -> dict[str, bool]:
    """Datasets of `after` whose generation continues under another source job; and whether readers notice nothing.

    Past events belong to the dataset. A source that only relays events (manual, webhook, cron) computes nothing,
    whatever its name and kind, so it takes over the events of any earlier source of the dataset. A source that runs
    code takes them over only if nothing but its name changed. Events that name other periods are not taken over.
    """
    old_jobs = {output.dataset_id: job for job in before.jobs if job.source for output in job.outputs}
    old, new = definitions(before), definitions(after)
    others = other_periods(before, after).keys()
    unnoticed: dict[str, bool] = {}
    for job in after.jobs:
        for number, output in enumerate(job.outputs):
            previous = old_jobs.get(output.dataset_id)
            if job.source is None or previous is None or output.dataset_id in others:
                continue
            new_definition, old_definition = new[job.name], old[previous.name]
            if job.source.kind is not SourceKind.ALWAYS_ON:
                (other,) = [o for o in old_definition["outputs"] if o["dataset"] == output.dataset_id]
                unnoticed[output.dataset_id] = {**new_definition["outputs"][number], "name": ""} == {
                    **other,
                    "name": "",
                }
            elif {**new_definition, "name": ""} == {**old_definition, "name": ""}:
                unnoticed[output.dataset_id] = True
    return unnoticed


def other_periods(before: Dag, after: Dag) -> dict[str, tuple[Partitions, Partitions]]:
    """Datasets whose positions stand for something else in `after`; with their partitions before and after."""
    old = before.datasets_by_id
    return {
        dataset.dataset_id: (old[dataset.dataset_id].partitions, dataset.partitions)
        for dataset in after.datasets
        if dataset.dataset_id in old
        and not same_periods(old[dataset.dataset_id].partitions, dataset.partitions)
    }


def _definition(job: Job, datasets: dict[str, Dataset]) -> dict[str, Any]:
    return {
        "name": job.name,
        "activation": job.activation,
        # When a source is set off does not change the data; `schedule` is here so that fingerprints stay as they were.
        "source": job.source and {"kind": job.source.kind, "schedule": None},
        "runtime": job.runtime,
        "operator": job.operator,
        "config": job.config,
        "inputs": [_input(used) for used in job.inputs],
        "outputs": [_output(output, datasets[output.dataset_id]) for output in job.outputs],
        "execution_strategy": job.execution_strategy,
        "update_strategy": job.update_strategy,
        "unique_key": list(job.unique_key),
        **({"requirements": sorted(job.requirements)} if job.requirements else {}),
    }


def _input(used: Input) -> dict[str, Any]:
    # Newer fields are left out where they are not used, so that deployed jobs keep their fingerprints.
    columns = {"columns": list(used.columns)} if used.columns else {}
    read = {} if used.read.is_plain else {"read": asdict(used.read)}
    if read and used.read.time_column is None:
        del read["read"]["time_column"]
    role = {} if used.role is InputRole.FEEDS else {"role": used.role}
    return {"name": used.name, "dataset": used.dataset_id, "where": used.where, **columns, **read, **role}


def _output(output: Output, dataset: Dataset) -> dict[str, Any]:
    columns = [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in dataset.columns]
    position = {"position": dataset.position} if dataset.position else {}
    table = {
        name: [list(of) if isinstance(of, tuple) else of for of in columns_]
        for name, columns_ in (("unique_key", dataset.unique_key), ("indexes", dataset.indexes))
        if columns_
    }
    partitions = {} if dataset.partitions == Partitions() else {"partitions": _partitions(dataset.partitions)}
    return {
        "name": output.name,
        "dataset": output.dataset_id,
        "storage": dataset.storage,
        "columns": columns,
        **position,
        **table,
        **partitions,
    }


def _partitions(partitions: Partitions) -> dict[str, Any]:
    """Without names that may be added later: what there is keeps its position."""
    return {"by": partitions.by, "time_zone": partitions.time_zone, "start": partitions.start}


def _hash(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
