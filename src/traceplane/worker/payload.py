"""What the operator of a claimed task receives: a pure function of the claim and of local paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from traceplane.errors import InvalidInput
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.job_definition import InputView
from traceplane.model.runtimes import Runtime
from traceplane.model.scope import Partition
from traceplane.model.secret_texts import in_string
from traceplane.model.task_payload import (
    DeclaredOutput,
    Execution,
    OperatorInput,
    ResolvedInput,
    SparkAccess,
    TaskPayload,
)
from traceplane.operators.spec import OperatorSpec
from traceplane.sandbox.frames import RunLimits
from traceplane.secrets import references
from traceplane.secrets.references import SecretName
from traceplane.sql.spark_text import with_secrets
from traceplane.wire.tasks import ClaimedTask, ColumnSchema, JobPayload
from traceplane.worker.direct_store import Borrowed
from traceplane.worker.hot_inputs import LocalInputs
from traceplane.worker.store_on_disk import StoreOnDisk


def task_payload(
    task: ClaimedTask,
    job: JobPayload,
    store: StoreOnDisk,
    local: LocalInputs,
    spark: SparkAccess | None,
    *,
    query_field: str | None = None,
    borrowed: Borrowed | None = None,
) -> TaskPayload:
    """`query_field`: the field of the config that holds SQL. `borrowed`: what Spark's executors read and write
    themselves. Raises InvalidInput for secrets that cannot be put in."""
    scope = task.scope
    values = _secret_values(job)
    partition = None
    if scope is not None and scope.partition_key is not None:
        partition = Partition(scope.partition_key, scope.first, scope.last)
    return TaskPayload(
        cursor=scope.cursor if scope is not None else None,
        partition=partition,
        kind=task.kind,
        emission=task.emission,
        operator=job.operator,
        config={
            field: _query(value, values) if field == query_field else references.replaced(value, values)
            for field, value in job.config.items()
        },
        secrets={own: values[name] for own, name in _named(job)},
        unique_key=tuple(job.unique_key) if job.update_strategy == "append" else (),
        resume=tuple(task.resume),
        execution=_execution(task),
        spark=spark,
        inputs=_inputs(task, job, store, local, borrowed or Borrowed()),
        views=tuple(InputView(view.name, view.sql, view.reads) for view in job.views),
        given=tuple(ResolvedInput(i.name, i.view, i.where, tuple(i.columns)) for i in job.given),
        outputs=_outputs(task, job, store, borrowed or Borrowed()),
    )


def _query(query: Any, values: Mapping[SecretName, str]) -> Any:
    """The SQL was analyzed with its references, so values only become a part of its strings."""
    match query:
        case str() if references.found_in(query):
            try:
                return with_secrets(query, lambda string: references.replaced(string, values, in_string))
            except InvalidInput as error:
                raise InvalidInput("operator.misconfigured", f"{error.message}; {error.next_step}") from None
        case dict():
            return {output: _query(text, values) for output, text in query.items()}
        case _:
            return query


def _secret_values(job: JobPayload) -> dict[SecretName, str]:
    parsed = {references.parse_name(name): value for name, value in job.secrets.items()}
    return {name: value for name, value in parsed.items() if name is not None}


def _named(job: JobPayload) -> Iterator[tuple[str, SecretName]]:
    for own, text in job.secret_names.items():
        name = references.parse_name(text)
        assert name is not None, "checked when the DAG was deployed"
        yield own, name


def _inputs(
    task: ClaimedTask, job: JobPayload, store: StoreOnDisk, local: LocalInputs, borrowed: Borrowed
) -> tuple[OperatorInput, ...]:
    files_by_input = task.input_files or [[] for _ in job.inputs]
    schemas = task.input_schemas or [None for _ in job.inputs]
    inputs = []
    times_by_input = task.input_times or [None for _ in job.inputs]
    for number, (declared, files, columns, times) in enumerate(
        zip(job.inputs, files_by_input, schemas, times_by_input, strict=True)
    ):
        lent = borrowed.inputs.get(number)
        paths = store.input_paths(files)
        if lent is not None:
            paths = lent.paths
        elif number in local.files:
            paths = tuple(local.files[number])
        inputs.append(
            OperatorInput(
                declared.name,
                paths,
                where=declared.where,
                columns=_columns(columns or ()),
                select=tuple(declared.columns),
                position=declared.position,
                attached=local.attached.get(number, {}),
                kept={
                    path: tuple(file.kept)
                    for path, file in zip(paths, files, strict=number not in local.files)
                    if file.kept is not None
                },
                time_column=declared.time_column,
                times=times,
                access=lent.access if lent is not None else None,
                bytes=lent.bytes if lent is not None else None,
            )
        )
    return tuple(inputs)


def _outputs(
    task: ClaimedTask, job: JobPayload, store: StoreOnDisk, borrowed: Borrowed
) -> tuple[DeclaredOutput, ...]:
    existing = task.output_files or [[] for _ in job.outputs]
    return tuple(
        DeclaredOutput(
            declared.name,
            str(store.outputs / prefix),
            borrowed.existing.get(number) or store.input_paths(files),
            _columns(declared.columns),
            tuple(declared.checks),
            tuple(declared.cluster_by),
            borrowed.outputs.get(number),
        )
        for number, (declared, prefix, files) in enumerate(
            zip(job.outputs, task.write_prefixes, existing, strict=True)
        )
    )


def _columns(columns: Sequence[ColumnSchema]) -> tuple[SchemaColumn, ...]:
    return tuple(SchemaColumn(c.name, c.type, c.nullable) for c in columns)


def _execution(task: ClaimedTask) -> Execution | None:
    run = task.execution
    if run is None:
        return None
    return Execution(
        execution_id=str(task.task_id),
        pipeline_id=str(run.pipeline_id),
        pipeline=run.pipeline,
        user_id=run.user_id,
        parameters=run.parameters,
        signal=run.signal,
        scheduled_for=datetime.fromisoformat(run.scheduled_for) if run.scheduled_for is not None else None,
    )


def entrypoint_of(job: JobPayload, operator: OperatorSpec) -> str:
    return operator.entrypoint or str(job.config.get(operator.code_field or "", ""))


def run_limits(runtime: Runtime, job: JobPayload) -> RunLimits:
    """Those of the runtime. A job that requires more memory may use it: only workers that have it get its tasks."""
    limits = runtime.limits
    return RunLimits(
        memory_bytes=max(limits.memory_mb << 20, job.requires.memory),
        cpu_seconds=limits.cpu_seconds,
        open_files=limits.open_files,
        processes=limits.processes,
        file_bytes=limits.file_size_mb << 20,
    )
