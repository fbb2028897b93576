"""A PySpark function and a query are tested with plain DataFrames, as docs/guides/testing.md shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from examples.chain.transfers import transfers
from tests.operators.spark_jobs import doubled, pairs
from tests.terminal import blocks
from traceplane.chain.extract import fetch_range_sync
from traceplane.chain.rpc import RpcSettings
from traceplane.chain.simulated.server import serve_in_process_of_its_own
from traceplane.model.scope import Cursor
from traceplane.testing import local_spark

GUIDE = (Path(__file__).parents[2] / "docs/guides/testing.md").read_text()


@pytest.mark.parametrize(
    ("file", "test"), [("test_on_spark", "test_large_sales"), ("test_query", "test_totals")]
)
def test_the_examples_of_the_page_on_tests_pass(file: str, test: str) -> None:
    (example,) = (block for block in blocks(GUIDE, "python") if block.startswith(f"# {file}.py\n"))
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102 -- of our own docs
    names[test]()


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
