"""PySpark functions that tests deploy; `doubled` and `pairs` are called by plain unit tests too."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from traceplane.model.scope import Scope
from traceplane.sdk import OperatorTask


def numbers(task: OperatorTask) -> list[dict]:
    first = task.scope.position * 100
    return [{"block": task.scope.position, "n": n, "name": f"n{n}"} for n in range(first, first + 100)]


def doubled(numbers: DataFrame, scope: Scope) -> DataFrame:
    return numbers.filter("n >= 0").withColumn("twice", F.col("n") * 2)


def pairs(numbers: DataFrame) -> dict[str, DataFrame]:
    return {"even": numbers.filter("n % 2 = 0"), "odd": numbers.filter("n % 2 = 1")}


def raises(numbers: DataFrame) -> DataFrame:
    raise ValueError("this operator always fails")


def no_such_column(numbers: DataFrame) -> DataFrame:
    return numbers.select("nothing")


def hangs(numbers: DataFrame) -> DataFrame:
    def slow(batches):
        for batch in batches:
            time.sleep(300)
            yield batch

    return numbers.mapInArrow(slow, numbers.schema)


def not_a_frame(numbers: DataFrame) -> int:
    return 7


def steals(numbers: DataFrame, spark, config) -> DataFrame:
    """Whatever Spark can be made to read of what it must not."""
    return spark.read.text(config["path"]).selectExpr("length(value) as n")


def takes_seconds(numbers: DataFrame, config) -> DataFrame:
    seconds = config["seconds"]

    def slow(batches):
        for batch in batches:
            time.sleep(seconds)
            yield batch

    return numbers.mapInArrow(slow, numbers.schema)


def count_rows(task: OperatorTask) -> list[dict]:
    [name] = task.inputs
    table = task.read(name)
    return [{"block": task.scope.position, "rows": table.num_rows, "columns": ",".join(table.column_names)}]


def entries(task: OperatorTask) -> list[dict]:
    """Rows of one block, in no order, with a word that changes whenever they are written again."""
    block, written = task.scope.position, time.time_ns()
    numbers = [n * 37 % 100 for n in range(100)]
    return [{"block": block, "n": n, "name": f"n{n % 7}", "written": written} for n in numbers]
