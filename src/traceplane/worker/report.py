"""What is reported to the dispatcher about an attempt: pure functions from how it ended to its completion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from traceplane.errors import TraceplaneError, UserError
from traceplane.model.checks import Severity
from traceplane.model.hidden_values import HiddenValues
from traceplane.operators.spec import OperatorSpec
from traceplane.sandbox.assignment import OutputResult, RunResult
from traceplane.sandbox.frames import EmittedEvent, Failure
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import (
    LONGEST_LOG,
    ColumnSchema,
    ColumnStatistics,
    Completion,
    EventOut,
    FailedCheck,
    OutputManifest,
    StagedFile,
    TaskError,
)
from traceplane.worker.held_task import HeldTask

_LONGEST_VALUE = 500
_TEXTS_OF_ERROR = ("message", "value", "next_step", "type", "traceback", "file", "logs")
_LONGEST_MESSAGE = 2_000
_SPARK_LOST = "operator.spark_lost"
NOT_WORTH_A_RETRY = frozenset(
    {
        "operator.input_schema_unknown",
        "operator.input_unknown",
        "operator.misconfigured",
        "operator.no_entrypoint",
        "operator.output_unknown",
        "operator.result_invalid",
        "operator.schema_mixed",
        "operator.unknown",
        "operator.value_does_not_fit",
        "operator.wrong_parameters",
    }
)


def completion(
    held: HeldTask,
    status: Literal["completed", "failed", "canceled", "returned"],
    traceparent: str | None,
    **fields: Any,
) -> Completion:
    task = held.task
    return Completion(
        task.task_id,
        task.attempt,
        task.lease_token,
        status=status,
        traceparent=traceparent,
        seen_commit=task.seen_commit,
        **fields,
    )


def completion_of_result(
    held: HeldTask,
    result: RunResult,
    outputs: Sequence[OutputManifest],
    log_lines: list[str],
    traceparent: str | None,
) -> Completion:
    """`outputs` are already in the object store."""
    log = result.log_tail[-LONGEST_LOG:]
    if result.error is not None:
        error = _error_of_failure(held, result.error, log_lines)
        return completion(held, "failed", traceparent, error=error, log=log)
    if lost := _lost_rows(held, result):
        return completion(held, "failed", traceparent, error=lost)
    if blocked := blocked_by(held, result):
        return completion(held, "failed", traceparent, error=_check_failed(held, blocked), log=log)
    return completion(
        held,
        "completed",
        traceparent,
        outputs=outputs,
        events=events_of(result.events),
        hot_reads=held.local.reads if _moves_rows(held) else [],
        log=log,
    )


def blocked_by(held: HeldTask, result: RunResult) -> list[FailedCheck]:
    """The failed checks because of which nothing is committed."""
    return _failed_checks(held, result.outputs, Severity.BLOCK)


def _failed_checks(held: HeldTask, outputs: Sequence[OutputResult], severity: Severity) -> list[FailedCheck]:
    failed = []
    for output in outputs:
        broken = {check.name: check for check in output.broken_checks}
        for check in held.job.outputs[output.output_index].checks:
            if check.severity is severity and (found := broken.get(check.name)) is not None:
                problem = check.problem(found.rows, found.error)[:_LONGEST_MESSAGE]
                failed.append(FailedCheck(output.output_index, check.name, problem, found.rows, found.sample))
    return failed


def _check_failed(held: HeldTask, failed: Sequence[FailedCheck]) -> TaskError:
    by_dataset: dict[str, list[str]] = {}
    for check in failed:
        dataset_id = held.job.outputs[check.output_index].dataset_id
        by_dataset.setdefault(dataset_id, []).append(f"{check.check}: {check.problem}")
    message = ". ".join(f"Dataset {name}: {'; '.join(said)}" for name, said in by_dataset.items())
    message = f"{message[0].lower()}{message[1:]}"[:_LONGEST_MESSAGE]
    return TaskError("check.failed", message, failed_checks=list(failed), retryable=False)


def completion_of_error(held: HeldTask, error: TraceplaneError, traceparent: str | None) -> Completion:
    """For an attempt that the platform could not finish."""
    message = (
        error.message if error.value is None else f"{error.message}: {str(error.value)[:_LONGEST_VALUE]}"
    )
    failure = TaskError(error.code, message, retryable=not isinstance(error, UserError))
    return completion(held, "failed", traceparent, error=failure)


def completion_without_secrets(held: HeldTask, traceparent: str | None) -> Completion:
    """For a task that may not have the secrets of its job. It is retried: somebody may set them."""
    error = TaskError("secret.denied", f"the task cannot run without a secret: {held.job.secret_denied}")
    return completion(held, "failed", traceparent, error=error)


def without(hidden: HiddenValues, reported: Completion) -> Completion:
    """The completion with nothing in its texts that must not be seen."""
    error = reported.error
    if error is not None:
        texts = {name: hidden.without(getattr(error, name)) for name in _TEXTS_OF_ERROR}
        error = structs.replace(error, **texts, failed_checks=_without(hidden, error.failed_checks))
    outputs = [
        structs.replace(output, failed_checks=_without(hidden, output.failed_checks))
        for output in reported.outputs
    ]
    return structs.replace(reported, error=error, outputs=outputs, log=hidden.without(reported.log))


def _without(hidden: HiddenValues, failed: Sequence[FailedCheck]) -> list[FailedCheck]:
    return [structs.replace(check, sample=hidden.without(check.sample)) for check in failed]


def completion_of_refusal(held: HeldTask, refused: Completion, refusal: TraceplaneError) -> Completion:
    """For an attempt whose report the dispatcher does not accept, because of the operator's part in it."""
    message = f"the dispatcher refused the report: {refusal.message}"
    error = TaskError("operator.result_invalid", message[:_LONGEST_MESSAGE], retryable=False)
    return completion(held, "failed", refused.traceparent, error=error, log=refused.log)


