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
    if not dag.rows_of:
        dag.rows_of.update(_rows_of_all(dag))
    return dag.rows_of.get(dataset_id, dataset_id)


def _rows_of_all(dag: Dag) -> dict[str, str]:
    """All at once: one by one, the time would grow with the square of the jobs."""
    rows: dict[str, str] = {}
    for job in dag.jobs:  # upstream first, as a Dag promises
        grouped = job.inputs[0].dataset_id if job.inputs and groups(job) else None
        for output in job.outputs:
            rows[output.dataset_id] = output.dataset_id if grouped is None else rows.get(grouped, grouped)
    return rows
