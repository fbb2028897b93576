"""What the Spark suite runs, on the platform and by hand."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from traceplane.sdk import OperatorTask


def seed(task: OperatorTask) -> list[dict[str, Any]]:
    first = task.scope.position * 100  # type: ignore[union-attr]
    return [{"block": task.scope.position, "n": n, "name": f"n{n}"} for n in range(first, first + 100)]  # type: ignore[union-attr]


def small(seeded: DataFrame) -> DataFrame:
    """100 rows in, a filter, 100 rows out."""
    return seeded.filter(F.col("n") >= 0)


def heavy(seeded: DataFrame, spark: Any, config: dict[str, Any]) -> DataFrame:
    """Seconds of work that leave one row."""
    return busy(spark, int(config["rows"]))


def busy(spark: Any, rows: int) -> DataFrame:
    hashed = spark.range(0, rows, 1, 8).select(
        F.xxhash64("id", F.sha2(F.col("id").cast("string"), 256)).alias("h")
    )
    return hashed.agg(F.sum(F.col("h") % 1000).alias("total"))
