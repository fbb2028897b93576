"""Whether what tasks produced fits what their datasets hold; asked before anything of it is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from traceplane.model.dataset_schema import Incompatible, Schema, merge, undeclared, written_twice
from traceplane.postgres import commits, generation_schemas
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction


async def refuse_misfits(
    tx: Transaction, produced: Mapping[UUID, Sequence[OutputCommit]]
) -> dict[UUID, dict[str, Any]]:
    """The error of each task whose outputs do not fit; the schemas of the others are merged and kept."""
    wanted = {o.generation_id for outputs in produced.values() for o in outputs if o.schema is not None}
    if not wanted:
        return {}
    stored = await generation_schemas.load(tx, sorted(wanted))
    produced, errors = await _without_overlaps(tx, produced, stored)
    merged = {generation: known.schema for generation, known in stored.items()}
    for task_id, outputs in produced.items():
        trial = dict(merged)
        for output in outputs:
            if output.schema is None:
                continue
            known = stored[output.generation_id]
            if (column_name := written_twice(output.schema)) is not None:
                errors[task_id] = _twice(known.dataset_id, column_name)
                break
            if known.position is not None and known.position not in {column.name for column in output.schema}:
                errors[task_id] = _no_position(known.dataset_id, known.position)
                break
            if known.declared and (misfit := undeclared(known.declared, output.schema, _nulls(output))):
                errors[task_id] = _undeclared_error(known.dataset_id, misfit)
                break
            match merge(trial[output.generation_id], output.schema):
                case Incompatible() as misfit:
                    errors[task_id] = _error(stored[output.generation_id].dataset_id, misfit)
                    break
                case schema:
                    trial[output.generation_id] = schema
        else:
            merged = trial
    changed: dict[UUID, tuple[Schema, int]] = {
        generation: (schema, stored[generation].revision)
        for generation, schema in merged.items()
        if schema is not None and schema != stored[generation].schema
    }
    if changed:
        await generation_schemas.save(tx, changed)
    return errors


def _nulls(output: OutputCommit) -> dict[str, int]:
    """How many nulls each column has, as far as its files tell."""
    counted: dict[str, int] = {}
    for file in output.files:
        for name, bounds in (file.get("statistics") or {}).items():
            counted[name] = counted.get(name, 0) + (bounds.get("null_count") or 0)
    return counted


def _undeclared_error(dataset_id: str, misfit: Incompatible) -> dict[str, Any]:
    return {
        "code": "commit.not_as_declared",
        "message": f"dataset {dataset_id}, column {misfit.column}: {misfit.found} in this output, "
        f"{misfit.known} in the DAG file",
        "value": misfit.column,
        "next_step": "correct the operator and retry the task, or declare the column in the DAG file as it is",
        "retryable": False,
    }


async def _without_overlaps(
    tx: Transaction,
    produced: Mapping[UUID, Sequence[OutputCommit]],
    stored: Mapping[UUID, generation_schemas.StoredSchema],
) -> tuple[Mapping[UUID, Sequence[OutputCommit]], dict[UUID, dict[str, Any]]]:
    """Rows without a position cannot be told apart within a scope: a commit that cuts through another is refused."""
    doubtful = [
        o
        for outputs in produced.values()
        for o in outputs
        if o.replaces
        and (known := stored.get(o.generation_id)) is not None
        and known.position is None
        and (known.widest or o.end > o.start)
    ]
    if not doubtful:
        return produced, {}
    errors = {
        o.task_id: _overlap(stored[o.generation_id].dataset_id, o)
        for o in await commits.overlapping(tx, doubtful)
    }
    return {task_id: outputs for task_id, outputs in produced.items() if task_id not in errors}, errors


def _overlap(dataset_id: str, output: OutputCommit) -> dict[str, Any]:
    scope = output.partition_key or str(output.start)
    return {
        "code": "commit.scope_overlaps",
        "message": f"dataset {dataset_id} has rows of a scope that overlaps {scope} and reaches beyond it, and no "
        "column says to which position a row belongs",
        "value": scope,
        "next_step": "name that column as the dataset's position in the DAG file, or compute the wider scope again",
        "retryable": False,
    }


def _twice(dataset_id: str, column: str) -> dict[str, Any]:
    return {
        "code": "commit.duplicate_column",
        "message": f"dataset {dataset_id}: this output has two columns named {column}",
        "value": column,
        "next_step": "give each column a name of its own, then deploy or retry the task",
        "retryable": False,
    }


def _no_position(dataset_id: str, position: str) -> dict[str, Any]:
    return {
        "code": "commit.position_missing",
        "message": f"dataset {dataset_id}: its rows lack the column {position}, which says where they belong",
        "value": position,
        "next_step": "write the column, or take position from the dataset in the DAG file and deploy",
        "retryable": False,
    }


def _error(dataset_id: str, misfit: Incompatible) -> dict[str, Any]:
    return {
        "code": "commit.schema_incompatible",
        "message": f"dataset {dataset_id}, column {misfit.column}: {misfit.known} in what is committed, "
        f"{misfit.found} in this output",
        "value": misfit.column,
        "next_step": "write the column as it was and retry the task, or deploy the job under another dataset id",
        "retryable": False,
    }
