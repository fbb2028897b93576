"""What a deploy would do: the difference between two DAGs, and its text.

A job whose fingerprint differs is rebuilt beside the old one; a job that differs only in scheduling and limits is
changed in place; everything else is left alone. Planning a deployed file again gives an empty plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from traceplane.model import durations
from traceplane.model.dag import Dag, Dataset, Job
from traceplane.model.partitions import Partitions
from traceplane.operators import catalog
from traceplane.operators.alerting import EVALUATE, ROUTE
from traceplane.registry import batching, fingerprint
from traceplane.sql import virtual


@dataclass(frozen=True, slots=True)
class Deployed:
    """The DAG as it runs now, with the fingerprints it was deployed under, by job name."""

    version: int
    dag: Dag
    fingerprints: dict[str, str]
    definition_fingerprints: dict[str, str]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, before and after, as JSON text; None where the field is absent.

    `code` has neither: only a hash of it is known.
    """

    field: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class ExecutionChanged:
    """A job that keeps its data, with new execution fields (its own or in its config) or a new description."""

    job: Job
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A job whose data is recomputed because of its own `changes`, those of jobs upstream, or both."""

    job: Job
    changes: tuple[FieldChange, ...]
    downstream_of: tuple[str, ...]
    execution_changes: tuple[FieldChange, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    dataset_id: str
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True)
class Declassified:
    """A column that is no personal data any more, although it is computed from some."""

    dataset_id: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a deploy; jobs are ordered upstream first, datasets by id."""

    dag: str
    base_version: int | None
    added: tuple[Job, ...] = ()
    unchanged: tuple[Job, ...] = ()
    execution_changed: tuple[ExecutionChanged, ...] = ()
    rebuilt: tuple[Rebuilt, ...] = ()
    removed: tuple[Job, ...] = ()
    datasets_added: tuple[str, ...] = ()
    datasets_removed: tuple[str, ...] = ()
    datasets_changed: tuple[DatasetChanged, ...] = ()
    dag_changes: tuple[FieldChange, ...] = ()
    declassified: tuple[Declassified, ...] = ()
    """Columns that were not, or for another reason."""

    @property
    def is_noop(self) -> bool:
        jobs = self.added or self.execution_changed or self.rebuilt or self.removed
        datasets = self.datasets_added or self.datasets_removed or self.datasets_changed
        return self.base_version is not None and not (jobs or datasets or self.dag_changes)


def plan(
    deployed: Deployed | None,
    desired: Dag,
    *,
    fingerprints: dict[str, str],
    definition_fingerprints: dict[str, str],
) -> Plan:
    """The difference between `deployed` and `desired`; the fingerprints are those of `desired`."""
    if deployed is None:
        datasets = tuple(dataset.dataset_id for dataset in desired.datasets)
        declassified = tuple(_declassified(None, desired))
        return Plan(
            desired.name, None, added=desired.jobs, datasets_added=datasets, declassified=declassified
        )
    if deployed.dag.name != desired.name:
        raise ValueError(f"a plan compares versions of one DAG, not {deployed.dag.name} with {desired.name}")
    before = {job.name: job for job in deployed.dag.jobs}
    old_definitions = fingerprint.definitions(deployed.dag)
    new_definitions = fingerprint.definitions(with_deployed_execution_config(desired, deployed.dag))
    causes = _causes(deployed, desired, definition_fingerprints)
    added, unchanged, execution_changed, rebuilt = [], [], [], []
    for job in desired.jobs:
        if (old := before.pop(job.name, None)) is None:
            added.append(job)
            continue
        keeps_data = fingerprints[job.name] == deployed.fingerprints.get(job.name)
        in_place = tuple(_changes_in_place(old, job, keeps_data=keeps_data))
        if not keeps_data:
            changes: tuple[FieldChange, ...] = ()
            if definition_fingerprints[job.name] != deployed.definition_fingerprints.get(job.name):
                changes = tuple(
                    _changes(
                        _as_written(old_definitions[job.name], old, _by_id(deployed.dag)),
                        _as_written(new_definitions[job.name], job, _by_id(desired)),
                    )
                )
                changes = changes or (FieldChange("code", None, None),)
            rebuilt.append(Rebuilt(job, changes, causes[job.name], in_place))
        elif in_place:
            execution_changed.append(ExecutionChanged(job, in_place))
        else:
            unchanged.append(job)
    kept = {changed.job.name for changed in execution_changed}
    passing = [job for job in before.values() if batching.batches(job) and job.generated_for in kept]
    for old in passing:
        job = batching.without_batches(before.pop(old.name))
        execution_changed.append(
            ExecutionChanged(job, tuple(_changes({"config": old.config}, {"config": job.config})))
        )
    old_datasets, new_datasets = _by_id(deployed.dag), _by_id(desired)
    staying = {output.dataset_id for job in passing for output in job.outputs}
    return Plan(
        desired.name,
        deployed.version,
        added=tuple(added),
        unchanged=tuple(unchanged),
        execution_changed=tuple(execution_changed),
        rebuilt=tuple(rebuilt),
        removed=tuple(before.values()),
        datasets_added=tuple(sorted(new_datasets.keys() - old_datasets.keys())),
        datasets_removed=tuple(sorted(old_datasets.keys() - new_datasets.keys() - staying)),
        datasets_changed=tuple(_changed_datasets(old_datasets, new_datasets)),
        dag_changes=tuple(
            _changes({"description": deployed.dag.description}, {"description": desired.description})
        ),
        declassified=tuple(_declassified(deployed.dag, desired)),
    )


