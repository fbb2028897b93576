"""One OpenLineage event about one run, as JSON. Pure.

A run is a task, from its first claim to its end. What happens in between (a lease that expired, an attempt that failed
and is repeated) is no event; the last event says how many attempts there were. A task that is run again after its end
is another run, with an id of its own. Neither SQL nor code nor configs are in an event, since they may hold secrets;
of partitions that have a name, the name is left out, since it may be personal data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID, uuid5

from traceplane import __version__
from traceplane.model.json_object import JsonObject
from traceplane.postgres.openlineage import RunDataset, RunJob, TaskRun, Written

EventType = Literal["START", "COMPLETE", "FAIL", "ABORT"]
ENDS: Mapping[str, EventType] = {"completed": "COMPLETE", "dead": "FAIL", "canceled": "ABORT"}
"""What the end of a task is called."""
PRODUCER = f"https://pypi.org/project/traceplane/{__version__}"
_SPEC = "https://openlineage.io/spec/"
_EVENT_SCHEMA = f"{_SPEC}2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = {
    "ParentRunFacet": "1-2-0",
    "NominalTimeRunFacet": "1-0-1",
    "ProcessingEngineRunFacet": "1-1-1",
    "ErrorMessageRunFacet": "1-0-1",
    "TagsRunFacet": "1-0-0",
    "JobTypeJobFacet": "2-0-4",
    "DocumentationJobFacet": "1-1-0",
    "DocumentationDatasetFacet": "1-1-0",
    "SchemaDatasetFacet": "1-2-0",
    "ColumnLineageDatasetFacet": "1-2-0",
    "DatasetVersionDatasetFacet": "1-0-1",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
}
"""The versions of the schemas that the facets are written by."""

ColumnLineage = Mapping[str, Sequence[tuple[str, str]]]
"""By column of an output: dataset and column of what it is computed from."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What an event says besides what the task itself says."""

    job: RunJob
    namespace: str
    """Of jobs and datasets of the job's organization."""
    pipeline: str | None = None
    """The pipeline of which the task is an execution."""
    lineage: Mapping[str, ColumnLineage] = field(default_factory=dict)
    """By dataset."""
    written: Mapping[UUID, Written] = field(default_factory=dict)
    """By generation."""
    error: str | None = None
    """Without what the operator was handed."""


def run_event(run: TaskRun, event: EventType, facts: RunFacts) -> JsonObject:
    moment = run.started_at if event == "START" else run.finished_at
    assert moment is not None, "a task that has begun or ended says when"
    job = facts.job
    return {
        "eventType": event,
        "eventTime": _time(moment),
        "producer": PRODUCER,
        "schemaURL": _EVENT_SCHEMA,
        "run": {"runId": str(run_id(run)), "facets": _run_facets(run, event, facts)},
        "job": {"namespace": facts.namespace, "name": f"{job.dag}.{job.job}", "facets": _job_facets(job)},
        "inputs": [_dataset(dataset, facts) for dataset in job.inputs],
        "outputs": [_output(dataset, event, facts) for dataset in job.outputs],
    }


def run_id(run: TaskRun) -> UUID:
    """The id of the task; of its later runs, one that is made from it."""
    return run.task_id if run.ended_runs == 0 else uuid5(run.task_id, f"run {run.ended_runs + 1}")


def _run_facets(run: TaskRun, event: EventType, facts: RunFacts) -> JsonObject:
    engine = _facet("ProcessingEngineRunFacet", name="Traceplane", version=__version__)
    facets = {"processing_engine": {**engine, "openlineageAdapterVersion": __version__}}
    if (parent := _parent(run, facts)) is not None:
        facets["parent"] = parent
    if (nominal := _nominal_time(run, facts.job)) is not None:
        facets["nominalTime"] = nominal
    tags = {"task": str(run.task_id), "operator": facts.job.operator, "attempts": str(run.attempt)}
    if run.kind is not None:
        tags["kind"] = run.kind
    if facts.job.version is not None:
        tags["dag_version"] = str(facts.job.version)
    if (scope := _scope(run, facts.job)) is not None:
        tags["scope"] = scope
    facets["tags"] = _facet(
        "TagsRunFacet", tags=[{"key": k, "value": v, "source": "TRACEPLANE"} for k, v in tags.items()]
    )
    if event in ("FAIL", "ABORT") and facts.error is not None:
        facets["errorMessage"] = _facet(
            "ErrorMessageRunFacet", message=facts.error, programmingLanguage="PYTHON"
        )
    return facets


