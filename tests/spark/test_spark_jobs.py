"""Data jobs on Spark, end to end: exact inputs, staged outputs, one commit, errors in the user's words."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow.parquet as parquet
import pytest

from examples.signals import market
from tests.docs_pages import blocks
from tests.platform import until
from tests.ports import free_port
from tests.spark import signal_reference as reference
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from traceplane.client import Client
from traceplane.errors import InvalidInput
from traceplane.trigger import messages
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent, TaskChanges, TaskSelection
from traceplane.wire.pipelines import PipelineConfig, PipelineRequest, PipelineView, Subscription
from traceplane.wire.queries import QueryTask, QueryTaskRequest
from traceplane.wire.scalars import Scope
from traceplane.wire.secrets import SecretSet, SecretValue

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


async def all_completed(spark: SparkPlatform, dag: str) -> None:
    """Every task of a DAG; those of other tests, on the same platform, may have failed as they should."""
    await spark.platform.settled(seconds=240)
    rows = await spark.platform.sql(
        "select t.state::text, t.error from tasks t join jobs using (job_id) join dags d using (dag_id)"
        " where d.name = $1",
        dag,
    )
    assert {row["state"] for row in rows} == {"completed"}, [row["error"] for row in rows]


async def test_a_function_and_a_query_read_exactly_their_scope_and_commit_once(spark: SparkPlatform) -> None:
    text = dag(
        "both",
        job("both", "doubled", '{entrypoint: "spark_jobs:doubled"}'),
        job("both", "sums", '{query: "select :start as block, sum(n) as total, count(*) as rows from numbers"}',
            operator="sql"),
        job("both", "pairs", '{entrypoint: "spark_jobs:pairs"}',
            outputs="{name: even, dataset: both.even}, {name: odd, dataset: both.odd}"),
        # Virtual datasets, one upon the other, of the scope that is read.
        job("both", "thirds", '{query: "select block, cast(sum(n) as bigint) as total from numbers group by 1"}',
            operator="sql").replace("dataset: both.numbers", "dataset: both.every_third"),
        job("both", "twice", '{entrypoint: "spark_jobs:doubled"}').replace(
            "dataset: both.numbers}", "dataset: both.every_third}, where: {block: 3}, columns: [block, n]"),
    ).replace("jobs:", """datasets:
  both.marked: {storage: virtual, sql: "select n, block, n // 3 * 3 = n as third from both.numbers"}
  both.every_third: {storage: virtual, sql: "select * exclude (third) from both.marked where third"}
jobs:""", 1)  # fmt: skip
    await spark.platform.deploy(text)
    await spark.platform.emit("both.in", range(5))
    await all_completed(spark, "both")
    doubled = await spark.rows("both.doubled")
    assert sorted((r["block"], r["n"], r["twice"]) for r in doubled) == [
        (n // 100, n, 2 * n) for n in range(500)
    ]
    assert sorted((r["block"], r["total"], r["rows"]) for r in await spark.rows("both.sums")) == [
        (b, sum(range(b * 100, b * 100 + 100)), 100) for b in range(5)
    ]
    assert sorted(r["n"] for r in await spark.rows("both.even")) == list(range(0, 500, 2))
    assert sorted(r["n"] for r in await spark.rows("both.odd")) == list(range(1, 500, 2))
    assert sorted((r["block"], r["total"]) for r in await spark.rows("both.thirds")) == [
        (b, sum(n for n in range(b * 100, b * 100 + 100) if n % 3 == 0)) for b in range(5)
    ]
    assert sorted(r["twice"] for r in await spark.rows("both.twice")) == [2 * n for n in range(300, 400, 3)]

    # A query that is handed over: over all scopes at once, and its result is a dataset like any other.
    sql = "select t.block, count(*)::bigint as n from both.every_third t join both.doubled d using (n) group by all"
    request = QueryTaskRequest(sql, "both.result")
    handed_over = await spark.platform.api.call("POST", "/api/v1/query-tasks", QueryTask, request)
    await all_completed(spark, handed_over.dag)
    client = Client(spark.platform.gateway_url, spark.platform.user_token)
    result = await asyncio.to_thread(client.query, "select block, n from both.result order by block")
    assert result.to_pydict() == {"block": [0, 1, 2, 3, 4], "n": [34, 33, 33, 34, 33]}


async def test_sources_with_operators_on_spark_write_rows_for_each_event(spark: SparkPlatform) -> None:
    text = """
