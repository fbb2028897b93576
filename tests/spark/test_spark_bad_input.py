"""Every mistake in a Spark job gives a clear error with the user's own line, and committed data stays unchanged.

All jobs share one platform and one Spark server, which serves the next one whatever the last one did.
"""

from __future__ import annotations

import functools
import inspect
import json
import stat
from pathlib import Path

import pytest

from tests.operators import spark_jobs
from tests.platform import until
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from traceplane.wire.control import BackfillRequest, BackfillResponse, ExplainResponse

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def line_of(function: object, text: str = "") -> int:
    """Where a function, or some text within it, stands in its file."""
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(number for number, line in enumerate(lines) if text in line)


async def deploy(spark: SparkPlatform, name: str, function: str, **fields: str) -> None:
    await spark.platform.deploy(
        dag(
            name,
            job(name, "out", f'{{entrypoint: "spark_jobs:{function}"}}', more="max_attempts: 1", **fields),
        )
    )


async def failed(spark: SparkPlatform, name: str, function: str) -> dict:
    """The error of a job whose only attempt fails; nothing is committed."""
    await deploy(spark, name, function)
    await spark.platform.emit(f"{name}.in", [1])
    error = await spark.error(f"{name}-out")
    await spark.platform.settled(seconds=240)
    assert await spark.rows(f"{name}.out") == []
    return error


async def assert_spark_serves(spark: SparkPlatform, name: str) -> None:
    """Another job of the DAG's platform computes as ever."""
    await deploy(spark, name, "doubled")
    await spark.platform.emit(f"{name}.in", [1])
    await until(lambda: spark.rows(f"{name}.out"), seconds=240, what=f"rows of {name}")
    assert sorted(row["n"] for row in await spark.rows(f"{name}.out")) == list(range(100, 200))


async def test_a_function_that_raises_is_reported_with_its_line_on_both_sides(spark: SparkPlatform) -> None:
    here = await failed(spark, "here", "raises")
    assert (here["code"], here["type"]) == ("operator.raised", "ValueError")
    assert "this operator always fails" in here["message"]
    assert here["line"] == line_of(spark_jobs.raises, "raise ValueError")
    there = await failed(spark, "there", "raises_in_spark")
    assert there["code"] == "operator.raised"
    assert "no such thing in the executor" in there["message"]
    assert Path(there["file"]).name == "spark_jobs.py"
    assert there["line"] == line_of(spark_jobs.raises_in_spark, "raise KeyError")


async def test_columns_that_are_not_as_declared_are_refused_and_what_is_committed_stays(
    spark: SparkPlatform,
) -> None:
    declared = """
datasets:
  declared.out:
    columns:
    - {name: n, type: bigint, nullable: false}
    - {name: name, type: string, nullable: false}
"""
    text = dag("declared", job("declared", "out", '{entrypoint: "spark_jobs:writes_by_declaration"}'))
    await spark.platform.deploy(text + declared)
    await spark.platform.emit("declared.in", [1, 2, 3, 4])
    await spark.platform.settled(seconds=240)
    rows = await spark.platform.sql(
        "select t.range_start as position, t.state::text, t.attempt, t.error ->> 'code' as code,"
        " t.error ->> 'message' as message"
        " from tasks t join jobs j using (job_id) where j.name = 'declared-out' order by 1"
    )
    assert [(r["state"], r["attempt"], r["code"]) for r in rows] == [
        ("completed", 1, None),
        *[("dead", 1, "commit.not_as_declared")] * 3,
    ]
    for row, told in zip(
        rows[1:], ("column n: string", "column name: missing", "column name: 50 nulls"), strict=True
    ):
        assert told in row["message"]
    assert sorted(row["n"] for row in await spark.rows("declared.out")) == list(range(100, 200))


