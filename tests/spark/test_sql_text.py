"""Whatever comments, hints and quotes a query has, Spark computes from it what the analysis says."""

from __future__ import annotations

import json
import random

import pytest

from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from tests.spark.test_spark_jobs import all_completed
from traceplane.errors import InvalidInput
from traceplane.model.dag import ExecutionStrategy, UpdateStrategy
from traceplane.model.job_definition import JobDefinition
from traceplane.operators.column_marks import Marks, Table, marks_of_output
from traceplane.sql.spark_text import plain

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

SECRET = "ann@example.org"
ROWS = f"select 1 as n, '{SECRET}' as email, 'x' as label, '{SECRET}' as `1_0`"
HOSTILE = [
    "select n, concat(label /* /*+ */ , ' ', email -- */\n) as a from rows",
    "select /*+ x -- */ n, label as a /* /* \n */ n, email as a -- */\n from rows",
    "select n, label as a from rows ${system:file.separator}* union all select 1, email from rows -- */",
    "select n, label as a -- \\\n from rows /*\n, email as b from rows -- */",
    "select n, '${system:line.separator}' as a, email\u00a0b from rows",
    "select n, email\u2028a from rows",
    "select n, email\x0ba from rows",
    "select 1_0 as a from rows",
    "ſelect n, email as a from rows",
    "select r'\\' as a, email as b, '' as c from rows",
    "select 'it''s' as a, 'x' 'y' as b, email as c from rows",
]
PARTS = [
    ", email as c",
    ", email as d",
    "||email",
    "x",
    "1",
    " ",
    "\n",
    "*",
    "''",
    "\\",
    "/*",
    "*/",
    "/*+",
    "--",
]


async def test_spark_shows_no_more_than_what_is_marked_whatever_the_comments(spark: SparkPlatform) -> None:
    queries = [*HOSTILE, *(_random_query(random.Random(seed)) for seed in range(150))]
    reduced = [_reduced(query) for query in queries]
    texts = [text for query, text in zip(queries, reduced, strict=True) for text in (query, text) if text]
    config = {"entrypoint": "spark_jobs:computed", "rows": ROWS, "texts": texts}
    await spark.platform.deploy(dag("sqltext", job("sqltext", "out", json.dumps(config))))
    await spark.platform.emit("sqltext.in", [1])
    await all_completed(spark, "sqltext")
    found = {row["text"]: json.loads(row["answer"]) for row in await spark.rows("sqltext.out")}

    for query, text in zip(queries, reduced, strict=True):
        if text is None:
            continue
        assert found[text] == found[query], "what runs is not what was written"
        for column, value in found[text] or ():
            if SECRET in value:
                assert _marks(query).has(column.lower()), query
    ran = sum(1 for text in reduced if text and found[text])
    assert ran > 20
    assert any(text and found[text] and SECRET in str(found[text]) for text in reduced)


def _reduced(query: str) -> str | None:
    try:
        return plain(query)
    except InvalidInput:
        return None


def _marks(query: str) -> Marks:
    definition = JobDefinition(
        config={"query": query},
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        update_strategy=UpdateStrategy.REPLACE,
    )
    rows = Table(None, Marks(frozenset({"email", "1_0"})))
    return marks_of_output("sql", definition, "out", 1, {"rows": rows}, {})


def _random_query(choose: random.Random) -> str:
    def inside() -> str:
        return "".join(choose.choices(PARTS, k=choose.randint(0, 4)))

    def between() -> str:
        quote = choose.choice(["'", '"', "r'", 'r"', "`"])
        return choose.choice(
            [
                "",
                "",
                f"/*{inside()}*/",
                f"/* /*{choose.choice('+ ')}{inside()}*/{inside()}-- */\n",
                f"--{inside()}\n",
                f"--{inside()}\\\n{inside()}\n",
                f", {quote}{inside()}{quote[-1]} as e",
            ]
        )

    hint = choose.choice(["", f"/*+{inside()}*/", between()])
    return f"select {hint} n, label as a {between()} , label {between()} as b {between()}\n from rows {between()}"
