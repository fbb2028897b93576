"""Jobs whose batches change and whose data stays.

Positions that a job has computed are not computed again, however its batches are cut from now on. An aggregator in
front of the job knows how they were cut: in batches that it has closed, or as they came. So it stays in front of the
job, even if the job has no batches any more; then it passes each event on. That holds for every version that has the
job, so a rollback only changes the rule.
"""

from __future__ import annotations

from dataclasses import replace

from traceplane.errors import Conflict
from traceplane.model.dag import Activation, Dag, Job
from traceplane.operators import catalog


def batches(job: Job) -> bool:
    """Whether it is an aggregator that a job got for its batches."""
    return (
        job.generated_for is not None and job.runtime == "dispatcher" and job.operator in catalog.batching()
    )


def without_batches(aggregator: Job) -> Job:
    """As it stays in front of a job that has no batches any more."""
    return replace(aggregator, config={"source_dataset": aggregator.inputs[0].dataset_id, "each": True})


def with_deployed_batches(desired: Dag, deployed: Dag) -> Dag:
    """`desired`, with the deployed `execution_strategy` and batches of those of its jobs that can keep their data. It
    serves to compare the two."""
    before = {job.name: job for job in deployed.jobs}
    old, new = _aggregators(deployed), _aggregators(desired)
    finders = {j.generated_for for dag in (desired, deployed) for j in dag.jobs if j.operator == "scopes"}
    jobs: list[Job] = []
    skipped = {
        aggregator.name
        for name, own in new.items()
        for aggregator in own.values()
        if name in before and _keeps_data(before[name], own, old.get(name, {}), finders)
    }
    for job in desired.jobs:
        was = before.get(job.name)
        if job.name in skipped:
            continue
        own, theirs = new.get(job.name, {}), old.get(job.name, {})
        if was is None or batches(job) or not _keeps_data(was, own, theirs, finders):
            jobs.append(job)
            continue
        batched = {aggregator.outputs[0].dataset_id: dataset_id for dataset_id, aggregator in own.items()}
        renamed = {dataset_id: aggregator.outputs[0].dataset_id for dataset_id, aggregator in theirs.items()}
        inputs = []
        for used in job.inputs:
            dataset_id = batched.get(used.dataset_id, used.dataset_id)
            inputs.append(replace(used, dataset_id=renamed.get(dataset_id, dataset_id)))
        jobs += theirs.values()
        jobs.append(replace(job, inputs=tuple(inputs), execution_strategy=was.execution_strategy))
    declared = desired.datasets_by_id
    others = (d for d in deployed.datasets if d.dataset_id not in declared)
    return replace(desired, jobs=tuple(jobs), datasets=(*desired.datasets, *others))


def _aggregators(dag: Dag) -> dict[str, dict[str, Job]]:
    """Of each job with batches, its aggregators by the dataset that they batch."""
    found: dict[str, dict[str, Job]] = {}
    for job in dag.jobs:
        if batches(job) and job.generated_for is not None:
            found.setdefault(job.generated_for, {})[job.inputs[0].dataset_id] = job
    return found


def _keeps_data(job: Job, own: dict[str, Job], theirs: dict[str, Job], with_finder: set[str | None]) -> bool:
    """Whether a job can keep its data if its batches change. To get or lose them, it must have one input, read at the
    scope of each event, and datasets, which say what it has computed."""
    if own.keys() == theirs.keys():
        return True
    return (
        len(job.inputs) == 1
        and bool(job.outputs)
        and job.activation is Activation.REACTIVE
        and job.runtime != "dispatcher"
        and job.name not in with_finder
    )


def not_ready(job: str) -> Conflict:
    return Conflict(
        "deploy.job_catching_up",
        "the job has not received all of the past yet, so it is not known what its batches would have to leave out",
        value=job,
        next_step="deploy again when its queue is empty, or deploy without --no-rematerialize",
    )