async def test_values_are_cast_to_declared_types_and_one_that_would_change_is_refused(
    spark: SparkPlatform,
) -> None:
    """Of results that this process writes, those that Spark writes, and rows of an `append` job."""
    columns = "columns: [{name: n, type: int}, {name: price, type: 'decimal(9, 2)'}, {name: days, type: array<date>}]"
    queries = {
        "here": "select n, n + {more} as price, array(current_date()) as days from numbers",
        "there": "select n, n + {more} as price, array(current_date()) as days from numbers",
    }
    text = dag(
        "fits",
        *(
            job("fits", name, f'{{query: "{query.format(more=more)}"}}', operator="sql", more=append)
            for name, query, more, append in [
                ("here", queries["here"], "1", ""),
                ("there", queries["there"], "1", "update_strategy: append\n  unique_key: [n]"),
                ("here-not", queries["here"], "9999999L", ""),
                ("there-not", queries["there"], "9999999L", "update_strategy: append\n  unique_key: [n]"),
            ]
        ),
    )
    names = ("here", "there", "here-not", "there-not")
    declared = "\n".join(f"  fits.{name}: {{{columns}}}" for name in names)
    await spark.platform.deploy(f"{text}\ndatasets:\n{declared}\n")
    await spark.platform.emit("fits.in", [1])
    await spark.platform.settled(seconds=240)
    for name in ("here", "there"):
        rows = sorted(await spark.rows(f"fits.{name}"), key=lambda row: row["n"])
        assert [(row["n"], str(row["price"])) for row in rows[:2]] == [(100, "101.00"), (101, "102.00")]
        types = await spark.platform.value(
            "select s.columns from generation_schemas s join datasets d"
            " on d.current_generation_id = s.generation_id where d.dataset_id = $1",
            f"fits.{name}",
        )
        assert [c["type"] for c in json.loads(types)][:2] == ["int32", "decimal128(9, 2)"]
    for name, told in (
        ("here-not", "column 'price', row 1: '10000099'"),
        ("there-not", "column 'price': 10000"),
    ):
        error = await spark.error(f"fits-{name}")
        assert error["code"] == "operator.value_does_not_fit"
        assert told in error["message"]
        assert await spark.attempts(f"fits-{name}") == 1


async def test_an_input_without_rows_has_the_declared_columns_or_fails_without_retry(
    spark: SparkPlatform,
) -> None:
    """Directly below a source, which never has rows."""
    text = """
version: 1
dag: bare
datasets:
  bare.in: {columns: [{name: n, type: int}, {name: at, type: timestamp}, {name: tags, type: 'map<string, int>'}]}
jobs:
- {name: bare-ticks, activation: source, source: {kind: manual}, outputs: [{dataset: bare.in}, {dataset: bare.odd}]}
- {name: bare-sql, operator: sql, inputs: [{from: {dataset: bare.in}}], outputs: [{dataset: bare.counted}],
   config: {query: "select count(*) as rows, max(n) as n, max(map_keys(tags)[0]) as tag from `bare.in`"}}
- {name: bare-spark, operator: pyspark, inputs: [{name: numbers, from: {dataset: bare.in}, columns: [n, at]}],
   outputs: [{dataset: bare.described}], config: {entrypoint: "spark_jobs:described"}}
- {name: bare-python, runtime: python, operator: python, inputs: [{name: numbers, from: {dataset: bare.in}}],
   outputs: [{dataset: bare.read}], config: {entrypoint: "spark_jobs:reads_columns"}}
- {name: bare-odd, operator: sql, inputs: [{name: odd, from: {dataset: bare.odd}}], outputs: [{dataset: bare.none}],
   config: {query: select * from odd}}
"""
    await spark.platform.deploy(text)
    await spark.platform.emit("bare.in", [1])
    await spark.platform.emit("bare.odd", [1])
    await spark.platform.settled(seconds=240)
    assert await spark.rows("bare.counted") == [{"rows": 0, "n": None, "tag": None}]
    (row,) = await spark.rows("bare.described")
    assert row["columns"] == "n:int,at:timestamp"
    (row,) = await spark.rows("bare.read")
    assert row["columns"] == "n:int32,at:timestamp[us, tz=UTC],tags:map<string, int32>"
    assert (await spark.error("bare-odd"))["code"] == "operator.input_schema_unknown"
    assert await spark.attempts("bare-odd") == 1


