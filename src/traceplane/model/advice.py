"""What to do about a task's error, and whether a retry can help.

The steps are those of docs/reference/errors.md, in the same words; a test keeps the two in sync. An error that only one
operator has is not listed here: its remedy is in the operator's spec. Whether a retry can
help depends on what has to be fixed: a job's definition comes from a deploy, and so does its code if the deploy
included it, so a task that is retried without a new deploy fails the same way again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """Where an error is fixed."""

    PASSING = "passing"
    """Nowhere: it is transient."""
    SURROUNDINGS = "surroundings"
    """Outside the DAG: settings, limits, files, other services."""
    CODE = "code"
    """In the operator's code."""
    DEFINITION = "definition"
    """In the DAG file."""


class Remedy(NamedTuple):
    cause: Cause
    step: str
    """The next step, as a clause: "check the endpoints". Empty: there is none."""


_PASSING = {
    "files.changed": "wait: the next listing finds it, and its partition is computed again",
    "hot.changed": "",
    "hot.never_still": "make the job read ranges that are written less often",
    "lease.expired": "look at the worker if it recurs",
    "operator.output_in_use": "make the function wait for everything it started; the task is retried",
    "operator.spark_lost": "if it ran out of memory or used too much disk, raise `spark_memory_mb` or"
    " `spark_disk_mb`, or compute less at a time",
    "platform.failed": "report it if it recurs",
    "sandbox.closed": "",
    "sandbox.failed": "report it if it recurs",
    "sandbox.lost": "",
    "sandbox.setup_failed": "look at the worker if it recurs",
    "spark.not_shown": "",
    "task.files_cut_short": "",
    "task.stale": "",
    "service.unreachable": "check that it is running; the call may be retried",
    "object_store.unavailable": "check its endpoint or disk; tasks are retried",
}
_SURROUNDINGS = {
    "check.failed": "correct the data that the rows are computed from: a new commit of an input computes the scope"
    " again, and so does `traceplane emit DATASET SCOPE --emission NAME` for a source, with a NAME that it has not had;"
    " or deploy a corrected job, which computes its scopes again",
    "commit.file_unreadable": "check that dispatcher and workers use the same object store",
    "files.missing": "if the file is gone for good, acknowledge the task with `traceplane task ack`; otherwise put"
    " it back",
    "files.not_allowed": "add it to the setting of gateways, dispatchers and workers, and restart them",
    "files.unavailable": "check that it exists, is mounted, and that the platform's user may read it",
    "operator.executors_lack_traceplane": "install the worker's version of Traceplane for the executors' Python; the"
    " task is retried",
    "operator.executors_other_python": "name a Python of the worker's version and platform in"
    " `spark.sql.execution.pyspark.python` of `spark_conf`, or start the server of `spark_remote` with it; the task is"
    " retried",
    "operator.packages_not_sent": "start that server with"
    " `spark.sql.artifact.copyFromLocalToFs.allowDestLocal=true`; the task is retried",
    "operator.input_unreadable": "restore the file, or recompute its scope with `traceplane backfill`",
    "operator.package_broken": "correct or upgrade the package on the workers and restart them; tasks are retried",
    "operator.package_missing": "install the package on the workers and restart them; tasks are retried",
    "operator.killed": "raise the runtime's `limits`, or use less",
    "invoke.refused": "check the runtime's `target` in the settings",
    "sandbox.folder_in_use": "check space and permissions of the object store; the next attempt uses another folder",
    "sandbox.unavailable": "check memory and limits of the machine; restart the worker",
    "code.damaged": "restore the row of `code_bundles` from a backup",
    "code.not_unpacked": "check that it may write there",
    "code.unknown_bundle": "restore `code_bundles`",
    "environment.not_built": "check uv's settings on the worker, its network and its disk; the task is retried",
    "environment.python_too_old": "deploy with the Python of the workers, or give them a newer one",
    "environment.too_large": "raise `environments_mb` on the workers, or need fewer packages",
    "object_store.missing": "retry if `gc` ran with a short grace period; otherwise restore the file",
    "object_store.outside": "check the folder for links, and report it",
    "object_store.refused": "check the bucket, the credentials and their permissions",
    "object_store.size_mismatch": "find out who else wrote there, and restore the file",
    "service.bad_answer": "check the address and the versions",
    "secret.denied": "set it, or allow the job: `traceplane secret allow NAME --job DAG/JOB`",
    "secret.other_host": "set the secret again, with `/`, `?`, `#`, `@` and spaces encoded (`%2F`), or write the URL so"
    " that the reference comes after the `/` behind its host",
    "sink.failed": "read the log of the sink, and remove the cause",
    "spark.not_started": "read the log that the error names; the worker is restarted",
    "worker.cache_failed": "check the folder `object_cache` and `object_cache_mb`; the task is retried",
}
_CODE = {
    "commit.duplicate_column": "give each column its own name, or spell it as before",
    "commit.not_as_declared": "correct the operator and retry the task, or declare the column as it is",
    "commit.rows_unfit": "write the rows as the dataset declares them",
    "commit.schema_incompatible": "write the column as it was and retry the task, or deploy the job under another "
    "dataset id",
    "operator.crashed": "look at its output for the line that was running, and upgrade, reinstall or replace the"
    " library called there",
    "operator.exited": "return instead",
    "operator.import_failed": "correct the code, or install what it needs",
    "operator.input_too_large": "make the job that wrote it write smaller files, and recompute its scope",
    "operator.input_unknown": "use one of those named",
    "operator.output_unknown": "use one of those named",
    "operator.credentials_expired": "if that happens again, set `s3_renewal_address`, or raise `s3_task_seconds`",
    "operator.output_not_stored": (
        "in S3, check the role and the endpoint; in a folder, let executors have it under the same path, as the "
        "worker's user"
    ),
    "operator.input_elsewhere": "use the DataFrame that the function receives",
    "operator.raised": "correct the code, then `traceplane retry`",
    "operator.result_invalid": "return rows, or a mapping from output name to rows",
    "operator.schema_mixed": "write the same columns",
    "operator.times_unknown": "write the column as a timestamp, or as whole seconds since 1970, among the first 64"
    " columns, and emit the scope again",
    "operator.value_does_not_fit": "correct the operator, or declare a wider type",
    "operator.wrong_parameters": "name them like the inputs, besides `scope`, `spark`, `config` and `task`;"
    " a Python function takes the task alone",
    "invoke.bad_answer": "answer as runtimes says",
    "invoke.function_error": "see what it said, in the error's value",
    "task.output_not_granted": "write only what came with the claim",
}
_DEFINITION = {
    "commit.position_out_of_scope": "write only rows of the task's scope",
    "commit.position_missing": "write it, or deploy the dataset without",
    "commit.scope_overlaps": "name the column as the dataset's `position`, or compute the wider scope again",
    "commit.too_large": "make the job work on smaller scopes, or make the dataset `storage: parquet`",
    "hot.filter_invalid": "correct the filter",
    "operator.input_schema_unknown": "declare the columns in the DAG file",
    "operator.misconfigured": "correct the job's `config`",
    "operator.no_entrypoint": "correct the entrypoint, or the worker's `worker_code_paths`",
    "operator.range_too_wide": "emit the range in parts",
    "operator.timeout": "make it faster, or raise the timeout",
    "task.too_many_files": "have small files merged, narrow the input by `where`, or have the job work on smaller"
    " scopes",
    "operator.unknown": "use one of those named",
    "invoke.timeout": "make it faster, or raise the timeout",
}
_OUT_OF_MEMORY = "use less memory at a time, or raise `memory_mb` in the runtime's `limits`"
_NO_NETWORK = "correct the address; an operator has the network only if its job says `network: true`"
_OF_THE_SANDBOX = {
    "FileNotFoundError": "correct the path; an operator sees its inputs, its code folder and /tmp, and no other files"
    " of the machine",
    "PermissionError": "an operator writes to its outputs and /tmp only, and has the network only if its job says"
    " `network: true`",
    **dict.fromkeys(
        (
            *(
                "gaierror",
                "ConnectionError",
                "ConnectionRefusedError",
                "NameResolutionError",
                "NewConnectionError",
            ),
            *("URLError", "ConnectError", "ClientConnectorError", "ClientConnectorDNSError", "MaxRetryError"),
        ),
        _NO_NETWORK,
    ),
}
"""Exceptions that operators raise when the sandbox blocks something, as if the machine lacked it."""
REMEDIES: dict[str, Remedy] = {
    code: Remedy(cause, step)
    for cause, steps in (
        (Cause.PASSING, _PASSING),
        (Cause.SURROUNDINGS, _SURROUNDINGS),
        (Cause.CODE, _CODE),
        (Cause.DEFINITION, _DEFINITION),
    )
    for code, step in steps.items()
}
_BEFORE_RETRY = {
    "check.failed": "If nothing announces the correction, or the checks themselves are corrected and deployed,"
}
"""When a retry follows, if it is not always."""
_ALSO_WITHOUT_A_DEPLOY = frozenset({"operator.no_entrypoint"})
"""Can also be fixed in a worker's own code folder, if the deploy included no code."""


