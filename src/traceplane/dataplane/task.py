"""The entrypoint of every Spark task: read, compute, write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.connect.session import SparkSession

from traceplane.dataplane import datasets, signals
from traceplane.dataplane.failures import explained
from traceplane.dataplane.session import expect_few_rows, session, was_lost
from traceplane.dataplane.shipped_code import ship
from traceplane.model.scope import Cursor, Scope
from traceplane.sdk import OperatorError, OperatorTask, load

Frames = dict[str, DataFrame]


def run(task: OperatorTask) -> None:
    operator = OPERATORS.get(task.operator)
    if operator is None:
        raise OperatorError(
            "operator.unknown",
            f"the runtime spark has no operator {task.operator!r}; it has {', '.join(sorted(OPERATORS))}",
        )
    function: Callable[..., Any] | None = None
    if bundled := task.platform.get("bundled"):
        ship(bundled)
    try:
        spark = session(task.platform["spark_remote"], on_progress=task.report_progress)
        if operator is pyspark:
            # Its module may make UDFs while it is imported, for which there must be a session.
            function = load(str(task.config.get("entrypoint", "")))
        expected = datasets.input_bytes(task)
        few = operator is sql and expected <= datasets.FEW_ROWS_BYTES
        expect_few_rows(spark, few)
        inputs = {name: datasets.read(spark, source, in_one_part=few) for name, source in task.inputs.items()}
        if task.views:
            inputs = _with_views(spark, task, inputs)
        if operator is compact:
            _write_compacted(task, inputs, expected)
            return
        for name, rows in datasets.as_frames(task, operator(spark, task, inputs)).items():
            if isinstance(rows, DataFrame):
                datasets.write(task, name, rows, expected_bytes=expected)
            elif rows is not None:
                task.write(name, rows)
    except PySparkException as error:
        if was_lost(error):
            raise OperatorError(
                "operator.spark_lost",
                "the Spark server ended, or was restarted, while it worked for this task",
            ) from None
        files = {file for source in task.inputs.values() for file in source.files}
        raise explained(error, function, files) from None


def _with_views(spark: SparkSession, task: OperatorTask, stored: Frames) -> Frames:
    """The inputs that the operator knows: those that virtual datasets make of what was read, and the others."""
    for view in task.views:
        for table, source in view.get("reads", {}).items():
            stored[source].createOrReplaceTempView(table)
        spark.sql(view["sql"]).createOrReplaceTempView(view["name"])
    return {
        given["name"]: datasets.narrowed(
            spark.table(given["view"]), given.get("where", {}), given.get("columns", ())
        )
        if given.get("view")
        else stored[given["name"]]
        for given in task.given
    }


def sql(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """`config.query`: one query, or one per output; inputs are tables by their names, `:start` and `:end` the scope."""
    query = task.config.get("query")
    queries = query if isinstance(query, Mapping) else {next(iter(task.outputs), ""): query}
    if not all(isinstance(text, str) and text.strip() for text in queries.values()):
        raise OperatorError("operator.misconfigured", "config.query must be SQL text, or SQL text by output")
    for name, frame in inputs.items():
        # Names of inputs may have dots and hyphens, which are no part of a plain identifier.
        frame.createOrReplaceTempView("`" + name.replace("`", "``") + "`")
    arguments = _scope_arguments(task.scope)
    return {name: spark.sql(str(text), args=arguments) for name, text in queries.items()}


def pyspark(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """`config.entrypoint`: the user's function, given its inputs as DataFrames and what else it names."""
    function = load(str(task.config.get("entrypoint", "")))
    extras = {"scope": task.scope, "spark": spark, "config": task.config, "task": task}
    return call(function, inputs, extras)


def query(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """A query that was handed over: its views are made already, and the last one is the result."""
    return spark.table(task.views[-1]["name"])


def compact(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """The rows of the one input as they are; what is done about them is how they are written."""
    if len(inputs) != 1 or len(task.outputs) != 1:
        raise OperatorError("operator.misconfigured", "compact needs one input and one output")
    return next(iter(inputs.values()))


def signal_generate(spark: SparkSession, task: OperatorTask, inputs: Frames) -> Any:
    """Signals of the one input, which are price bars; see `signals`."""
    if len(inputs) != 1 or len(task.outputs) != 1:
        raise OperatorError("operator.misconfigured", "signal_generate needs one input and one output")
    return signals.generate(task, next(iter(inputs.values())))


def _write_compacted(task: OperatorTask, inputs: Frames, expected_bytes: int) -> None:
    """`config.sort`: the order of rows; `config.target_file_mb`: about how large a file is."""
    [frame], [name] = inputs.values(), task.outputs
    sort = task.config.get("sort") or []
    if unknown := [column for column in sort if column not in frame.columns]:
        raise OperatorError(
            "operator.misconfigured", f"config.sort names {unknown[0]!r}; there is {', '.join(frame.columns)}"
        )
    megabytes = task.config.get("target_file_mb")
    file_bytes = megabytes << 20 if megabytes else datasets.TARGET_FILE_BYTES
    datasets.write(task, name, frame, expected_bytes=expected_bytes, file_bytes=file_bytes, sort=sort)


def call(function: Callable[..., Any], inputs: Mapping[str, Any], extras: Mapping[str, Any]) -> Any:
    """Inputs go to parameters of their names, or else in order; `scope`, `spark`, `config` and `task` by name."""
    parameters = list(inspect.signature(function).parameters.values())
    named = {p.name for p in parameters}
    arguments = {name: value for name, value in extras.items() if name in named and name not in inputs}
    if set(inputs) <= named:
        return function(**inputs, **arguments)
    free = [p.name for p in parameters if p.name not in arguments and p.kind is not p.VAR_KEYWORD]
    if len(free) != len(inputs):
        raise OperatorError(
            "operator.wrong_parameters",
            f"{function.__qualname__}({', '.join(named)}) cannot take the inputs {', '.join(inputs) or 'none'}; "
            "name its parameters like the inputs, besides scope, spark, config and task",
        )
    return function(**dict(zip(free, inputs.values(), strict=True)), **arguments)


def _scope_arguments(scope: Scope | None) -> dict[str, Any]:
    if scope is None:
        return {}
    if isinstance(scope, Cursor):
        return {"start": scope.position, "end": scope.position, "partition": str(scope.position)}
    return {"start": scope.start, "end": scope.end, "partition": scope.name}


OPERATORS: dict[str, Callable[[SparkSession, OperatorTask, Frames], Any]] = {
    "compact": compact,
    "pyspark": pyspark,
    "signal_generate": signal_generate,
    "query": query,
    "sql": sql,
}