async def test_an_input_without_rows_leads_to_the_same_schema_as_one_with_rows(spark: SparkPlatform) -> None:
    text = """
version: 1
dag: sparse
datasets:
  sparse.numbers: {columns: [{name: n, type: bigint, nullable: false}]}
jobs:
- {name: sparse-ticks, activation: source, source: {kind: manual}, outputs: [{dataset: sparse.in}]}
- {name: sparse-numbers, runtime: python, operator: python, inputs: [{from: {dataset: sparse.in}}],
   outputs: [{dataset: sparse.numbers}], config: {entrypoint: "spark_jobs:nothing_for_even_cursors"}}
- {name: sparse-sql, operator: sql, inputs: [{name: numbers, from: {dataset: sparse.numbers}}],
   outputs: [{dataset: sparse.copied}], config: {query: select n from numbers}}
"""
    await spark.platform.deploy(text)
    for cursor in (0, 1, 2, 3):
        await spark.platform.emit("sparse.in", [cursor])
        await spark.platform.settled(seconds=240)
    assert await spark.platform.states("sparse-numbers") == {"completed": 4}
    assert await spark.platform.states("sparse-sql") == {"completed": 4}
    assert sorted(row["n"] for row in await spark.rows("sparse.copied")) == [1, 3]


async def test_a_job_that_returns_nothing_commits_only_its_scope(spark: SparkPlatform) -> None:
    outputs = "{name: one, dataset: none.one}, {name: two, dataset: none.two}"
    await deploy(spark, "none", "returns_nothing", outputs=outputs)
    await spark.platform.emit("none.in", [1])
    await spark.platform.settled(seconds=240)
    assert await spark.platform.states("none-out") == {"completed": 1}
    assert await spark.rows("none.one") == []
    counted = (
        "select count(*) from dataset_commits c join datasets d on c.generation_id = d.current_generation_id"
    )
    assert await spark.platform.value(f"{counted} where dataset_id like 'none._%' and row_count = 0") == 2


async def test_a_job_that_hangs_on_every_core_is_stopped_and_frees_them(spark: SparkPlatform) -> None:
    name = "hung"
    config = '{entrypoint: "spark_jobs:hangs_on_every_core"}'
    await spark.platform.deploy(dag(name, job(name, "out", config, more="timeout: 5s\n  max_attempts: 1")))
    await spark.platform.emit("hung.in", [1])
    assert (await spark.error("hung-out"))["code"] == "operator.timeout"
    await assert_spark_serves(spark, "unhung")


@pytest.mark.chaos
async def test_memory_is_bounded_in_the_task_and_in_spark(spark: SparkPlatform) -> None:
    server = spark.server_pid()
    own = await failed(spark, "ownmemory", "eats_memory")
    assert own["code"] in ("operator.raised", "operator.killed")
    assert "out of memory" in own["message"]
    python = await failed(spark, "pythonmemory", "eats_memory_in_spark")
    assert python["code"] == "operator.raised"
    assert "MemoryError" in python["message"]
    assert python["line"] == line_of(spark_jobs.eats_memory_in_spark, "bytearray")
    collected = await failed(spark, "collected", "collects_too_much")
    assert collected["code"] == "operator.raised"
    assert "maxResultSize" in collected["message"]
    assert collected["line"] == line_of(spark_jobs.collects_too_much, "collect()")
    await deploy(spark, "exploding", "exploding")
    await spark.platform.emit("exploding.in", [1])
    await spark.platform.settled(seconds=240)
    found = (
        "select row_count from dataset_commits c join datasets d on c.generation_id = d.current_generation_id"
    )
    assert await spark.platform.value(f"{found} where dataset_id = 'exploding.out'") == 100_000
    assert spark.server_pid() == server, "the server has survived all of that"


@pytest.mark.chaos
async def test_a_jvm_without_memory_is_restarted_and_its_task_says_why(spark: SparkPlatform) -> None:
    server = spark.server_pid()
    error = await failed(spark, "heap", "fills_the_heap")
    assert error["code"] == "operator.spark_lost"
    assert "out of memory: its heap has 640 MB" in error["message"]
    await assert_spark_serves(spark, "afterheap")
    assert spark.server_pid() != server


