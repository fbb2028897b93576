"""Spark reads the value of a secret from a query as it was set, whatever is in it."""

from __future__ import annotations

import json

import pytest

from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.test_spark_jobs import all_completed
from traceplane.errors import InvalidInput
from traceplane.wire.secrets import SecretSet, SecretValue

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

VALUES = [
    "x' or 1=1 --",
    "' as v0, (select max(n) from numbers) as w0 --",
    'x" or 1=1 --',
    "`'\"`",
    "a\\b",
    "\\",
    "\\'",
    "\\\\'",
    "\\u0027 \\U00000027 \\047 \\n \\0 \\Z \\x41",
    "${spark.master}",
    "{spark.master}",
    "$",
    "\\044{spark.master}",
    "one\ntwo\r\nthree\ttabs\x0b\f",
    "\x01\x1b\x7f\x85\u2028",
    "🙂 é 漢 \ufeff\u202e",
    "50% _ \\% \\_",
    ":start ? :end -- /* */ ; /*+ x */ |>",
    "0041",
    "${secret:s0}",
]


async def _set(spark: SparkPlatform, name: str, value: str) -> None:
    await spark.platform.api.call("PUT", f"/api/v1/secrets/user/{name}", SecretSet, SecretValue(value=value))


async def test_spark_reads_the_value_that_was_set(spark: SparkPlatform) -> None:
    columns = []
    for number, value in enumerate(VALUES):
        await _set(spark, f"s{number}", value)
        reference = f"${{secret:s{number}}}"
        columns += [f"'{reference}' as v{number}", f'"a{reference}b" as w{number}']
        columns.append(f"'\\\\${reference}''{reference}{{spark.master}}\\n{reference}' as x{number}")
        columns.append(f"'{reference}' like '${{secret:like}}' as y{number}")
    await _set(spark, "like", "%")
    query = f"select {', '.join(columns)} from numbers limit 1 -- ${{secret:s13}}"
    await spark.platform.deploy(
        dag("quoted", job("quoted", "out", json.dumps({"query": query}), operator="sql"))
    )
    await spark.platform.emit("quoted.in", [1])
    await all_completed(spark, "quoted")
    (row,) = await spark.rows("quoted.out")
    for number, value in enumerate(VALUES):
        assert row[f"v{number}"] == value
        assert row[f"w{number}"] == f"a{value}b"
        assert row[f"x{number}"] == f"\\${value}'{value}{{spark.master}}\n{value}"
        assert row[f"y{number}"]


async def test_a_pattern_keeps_the_backslashes_that_it_needs(spark: SparkPlatform) -> None:
    await _set(spark, "pattern", "50\\% \\_%")
    pattern = "like '${secret:pattern}'"
    query = f"select '50% _x' {pattern} as yes, '50x xx' {pattern} as no from numbers limit 1"
    await spark.platform.deploy(
        dag("likes", job("likes", "out", json.dumps({"query": query}), operator="sql"))
    )
    await spark.platform.emit("likes.in", [1])
    await all_completed(spark, "likes")
    assert await spark.rows("likes.out") == [{"yes": True, "no": False}]


async def test_a_secret_outside_quotes_is_refused_when_it_is_deployed(spark: SparkPlatform) -> None:
    await _set(spark, "limit", "10")
    config = json.dumps({"query": "select n from numbers limit ${secret:limit}"})
    with pytest.raises(InvalidInput, match=r"sql\.misplaced_secret"):
        await spark.platform.deploy(dag("bare", job("bare", "out", config, operator="sql")))