def _parent(run: TaskRun, facts: RunFacts) -> JsonObject | None:
    """The execution of a pipeline, or the version of the DAG."""
    job = facts.job
    if job.dag_version_id is None:
        return None
    version = {
        "run": {"runId": str(job.dag_version_id)},
        "job": {"namespace": facts.namespace, "name": job.dag},
    }
    if facts.pipeline is None:
        return _facet("ParentRunFacet", **version)
    return _facet(
        "ParentRunFacet",
        run={"runId": str(uuid5(run.task_id, "execution"))},
        job={"namespace": facts.namespace, "name": "pipelines." + facts.pipeline},
        root=version,
    )


def _nominal_time(run: TaskRun, job: RunJob) -> JsonObject | None:
    """The period that a task is about."""
    periods = next((o.partitioning for o in job.outputs if o.partitioning.is_time), None)
    if periods is None or run.range_start is None or run.range_end is None:
        return None
    try:
        first, end = periods.starts_at(run.range_start), periods.starts_at(run.range_end + 1)
    except (OverflowError, ValueError):  # all of time, as a task that rewrites everything has it
        return None
    return _facet("NominalTimeRunFacet", nominalStartTime=_time(first), nominalEndTime=_time(end))


def _scope(run: TaskRun, job: RunJob) -> str | None:
    if run.range_start is None or run.range_end is None:
        return None
    partitioning = next((output.partitioning for output in job.outputs), None)
    if partitioning is not None and partitioning.is_named and not partitioning.is_time:
        return None
    if partitioning is not None and partitioning.is_time:
        return partitioning.written((run.range_start, run.range_end))
    first, last = run.range_start, run.range_end
    return str(first) if first == last else f"{first}-{last}"


def _job_facets(job: RunJob) -> JsonObject:
    endless = job.source_kind == "always_on"
    kind = _facet("JobTypeJobFacet", processingType="STREAMING" if endless else "BATCH")
    facets: JsonObject = {"jobType": {**kind, "integration": "TRACEPLANE", "jobType": "TASK"}}
    if job.description:
        facets["documentation"] = _facet("DocumentationJobFacet", description=job.description)
    return facets


def _dataset(dataset: RunDataset, facts: RunFacts) -> JsonObject:
    facets: JsonObject = {
        "version": _facet("DatasetVersionDatasetFacet", datasetVersion=str(dataset.generation_id))
    }
    if dataset.columns:
        fields = [{"name": column.name, "type": column.type} for column in dataset.columns]
        facets["schema"] = _facet("SchemaDatasetFacet", fields=fields)
    if dataset.description:
        facets["documentation"] = _facet("DocumentationDatasetFacet", description=dataset.description)
    return {"namespace": facts.namespace, "name": dataset.dataset_id, "facets": facets}


def _output(dataset: RunDataset, event: EventType, facts: RunFacts) -> JsonObject:
    output = _dataset(dataset, facts)
    if lineage := facts.lineage.get(dataset.dataset_id):
        fields = {column: {"inputFields": _columns(read, facts)} for column, read in lineage.items()}
        output["facets"]["columnLineage"] = _facet("ColumnLineageDatasetFacet", fields=fields)
    written = facts.written.get(dataset.generation_id)
    if event == "COMPLETE" and written is not None:
        output["outputFacets"] = {
            "outputStatistics": _facet(
                "OutputStatisticsOutputDatasetFacet",
                rowCount=written.rows,
                size=written.bytes,
                fileCount=written.files,
            )
        }
    return output


def _columns(read: Sequence[tuple[str, str]], facts: RunFacts) -> list[JsonObject]:
    return [{"namespace": facts.namespace, "name": dataset, "field": column} for dataset, column in read]


def _facet(schema: str, **fields: object) -> JsonObject:
    url = f"{_SPEC}facets/{_FACETS[schema]}/{schema}.json#/$defs/{schema}"
    return {"_producer": PRODUCER, "_schemaURL": url, **fields}


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