async def test_a_damaged_file_is_named_and_its_scope_can_be_recomputed(spark: SparkPlatform) -> None:
    for name, damage in (
        ("cut", lambda data: data[: len(data) // 2]),
        ("garbled", lambda data: b"x" * len(data)),
    ):
        await assert_spark_serves(spark, name)
        (file,) = await spark.platform.sql(
            "select f ->> 'path' as path from datasets d join dataset_commits c"
            " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f where dataset_id = $1",
            f"{name}.numbers",
        )
        path = spark.platform.folder / "objects" / file["path"]
        path.chmod(path.stat().st_mode | stat.S_IWUSR)  # it is sealed, for its owner too
        path.write_bytes(damage(path.read_bytes()))
        await compute_again(spark, f"{name}.out")
        error = await spark.error(f"{name}-out")
        assert error["code"] == "operator.input_unreadable"
        assert path.name in error["message"]
        await spark.platform.settled(seconds=240)
        before = await newest_commit(spark, name)
        assert len(await spark.rows(f"{name}.out")) == 100, "what was committed stays"
        await compute_again(spark, f"{name}.numbers")
        await until(
            functools.partial(newer_commit, spark, name, before), seconds=240, what=f"{name} is whole"
        )
        assert sorted(row["n"] for row in await spark.rows(f"{name}.out")) == list(range(100, 200))


async def compute_again(spark: SparkPlatform, dataset: str) -> None:
    request = BackfillRequest(dataset, 1, 1, only="all")
    await spark.platform.api.call("POST", "/api/v1/backfill", BackfillResponse, request)


async def newest_commit(spark: SparkPlatform, name: str) -> int:
    found = "select max(commit_id) from dataset_commits join generations using (generation_id)"
    return await spark.platform.value(
        f"{found} join datasets using (dataset_uuid) where dataset_id = $1", f"{name}.out"
    )


async def newer_commit(spark: SparkPlatform, name: str, before: int) -> bool:
    return await newest_commit(spark, name) > before


DIVISION = dag(
    "division",
    """\
- name: division-one
  runtime: spark
  operator: sql
  inputs: [{name: numbers, from: {dataset: division.numbers}}]
  outputs: [{name: out, dataset: division.one}]
  config:
    query: |
      select n,
        n / (n - n) as share
      from numbers
- name: division-several
  runtime: spark
  operator: sql
  inputs: [{name: numbers, from: {dataset: division.numbers}}]
  outputs: [{name: sound, dataset: division.sound}, {name: broken, dataset: division.broken}]
  config:
    query:
      sound: select n from numbers
      broken: |
        select n
        from numbers
        where cast(concat('x', n) as int) = 1
- name: division-below
  runtime: spark
  operator: sql
  inputs: [{name: shares, from: {dataset: division.shares}}]
  outputs: [{name: out, dataset: division.below}]
  config: {query: select count(share) as shares from shares}
datasets:
  division.shares: {storage: virtual, sql: "select n, 1 / (n - n) as share from division.numbers"}
""",
    defaults="{max_attempts: 1}",
)


async def test_a_query_that_fails_is_told_with_its_line_in_the_job(spark: SparkPlatform) -> None:
    """And not with a file of the platform, nor with advice on functions."""
    await spark.platform.deploy(DIVISION)
    await spark.platform.emit("division.in", [1])
    places = {}
    for job_name in ("one", "several", "below"):
        error = await spark.error(f"division-{job_name}")
        assert error["code"] == "operator.raised"
        places[job_name] = (error.get("file"), error.get("line"))
    assert places == {
        "one": ("config.query", 2),
        "several": ("config.query.broken", 3),
        "below": (None, None),
    }
    await spark.platform.settled()
    task = await spark.platform.value(
        "select task_id from tasks join jobs using (job_id) where name = 'division-one'"
    )
    told = await spark.platform.api.call("GET", f"/api/v1/tasks/{task}/explain", ExplainResponse)
    assert told.next_step == (
        "Correct `config.query` of the job division-one in its DAG file."
        " Deploy the correction: a retry runs what is deployed."
    )
