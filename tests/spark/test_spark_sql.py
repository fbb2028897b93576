"""Translated queries mean on a real Spark what the gate understood."""

from __future__ import annotations

import json

import pytest

from tests.query.published import queries
from tests.query.test_for_spark import ENV_OF_SPARK, on_spark
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.test_spark_jobs import all_completed
from traceplane.errors import TraceplaneError
from traceplane.sql.gate import admit
from traceplane.sql.spark_functions import FUNCTIONS, GRAMMAR

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

DATASETS = {
    "shop.orders": "select 1L as id, 'ann' as customer, 2.5D as amount, date'2024-01-01' as day",
    "shop.items": "select 1L as order_id, 'x' as sku",
}
FAIL_BY_TYPE = ("`amount` DIV 2", "TO_JSON('{")
"""Spark parses these and knows their functions, but not for such arguments."""
LITERALS = [
    "\\",
    "\\'",
    "it's",
    "a\\nb\nc\td\re",
    "\\\\''",
    "\\u0041 \\101 \\x41 \\% \\_ \\Z \\0 \\'",
    "\x01\x0741\x1b\x7f",
    '` " -- /* */ ; :x ? |>',
    "é 漢 🙂 \u00a0",
    "$ $$ {} $\\{env:HOME}",
    ENV_OF_SPARK,
]


def _written() -> list[tuple[str, dict[str, str]]]:
    """What people ask, as Spark gets it, and which datasets its relations are."""
    texts = []
    for sql in queries("legitimate_queries.txt"):
        try:
            texts.append((on_spark(sql), {r.name: r.dataset_id for r in admit(sql).relations}))
        except TraceplaneError:
            continue  # which ones, and why, is in tests/query/test_for_spark.py
    return texts


async def test_spark_accepts_translated_queries_and_reads_every_literal_unchanged(
    spark: SparkPlatform,
) -> None:
    asked = ", ".join("'" + text.replace("'", "''") + f"' as c{n}" for n, text in enumerate(LITERALS))
    config = {
        "entrypoint": "spark_jobs:analyzed",
        "datasets": DATASETS,
        "texts": _written(),
        "literals": on_spark(f"select {asked} from shop.orders"),
    }
    assert len(config["texts"]) >= 70
    text = json.dumps(config, ensure_ascii=False).replace("\x7f", "\\u007f")  # as YAML has it
    await spark.platform.deploy(dag("analyzed", job("analyzed", "out", text)))
    await spark.platform.emit("analyzed.in", [1])
    await all_completed(spark, "analyzed")
    rows = await spark.rows("analyzed.out")

    refused = [row["value"] for row in rows if row["kind"] == "refused"]
    assert [text for text in refused if not any(part in text for part in FAIL_BY_TYPE)] == []
    assert len(refused) == len(FAIL_BY_TYPE)
    assert FUNCTIONS - GRAMMAR - {row["value"] for row in rows if row["kind"] == "function"} == set()
    assert [row["value"] for row in rows if row["kind"] == "literal"] == LITERALS
