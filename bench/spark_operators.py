"""What the Spark suite runs, on the platform and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
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


LARGE_ROW_BYTES = 2048
_TEXT_BYTES, _BLOB_BYTES = 2008, 32
_PIECE = 50_000


def large(task: OperatorTask) -> None:
    """Rows of 2 kB that take little room in a file: most of a row is one of a few texts."""
    texts = pa.array([(f"{number:04d}" * (_TEXT_BYTES // 4)) for number in range(256)])
    schema = pa.schema([("n", pa.int64()), ("blob", pa.binary()), ("text", pa.string())])
    rows = int(task.config["rows"])
    draw = np.random.default_rng(1)
    with task.open_writer("large", schema) as write:
        for first in range(0, rows, _PIECE):
            count = min(_PIECE, rows - first)
            bits = pa.py_buffer(draw.bytes(count * _BLOB_BYTES))
            blobs = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_BLOB_BYTES), count, [None, bits])
            picked = texts.take(pa.array(draw.integers(0, len(texts), count)))
            numbers = np.arange(first, first + count)
            write(pa.table([numbers, blobs.cast(pa.binary()), picked], schema=schema))


BLOB_BYTES = 400


def blobs(task: OperatorTask) -> None:
    """Rows that no codec makes smaller, so that bytes of files have to pass."""
    schema = pa.schema([("n", pa.int64()), ("blob", pa.binary())])
    rows = int(task.config["rows"])
    draw = np.random.default_rng(2)
    with task.open_writer("blobs", schema) as write:
        for first in range(0, rows, _PIECE):
            count = min(_PIECE, rows - first)
            bits = pa.py_buffer(draw.bytes(count * BLOB_BYTES))
            made = pa.FixedSizeBinaryArray.from_buffers(pa.binary(BLOB_BYTES), count, [None, bits])
            write(pa.table([np.arange(first, first + count), made.cast(pa.binary())], schema=schema))


def hashed(blobs: DataFrame) -> DataFrame:
    """All rows, all columns, and a hash that takes a while."""
    return blobs.withColumn("hash", F.sha2(F.col("blob"), 256))


def through(large: DataFrame) -> DataFrame:
    """All rows, all columns, one more."""
    return large.withColumn("hashed", F.xxhash64("blob", "text"))
