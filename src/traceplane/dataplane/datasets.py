"""Inputs as DataFrames of exactly their committed files; DataFrames as staged Parquet files."""

from __future__ import annotations

import operator
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, functions
from pyspark.sql.connect.readwriter import DataFrameReader
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from traceplane.columnar.arrow_types import as_declared, schema_of
from traceplane.dataplane import bucket_files
from traceplane.model.comparisons import Alternatives, DoesNotFit, alternatives, of_ranges
from traceplane.model.task_payload import BucketAccess, OperatorInput, Ranges, ResolvedInput
from traceplane.sdk import OperatorError, OperatorTask, as_table, bad_where

SMALL_INPUT_BYTES = 32 << 20
"""Up to this size results come back as Arrow and this process writes them: 30 to 40 ms less per task."""
FEW_ROWS_BYTES = 1 << 20
"""Up to this size planning a query takes longer than processing its rows."""
TARGET_FILE_BYTES = 128 << 20
_TOO_MUCH = "spark.driver.maxResultSize"
ROW_GROUP_BYTES = 64 << 20
DOES_NOT_FIT = "TRACEPLANE_DOES_NOT_FIT "
"""Prefix of Spark's message about a value that its column's declared type cannot hold."""


def read(spark: SparkSession, source: OperatorInput, *, in_one_part: bool = False) -> DataFrame:
    """The rows of an input for the task's scope. With the schema given, Spark opens no file to find it.

    An input `in_one_part` is grouped, joined and sorted where it is read, without a second stage.
    """
    schema = _schema(spark, source)
    if not source.files:
        return narrowed(spark.createDataFrame([], schema), {}, source.select)
    frames = [
        _within(_reader(spark, source.access).schema(schema).parquet(*files), schema, source.position, ranges)
        for files, ranges in source.by_kept_ranges()
    ]
    frame: DataFrame = reduce(lambda all_, more: all_.unionByName(more), frames)
    frame = _within(frame, schema, source.time_column, (source.times,) if source.times is not None else ())
    if in_one_part:
        frame = frame.coalesce(1)
    try:
        return narrowed(frame, source.where, source.select, schema)
    except DoesNotFit as error:
        raise bad_where(source.name, error) from None


def _within(frame: DataFrame, schema: StructType, position: str | None, ranges: Ranges) -> DataFrame:
    if not ranges:
        return frame
    assert position is not None, "ranges are those of a position column"
    return frame.filter(meets(position, schema[position].dataType, of_ranges(ranges)))


def read_view(spark: SparkSession, given: ResolvedInput) -> DataFrame:
    """The rows of a virtual dataset."""
    assert given.view is not None
    try:
        return narrowed(spark.table(given.view), given.where, given.columns)
    except DoesNotFit as error:
        raise bad_where(given.name, error) from None


def narrowed(
    frame: DataFrame, where: Mapping[str, Any], columns: Sequence[str], schema: StructType | None = None
) -> DataFrame:
    """The rows that meet `where`, with the named columns, or all."""
    known = schema if schema is not None or not where else frame.schema
    for column, condition in where.items():
        type_ = known[column].dataType if known is not None and column in known.fieldNames() else None
        arrow = None if type_ is None else str(to_arrow_type(type_, timezone="UTC"))
        frame = frame.filter(meets(column, type_, alternatives(condition, arrow)))
    return frame.select(*(functions.col(f"`{name}`") for name in columns)) if columns else frame