version: 1
dag: made
jobs:
- name: made-function
  activation: source
  source: {kind: manual}
  operator: pyspark
  outputs: [{dataset: made.function}]
  config: {entrypoint: "spark_jobs:made"}
- name: made-query
  activation: source
  source: {kind: webhook}
  operator: sql
  outputs: [{dataset: made.query}]
  config: {query: "select :start as block, 'x' as text"}
"""
    await spark.platform.deploy(text)
    for dataset in ("made.function", "made.query"):
        await spark.platform.emit(dataset, range(3))
    await all_completed(spark, "made")
    assert sorted((r["block"], r["n"]) for r in await spark.rows("made.function")) == [
        (block, n) for block in range(3) for n in range(4)
    ]
    assert sorted(r["block"] for r in await spark.rows("made.query")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        ("raises", "operator.raised", "this operator always fails"),
        ("no_such_column", "operator.raised", "nothing"),
        ("not_a_frame", "operator.result_invalid", "int"),
        ("is_not_there", "operator.no_entrypoint", "has no function 'is_not_there'"),
    ],
)
async def test_an_operator_that_fails_says_so_in_the_users_own_terms(
    spark: SparkPlatform, function: str, code: str, says: str
) -> None:
    name = function.replace("_", "")
    await spark.platform.deploy(dag(name, job(name, "out", f'{{entrypoint: "spark_jobs:{function}"}}')))
    await spark.platform.emit(f"{name}.in", [1])
    error = await spark.error(f"{name}-out")
    assert error["code"] == code
    assert says in error["message"]
    if code == "operator.raised":
        assert error["file"].endswith("spark_jobs.py")
    await spark.platform.settled(seconds=240)
    assert await spark.rows(f"{name}.out") == []


async def test_a_query_that_does_not_parse_is_the_users_error(spark: SparkPlatform) -> None:
    with pytest.raises(InvalidInput, match=r"sql\.malformed"):
        await spark.platform.deploy(dag("typo", job("typo", "out", '{query: "selekt 1"}', operator="sql")))


async def test_spark_reads_no_platform_secrets_for_user_code(spark: SparkPlatform) -> None:
    secret = spark.platform.folder / "master.key"
    await until(lambda: _exists(secret), what="the master key")
    config = f'{{entrypoint: "spark_jobs:steals", path: "{secret}"}}'
    await spark.platform.deploy(dag("thief", job("thief", "out", config)))
    await spark.platform.emit("thief.in", [1])
    error = await spark.error("thief-out")
    assert error["code"] == "operator.raised"
    assert await spark.rows("thief.out") == []


async def test_secrets_are_not_in_the_log_of_the_spark_server(spark: SparkPlatform) -> None:
    """Spark logs queries and failures of functions, and functions print where it logs. It keeps no event log, has no
    web interface, and its temporary files are its own."""
    key, platform = "plaice-'7f3e1c'-\"55d0ab\"", spark.platform
    for name in ("spark_key", "spark_word"):
        value = key if name == "spark_key" else "halibut-'7f3e1c'\\55${d0}ac"
        await platform.api.call("PUT", f"/api/v1/secrets/user/{name}", SecretSet, SecretValue(value=value))
    text = dag(
        "leaky",
        job("leaky", "function", '{entrypoint: "spark_jobs:leaks_its_secret"}', more="secrets: {KEY: spark_key}"),
        job("leaky", "query", "{query: \"select raise_error('${secret:spark_word}') as n from numbers\"}",
            operator="sql"),
    )  # fmt: skip
    await platform.deploy(text)
    await platform.emit("leaky.in", range(2))
    for name in ("leaky-function", "leaky-query"):
        error = await spark.error(name)
        assert "***" in error["message"]
    await platform.settled()
    log = b"".join(path.read_bytes() for path in (platform.folder / "spark" / "logs").iterdir())
    assert b"a function has ***" in log
    assert b"and *** in the middle of a line" in log
    kept = [path for path in platform.folder.rglob("*") if path.is_file()]
    shown = b"".join(
        Path(f"/proc/{spark.server_pid()}/{file}").read_bytes() for file in ("cmdline", "environ")
    )
    for secret in ("plaice-", "halibut-"):
        assert secret.encode() not in shown
        assert not [path for path in kept if path.exists() and secret.encode() in path.read_bytes()]


async def _exists(path: object) -> bool:
    return path.exists()  # type: ignore[attr-defined]


# Faults ------------------------------------------------------------------------------------------------


async def test_a_killed_worker_ends_its_spark_server_and_its_task_is_retried(
    spark: SparkPlatform,
) -> None:
    config = '{entrypoint: "spark_jobs:takes_seconds", seconds: 2}'
    await spark.platform.deploy(dag("dies", job("dies", "out", config, more="lease: 3s\n  max_attempts: 4")))
    await spark.platform.emit("dies.in", [1])
    await spark.running("dies-out")
    server = spark.server_pid()
    await spark.platform["spark-1"].kill()
    await until(lambda: _gone(server), what="the server ended with its worker")
    await spark.platform["spark-1"].start()
    assert set(await spark.platform.settled(seconds=240)) >= {"completed"}
    assert sorted(r["n"] for r in await spark.rows("dies.out")) == list(range(100, 200))


async def test_a_canceled_task_and_one_that_takes_too_long_are_stopped(spark: SparkPlatform) -> None:
    config = '{entrypoint: "spark_jobs:hangs"}'
    await spark.platform.deploy(
        dag(
            "stop",
            job("stop", "canceled", config, more="lease: 3s"),
            job("stop", "late", config, more="timeout: 4s\n  max_attempts: 1"),
        )
    )
    await spark.platform.emit("stop.in", [1])
    task = await spark.running("stop-canceled")
    await spark.platform.api.call("POST", "/api/v1/tasks/cancel", TaskChanges, TaskSelection([UUID(task)]))
    error = await spark.error("stop-late")
    assert error["code"] == "operator.timeout"
    await spark.platform.settled(seconds=240)
    states = await spark.platform.sql(
        "select j.name, t.state from tasks t join jobs j using (job_id) where j.name in ('stop-canceled', 'stop-late')"
    )
    assert {row["name"]: row["state"] for row in states} == {"stop-canceled": "canceled", "stop-late": "dead"}


async def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_functions_that_spark_runs_are_those_of_their_own_deploy(spark: SparkPlatform) -> None:
    """Spark's Python workers are shared by jobs, and import modules by name: none of a bundle's may be theirs."""
    udfs = """
