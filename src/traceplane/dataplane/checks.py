"""The checks of an output, computed on the files that were written: what is checked is exactly what would be committed.

The checks of an output take one pass over the columns that they name, and one more for each set of unique columns.
Those that the statistics of the files already answer take none. Rows are looked for only if a check is broken.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from functools import reduce

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    SparkRuntimeException,
)
from pyspark.sql import Column, DataFrame, Window, functions
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import BinaryType, DoubleType, FloatType

from traceplane.columnar.arrow_types import schema_of
from traceplane.dataplane import bucket_files
from traceplane.dataplane.datasets import meets
from traceplane.model.checks import (
    LONGEST_VALUE,
    MOST_COLUMNS,
    MOST_SAMPLED,
    BrokenCheck,
    Check,
    CheckKind,
    SampleRow,
)
from traceplane.model.comparisons import DoesNotFit, alternatives
from traceplane.sdk import OperatorError, OperatorOutput, OperatorTask, Written

_OF_VALUES = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)
"""What Spark raises when an expression meets a value that it cannot be computed for."""


def find_broken(spark: SparkSession, task: OperatorTask) -> None:
    """Notes the checks that the outputs of a task do not meet, once everything is written."""
    for name, output in task.outputs.items():
        if not output.checks:
            continue
        written = task.written.get(name) or Written()
        try:
            written.broken_checks = _broken(spark, output, written)
        except (AnalysisException, ParseException) as error:
            reason = str(error).partition("\n")[0][:500]
            raise _misconfigured(name, f"cannot be computed: {reason}") from None
        if written.broken_checks:
            task.written[name] = written


def _broken(spark: SparkSession, output: OperatorOutput, written: Written) -> list[BrokenCheck]:
    rows = sum(file.rows for file in written.files)
    broken: dict[str, BrokenCheck] = {}
    scanned: list[Check] = []
    for check in output.checks:
        if check.kind is CheckKind.ROWS:
            if not _is_within(rows, check):
                broken[check.name] = BrokenCheck(check.name, rows)
        elif rows and not _is_proven(check, written):
            scanned.append(check)
    if scanned:
        broken |= _scanned(_rows(spark, output, written), output, scanned)
    return [broken[check.name] for check in output.checks if check.name in broken]


def _is_within(number: int, check: Check) -> bool:
    low, high = check.min, check.max
    return (low is None or number >= int(low)) and (high is None or number <= int(high))


def _is_proven(check: Check, written: Written) -> bool:
    """Whether a check is met according to the statistics of the files. Of ranges, only those of whole numbers: the
    statistics of fractions leave out NaN, and those of texts may be cut."""
    facts = [file.statistics.get(column) for file in written.files if file.rows for column in check.columns]
    if check.kind is CheckKind.NOT_NULL:
        return all(fact is not None and fact.null_count == 0 for fact in facts)
    bounds = [bound for bound in (check.min, check.max) if bound is not None]
    if check.kind is not CheckKind.RANGE or any(type(bound) is not int for bound in bounds):
        return False
    return all(
        fact is not None
        and type(fact.min) is int
        and type(fact.max) is int
        and _is_within(fact.min, check)
        and _is_within(fact.max, check)
        for fact in facts
    )


def _rows(spark: SparkSession, output: OperatorOutput, written: Written) -> DataFrame:
    reader, names = spark.read, [file.name for file in written.files if file.rows]
    if output.direct is not None:
        reader = reader.options(**bucket_files.read_options(output.direct.access))
        files = [bucket_files.location(output.direct, name) for name in names]
    else:
        files = [str(output.folder / name) for name in names]
        for file in files:
            if os.stat(file).st_uid == os.geteuid():
                os.chmod(file, 0o644)  # Spark is another user, and nobody else gets into the folder
    schema = schema_of(tuple(written.columns))
    if schema is not None:
        reader = reader.schema(from_arrow_schema(schema).toNullable())
    return reader.parquet(*files).alias("checked")


def _scanned(frame: DataFrame, output: OperatorOutput, checks: Sequence[Check]) -> dict[str, BrokenCheck]:
    for check in checks:
        if missing := [column for column in check.columns if column not in frame.columns]:
            raise _misconfigured(
                output.name,
                f"{check.name} names the unknown column {missing[0]!r}; there are {', '.join(frame.columns)}",
            )
    # Those of single rows together. Beside a distinct count, they would be grouped by its columns too.
    of_keys = [check for check in checks if check.kind is CheckKind.UNIQUE]
    of_rows = [check for check in checks if check.kind is not CheckKind.UNIQUE]
    broken: dict[str, BrokenCheck] = {}
    waiting = ([of_rows] if of_rows else []) + [[check] for check in of_keys]
    while waiting:
        together = waiting.pop()
        counts = [_count(frame, output, check).alias(f"c{n}") for n, check in enumerate(together)]
        try:
            (row,) = frame.agg(*counts).collect()
        except _OF_VALUES as error:
            if len(together) > 1:
                waiting += [[check] for check in together]  # which of them it was
                continue
            (check,) = together
            if check.kind is not CheckKind.EXPRESSION:
                raise
            # The message quotes the value, which may be personal data; the condition does not.
            broken[check.name] = BrokenCheck(
                check.name, 0, error=error.getCondition() or type(error).__name__
            )
            continue
        for check, count in zip(together, row, strict=True):
            if count:
                broken[check.name] = BrokenCheck(check.name, count, tuple(_sample(frame, output, check)))
    return broken


def _count(frame: DataFrame, output: OperatorOutput, check: Check) -> Column:
    """How many rows do not meet a check."""
    if check.kind is CheckKind.UNIQUE:
        # Both leave out rows with a null in any of the columns.
        columns = [_column(name) for name in check.columns]
        complete = reduce(operator.and_, [column.isNotNull() for column in columns])
        return functions.count(functions.when(complete, 1)) - functions.count_distinct(*columns)
    return functions.count(functions.when(_is_bad(frame, output, check), 1))


def _is_bad(frame: DataFrame, output: OperatorOutput, check: Check) -> Column:
    match check.kind:
        case CheckKind.NOT_NULL:
            return reduce(operator.or_, [_column(name).isNull() for name in check.columns])
        case CheckKind.EXPRESSION:
            assert check.expression is not None
            return ~functions.coalesce(functions.expr(check.expression), functions.lit(False))
        case CheckKind.ACCEPTED:
            condition: object = list(check.values)
        case _:
            bounds = (("at_least", check.min), ("at_most", check.max))
            condition = {word: bound for word, bound in bounds if bound is not None}
    (name,) = check.columns
    type_ = frame.schema[name].dataType
    try:
        asked = alternatives(condition, str(to_arrow_type(type_, timezone="UTC")))
    except DoesNotFit as error:
        raise _misconfigured(output.name, f"{check.name} does not fit {name}: {error.suggestion}") from None
    bad = ~meets(name, type_, asked)
    if isinstance(type_, FloatType | DoubleType):
        bad = bad | functions.isnan(_column(name))  # which comes after all numbers, and is within no bounds
    return _column(name).isNotNull() & bad


def _sample(frame: DataFrame, output: OperatorOutput, check: Check) -> list[SampleRow]:
    """Some of the rows that do not meet a check; the columns that it is about come first."""
    others = [name for name in frame.columns if name not in check.columns]
    names = [*check.columns, *others][:MOST_COLUMNS]
    if check.kind is CheckKind.UNIQUE:
        keys = [_column(name) for name in check.columns]
        complete = frame.filter(reduce(operator.and_, [key.isNotNull() for key in keys]))
        repeats = functions.count(functions.lit(1)).over(Window.partitionBy(*keys))
        texts = [_text(frame, name).alias(f"v{n}") for n, name in enumerate(names)]
        bad = complete.select(*texts, repeats.alias("repeats")).filter("repeats > 1").drop("repeats")
    else:
        bad = frame.filter(_is_bad(frame, output, check)).select(*(_text(frame, name) for name in names))
    return [
        {name: _shortened(value) for name, value in zip(names, row, strict=True)}
        for row in bad.limit(MOST_SAMPLED).collect()
    ]


def _text(frame: DataFrame, name: str) -> Column:
    binary = isinstance(frame.schema[name].dataType, BinaryType)
    text = functions.hex(_column(name)) if binary else _column(name).cast("string")
    return functions.substring(text, 1, LONGEST_VALUE + 1)


def _shortened(value: str | None) -> str | None:
    if value is None:
        return None
    value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")  # which Postgres cannot store
    return value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 1]}…"


def _column(name: str) -> Column:
    return functions.col("`" + name.replace("`", "``") + "`")


def _misconfigured(output: str, problem: str) -> OperatorError:
    return OperatorError("operator.misconfigured", f"the checks of output {output!r}: {problem}")
