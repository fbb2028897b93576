"""Checks of datasets, computed on Spark with the write: what blocks leaves everything as it was, what warns is kept."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from tests.operators.checked_rows import VALUES, rows_of
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag, job
from traceplane.model.checks import Check, CheckKind
from traceplane.registry.spec import dag_file
from traceplane.wire.control import ExplainResponse

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def with_datasets(text: str, datasets: str) -> str:
    return text.replace("jobs:", f"datasets:\n{datasets}\njobs:", 1)


def below(text: str, name: str) -> str:
    """The job that reads `NAME` instead of the numbers."""
    return text.replace(".numbers}", f".{name}}}")


async def tasks_of(spark: SparkPlatform, job_name: str) -> list[Any]:
    await spark.platform.settled(seconds=600)
    return await spark.platform.sql(
        "select t.task_id, t.state::text, t.attempt, t.error from tasks t join jobs j using (job_id)"
        " where j.name = $1 order by t.task_id",
        job_name,
    )


async def explained(spark: SparkPlatform, task_id: object) -> list[str]:
    answer = await spark.platform.api.call("GET", f"/api/v1/tasks/{task_id}/explain", ExplainResponse)
    return [reason.sentence for reason in answer.reasons]


async def failures(spark: SparkPlatform, dataset: str) -> dict[tuple[int, str], Any]:
    await spark.platform.settled(seconds=600)
    rows = await spark.platform.sql(
        "select f.range_start, f.name, f.rows, f.sample from check_failures f join datasets using (dataset_uuid)"
        " where dataset_id = $1",
        dataset,
    )
    found = {(row["range_start"], row["name"]): (row["rows"], json.loads(row["sample"])) for row in rows}
    assert len(found) == len(rows)
    return found


async def test_an_output_that_breaks_a_blocking_check_is_not_committed(spark: SparkPlatform) -> None:
    query = '{query: "select block, n, if(n % 50 = 7, null, name) as name from numbers"}'
    text = with_datasets(
        dag(
            "blocked",
            job("blocked", "kept", query, operator="sql"),
            below(job("blocked", "below", '{query: "select block, n from numbers"}', operator="sql"), "kept"),
        ),
        "  blocked.kept: {checks: [{not_null: name}, {rows: {min: 1}}]}",
    )
    await spark.platform.deploy(text)
    await spark.platform.emit("blocked.in", range(1))
    (task,) = await tasks_of(spark, "blocked-kept")
    error = json.loads(task["error"])
    assert (task["state"], task["attempt"], error["code"]) == ("dead", 1, "check.failed")
    assert error["message"] == "dataset blocked.kept: not_null_name: 2 rows have a null in name"
    assert await spark.rows("blocked.kept") == []
    assert await tasks_of(spark, "blocked-below") == []
    sentences = await explained(spark, task["task_id"])
    assert "for example n=7, name=null, block=0; n=57, name=null, block=0." in sentences[1]


async def test_readers_keep_the_old_version_and_a_correction_computes_the_scope_again(
    spark: SparkPlatform,
) -> None:
    columns = "columns: [{name: block, type: bigint}, {name: n, type: bigint}]"

    def text(check: str) -> str:
        return with_datasets(
            dag(
                "mended",
                job("mended", "kept", '{query: "select block, n from numbers"}', operator="sql"),
                below(
                    job("mended", "below", '{query: "select block, n from numbers"}', operator="sql"), "kept"
                ),
                entrypoint="checked_rows:counted",
            ),
            f"  mended.numbers: {{{columns}}}\n  mended.kept: {{{columns}, checks: [{check}]}}",
        )

    async def announce(*blocks: int) -> str:
        """The state of the task that comes of it."""
        await spark.platform.emit("mended.in", blocks, emission=str(uuid4()))
        *_, task = await tasks_of(spark, "mended-kept")
        return str(task["state"])

    await spark.platform.deploy(text("{not_null: n}"))
    assert await announce(0, 1) == "completed"
    old = sorted(await spark.rows("mended.kept"), key=str)
    runs = len(await tasks_of(spark, "mended-below"))
    assert (len(old), runs) == (2, 2)

    await spark.platform.deploy(text("{range: {column: n, max: 0}}"))  # which rebuilds nothing
    assert await announce(0) == "dead"
    assert sorted(await spark.rows("mended.kept"), key=str) == old
    assert len(await tasks_of(spark, "mended-below")) == runs

    await spark.platform.deploy(text("{not_null: n}"))
    assert await announce(0) == "completed"  # a change of the input is enough: nobody retries the dead task
    assert sorted(await spark.rows("mended.kept"), key=str) != old
    assert len(await tasks_of(spark, "mended-below")) == runs + 1


# --- every kind, against a model in plain Python ----------------------------------------------------

_COLUMNS = """columns:
    - {name: block, type: bigint}
    - {name: i, type: bigint}
    - {name: d, type: double}
    - {name: m, type: "decimal(20, 3)"}
    - {name: t, type: timestamp}
    - {name: day, type: date}
    - {name: s, type: string}
    - {name: b, type: boolean}
    - {name: x, type: binary}"""
_CHECKS = [
    "not_null: i", "not_null: [d, s]", "not_null: x",
    "unique: i", "unique: [i, s]", "unique: d", "unique: m", "unique: x",
    "accepted: {column: s, values: [a, b, é]}", "accepted: {column: i, values: [1, 2]}",
    "accepted: {column: d, values: [0, 1.5]}", "accepted: {column: b, values: [true]}",
    "accepted: {column: m, values: [1, '0.125']}",
    "range: {column: i, min: 0, max: 2}", "name: d_min, range: {column: d, min: 0}",
    "name: d_max, range: {column: d, max: 1.5}", "range: {column: m, min: '0.125', max: '1'}",
    "range: {column: t, min: '2026-01-01T00:00:00Z', max: '2026-01-02T00:00:00.000001Z'}",
    "range: {column: day, max: 2026-01-01}", "name: s_range, range: {column: s, min: a, max: b}",
    "name: rows_min, rows: {min: 1}", "name: rows_max, rows: {max: 3}",
    "name: positive, expression: i > 0", "name: positive_or_null, expression: i is null or i > 0",
    "name: text, expression: length(s) = 1", "name: qualified, expression: checked.i + 1 > 1",
]  # fmt: skip


def bound(column: str, value: Any) -> Any:
    match next(v for v in VALUES[column] if v is not None):
        case Decimal():
            return Decimal(str(value))
        case datetime():
            return datetime.fromisoformat(value)
        case date():
            return date.fromisoformat(value)
    return value


def key(value: Any) -> Any:
    """What is equal for grouping: NaN is, and zeros are."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    return value


