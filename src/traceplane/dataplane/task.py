"""The entrypoint of every Spark task: read, compute, write, check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.connect.session import SparkSession

from traceplane.dataplane import chain_parts, checks, datasets, sent_packages, signals
from traceplane.dataplane.chain_parts import OpenSession
from traceplane.dataplane.failures import explained
from traceplane.dataplane.session import expect_few_rows, session, use_shuffle_partitions, was_lost
from traceplane.dataplane.shipped_code import ship
from traceplane.errors import InvalidInput
from traceplane.model.scope import Cursor, Scope
from traceplane.operators.config import read
from traceplane.operators.processing import CompactConfig, QueryConfig
from traceplane.sdk import OperatorError, OperatorTask, load
from traceplane.sql.spark_text import plain

Frames = dict[str, DataFrame]


def run(task: OperatorTask) -> None:
    if (in_parts := IN_PARTS.get(task.operator)) is not None:
        _run_in_parts(task, in_parts)
        return
    operator = OPERATORS.get(task.operator, pyspark)
    function: Callable[..., Any] | None = None
    assert task.spark is not None, "the worker hands its Spark to every task of this runtime"
    if task.spark.bundled:
        ship(task.spark.bundled)
    try:
        sends = task.spark.environment_to_send is not None
        spark = session(task.spark.remote, task.report_progress, task.spark.authorities, shares_files=sends)
        # Processes of another Python are others, so packages of two jobs never meet in one.
        if task.spark.python is not None:
            spark.conf.set("spark.sql.execution.pyspark.python", task.spark.python)
        if task.spark.environment_to_send is not None:
            sent_packages.send(spark, Path(task.spark.environment_to_send), task.temp_dir)
        if operator is pyspark:
            # Its module may define UDFs on import, which needs a session.
            function = load(task.spark.entrypoint)
        expected = datasets.input_bytes(task)
        few = operator is sql and expected <= datasets.FEW_ROWS_BYTES
        expect_few_rows(spark, few)
        use_shuffle_partitions(spark, task.spark.shuffle_partitions)
        named = _named_inputs(task) if operator is sql else list(task.inputs)
        inputs = {name: datasets.read(spark, task.inputs[name], in_one_part=few) for name in named}
        if task.views:
            inputs = _with_views(spark, task, inputs)
        if operator is compact:
            _write_compacted(task, inputs, expected)
            checks.find_broken(spark, task)
            return
        for name, rows in datasets.as_frames(task, operator(spark, task, inputs)).items():
            if isinstance(rows, DataFrame):
                datasets.write(task, name, rows, expected_bytes=expected)
            elif rows is not None:
                datasets.write_rows(spark, task, name, rows)
        checks.find_broken(spark, task)
    except PySparkException as error:
        raise _as_users_read_it(
            error, task, function, _fields_with_queries(task) if operator is sql else {}
        ) from None


def _run_in_parts(task: OperatorTask, operator: Callable[[OperatorTask, OpenSession], None]) -> None:
    """An operator of the platform that splits its scope, and needs a session only if that is worth it."""
    access = task.spark
    assert access is not None

    def open_session() -> SparkSession:
        return session(access.remote, task.report_progress, access.authorities)

    try:
        operator(task, open_session)
        if any(output.checks for output in task.outputs.values()):
            checks.find_broken(open_session(), task)
    except PySparkException as error:
        raise _as_users_read_it(error, task, None, {}) from None


def _as_users_read_it(
    error: PySparkException,
    task: OperatorTask,
    function: Callable[..., Any] | None,
    queries: Mapping[str, str],
) -> Exception:
    if was_lost(error):
        message = "the Spark server stopped or was restarted while it ran this task"
        return OperatorError("operator.spark_lost", message)
    files = {file for source in task.inputs.values() for file in source.files}
    return explained(error, function, queries, files)


def _with_views(spark: SparkSession, task: OperatorTask, stored: Frames) -> Frames:
    """The operator's inputs: virtual datasets over the stored ones, and the stored ones themselves."""
    for view in task.views:
        for table, source in view.reads.items():
            stored[source].createOrReplaceTempView(table)
        spark.sql(view.sql).createOrReplaceTempView(view.name)
    return {
        given.name: datasets.read_view(spark, given) if given.view is not None else stored[given.name]
        for given in task.given
    }


