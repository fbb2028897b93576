"""A PySpark function is tested with plain DataFrames, as docs/concepts/spark.md shows."""

from __future__ import annotations

import pyarrow.compute as pc

from examples.chain.transfers import transfers
from tests.operators.spark_jobs import doubled, pairs
from traceplane.chain.extract import fetch_range_sync
from traceplane.chain.rpc import RpcSettings
from traceplane.chain.simulated.server import serve_in_process_of_its_own
from traceplane.model.scope import Cursor
from traceplane.testing import local_spark


def test_functions_are_called_with_plain_frames() -> None:
    with local_spark() as spark:
        numbers = spark.createDataFrame([(n, f"n{n}") for n in range(4)], "n long, name string")
        assert [row.twice for row in doubled(numbers, Cursor(1)).collect()] == [0, 2, 4, 6]
        split = pairs(numbers)
        assert {name: frame.count() for name, frame in split.items()} == {"even": 2, "odd": 2}


def test_the_example_finds_the_transfers_that_the_chain_has() -> None:
    with serve_in_process_of_its_own(seed=5, blocks=30) as url:
        chain = fetch_range_sync(RpcSettings(endpoints=(url,)), 0, 30, ["logs", "token_transfers"])
    expected = chain["token_transfers"]
    assert pc.sum(pc.is_null(expected["value"])).as_py()  # some have more digits than a decimal holds
    with local_spark() as spark:
        found = transfers(spark.createDataFrame(chain["logs"])).orderBy("block_number", "log_index").toArrow()
    assert found.select(expected.column_names).to_pylist() == expected.to_pylist()
