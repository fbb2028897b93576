"""Faults of a job that are found only after its file is read, located in the text of the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from traceplane.errors import SpecInvalid
from traceplane.registry.spec.yaml_reader import Problems, compose, entries


@dataclass(frozen=True, slots=True)
class JobFault:
    """A fault in a job's code, SQL or config that is found only after the file is read."""

    code: str
    at: tuple[str, ...]
    """The job, and the path of fields to the fault."""
    message: str
    suggestion: str | None = None


def placed(faults: Iterable[JobFault], text: str, file: str) -> SpecInvalid | None:
    """The faults as problems of the parsed file, each located at its value; None if there are none."""
    problems = Problems(file)
    if faults := list(faults):
        root = compose(text)
        jobs = {name: job for job in _inside(root, "jobs") for name in _texts(job, "name")}
        for fault in faults:
            job, *fields = fault.at
            node = jobs[job]
            for name in fields:
                node = next(iter(_values(node, name)), node)
            problems.add(fault.code, node, fault.message[:500], fault.suggestion)
    return problems.invalid() if problems else None


def _values(node: yaml.Node, name: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return []
    entry = entries(Problems(""), node).get(name)
    return [] if entry is None else [entry[1]]


def _inside(node: yaml.Node, name: str) -> list[yaml.Node]:
    return [item for value in _values(node, name) for item in value.value]


def _texts(node: yaml.Node, name: str) -> list[str]:
    return [value.value for value in _values(node, name) if isinstance(value, yaml.ScalarNode)]