from pyspark.sql.functions import udf
import udf_helper
from udf_helper import cached

@udf("string")
def word(n):
    return udf_helper.WORD + cached(n)

def say(numbers):
    return numbers.select("n", word("n").alias("word"))
"""
    helper = """
import functools
import udfs  # modules may import each other
WORD = "{0}"

@functools.lru_cache(maxsize=None)
def cached(n):
    return "{0}"
"""
    words = ("a", "b")
    for word in words:
        name = f"udf-{word}"
        text = dag(name, job(name, "said", '{entrypoint: "udfs:say"}'))
        await spark.platform.deploy(text, code={"udfs.py": udfs, "udf_helper.py": helper.format(word)})
    for position in range(2):
        for word in words:
            await spark.platform.emit(f"udf-{word}.in", [position])
    await spark.platform.settled(seconds=240)
    for word in words:
        said = [row["word"] for row in await spark.rows(f"udf-{word}.said")]
        assert len(said) >= 2, spark.platform.logs("spark-1")[-2000:]
        assert set(said) == {word * 2}


STAMPED = """
version: 1
dag: stamped
datasets:
  stamped.out: {columns: [{name: n, type: bigint}, {name: at, type: timestamp}]}
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: stamped.in}]}
- name: stamped-bulky
  runtime: python
  operator: python
  inputs: [{from: {job: ticks}}]
  outputs: [{dataset: stamped.bulky}]
  config: {entrypoint: "spark_jobs:bulky"}
- name: stamped-out
  runtime: spark
  operator: sql
  inputs: [{name: bulky, from: {job: stamped-bulky}}]
  outputs: [{dataset: stamped.out}]
  config: {query: "select n, timestamp'2026-03-29 02:30:00' as at from bulky"}