_COMPARE = {"=": operator.eq, ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def meets(name: str, type_: DataType | None, asked: Alternatives) -> Column:
    """Whether a value meets all comparisons of one alternative. A name without a type is a field of a struct."""
    column = functions.col(f"`{name}`" if type_ is not None else name)
    return reduce(operator.or_, [_meets_all(column, type_, comparisons) for comparisons in asked])


def _meets_all(column: Column, type_: DataType | None, comparisons: Sequence[tuple[str, Any]]) -> Column:
    fractional = isinstance(type_, FloatType | DoubleType)
    # Parquet's reader, to which Spark passes comparisons on, has -0.0 before 0.0; it is passed no sums.
    sum_ = column + functions.lit(0.0) if fractional else column
    tests = [
        _COMPARE[sign](sum_ if value == 0 else column, _literal(value, type_)) for sign, value in comparisons
    ]
    found = reduce(operator.and_, tests, column.isNotNull())
    lower_only = comparisons and all(sign in (">=", ">") for sign, _ in comparisons)
    # NaN comes after all other numbers, but statistics of files leave it out, and Spark would skip the file.
    return found | functions.isnan(column) if lower_only and fractional else found


def _literal(value: Any, type_: DataType | None) -> Column:
    """Cast by Spark: a Python datetime would depend on the time zones of processes."""
    if type_ is None or isinstance(value, bool | int):  # a position may be beyond the type of its column
        return functions.lit(value)
    return functions.lit(value).cast(type_)


def _reader(spark: SparkSession, access: BucketAccess | None) -> DataFrameReader:
    return spark.read if access is None else spark.read.options(**bucket_files.read_options(access))


def _schema(spark: SparkSession, source: OperatorInput) -> StructType:
    schema = schema_of(source.columns)
    if schema is None:
        if not source.files:
            raise OperatorError(
                "operator.input_schema_unknown",
                f"input {source.name!r} has no rows yet, and its dataset declares no columns; "
                "declare them in the DAG file under datasets",
            )
        if source.access is not None:
            return _reader(spark, source.access).option("mergeSchema", "true").parquet(*source.files).schema
        schema = pa.unify_schemas([parquet.read_schema(file) for file in source.files])
    # As Spark reads files: an input without rows must not give the output another schema than one with rows.
    return from_arrow_schema(schema).toNullable()


def input_bytes(task: OperatorTask) -> int:
    return sum(
        sum(os.stat(file).st_size for file in source.files) if source.bytes is None else source.bytes
        for source in task.inputs.values()
    )


def write(
    task: OperatorTask,
    name: str,
    frame: DataFrame,
    *,
    expected_bytes: int,
    file_bytes: int = TARGET_FILE_BYTES,
    sort: Sequence[str] = (),
) -> None:
    """Stages a DataFrame as an output; for an `append` job, only rows that do not exist yet.

    With `sort`, rows are in that order within each file and from file to file; otherwise in that of the columns by
    which the dataset is clustered, within each file.
    """
    if task.unique_key:
        frame = _without_duplicates(task, name, _as_declared(task, name, frame))
    files = max(1, -(-expected_bytes // file_bytes))
    if sort:
        columns = [functions.col(f"`{column}`") for column in sort]
        frame = frame.coalesce(1) if files == 1 else frame.repartitionByRange(files, *columns)
        frame = frame.sortWithinPartitions(*columns)
    elif keys := [column for column in task.outputs[name].cluster_by if column in frame.columns]:
        frame = frame.coalesce(files).sortWithinPartitions(*(functions.col(f"`{key}`") for key in keys))
    small = expected_bytes <= SMALL_INPUT_BYTES and files == 1
    direct = task.outputs[name].direct
    if direct is not None and task.outputs[name].checks:
        small = False  # executors read what they check, and cannot read this machine's folders
    if small and _write_here(task, name, frame):
        return
    frame = _as_declared(task, name, frame)
    if direct is None:
        _write_by_spark(task, name, frame, files)
    else:
        bucket_files.write(task, name, frame.coalesce(files), direct)


def write_rows(spark: SparkSession, task: OperatorTask, name: str, rows: Any) -> None:
    """Stages what an operator returned that is no DataFrame."""
    output = task.outputs[name]
    if output.direct is None or not output.checks:
        task.write(name, rows)
    elif (table := as_table(rows, output.columns)).num_columns:
        write(task, name, spark.createDataFrame(table), expected_bytes=table.nbytes)


def _as_declared(task: OperatorTask, name: str, frame: DataFrame) -> DataFrame:
    """Does in Spark what `OperatorTask.write` does with rows that this process writes: casts types, and fails the job
    if that would change a value. Rows of a DataFrame have no positions to report."""
    declared = task.outputs[name].columns
    if not declared:
        return frame
    actual = to_arrow_schema(frame.schema, timezone="UTC")  # as the sessions are
    target = as_declared(actual, declared)
    return frame if target == actual else frame.select(*map(_column_as_declared, actual, target))


def _column_as_declared(actual: pa.Field, target: pa.Field) -> Column:
    column = functions.col(f"`{actual.name}`")
    if actual.type == target.type:
        return column
    before, after = from_arrow_type(actual.type), from_arrow_type(target.type)
    tried = column.try_cast(after)
    message = functions.concat(
        functions.lit(f"{DOES_NOT_FIT}column {actual.name!r}: "),
        column.cast("string"),
        functions.lit(f" does not fit into {after.simpleString()}, as the dataset declares it"),
    )
    exact = functions.when(column.isNull() | (tried.cast(before) == column), tried)
    return exact.otherwise(functions.raise_error(message).cast(after)).alias(actual.name)


def _without_duplicates(task: OperatorTask, name: str, frame: DataFrame) -> DataFrame:
    keys = list(task.unique_key)
    frame = frame.dropDuplicates(keys)
    if existing := task.outputs[name].existing:
        direct = task.outputs[name].direct
        spark: Any = frame.sparkSession
        reader = _reader(spark, direct.access if direct is not None else None)
        committed = reader.schema(frame.select(keys).schema).parquet(*existing)
        frame = frame.join(committed, keys, "left_anti")
    return frame


def _write_here(task: OperatorTask, name: str, frame: DataFrame) -> bool:
    """Writes row groups of a good size; returns False, and writes nothing, if the result is more than Spark returns."""
    try:
        batches = _arrow_batches(frame)
        schema = next(batches)
        assert isinstance(schema, pa.Schema)
        with task.open_writer(name, schema) as writer:
            waiting: list[pa.Table] = []
            for table in batches:
                waiting.append(table)
                if sum(one.nbytes for one in waiting) >= ROW_GROUP_BYTES:
                    writer(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer(pa.concat_tables(waiting))
    except PySparkException as error:
        if _TOO_MUCH not in str(error):
            raise
        return False
    return True


def _arrow_batches(frame: DataFrame) -> Iterator[Any]:
    """The result's Arrow schema, then its rows in tables as the server sends them."""
    remote: Any = frame  # the public toArrow() would hold the whole result in memory
    client = remote.sparkSession.client
    schema: pa.Schema | None = None
    for part in client.to_table_as_iterator(remote._plan.to_proto(client), remote._plan.observations):
        if isinstance(part, StructType):
            continue
        if schema is None:
            schema = part.schema
            yield schema
        if part.num_rows:
            yield part
    if schema is None:
        yield frame.limit(0).toArrow().schema


def _write_by_spark(task: OperatorTask, name: str, frame: DataFrame, files: int) -> None:
    """As few files as possible of a good size, estimated from the input bytes."""
    folder = Path(task.outputs[name].folder)
    frame = frame.coalesce(files)
    written = None
    if not _runs_here(frame):
        written = Observation()
        frame = frame.observe(written, functions.count(functions.lit(1)).alias("rows"))
    frame.write.mode("append").parquet(str(folder))
    found = 0
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            found += task.add_file(name, path)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # left by executors of another user; the wrapper ends it
        else:
            path.unlink()  # a checksum file; sealed files need none
    if written is not None and found != (rows := written.get["rows"]):
        raise OperatorError(
            "operator.output_not_stored",
            f"executors wrote {rows} rows of output {name!r}, and {found} of them are in {folder}: a machine of the "
            "cluster does not have that folder of the worker",
        )


def _runs_here(frame: DataFrame) -> bool:
    """Whether Spark computes on this machine, so that there is one folder of that name."""
    remote: Any = frame.sparkSession
    return str(remote.conf.get("spark.master", "")).startswith("local")


def as_frames(task: OperatorTask, returned: Any) -> Mapping[str, Any]:
    """An operator's return value by output: one result for one output, a mapping by name, or nothing."""
    if returned is None:
        return {}
    if isinstance(returned, Mapping) and returned and set(returned) <= set(task.outputs):
        return returned
    if len(task.outputs) == 1:
        return {next(iter(task.outputs)): returned}
    raise OperatorError(
        "operator.result_invalid",
        f"the operator returned {type(returned).__name__}; with {len(task.outputs)} outputs it must return a "
        f"mapping from output name to DataFrame, for {', '.join(task.outputs)}",
    )
