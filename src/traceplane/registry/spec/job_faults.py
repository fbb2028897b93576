"""Faults that are found only after a DAG file is read, located in its text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from traceplane.errors import InvalidInput, SpecInvalid
from traceplane.registry.spec.yaml_reader import Problems, compose, entries
from traceplane.sql import virtual


@dataclass(frozen=True, slots=True)
class JobFault:
    """A fault in a job's code, SQL or config that is found only after the file is read."""

    code: str
    at: tuple[str, ...]
    """The job, and the path of fields to the fault."""
    message: str
    suggestion: str | None = None


class RefusedJob(InvalidInput):
    """A fault that is found where the file is not at hand."""

    def __init__(
        self, code: str, message: str, *, value: object, next_step: str | None, at: tuple[str, ...]
    ) -> None:
        super().__init__(code, message, value=value, next_step=next_step)
        self.at = at
        """As of a `JobFault`."""


def placed(faults: Iterable[JobFault], text: str, file: str) -> SpecInvalid | None:
    """The faults as problems of the parsed file, each located at its value; None if there are none."""
    problems = Problems(file)
    if faults := list(faults):
        jobs = _jobs(compose(text))
        for fault in faults:
            job, *fields = fault.at
            problems.add(fault.code, _at(jobs[job], fields), fault.message[:500], fault.suggestion)
    return problems.invalid() if problems else None


def place_of_fault(at: tuple[str, ...], text: str, file: str) -> str | None:
    """Where the value is that a fault is about, as file:line:column."""
    job, *fields = at
    node = _jobs(compose(text)).get(job)
    return None if node is None else _place(_at(node, fields), file)


def _jobs(root: yaml.Node) -> dict[str, yaml.Node]:
    """With the alerts."""
    return {
        name: job
        for declared in ("alerts", "jobs")
        for job in _inside(root, declared)
        for name in _texts(job, "name")
    }


def _at(node: yaml.Node, fields: Iterable[str]) -> yaml.Node:
    """As far as there is such a field."""
    for name in fields:
        node = next(iter(_values(node, name)), node)
    return node


def place_of_input(dataset_id: str, text: str, file: str) -> str | None:
    """Where a DAG file reads a dataset, as a job's input, in an alert or in the SQL of a virtual dataset, as
    file:line:column."""
    root = compose(text)
    named = (
        node
        for node in itertools.chain(
            (
                node
                for job in _inside(root, "jobs")
                for used in _inside(job, "inputs")
                for origin in _values(used, "from")
                for node in _values(origin, "dataset")
            ),
            (node for alert in _inside(root, "alerts") for node in _values(alert, "dataset")),
        )
        if node.value == dataset_id
    )
    in_sql = (
        node
        for datasets in _values(root, "datasets")
        for _, dataset in datasets.value
        for node in _values(dataset, "sql")
        if dataset_id in virtual.reads(node.value)
    )
    for node in itertools.chain(named, in_sql):
        return _place(node, file)
    return None


def place_of_partitions(dataset_id: str, text: str, file: str) -> str | None:
    """Where a DAG file declares how a dataset is partitioned."""
    for datasets in _values(compose(text), "datasets"):
        for dataset in _values(datasets, dataset_id):
            for node in _values(dataset, "partitions"):
                return _place(node, file)
    return None


def _place(node: yaml.Node, file: str) -> str:
    return f"{file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _values(node: yaml.Node, name: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return []
    entry = entries(Problems(""), node).get(name)
    return [] if entry is None else [entry[1]]


def _inside(node: yaml.Node, name: str) -> list[yaml.Node]:
    return [item for value in _values(node, name) for item in value.value]


def _texts(node: yaml.Node, name: str) -> list[str]:
    return [value.value for value in _values(node, name) if isinstance(value, yaml.ScalarNode)]
