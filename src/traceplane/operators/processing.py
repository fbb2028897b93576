"""The operators for queries, your own code, and files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from traceplane.model.advice import Cause, Remedy
from traceplane.model.dag import Dag, Job, Storage, UpdateStrategy
from traceplane.operators.grouping import rows_of
from traceplane.operators.spec import ColumnsFrom, Config, ErrorCode, JobMisfit, OperatorSpec, Ports

_SPARK = frozenset({"spark"})


# fmt: off
class CodeConfig(Config, frozen=True, kw_only=True):
    entrypoint: Annotated[str, Meta(
        description="`package.module:function`, found in the code of the deploy, or on the worker's code paths.")]


class QueryConfig(Config, frozen=True, kw_only=True):
    query: Annotated[str | dict[str, str], Meta(
        description="SQL text, or a map from output name to SQL text when there are several outputs.")]


class CompactConfig(Config, frozen=True, kw_only=True):
    sort: Annotated[tuple[str, ...], Meta(
        description="Columns to sort by, within a file and across files.")] = ()
    target_file_mb: Annotated[int, Meta(ge=1, le=4096, description="Approximate size of a file.")] = 128
    delete_after_commit: Annotated[bool, Meta(
        description="Whether to delete the rows from the hot table when the files are committed.")] = False
# fmt: on


def _compact_misfits(job: Job, dag: Dag) -> Iterator[JobMisfit]:
    datasets = dag.datasets_by_id
    for output in job.outputs:
        if datasets[output.dataset_id].storage is not Storage.PARQUET:
            yield JobMisfit(("outputs",), "its output must have storage: parquet")
    if job.update_strategy is not UpdateStrategy.REPLACE:
        yield JobMisfit(
            ("update_strategy",), "it rewrites whole ranges, so its update_strategy must be replace"
        )
    if job.config.get("delete_after_commit") is not True:
        return
    for used in job.inputs:
        source = datasets.get(rows_of(used.dataset_id, dag))
        if source is None or source.storage is not Storage.POSTGRES:
            message = "delete_after_commit needs a hot dataset that this DAG produces"
            yield JobMisfit(("config", "delete_after_commit"), message)
        if used.where or used.columns:
            message = "with delete_after_commit all rows and columns must be read"
            yield JobMisfit(("inputs",), message, "remove where and columns")


PYTHON = OperatorSpec(
    name="python",
    summary="Calls your function with the task, in a sandbox.",
    runtimes=frozenset({"python"}),
    config=CodeConfig,
    open_config=True,
    code_field="entrypoint",
)

PYSPARK = OperatorSpec(
    name="pyspark",
    summary="Calls your function with the rows of a task's scope as DataFrames.",
    runtimes=_SPARK,
    config=CodeConfig,
    open_config=True,
    code_field="entrypoint",
    virtual_inputs=True,
)

SQL = OperatorSpec(
    name="sql",
    summary="Runs Spark SQL over the rows of a task's scope.",
    runtimes=_SPARK,
    entrypoint="traceplane.dataplane.task:sql",
    config=QueryConfig,
    query_field="query",
    virtual_inputs=True,
)

QUERY = OperatorSpec(
    name="query",
    summary="Runs a query as a task because its result is too large for a response.",
    runtimes=_SPARK,
    entrypoint="traceplane.dataplane.task:query",
    for_dags=False,
    runs_once=True,
)

COMPACT = OperatorSpec(
    name="compact",
    summary="Rewrites the rows of a range as few, well-sized, sorted Parquet files.",
    runtimes=_SPARK,
    columns_from=ColumnsFrom.SAME_NAMES,
    entrypoint="traceplane.dataplane.task:compact",
    config=CompactConfig,
    execution_fields=frozenset({"target_file_mb"}),
    deletion_field="delete_after_commit",
    inputs=Ports(least=1, most=1),
    outputs=Ports(least=1, most=1),
    check=_compact_misfits,
    errors=(
        ErrorCode(
            "compact.input_changed",
            "the range was written while it was compacted",
            remedy=Remedy(Cause.PASSING, ""),
        ),
        ErrorCode(
            "compact.rows_differ",
            "the written files have fewer or more rows than the range",
            remedy=Remedy(Cause.PASSING, "report it if it persists"),
        ),
    ),
)
