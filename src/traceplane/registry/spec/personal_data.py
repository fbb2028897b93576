"""Personal data, and who may read and write datasets, as a DAG file says it."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from traceplane.model.dag import Job, Storage
from traceplane.model.near_names import near
from traceplane.operators import catalog
from traceplane.registry.spec.jobs import Draft
from traceplane.registry.spec.yaml_reader import Problems, YamlMap, entries

Roles = tuple[str, ...] | None


def check(problems: Problems, top: YamlMap, drafts: list[Draft]) -> None:
    declared: dict[str, YamlMap | None] = top.get("datasets") or {}
    for dataset in declared.values():
        for column in (dataset.get("columns") if dataset is not None else None) or ():
            _check_declassified(problems, column, virtual=dataset.has("storage", Storage.VIRTUAL))  # type: ignore[union-attr]
    for draft in drafts:
        if draft.record.get("lineage"):
            _check_lineage(problems, draft, declared)


def _check_declassified(problems: Problems, column: YamlMap, *, virtual: bool) -> None:
    if column.lacks("declassified"):
        return
    if column.get("pii"):
        message = "a column is either personal data or declassified"
        problems.add(
            "spec.bad_declassified", column.at("declassified"), message, "remove pii or declassified"
        )
    elif virtual:
        message = "only a job declassifies: the rows of a virtual dataset are those that it reads"
        suggestion = "let a job write the column, and declassify it there"
        problems.add("spec.bad_declassified", column.at("declassified"), message, suggestion)


def _check_lineage(problems: Problems, draft: Draft, declared: Mapping[str, YamlMap | None]) -> None:
    operator = catalog.find(draft.record.get("operator") or "")
    if operator is not None and (operator.query_field is not None or operator.columns_from is not None):
        message = f"the platform knows what columns of {operator.name} are computed from"
        problems.add("spec.bad_lineage", draft.record.at("lineage"), message, "remove lineage")
        return
    outputs = {output.name: _columns(declared.get(output.dataset_id)) for output, _ in draft.outputs}
    inputs = {used.name: _columns(declared.get(used.dataset_id)) for used, _ in draft.inputs}
    for name, (key, sources) in entries(problems, draft.record.at("lineage")).items():
        written = next(iter(outputs.values())) if len(outputs) == 1 else None
        if len(outputs) == 1:
            if written and name not in written:
                message = f"the output has no column {name[:100]!r}"
                problems.add("spec.unknown_column", key, message, near(name, written))
        else:
            _check_place(problems, key, name, outputs, "output")
        for node in sources.value if isinstance(sources, yaml.SequenceNode) else ():
            # A source that has an operator reads what the platform keeps of its events, which it does not list.
            if isinstance(node, yaml.ScalarNode) and inputs:
                _check_place(problems, node, node.value, inputs, "input")


def _check_place(
    problems: Problems, node: yaml.Node, place: str, known: Mapping[str, list[str]], what: str
) -> None:
    """A column with the name of its input or output before it. Both may contain dots."""
    columns = [columns for name, columns in known.items() if place.startswith(f"{name}.")]
    if not columns:
        message = f"{place[:100]!r} names no {what} of the job and a column of it"
        problems.add("spec.bad_lineage", node, message, f"write {next(iter(known), what)}.column")
        return
    fitting = [
        name
        for name, columns in known.items()
        if place.startswith(f"{name}.") and (not columns or place.removeprefix(f"{name}.") in columns)
    ]
    if not fitting:
        message = f"the {what} has no column {place.rpartition('.')[2][:100]!r}"
        problems.add("spec.unknown_column", node, message, near(place.rpartition(".")[2], columns[0]))


def _columns(dataset: YamlMap | None) -> list[str]:
    """Empty if they are not known here."""
    columns = [column.get("name") for column in dataset.get("columns") or ()] if dataset is not None else []
    return [] if None in columns else columns


# --- roles ------------------------------------------------------------------------------------------


class DatasetRoles:
    """Who may read and write each dataset of a file: what it says itself, or else what the file says.

    A dataset that was added for a job, such as the deliveries of a webhook source, has the roles of what the job
    writes first; the rows that an alert found have those of the dataset that it is about. If that
    is a dataset of another file, its readers are looked up when somebody reads the rows (`Dataset.readers_of`).
    """

    def __init__(self, top: YamlMap, drafts: list[Draft], sources: Mapping[str, str]) -> None:
        """`sources`: what datasets of alerts are about."""
        self._top = top
        self._sources = sources
        self._declared: dict[str, YamlMap | None] = top.get("datasets") or {}
        self._first_output = {draft.name: draft.outputs[0][0].dataset_id for draft in drafts if draft.outputs}

    def of(self, dataset_id: str, producer: Job | None, field: str) -> Roles:
        if (meant := self._sources.get(dataset_id)) is None:
            meant = dataset_id
            if (
                dataset_id not in self._declared
                and producer is not None
                and producer.generated_for is not None
            ):
                meant = self._first_output.get(producer.generated_for, dataset_id)
        dataset = self._declared.get(meant)
        for record in (dataset, self._top):
            if record is not None and field in record.nodes:  # an empty list leaves it to admins
                return tuple(dict.fromkeys(record.get(field)))
        return None
