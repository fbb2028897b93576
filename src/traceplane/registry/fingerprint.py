"""What a job would produce, as a hash: equal fingerprints mean that the data need not be built again.

A job's fingerprint covers its own definition and the fingerprints of the jobs of the same DAG that it
reads from, so a change flows downstream. How work is metered (`Execution`), descriptions, a dataset's
write mode and its PII marks change no data and stay out of it. Fields of a config that change no data, as the
operator's spec says, are in it: plans compare jobs as if those were the deployed ones, so that what is deployed keeps
its fingerprint when a spec learns of such a field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from traceplane.model.dag import Dag, Dataset, Input, Job, Output, SourceKind
from traceplane.sql import virtual

CodeHash = Callable[[Job], str]


def no_code_hash(job: Job) -> str:
    """For jobs whose definition says it all."""
    return ""


def definitions(dag: Dag) -> dict[str, dict[str, Any]]:
    """What of each job decides the data it makes, as plain JSON values."""
    datasets = {dataset.dataset_id: dataset for dataset in dag.datasets}
    return {job.name: _definition(job, datasets) for job in dag.jobs}


def definition_fingerprints(dag: Dag, *, code_hash: CodeHash) -> dict[str, str]:
    """A hash of each job and virtual dataset alone, which tells a changed job from one downstream of a change."""
    own = definitions(dag)
    return {
        **{job.name: _hash({"definition": own[job.name], "code": code_hash(job)}) for job in dag.jobs},
        **{virtual_key(dataset_id): _hash({"sql": sql}) for dataset_id, sql in dag.virtual.items()},
    }


def virtual_key(dataset_id: str) -> str:
    """Under which the fingerprint of a virtual dataset stands among those of jobs, whose names have no colon."""
    return f"dataset:{dataset_id}"


def job_fingerprints(
    dag: Dag, *, code_hash: CodeHash, carried_on: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A hash of each job and virtual dataset, and of all that it is made from within the DAG.

    `carried_on`: datasets that go on as they are although their job is another, and what made them before.
    """
    own = definition_fingerprints(dag, code_hash=code_hash)
    fingerprints: dict[str, str] = {}
    produced: dict[str, str] = {}
    texts = dag.virtual

    @cache
    def made_of(dataset_id: str) -> str | None:
        """New with each change of the dataset that comes from this DAG; asked for when what it is made of is there."""
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
    """Datasets of `after` whose generation goes on under another source job; and whether readers notice nothing.

    What was said of a dataset is the dataset's. A source that only passes on what it is told (manual, webhook, cron)
    computes nothing, whatever it is called and however it is told: it takes over all that any source of the dataset
    has said. One that finds out for itself does so only if it is the same but for its name.
    """
    old_jobs = {output.dataset_id: job for job in before.jobs if job.source for output in job.outputs}
    old, new = definitions(before), definitions(after)
    found: dict[str, bool] = {}
    for job in after.jobs:
        for number, output in enumerate(job.outputs):
            previous = old_jobs.get(output.dataset_id)
            if job.source is None or previous is None:
                continue
            mine, theirs = new[job.name], old[previous.name]
            if job.source.kind is not SourceKind.ALWAYS_ON:
                (other,) = [o for o in theirs["outputs"] if o["dataset"] == output.dataset_id]
                found[output.dataset_id] = {**mine["outputs"][number], "name": ""} == {**other, "name": ""}
            elif {**mine, "name": ""} == {**theirs, "name": ""}:
                found[output.dataset_id] = True
    return found


def _definition(job: Job, datasets: dict[str, Dataset]) -> dict[str, Any]:
    return {
        "name": job.name,
        "activation": job.activation,
        "source": job.source and {"kind": job.source.kind, "schedule": job.source.schedule},
        "runtime": job.runtime,
        "operator": job.operator,
        "config": job.config,
        "inputs": [_input(used) for used in job.inputs],
        "outputs": [_output(output, datasets[output.dataset_id]) for output in job.outputs],
        "execution_strategy": job.execution_strategy,
        "update_strategy": job.update_strategy,
        "unique_key": list(job.unique_key),
    }


def _input(used: Input) -> dict[str, Any]:
    # What came later is left out where it is not used, so that deployed jobs keep their fingerprints.
    columns = {"columns": list(used.columns)} if used.columns else {}
    return {"name": used.name, "dataset": used.dataset_id, "where": used.where, **columns}


def _output(output: Output, dataset: Dataset) -> dict[str, Any]:
    columns = [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in dataset.columns]
    position = {"position": dataset.position} if dataset.position else {}
    return {
        "name": output.name,
        "dataset": output.dataset_id,
        "storage": dataset.storage,
        "columns": columns,
        **position,
    }


def _hash(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
