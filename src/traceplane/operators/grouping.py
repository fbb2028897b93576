"""Which dataset's rows a grouped dataset stands for."""

from __future__ import annotations

from traceplane.model.dag import Dag, Job
from traceplane.operators import catalog


def groups(job: Job) -> bool:
    """Whether readers of its output get the rows of its input."""
    spec = catalog.find(job.operator) if job.runtime == "dispatcher" else None
    return spec is not None and spec.groups


def rows_of(dataset_id: str, dag: Dag) -> str:
    """The dataset whose rows are read: for an aggregator or splitter, those of the dataset that it groups."""
    for job in dag.jobs:
        if any(output.dataset_id == dataset_id for output in job.outputs) and groups(job):
            return rows_of(job.inputs[0].dataset_id, dag)
    return dataset_id