def _declassified(old: Dag | None, new: Dag) -> Iterator[Declassified]:
    before = _reasons(old) if old is not None else {}
    for (dataset_id, column), reason in sorted(_reasons(new).items()):
        if before.get((dataset_id, column)) != reason:
            yield Declassified(dataset_id, column, reason)


def _reasons(dag: Dag) -> dict[tuple[str, str], str]:
    """Why columns are no personal data: of datasets, and of what alerts send."""
    routes = {job.inputs[0].dataset_id: job for job in dag.jobs if job.operator == ROUTE}
    reasons = {
        (dataset.dataset_id, column.name): column.declassified
        for dataset in dag.datasets
        for column in dataset.columns
        if column.declassified and dataset.dataset_id not in routes
    }
    of_alerts = {
        (dataset_id, column): reason
        for dataset_id, job in routes.items()
        for column, reason in (job.config.get("declassified") or {}).items()
    }
    return reasons | of_alerts


def _changes_in_place(old: Job, new: Job, *, keeps_data: bool) -> Iterator[FieldChange]:
    before, after = _in_place_fields(old, new), _in_place_fields(new, old)
    if keeps_data:
        # A changed strategy does not rebuild it, because the caller asked to keep its data.
        before |= _strategy(old)
        after |= _strategy(new)
    yield from _changes(before, after)


def _strategy(job: Job) -> dict[str, Any]:
    """How events become tasks of a job."""
    if batching.batches(job):
        return {"config": job.config}
    inputs = [{"dataset": used.dataset_id} for used in job.inputs]
    return {"execution_strategy": str(job.execution_strategy), "inputs": inputs}


def with_deployed_execution_config(desired: Dag, deployed: Dag) -> Dag:
    """`desired`, with the deployed values of config fields that do not change data."""
    before = {job.name: job for job in deployed.jobs}
    return replace(
        desired, jobs=tuple(_with_execution_config_of(before.get(j.name), j) for j in desired.jobs)
    )


def _with_execution_config_of(old: Job | None, new: Job) -> Job:
    if old is None or old.operator != new.operator:
        return new
    data = {name: value for name, value in new.config.items() if name not in _execution_config(new, old)}
    return replace(new, config={**data, **_execution_config(old, new)})


def _execution_config(job: Job, other: Job) -> dict[str, Any]:
    """The config fields in which two jobs may differ and still produce the same data."""
    operator = catalog.find(job.operator)
    fields = operator.fields_without_rebuild(other.config, job.config) if operator is not None else ()
    return {name: value for name, value in job.config.items() if name in fields}


