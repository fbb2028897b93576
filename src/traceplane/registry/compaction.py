"""Whether a `compact` job can work: asked at deploy, since what it deletes is gone."""

from __future__ import annotations

from traceplane.model.dag import Dag, Job, Storage, UpdateStrategy
from traceplane.model.runtimes import GROUPING_OPERATORS

FIELDS = ("sort", "target_file_mb", "delete_after_commit")


def problem(job: Job, dag: Dag) -> str | None:
    """What is wrong with the job, in the user's terms."""
    config = job.config
    if unknown := sorted(set(config) - set(FIELDS)):
        return f"config has no field {unknown[0]!r}; it has {', '.join(FIELDS)}"
    sort, size, delete = (config.get(name) for name in FIELDS)
    if sort is not None and not (isinstance(sort, list) and all(isinstance(name, str) for name in sort)):
        return "config.sort must be a list of columns"
    if size is not None and (type(size) is not int or not 1 <= size <= 4096):
        return "config.target_file_mb must be a whole number from 1 to 4096"
    if delete is not None and type(delete) is not bool:
        return "config.delete_after_commit must be true or false"
    if len(job.inputs) != 1 or len(job.outputs) != 1:
        return "it needs one input and one output"
    datasets = {dataset.dataset_id: dataset for dataset in dag.datasets}
    if datasets[job.outputs[0].dataset_id].storage is not Storage.PARQUET:
        return "its output must be of storage: parquet"
    if job.update_strategy is not UpdateStrategy.REPLACE:
        return "it rewrites whole ranges: its update_strategy is replace"
    if not delete:
        return None
    used = job.inputs[0]
    source = datasets.get(rows_of(used.dataset_id, dag))
    if source is None or source.storage is not Storage.POSTGRES:
        return "delete_after_commit is for a hot dataset that this DAG produces"
    if used.where or used.columns:
        return "with delete_after_commit all rows and columns must be read: remove where and columns"
    return None


def rows_of(dataset_id: str, dag: Dag) -> str:
    """The dataset whose rows are read: an aggregator's or a splitter's are those of what it groups."""
    for job in dag.jobs:
        groups = job.runtime == "dispatcher" and job.operator in GROUPING_OPERATORS
        if groups and any(output.dataset_id == dataset_id for output in job.outputs):
            return rows_of(job.inputs[0].dataset_id, dag)
    return dataset_id