def is_within(value: Any, low: Any, high: Any) -> bool:
    return value == value and (low is None or value >= low) and (high is None or value <= high)


def broken_rows(check: Check, rows: list[dict[str, Any]]) -> int | None:
    """How many rows break a check, by the words of the guide; None if it is met."""
    values = (
        [row[check.columns[0]] for row in rows if row[check.columns[0]] is not None] if check.columns else []
    )
    column = check.columns[0] if check.columns else ""
    match check.kind, check.name:
        case CheckKind.NOT_NULL, _:
            return sum(any(row[name] is None for name in check.columns) for row in rows) or None
        case CheckKind.UNIQUE, _:
            keys = [tuple(key(row[name]) for name in check.columns) for row in rows]
            whole = [one for one in keys if None not in one]
            return len(whole) - len(set(whole)) or None
        case CheckKind.ACCEPTED, _:
            accepted = [bound(column, value) for value in check.values]
            return sum(value not in accepted for value in values) or None
        case CheckKind.RANGE, _:
            low, high = (None if b is None else bound(column, b) for b in (check.min, check.max))
            return sum(not is_within(value, low, high) for value in values) or None
        case CheckKind.ROWS, _:
            return None if is_within(len(rows), check.min, check.max) else len(rows)
        case _, "positive" | "qualified":
            return sum(row["i"] is None or row["i"] <= 0 for row in rows) or None
        case _, "positive_or_null":
            return sum(row["i"] is not None and row["i"] <= 0 for row in rows) or None
        case _, "text":
            return sum(row["s"] is None or len(row["s"]) != 1 for row in rows) or None
    raise AssertionError(check.name)


async def test_every_kind_counts_as_the_guide_says(spark: SparkPlatform) -> None:
    """With nulls, NaN, negative zero, decimals, timestamps, binary values, empty scopes, and every way of writing."""
    checks = ", ".join(f"{{{check}, severity: warn}}" for check in _CHECKS)
    text = with_datasets(
        dag(
            "kinds",
            job("kinds", "query", '{query: "select * from numbers"}', operator="sql"),
            job("kinds", "arrow", '{entrypoint: "checked_rows:as_arrow"}'),
            entrypoint="checked_rows:made",
        ),
        f"  kinds.numbers:\n    {_COLUMNS}\n"
        f"  kinds.query:\n    {_COLUMNS}\n    checks: [{checks}]\n"
        f"  kinds.arrow:\n    checks: [{checks}]",
    )
    declared = dag_file.parse(text, "kinds", known_runtimes=frozenset({"python", "spark"}))
    await spark.platform.deploy(text)
    blocks = range(10)
    await spark.platform.emit("kinds.in", blocks)
    expected = {
        (block, check.name): count
        for block in blocks
        for check in declared.datasets_by_id["kinds.query"].checks
        if (count := broken_rows(check, rows_of(block))) is not None
    }
    assert {name for _, name in expected} == {c.name for c in declared.datasets_by_id["kinds.query"].checks}
    for dataset in ("kinds.query", "kinds.arrow"):
        tasks = await tasks_of(spark, dataset.replace(".", "-"))
        assert [task["state"] for task in tasks] == ["completed"] * len(blocks), tasks[0]["error"]
        found = await failures(spark, dataset)
        assert {place: rows for place, (rows, _) in found.items()} == expected, dataset
        for (_, name), (rows, sample) in found.items():
            shown = rows + (name.startswith("unique") and 1)
            assert name.startswith("rows") == (sample == [])
            assert len(sample) <= min(5, shown) or name.startswith("unique"), name
            assert all(len(value or "") <= 100 for row in sample for value in row.values())