"""


async def test_a_timestamp_in_a_file_that_spark_writes_is_as_declared(spark: SparkPlatform) -> None:
    await spark.platform.deploy(STAMPED)
    await spark.platform.emit("stamped.in", [1])
    await all_completed(spark, "stamped")
    [rows] = (await live(spark, "stamped.out")).values()
    assert {row["at"] for row in rows} == {datetime(2026, 3, 29, 2, 30, tzinfo=UTC)}


# Compaction --------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "operators" / "compact.md"
MORE = """
- name: small
  runtime: python
  operator: python
  inputs: [{ from: { job: blocks } }]
  outputs: [{ dataset: ledger.small }]
  config: { entrypoint: "spark_jobs:numbers" }
- name: large
  runtime: spark
  operator: compact
  inputs: [{ from: { job: small }, columns: [n] }]
  outputs: [{ dataset: ledger.large }]
  execution_strategy: Bulk
  batch: { size: 7 }
- name: counts
  runtime: python
  operator: python
  inputs: [{ from: { job: entries }, columns: [n, block] }]
  outputs: [{ dataset: ledger.counts }]
  config: { entrypoint: "spark_jobs:count_rows" }
- name: totals
  runtime: spark
  operator: sql
  inputs: [{ name: entries, from: { job: entries }, columns: [n], where: { name: n3 } }]
  outputs: [{ dataset: ledger.totals }]
  config: { query: "select :start as block, sum(n) as total, count(*) as rows from entries" }
"""


async def live(spark: SparkPlatform, dataset: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each live file, by its path."""
    files = await spark.platform.sql(
        "select f ->> 'path' as path from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
        " where d.dataset_id = $1 and c.superseded_by is null",
        dataset,
    )
    root = spark.platform.folder / "objects"
    return {row["path"]: parquet.read_table(root / row["path"]).to_pylist() for row in files}


async def hot(spark: SparkPlatform, dataset: str) -> list[dict[str, Any]]:
    generation = await spark.platform.value(
        "select current_generation_id from datasets where dataset_id = $1", dataset
    )
    return [dict(row) for row in await spark.platform.sql(f"select * from traceplane_hot.g_{generation.hex}")]


async def queried(spark: SparkPlatform) -> list[dict[str, Any]]:
    """What a query sees of the hot dataset."""
    client = Client(spark.platform.gateway_url, spark.platform.user_token)
    counts = "count(*) as rows, count(distinct block) as blocks, count(distinct written) as versions"
    sql = f"select {counts} from ledger.entries"
    return (await asyncio.to_thread(client.query, sql)).to_pylist()


async def runs(spark: SparkPlatform, job: str) -> list[str]:
    rows = await spark.platform.sql(
        "select t.scope_key from tasks t join jobs j using (job_id) where j.name = $1 and state = 'completed'"
        " order by t.task_id",
        job,
    )
    return [row["scope_key"] for row in rows]