def _error_of_failure(held: HeldTask, failure: Failure, log_lines: list[str]) -> TaskError:
    hint = failure.hint
    if failure.code == _SPARK_LOST and held.spark is not None:
        hint = held.spark.last_end
    return TaskError(
        code=failure.code,
        message=failure.message if hint is None else f"{failure.message} ({hint})",
        type=failure.type,
        traceback=failure.traceback,
        file=failure.file,
        line=failure.line,
        logs=log_lines,
        retryable=failure.code not in NOT_WORTH_A_RETRY and not _is_permanent(held.operator, failure.code),
    )


def _lost_rows(held: HeldTask, result: RunResult) -> TaskError | None:
    """Compacted rows may be deleted from their source, so none may be missing from the written files."""
    read, written = sum(held.local.rows.values()), sum(output.row_count for output in result.outputs)
    filtered = any(i.where for i in held.job.inputs)
    if not _moves_rows(held) or not held.local.rows or filtered or read == written:
        return None
    return TaskError("compact.rows_differ", f"{read} rows were read and {written} written")


def events_of(events: Sequence[EmittedEvent]) -> list[EventOut]:
    return [
        EventOut(
            event.output_index,
            Scope(event.scope.cursor, event.scope.partition_key, event.scope.start, event.scope.end),
            event.kind,
            event.emission,
        )
        for event in events
    ]


def _is_permanent(operator: OperatorSpec | None, code: str) -> bool:
    return operator is not None and any(e.code == code and not e.retried for e in operator.errors)


def _moves_rows(held: HeldTask) -> bool:
    """Whether the rows it reads may be deleted once it is committed, so that it must write exactly those."""
    return held.operator is not None and held.operator.deletion_field is not None


def manifests(held: HeldTask, result: RunResult) -> list[OutputManifest]:
    """The content of each output for the task's scope. Empty for a source: its run has no scope, only events."""
    if held.task.scope is None:
        return []
    return [_manifest(held, index, result) for index in range(len(held.job.outputs))]


def _manifest(held: HeldTask, index: int, result: RunResult) -> OutputManifest:
    """An output that got no rows is committed as empty."""
    scope, ref = held.task.scope, held.job.outputs[index]
    assert scope is not None
    output = next((o for o in result.outputs if o.output_index == index), None)
    if output is None:
        return OutputManifest(ref.output_index, ref.dataset_uuid, ref.dataset_version, scope)
    prefix = held.task.write_prefixes[index]
    return OutputManifest(
        output_index=ref.output_index,
        dataset_uuid=ref.dataset_uuid,
        dataset_version=ref.dataset_version,
        scope=scope,
        files=[
            StagedFile(
                prefix + Path(f.path).name,
                f.rows,
                f.bytes,
                {name: ColumnStatistics(b.min, b.max, b.null_count) for name, b in f.statistics.items()},
            )
            for f in output.files
        ],
        row_count=output.row_count,
        bytes=output.bytes,
        schema_hash=output.schema_hash,
        schema=[ColumnSchema(c.name, c.type, c.nullable) for c in output.columns] or None,
        failed_checks=_failed_checks(held, [output], Severity.WARN),
    )
