"""The stored form of a job: what SQL names of it exists, and what earlier deploys stored can still be read."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from traceplane.model.dag import ExecutionStrategy, Input, UpdateStrategy
from traceplane.model.job_definition import InputView, JobDefinition, VirtualInputs

_POSTGRES = Path(str(resources.files("traceplane.postgres")))
_JOBS_DEFINITION = re.compile(r"\b[jp]\.definition\s*((?:(?:->>?|\?)\s*'\w+'\s*)+)")
_OF_DATASETS = {"pinned.sql"}
"""There `p` is a dataset."""
_FREE = {"config"}
"""Below it the keys are an operator's own."""


def _paths() -> dict[tuple[str, ...], str]:
    """Every path into `jobs.definition` that a statement or a migration names."""
    paths = {}
    for file in sorted((*_POSTGRES.glob("sql/*.sql"), *_POSTGRES.glob("migrations/*.sql"))):
        text = "" if file.name in _OF_DATASETS else file.read_text()
        for keys in _JOBS_DEFINITION.findall(text):
            paths[tuple(re.findall(r"'(\w+)'", keys))] = file.name
    return paths


def test_sql_names_only_keys_that_a_definition_has() -> None:
    paths = _paths()
    assert {
        ("virtual",),
        ("virtual", "datasets"),
        ("update_strategy",),
    } <= paths.keys()
    for (key, *below), file in paths.items():
        assert key in {f.name for f in fields(JobDefinition)}, f"{file}: {key}"
        if below and key not in _FREE:
            assert key == "virtual", f"{file}: {key} has no fields"
            assert below[0] in {f.name for f in fields(VirtualInputs)}, f"{file}: {key}.{below[0]}"


_FIRST = {
    "config": {"size": 10},
    "execution_strategy": "PerUpdate",
    "update_strategy": "append",
    "unique_key": ["id"],
    "generated_for": None,
}
_VIRTUAL = {
    "inputs": [{"name": "in", "dataset_id": "big", "where": {"n": 1}, "columns": ["n"]}],
    "datasets": ["big"],
    "own": {"big": "select n from a"},
    "views": [{"name": "tp_d0", "sql": "select n from a", "reads": {"a": "#0"}}],
    "given": {"in": "tp_d0"},
}
_DEFINITION = JobDefinition(
    config={"size": 10},
    execution_strategy=ExecutionStrategy.PER_UPDATE,
    update_strategy=UpdateStrategy.APPEND,
    unique_key=("id",),
)
_VIEW = InputView("tp_d0", "select n from a", {"a": "#0"})


@pytest.mark.parametrize(
    ("stored", "definition"),
    [
        (_FIRST, _DEFINITION),
        ({**_FIRST, "code_bundle": "ab"}, replace(_DEFINITION, code_bundle="ab")),
        (
            {**_FIRST, "history": 250, "needs_emission": True, "package": "p 1"},
            replace(_DEFINITION, history=250, needs_emission=True, package="p 1"),
        ),
        ({**_FIRST, "views": _VIRTUAL["views"]}, replace(_DEFINITION, views=(_VIEW,))),
        (
            {**_FIRST, "virtual": _VIRTUAL},
            replace(
                _DEFINITION,
                virtual=VirtualInputs(
                    inputs=(Input("in", "big", {"n": 1}, ("n",)),),
                    datasets=("big",),
                    own={"big": "select n from a"},
                    views=(_VIEW,),
                    given={"in": "tp_d0"},
                ),
            ),
        ),
    ],
    ids=["the first form", "with code", "with facts of its operator", "a query", "with virtual inputs"],
)
def test_definitions_that_earlier_versions_stored_can_be_read(
    stored: dict[str, object], definition: JobDefinition
) -> None:
    assert msgspec.convert(stored, JobDefinition) == definition