def _causes(deployed: Deployed, desired: Dag, definitions: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """For each job, the nearest upstream jobs and virtual datasets that are new, gone or changed themselves."""
    old_producer, new_producer = _producers(deployed.dag), _producers(desired)
    causes: dict[str, tuple[str, ...]] = {}
    texts = desired.virtual
    for job in desired.jobs:
        nearest: dict[str, None] = {}  # an ordered set
        waiting = [used.dataset_id for used in reversed(job.inputs)]
        seen: set[str] = set()
        while waiting:
            dataset_id = waiting.pop()
            if dataset_id in texts:
                if dataset_id in seen:
                    continue
                seen.add(dataset_id)
                key = fingerprint.virtual_key(dataset_id)
                if definitions[key] != deployed.definition_fingerprints.get(key):
                    nearest[dataset_id] = None
                waiting += reversed(virtual.reads(texts[dataset_id]))
                continue
            old, new = old_producer.get(dataset_id), new_producer.get(dataset_id)
            if new is not None and definitions[new] == deployed.definition_fingerprints.get(new):
                nearest.update(dict.fromkeys(causes[new]))
            elif new is not None:
                nearest[new] = None
            elif old is not None:
                nearest[old] = None
        causes[job.name] = tuple(nearest)
    return causes


def _producers(dag: Dag) -> dict[str, str]:
    return {output.dataset_id: job.name for job in dag.jobs for output in job.outputs}


def _by_id(dag: Dag) -> dict[str, Dataset]:
    return {dataset.dataset_id: dataset for dataset in dag.datasets}


def _in_place_fields(job: Job, other: Job) -> dict[str, Any]:
    own: dict[str, Any] = {
        "description": job.description,
        "generated_for": job.generated_for,
        "lineage": job.lineage,
    }
    if job.source is not None and other.source is not None:
        own["source"] = {name: value for name, value in asdict(job.source).items() if name != "kind"}
    return {**asdict(job.execution), **own, "config": _execution_config(job, other)}


def _changed_datasets(old: dict[str, Dataset], new: dict[str, Dataset]) -> Iterator[DatasetChanged]:
    for dataset_id in sorted(old.keys() & new.keys()):
        before, after = _columns_by_name(old[dataset_id]), _columns_by_name(new[dataset_id])
        if changes := tuple(_changes(before, after)):
            yield DatasetChanged(dataset_id, changes)


def _columns_by_name(dataset: Dataset) -> dict[str, Any]:
    """As it is written in the file."""
    retention = None if dataset.retention is None else durations.written(dataset.retention)
    return {
        **asdict(dataset),
        "columns": {column.name: asdict(column) for column in dataset.columns},
        "checks": {check.name: check.as_written() for check in dataset.checks},
        "partitions": {**asdict(dataset.partitions), "start": _start(dataset.partitions)},
        "retention": retention,
    }


def _start(partitions: Partitions) -> str | None:
    return None if partitions.start is None else partitions.name(partitions.start)


def _as_written(definition: dict[str, Any], job: Job, datasets: Mapping[str, Dataset]) -> dict[str, Any]:
    """What determines the data of a job, with the start of partitions as people write it."""
    outputs = []
    for output, declared in zip(definition["outputs"], job.outputs, strict=True):
        if "partitions" in output:
            start = _start(datasets[declared.dataset_id].partitions)
            output = {**output, "partitions": {**output["partitions"], "start": start}}
        outputs.append(output)
    return {**definition, "outputs": outputs}


def _changes(old: Any, new: Any, path: str = "") -> Iterator[FieldChange]:
    """Every leaf that differs. Lists of equal length are compared item by item, columns by name, others as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            name = f"{path}.{key}" if path else key
            if key in old and key in new:
                yield from _changes(old[key], new[key], name)
            else:
                yield FieldChange(
                    name, _json(old[key]) if key in old else None, _json(new[key]) if key in new else None
                )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(before, after, f"{path}[{index}]")
    elif path.endswith("].columns") and path.startswith("outputs[") and old and new:
        yield from _changes({c["name"]: c for c in old}, {c["name"]: c for c in new}, path)
    elif _json(old) != _json(new):  # by their text, since 1 == True in Python
        yield FieldChange(path, _json(old), _json(new))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


_CONFIG_FIELD = re.compile(r"(config\.[A-Za-z_]\w{0,63})(?:[.\[].*)?", re.DOTALL)
_WHERE = re.compile(r"(inputs\[\d+\]\.where)(?:\..*)?", re.DOTALL)


def changed_fields(changes: Iterable[FieldChange]) -> list[str]:
    """Names of the changed fields that are safe to log: a key in a config may be somebody's address."""
    return list(dict.fromkeys(_name_of_hidden(change.field) or change.field for change in changes))


def _name_of_hidden(field: str) -> str | None:
    """The name to show for a field whose value is hidden; None if its value is public."""
    if field == "inputs":
        return field  # as a whole, including its filter values
    if (match := _CONFIG_FIELD.fullmatch(field) or _WHERE.fullmatch(field)) is not None:
        return match[1]
    return "config" if field.partition(".")[0] == "config" else None


def render(plan: Plan) -> str:
    """The plan for people: `+` added, `~` changed in place, `-/+` rebuilt, `-` removed, `!` worth a second look."""
    if plan.is_noop:
        return f"DAG {plan.dag}: no changes; version {plan.base_version} matches the file.\n"
    base = "new" if plan.base_version is None else f"changes to version {plan.base_version}"
    lines = [f"DAG {plan.dag}: {base}", *_field_lines(plan.dag_changes), ""]
    lines += [f"+ job {_label(job)}" for job in plan.added]
    for changed in plan.execution_changed:
        lines += [f"~ job {_label(changed.job)}: in place", *_field_lines(changed.changes)]
    for rebuilt in plan.rebuilt:
        lines += [f"-/+ job {_label(rebuilt.job)}: rebuilt, {_reason(rebuilt)}"]
        changes = rebuilt.changes + rebuilt.execution_changes
        if rebuilt.job.operator == EVALUATE:
            changes = tuple(map(_changed_part, changes))
        lines += _field_lines(changes)
    lines += [f"- job {_label(job)}" for job in plan.removed]
    lines += [f"+ dataset {dataset_id}" for dataset_id in plan.datasets_added]
    for dataset in plan.datasets_changed:
        lines += [f"~ dataset {dataset.dataset_id}", *_field_lines(dataset.changes)]
    lines += [f"- dataset {dataset_id}" for dataset_id in plan.datasets_removed]
    lines += [
        f"! dataset {d.dataset_id}: the column {d.column} is declassified: {d.reason}"
        for d in plan.declassified
    ]
    counts = (
        (len(plan.added), "to add"),
        (len(plan.execution_changed), "to change in place"),
        (len(plan.rebuilt), "to rebuild"),
        (len(plan.removed), "to remove"),
        (len(plan.unchanged), "unchanged"),
    )
    return "\n".join(
        [*lines, "", "Jobs: " + ", ".join(f"{count} {what}" for count, what in counts) + ".", ""]
    )


def _changed_part(change: FieldChange) -> FieldChange:
    """Of the query of an alert, the lines that differ: the platform wrote most of it."""
    if change.field != "config.query" or change.old is None or change.new is None:
        return change
    old, new = json.loads(change.old).splitlines(), json.loads(change.new).splitlines()
    gone = " ".join(line.strip() for line in old if line not in new)
    added = " ".join(line.strip() for line in new if line not in old)
    shown = [json.dumps(part, ensure_ascii=False) for part in (gone, added)]
    return replace(change, old=shown[0], new=shown[1])


def _label(job: Job) -> str:
    if job.operator in (EVALUATE, ROUTE):
        return f"{job.name} ({job.operator} of the alert {job.generated_for})"
    if job.generated_for is not None:
        operator = catalog.find(job.operator)
        why = ": Bulk" if operator is not None and operator.groups else ""
        return f"{job.name} ({job.operator} generated for {job.generated_for}{why})"
    return f"{job.name} ({job.runtime}: {job.operator})"


def _reason(rebuilt: Rebuilt) -> str:
    own = ["its definition changed"] if rebuilt.changes else []
    upstream = [f"downstream of {', '.join(rebuilt.downstream_of)}"] if rebuilt.downstream_of else []
    return " and ".join(own + upstream) or "its fingerprint changed"


def _field_lines(changes: tuple[FieldChange, ...]) -> list[str]:
    lines = []
    for change in changes:
        if change.old is None and change.new is None:
            lines.append(f"      {change.field}")
        else:
            lines.append(f"      {change.field}: {change.old or '(unset)'} → {change.new or '(unset)'}")
    return lines