@dataclass(frozen=True, slots=True)
class Advice:
    next_step: str
    retry_helps: bool
    """Whether a retry can help after `next_step` is done."""


def advice(
    code: str,
    *,
    task_id: object,
    step: str | None = None,
    raised: str | None = None,
    own: Remedy | None = None,
    query: str | None = None,
    standing: str = "open",
    code_deployed: bool = False,
    of_pipeline: bool = False,
) -> Advice:
    """`step`: the next step that the error itself names. `raised`: the type of the exception. `own`: the remedy of an
    error that only this operator has. `query`: where the user wrote the query that the task runs instead of code.
    `standing`: whether the dead task still needs attention."""
    if standing != "open":
        return Advice("Nothing.", False)
    cause, documented = own or REMEDIES.get(code) or Remedy(Cause.CODE, "")
    if code == "operator.raised" and raised == "MemoryError":
        cause, documented = Cause.SURROUNDINGS, _OUT_OF_MEMORY
    elif query is not None and cause is Cause.CODE:
        cause, documented = Cause.DEFINITION, _of_a_query(documented, query)
    elif code == "operator.raised":
        documented = _OF_THE_SANDBOX.get(raised or "", documented)
    first, retry = step or documented, f"`traceplane retry {task_id}`"
    deploys_only = code_deployed or (cause is Cause.DEFINITION and code not in _ALSO_WITHOUT_A_DEPLOY)
    if cause in (Cause.CODE, Cause.DEFINITION):
        first = first.removesuffix(", then `traceplane retry`")
        if deploys_only:
            first = first.replace(" and retry the task", "")
    if of_pipeline:
        return Advice(_sentences(first, "The pipeline's next execution is a task of its own"), False)
    if cause is Cause.PASSING:
        return Advice(_sentences(first, f"{retry} tries it again"), True)
    if cause is Cause.SURROUNDINGS:
        return Advice(_sentences(first, f"{_BEFORE_RETRY.get(code, 'Then')} {retry}"), True)
    if deploys_only and " and deploy" in first:
        return Advice(_sentences(first), False)
    if deploys_only:
        return Advice(_sentences(first, "Deploy the correction: a retry runs what is deployed"), False)
    return Advice(_sentences(first, f"Then {retry}, which runs what is in the worker's code folder"), True)


