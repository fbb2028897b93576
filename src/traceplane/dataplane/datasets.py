"""Inputs as DataFrames of exactly their committed files; DataFrames as staged Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from traceplane.columnar.arrow_types import as_declared, schema_of
from traceplane.sdk import OperatorError, OperatorInput, OperatorTask, Ranges

SMALL_INPUT_BYTES = 32 << 20
"""Up to here results come back as Arrow and are written by this process: 30 to 40 ms less per task."""
FEW_ROWS_BYTES = 1 << 20
"""Up to here a query has more to do with being planned than with its rows."""
TARGET_FILE_BYTES = 128 << 20
_TOO_MUCH = "spark.driver.maxResultSize"
ROW_GROUP_BYTES = 64 << 20
DOES_NOT_FIT = "TRACEPLANE_DOES_NOT_FIT "
"""Begins what Spark says of a value that its column's declared type cannot hold."""


def read(spark: SparkSession, source: OperatorInput, *, in_one_part: bool = False) -> DataFrame:
    """The rows of an input for the task's scope. The schema is given, so Spark looks into no file for it.

    What is `in_one_part` is grouped, joined and sorted where it is read, without a second stage.
    """
    schema = _schema(source)
    if not source.files:
        return narrowed(spark.createDataFrame([], schema), {}, source.select)
    frames = [
        _within(spark.read.schema(schema).parquet(*files), source.position, ranges)
        for files, ranges in source.by_kept_ranges()
    ]
    frame: DataFrame = reduce(lambda all_, more: all_.unionByName(more), frames)
    if in_one_part:
        frame = frame.coalesce(1)
    return narrowed(frame, source.where, source.select)


def narrowed(frame: DataFrame, where: Mapping[str, Any], columns: Sequence[str]) -> DataFrame:
    """The rows that equal `where`, and of them the columns that are named, or all."""
    for column, value in where.items():
        frame = frame.filter(functions.col(column) == functions.lit(value))
    return frame.select(*(functions.col(f"`{name}`") for name in columns)) if columns else frame


def _within(frame: DataFrame, position: str | None, ranges: Ranges) -> DataFrame:
    if not ranges:
        return frame
    column = functions.col(str(position))
    return frame.filter(reduce(lambda a, b: a | b, [column.between(first, last) for first, last in ranges]))


def _schema(source: OperatorInput) -> StructType:
    known = schema_of(source.columns)
    if known is None:
        if not source.files:
            raise OperatorError(
                "operator.input_schema_unknown",
                f"input {source.name!r} has no rows yet and its dataset declares no columns; "
                "declare them in the DAG file under datasets",
            )
        known = pa.unify_schemas([parquet.read_schema(file) for file in source.files])
    return from_arrow_schema(known)


def input_bytes(task: OperatorTask) -> int:
    return sum(os.stat(file).st_size for source in task.inputs.values() for file in source.files)


def write(
    task: OperatorTask,
    name: str,
    frame: DataFrame,
    *,
    expected_bytes: int,
    file_bytes: int = TARGET_FILE_BYTES,
    sort: Sequence[str] = (),
) -> None:
    """Stage a DataFrame as an output; of an `append` job, the rows that are not there yet.

    With `sort`, rows are in that order within a file and from file to file.
    """
    if task.unique_key:
        frame = _without_duplicates(task, name, _as_declared(task, name, frame))
    files = max(1, -(-expected_bytes // file_bytes))
    if sort:
        columns = [functions.col(f"`{column}`") for column in sort]
        frame = frame.coalesce(1) if files == 1 else frame.repartitionByRange(files, *columns)
        frame = frame.sortWithinPartitions(*columns)
    small = expected_bytes <= SMALL_INPUT_BYTES and files == 1
    if not (small and _write_here(task, name, frame)):
        _write_by_spark(task, name, _as_declared(task, name, frame), files)


def _as_declared(task: OperatorTask, name: str, frame: DataFrame) -> DataFrame:
    """What `OperatorTask.write` does to rows that this process writes, done by Spark: types are cast, and a value that
    would be changed by it fails the job. The rows of a DataFrame have no positions to tell."""
    declared = task.outputs[name].columns
    if not declared:
        return frame
    found = to_arrow_schema(frame.schema)
    wanted = as_declared(found, declared)
    return frame if wanted == found else frame.select(*map(_column_as_declared, found, wanted))


def _column_as_declared(found: pa.Field, wanted: pa.Field) -> Column:
    column = functions.col(f"`{found.name}`")
    if found.type == wanted.type:
        return column
    before, after = from_arrow_type(found.type), from_arrow_type(wanted.type)
    tried = column.try_cast(after)
    told = functions.concat(
        functions.lit(f"{DOES_NOT_FIT}column {found.name!r}: "),
        column.cast("string"),
        functions.lit(f" does not fit into {after.simpleString()}, as the dataset declares it"),
    )
    kept = functions.when(column.isNull() | (tried.cast(before) == column), tried)
    return kept.otherwise(functions.raise_error(told).cast(after)).alias(found.name)


def _without_duplicates(task: OperatorTask, name: str, frame: DataFrame) -> DataFrame:
    keys = list(task.unique_key)
    frame = frame.dropDuplicates(keys)
    if existing := task.outputs[name].existing:
        known = frame.sparkSession.read.schema(frame.select(keys).schema).parquet(*existing)
        frame = frame.join(known, keys, "left_anti")
    return frame


def _write_here(task: OperatorTask, name: str, frame: DataFrame) -> bool:
    """In row groups of a good size; False, and nothing is written, if the result is more than Spark hands out."""
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
    """As few files as have a good size, of about as many bytes as went in."""
    folder = task.outputs[name].folder
    frame.coalesce(files).write.mode("append").parquet(str(folder))
    for path in sorted(Path(folder).iterdir()):
        if path.suffix == ".parquet":
            task.add_file(name, path)
        else:
            path.unlink()  # a checksum: sealed files need none


def as_frames(task: OperatorTask, returned: Any) -> Mapping[str, Any]:
    """An operator's return value by output: one result for one output, a mapping by name, or nothing at all."""
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
