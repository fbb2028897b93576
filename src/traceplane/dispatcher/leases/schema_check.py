"""Whether the outputs of tasks fit their datasets; checked before anything is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from traceplane.model.dataset_schema import Incompatible, Schema, merge, same_in_sql, undeclared
from traceplane.model.row_positions import PositionColumn
from traceplane.postgres import commits, generation_schemas
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction
from traceplane.wire.tasks import TaskError


async def refuse_misfits(
    tx: Transaction, produced: Mapping[UUID, Sequence[OutputCommit]]
) -> dict[UUID, TaskError]:
    """The error of each task whose outputs do not fit; the schemas of the others are merged and kept."""
    generations = {o.generation_id for outputs in produced.values() for o in outputs if o.schema is not None}
    if not generations:
        return {}
    stored = await generation_schemas.load(tx, sorted(generations))
    produced, errors = await _without_overlaps(tx, produced, stored)
    merged = {generation: current.schema for generation, current in stored.items()}
    for task_id, outputs in produced.items():
        trial = dict(merged)
        for output in outputs:
            if output.schema is None:
                continue
            current = stored[output.generation_id]
            if (names := same_in_sql(trial[output.generation_id], output.schema)) is not None:
                errors[task_id] = _twice(current.dataset_id, *names)
                break
            if current.position is not None and current.position not in {
                column.name for column in output.schema
            }:
                errors[task_id] = _no_position(current.dataset_id, current.position)
                break
            column = current.position_column(tuple(output.schema))
            if column is not None and (
                problem := _unfit_position(current.dataset_id, column)
                or _outside_scope(current.dataset_id, column, output)
            ):
                errors[task_id] = problem
                break
            if current.declared and (misfit := undeclared(current.declared, output.schema, _nulls(output))):
                errors[task_id] = _undeclared_error(current.dataset_id, misfit)
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
    """How many nulls each column has, according to the statistics of its files."""
    counted: dict[str, int] = {}
    for file in output.files:
        for name, statistics in (file.statistics or {}).items():
            counted[name] = counted.get(name, 0) + (statistics.null_count or 0)
    return counted


def _undeclared_error(dataset_id: str, misfit: Incompatible) -> TaskError:
    return TaskError(
        "commit.not_as_declared",
        f"dataset {dataset_id}, column {misfit.column}: {misfit.actual} in this output, "
        f"{misfit.expected} in the DAG file",
        value=misfit.column,
        next_step=misfit.next_step
        or "correct the operator and retry the task, or declare the column in the DAG file as it is",
        retryable=False,
    )


async def _without_overlaps(
    tx: Transaction,
    produced: Mapping[UUID, Sequence[OutputCommit]],
    stored: Mapping[UUID, generation_schemas.StoredSchema],
) -> tuple[Mapping[UUID, Sequence[OutputCommit]], dict[UUID, TaskError]]:
    """Without a position column, part of a scope cannot be replaced, so a commit that partly overlaps another is
    refused."""
    doubtful = [
        o
        for outputs in produced.values()
        for o in outputs
        if o.replaces
        and (current := stored.get(o.generation_id)) is not None
        and current.position is None
        and (current.widest or o.end > o.start)
    ]
    if not doubtful:
        return produced, {}
    errors = {
        o.task_id: _overlap(stored[o.generation_id].dataset_id, o)
        for o in await commits.overlapping(tx, doubtful)
    }
    return {task_id: outputs for task_id, outputs in produced.items() if task_id not in errors}, errors


def _overlap(dataset_id: str, output: OutputCommit) -> TaskError:
    scope = output.partition_key or str(output.start)
    return TaskError(
        "commit.scope_overlaps",
        f"dataset {dataset_id} has rows of a scope that overlaps {scope} and extends beyond it, and no "
        "column holds the position of a row",
        value=scope,
        next_step="name such a column as the dataset's position in the DAG file, or recompute the wider scope",
        retryable=False,
    )


def _twice(dataset_id: str, one: str, other: str) -> TaskError:
    same = f"two columns named {other}" if one == other else f"the columns {one} and {other}"
    return TaskError(
        "commit.duplicate_column",
        f"dataset {dataset_id}: with this output it has {same}, which SQL cannot tell apart",
        value=other,
        next_step="give each column its own name, or spell it as before, then deploy or retry the task",
        retryable=False,
    )


def _outside_scope(dataset_id: str, column: PositionColumn, output: OutputCommit) -> TaskError | None:
    """Readers look for rows of a position only in commits whose scope has it."""
    for file in output.files:
        statistics = (file.statistics or {}).get(column.name)
        if statistics is None:
            continue
        outside = [
            value
            for value in (statistics.min, statistics.max)
            if value is not None and not column.has((output.start, output.end), value)
        ]
        if outside or statistics.null_count:
            value = str(outside[0]) if outside else "null"
            return TaskError(
                "commit.position_out_of_scope",
                f"dataset {dataset_id}, column {column.name}: a row has the position {value}, which is not in the "
                f"task's scope {output.partition_key or output.start}{_extent(column, output)}",
                value=value,
                next_step="write only rows of the task's scope, then deploy or retry the task",
                retryable=False,
            )
    return None


def _extent(column: PositionColumn, output: OutputCommit) -> str:
    """What a scope means for the column, unless its name says so."""
    first, end = column.values((output.start, output.end))
    if isinstance(first, str) or isinstance(end, str):
        return f", from {first} until before {end}"
    return f", positions {output.start} to {output.end}" if output.end > output.start else ""


def _unfit_position(dataset_id: str, column: PositionColumn) -> TaskError | None:
    if column.misfit is None:
        return None
    return TaskError(
        "commit.position_missing",
        f"dataset {dataset_id}: the position column {column.name} is {column.type}, but {column.misfit}",
        value=column.name,
        next_step="write the column with another type, or name another position in the DAG file and deploy",
        retryable=False,
    )


def _no_position(dataset_id: str, position: str) -> TaskError:
    return TaskError(
        "commit.position_missing",
        f"dataset {dataset_id}: the rows lack the position column {position}",
        value=position,
        next_step="write the column, or remove position from the dataset in the DAG file and deploy",
        retryable=False,
    )


def _error(dataset_id: str, misfit: Incompatible) -> TaskError:
    return TaskError(
        "commit.schema_incompatible",
        f"dataset {dataset_id}, column {misfit.column}: {misfit.expected} in the committed data, "
        f"{misfit.actual} in this output",
        value=misfit.column,
        next_step="write the column as it was and retry the task, or deploy the job under another dataset id",
        retryable=False,
    )