def letter_step(code: str, *, task_id: object, step: str | None, why_not: str | None) -> str:
    """What to do about a dead letter. `step`: the next step that the error itself names. `why_not`: why it cannot be
    replayed now."""
    replay, retry, drop = (
        f"`traceplane {verb} {task_id}`" for verb in ("dead-letter replay", "retry", "dead-letter drop")
    )
    match why_not:
        case "busy":
            return _sentences("another task is working on its scope: wait for it, and look again")
        case "not_newest":
            return _sentences(
                f"a newer task of its scope is dead too: see to that one, and {drop} gives this one up"
            )
        case "superseded":
            return _sentences(
                f"something newer has been committed in its scope, which it must not overwrite: {drop} removes it"
            )
        case "retired" | "pipeline":
            return _sentences(f"nothing waits for its rows any more: {drop} removes it")
        case "acknowledged":
            return _sentences(
                f"{drop} removes it", f"if its rows are needed after all, {retry} computes them again"
            )
    cause, documented = REMEDIES.get(code) or Remedy(Cause.CODE, "")
    first = (step or documented).replace(" and retry the task", "")
    if cause in (Cause.PASSING, Cause.SURROUNDINGS):
        return _sentences(first, f"Then {replay} writes the rows as they are")
    return _sentences(
        first,
        f"The same rows would be refused again: once this is corrected, {retry} computes them anew",
        f"{drop} gives them up",
    )


def _of_a_query(step: str, query: str) -> str:
    """A step that speaks of code, for a job whose only code is its query."""
    return step.replace("correct the code", f"correct {query}").replace(
        "correct the operator", f"correct {query}"
    )


def _sentences(*parts: str) -> str:
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts if part)
