"""A PySpark function is tested with plain DataFrames, as docs/concepts/spark.md shows."""

from __future__ import annotations

from tests.operators.spark_jobs import doubled, pairs
from traceplane.model.scope import Cursor
from traceplane.testing import local_spark


def test_functions_are_called_with_plain_frames() -> None:
    with local_spark() as spark:
        numbers = spark.createDataFrame([(n, f"n{n}") for n in range(4)], "n long, name string")
        assert [row.twice for row in doubled(numbers, Cursor(1)).collect()] == [0, 2, 4, 6]
        split = pairs(numbers)
        assert {name: frame.count() for name, frame in split.items()} == {"even": 2, "odd": 2}