async def test_the_documented_example_compacts_and_follows_a_reorganization(spark: SparkPlatform) -> None:
    [text] = blocks(PAGE.read_text(), "yaml")
    await spark.platform.deploy(text.replace("operators:entries", "spark_jobs:entries") + MORE)
    await spark.platform.emit("ledger.blocks", range(7))
    await all_completed(spark, "ledger")

    [(first, rows)] = (await live(spark, "ledger.history")).items()
    assert sorted({row["block"] for row in rows}) == [0, 1, 2, 3, 4]
    assert len(rows) == 500
    assert [(row["name"], row["n"]) for row in rows] == sorted((row["name"], row["n"]) for row in rows)
    assert {row["block"] for row in await hot(spark, "ledger.entries")} == {5, 6}
    assert await queried(spark) == [
        {"rows": 700, "blocks": 7, "versions": 7}
    ]  # of table and files, each once
    [(_, large)] = (await live(spark, "ledger.large")).items()
    assert sorted(row["n"] for row in large) == list(range(700))
    assert set(large[0]) == {"n"}
    assert parquet.ParquetFile(
        spark.platform.folder / "objects" / next(iter(await live(spark, "ledger.large")))
    ).num_row_groups == 1  # fmt: skip
    threes = [n for n in range(100) if n % 7 == 3]
    totals = [row for rows in (await live(spark, "ledger.totals")).values() for row in rows]
    assert sorted((r["block"], r["total"], r["rows"]) for r in totals) == [
        (block, sum(threes), len(threes)) for block in range(7)
    ]

    counts = [row for rows in (await live(spark, "ledger.counts")).values() for row in rows]
    assert sorted((r["block"], r["rows"], r["columns"]) for r in counts) == [
        (block, 100, "n,block") for block in range(7)
    ]

    before = {row["block"]: row["written"] for row in rows}
    await spark.platform.emit("ledger.blocks", [3], emission="fork")
    await all_completed(spark, "ledger")
    assert await runs(spark, "history") == ["p:0-4", "p:0-4"]
    assert (await runs(spark, "totals")).count("c:3") == 2
    assert len(await runs(spark, "totals")) == 8
    [(second, rows)] = (await live(spark, "ledger.history")).items()
    assert second != first
    assert len(rows) == 500
    after = {row["block"]: row["written"] for row in rows}
    assert {block for block in after if after[block] != before[block]} == {3}
    assert await queried(spark) == [{"rows": 700, "blocks": 7, "versions": 7}]
    assert {row["block"] for row in await hot(spark, "ledger.entries")} == {5, 6}
    assert list((spark.platform.folder / "objects").rglob("*.csv")) == []


async def test_bars_become_signals_that_launch_pipelines_and_late_bars_are_waited_for(
    spark: SparkPlatform,
) -> None:
    """Each live bar is a task of its own that reads the history it needs; what it finds is what one look at all
    bars finds, and each signal is given to the trigger."""
    platform, folder = spark.platform, Path("examples/signals")
    code = {str(path): path.read_text() for path in (Path("examples/__init__.py"), *folder.glob("[!_]*.py"))}
    await platform.deploy((folder / "dag.yaml").read_text(), code=code | {"examples/signals/__init__.py": ""})
    past, live = 235, 4
    request = PipelineRequest(
        "crosses",
        PipelineConfig("market", "trade", {"shares": 7}),
        scanner_tickers=list(market.TICKERS),
        signal_subscriptions=[Subscription("golden_cross"), Subscription("death_cross")],
    )
    await platform.api.call("POST", "/api/v1/pipelines", PipelineView, request)
    port = {"TRACEPLANE_TRIGGER_PORT": str(free_port()), "TRACEPLANE_KAFKA_AUTO_OFFSET_RESET": "earliest"}
    await platform.add("trigger", "trigger", "run", **port).start()
    scope = Scope(partition_key=f"0-{past - 1}", start=0, end=past - 1)
    emitted = EmitRequest([ManualEvent("market.minutes", scope)])
    await platform.api.call("POST", "/api/v1/events", EmitResponse, emitted)
    await platform.settled(seconds=240)
    await platform.emit("market.minutes", [past + 2, past + 3, past, past + 1])
    expected = reference.signals(
        [market.bar(ticker, n) for ticker in market.TICKERS for n in range(past + live)]
    )

    async def found() -> list[dict]:
        states = await platform.states()
        busy = states.keys() & {"queued", "dispatched", "running"}
        rows = await spark.rows("market.signals")
        return [] if busy or len(rows) < len(expected) else rows

    rows = await until(found, seconds=240, what="all signals")
    assert {r["signal_id"]: (r["signal"], r["timestamp"]) for r in rows} == expected
    crosses = [i for i in expected if "_cross/" in i]
    assert any(int(i.rpartition("/")[2]) >= past for i in crosses), "a live bar gave a cross"
    lines = (platform.folder / "signals/trading-signals/0.jsonl").read_bytes().splitlines()
    told = [msgspec.json.decode(line, type=messages.Signal) for line in lines]
    assert {t.signal_id for t in told} == set(expected)

    async def traded() -> list[dict]:
        return await spark.rows("market.trades")

    trades = await until(traded, seconds=240, what="a pipeline ran")
    assert {t["signal_id"] for t in trades} <= set(crosses)
    assert {(t["pipeline"], t["shares"]) for t in trades} == {("crosses", 7)}
    await platform["trigger"].stop()