def sql(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """`config.query`: one query, or one per output; inputs are tables by their names, `:start` and `:end` the scope."""
    query = read(task.config, QueryConfig).query
    queries = query if isinstance(query, Mapping) else {next(iter(task.outputs), ""): query}
    queries = {name: _plain(text) for name, text in queries.items()}
    for name, frame in inputs.items():
        # Input names may contain dots and hyphens, which a plain identifier cannot.
        frame.createOrReplaceTempView("`" + name.replace("`", "``") + "`")
    arguments = _scope_arguments(task.scope)
    return {name: spark.sql(text, args=arguments) for name, text in queries.items()}


def _named_inputs(task: OperatorTask) -> list[str]:
    """The inputs that a query may read. One that it does not name only says when the job runs, and may be of a dataset
    without rows or columns; virtual datasets read inputs under other names."""
    texts = "\n".join(_fields_with_queries(task).values()).lower()
    return [name for name in task.inputs if task.views or name.lower() in texts]


def _fields_with_queries(task: OperatorTask) -> dict[str, str]:
    """The texts by the fields of the job that hold them, as people find them in the DAG file."""
    query = read(task.config, QueryConfig).query
    if isinstance(query, str):
        return {"config.query": _plain(query)}
    return {f"config.query.{output}": _plain(text) for output, text in query.items()}


def _plain(query: str) -> str:
    """What runs is what was analyzed: that text, without comments."""
    try:
        return plain(query)
    except InvalidInput as error:
        raise OperatorError("operator.misconfigured", f"{error.message}; {error.next_step}") from None


def pyspark(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """The user's function, or that of an installed operator, called with its inputs as DataFrames and the other
    arguments that it names."""
    assert task.spark is not None
    function = load(task.spark.entrypoint)
    extras = {"scope": task.scope, "spark": spark, "config": task.config, "task": task}
    return call(function, inputs, extras)


def query(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """A query that was handed over: its views already exist, and the last one is the result. `config.columns`: its
    columns as DuckDB names them, of which no two are alike. A declared column that no file has yet is not here."""
    result = spark.table(task.views[-1].name)
    names = task.config.get("columns", [])
    return result.toDF(*names) if len(names) == len(result.columns) else result


def compact(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """The unchanged rows of the only input; the output settings decide how they are written."""
    return next(iter(inputs.values()))


def signal_generate(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """Signals of the only input, which holds price bars; see `signals`."""
    return signals.generate(task, next(iter(inputs.values())))


def _write_compacted(task: OperatorTask, inputs: Frames, expected_bytes: int) -> None:
    """`config.sort`: the order of rows; `config.target_file_mb`: about how large a file is."""
    [frame], [name] = inputs.values(), task.outputs
    config = read(task.config, CompactConfig)
    if unknown := [column for column in config.sort if column not in frame.columns]:
        raise OperatorError(
            "operator.misconfigured",
            f"config.sort names the unknown column {unknown[0]!r}; there are {', '.join(frame.columns)}",
        )
    file_bytes = config.target_file_mb << 20
    datasets.write(
        task, name, frame, expected_bytes=expected_bytes, file_bytes=file_bytes, sort=list(config.sort)
    )


def call(function: Callable[..., Any], inputs: Mapping[str, Any], extras: Mapping[str, Any]) -> Any:
    """Passes inputs to parameters of their names, or else in order; `scope`, `spark`, `config` and `task` by name."""
    parameters = list(inspect.signature(function).parameters.values())
    accepted = {p.name for p in parameters}
    arguments = {name: value for name, value in extras.items() if name in accepted and name not in inputs}
    if set(inputs) <= accepted:
        return function(**inputs, **arguments)
    free = [p.name for p in parameters if p.name not in arguments and p.kind is not p.VAR_KEYWORD]
    if len(free) != len(inputs):
        raise OperatorError(
            "operator.wrong_parameters",
            f"{function.__qualname__}({', '.join(accepted)}) cannot take the inputs {', '.join(inputs) or 'none'}; "
            "name its parameters after the inputs, besides scope, spark, config and task",
        )
    return function(**dict(zip(free, inputs.values(), strict=True)), **arguments)


def _scope_arguments(scope: Scope | None) -> dict[str, int | str]:
    if scope is None:
        return {}
    if isinstance(scope, Cursor):
        return {"start": scope.position, "end": scope.position, "partition": str(scope.position)}
    return {"start": scope.start, "end": scope.end, "partition": scope.name}


IN_PARTS: dict[str, Callable[[OperatorTask, OpenSession], None]] = {
    "integrity_check": chain_parts.check,
    "range_ingest": chain_parts.ingest,
}
OPERATORS: dict[str, Callable[[SparkSession, OperatorTask, Frames], Any]] = {
    "alert_evaluate": sql,
    "compact": compact,
    "pyspark": pyspark,
    "signal_generate": signal_generate,
    "query": query,
    "sql": sql,
}