async def test_what_spark_writes_itself_is_checked_too(spark: SparkPlatform) -> None:
    text = with_datasets(
        dag(
            "large",
            job("large", "kept", '{query: "select * from numbers"}', operator="sql"),
            entrypoint="spark_jobs:bulky",
        ),
        "  large.kept: {checks: [{unique: n}, {not_null: payload}, {range: {column: n, max: 97}, severity: warn}]}",
    )
    await spark.platform.deploy(text)
    await spark.platform.emit("large.in", range(1))
    (task,) = await tasks_of(spark, "large-kept")
    assert task["state"] == "completed", task["error"]
    ((rows, sample),) = (await failures(spark, "large.kept")).values()
    assert (rows, [row["n"] for row in sample]) == (2, ["98", "99"])
    assert {len(row["payload"]) for row in sample} == {100}


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        (
            "missing",
            "not_null: nothing",
            "not_null_nothing names the unknown column 'nothing'; there are block, n",
        ),
        ("unfit", "accepted: {column: n, values: [x]}", "accepted_n does not fit n: write a number"),
        ("nocond", "expression: 'coalesce(n, 1)'", "cannot be computed: [DATATYPE_MISMATCH"),
    ],
)
async def test_a_check_that_does_not_fit_the_rows_says_so(
    spark: SparkPlatform, name: str, check: str, says: str
) -> None:
    text = with_datasets(
        dag(name, job(name, "kept", '{query: "select block, n, name from numbers"}', operator="sql")),
        f"  {name}.kept: {{checks: [{{{check}}}]}}",
    )
    await spark.platform.deploy(text)
    await spark.platform.emit(f"{name}.in", range(1))
    (task,) = await tasks_of(spark, f"{name}-kept")
    error = json.loads(task["error"])
    assert (task["state"], task["attempt"], error["code"]) == ("dead", 1, "operator.misconfigured")
    assert says in error["message"]


async def test_a_check_that_cannot_be_computed_for_some_row_has_failed(spark: SparkPlatform) -> None:
    """What warns does not keep the rows back, and others are computed all the same."""
    expressions = [
        "{name: number, expression: cast(name as bigint) > 0",
        "{name: ratio, expression: 1 / (n - 50) <> 0",
        "{name: small, expression: n < 98",
        "{name: fine, expression: n >= 0",
    ]
    warn, block = (", ".join(f"{e}, severity: {s}}}" for e in expressions) for s in ("warn", "block"))
    query = '{query: "select block, n, name from numbers"}'
    text = with_datasets(
        dag(
            "castit",
            job("castit", "warned", query, operator="sql"),
            job("castit", "blocked", query, operator="sql"),
        ),
        f"  castit.warned: {{checks: [{warn}]}}\n  castit.blocked: {{checks: [{block}]}}",
    )
    await spark.platform.deploy(text)
    await spark.platform.emit("castit.in", range(1))
    (task,) = await tasks_of(spark, "castit-warned")
    assert task["state"] == "completed", task["error"]
    assert len(await spark.rows("castit.warned")) == 100
    found = {name: rows for (_, name), (rows, _) in (await failures(spark, "castit.warned")).items()}
    assert found == {"number": 0, "ratio": 0, "small": 2}
    told = " ".join(await explained(spark, task["task_id"]))
    assert "it could not be computed for every row: CAST_INVALID_INPUT" in told
    assert "n0" not in told  # the value

    (task,) = await tasks_of(spark, "castit-blocked")
    error = json.loads(task["error"])
    assert (task["state"], task["attempt"], error["code"]) == ("dead", 1, "check.failed")
    assert error["message"] == (
        "dataset castit.blocked: number: it could not be computed for every row: CAST_INVALID_INPUT; "
        "ratio: it could not be computed for every row: DIVIDE_BY_ZERO; small: 2 rows are not as the expression demands"
    )
    assert await spark.rows("castit.blocked") == []
