"""Faults that would fail a job's first task are found at deploy time, with their location in the file."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from traceplane.errors import SpecInvalid, SpecProblem
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.operators.grouping import rows_of
from traceplane.registry import code_project, job_checks
from traceplane.registry.spec import dag_file
from traceplane.sql import job_query

HEAD = """\
version: 1
dag: d
datasets:
  shop.orders:
    columns: [{name: id, type: bigint}, {name: amount, type: double}, {name: day, type: date}]
jobs:
- {name: source, activation: source, source: {kind: manual}, outputs: [{dataset: shop.orders}]}
"""
ORDERS = "inputs: [{name: orders, from: {dataset: shop.orders}}], outputs: [{name: o, dataset: out}]"
CODE = {
    "jobs.py": '''
import json
from functools import partial as bound
from shop import fast as base

def run(task):
    """A function."""
    global late
    late = run

try:
    from shop import fast as chosen
except ImportError:
    chosen = None
made, (pair, *rest) = run, (run, run)
if (walrus := run) and json:
    async def conditional(task): ...
class Callable: ...
''',
    "stars.py": "from shop import *\n",
    "dynamic.py": "globals()['run'] = print\n",
    "lazy.py": "def __getattr__(name): ...\n",
    "shop/__init__.py": "",
    "shop/fast.py": "def go(task): ...\n",
}


def problems(job: str, code: dict[str, str] = CODE, *, is_elsewhere: bool = False) -> list[SpecProblem]:
    """`»` marks where the one problem is."""
    text = HEAD + job.replace("»", "")
    dag = dag_file.parse(text, "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
    project = code_project.project_sent(code)
    found: tuple[SpecProblem, ...] = ()
    try:
        job_checks.refuse(
            dag, DEFAULT_RUNTIMES, project, text, "dag.yaml", is_elsewhere=lambda _: is_elsewhere
        )
    except SpecInvalid as error:
        found = error.problems
    if found and "»" in job:
        before = (HEAD + job).partition("»")[0]
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert [(p.line, p.column) for p in found] == [place]
    return list(found)


def python(entrypoint: str) -> str:
    return (
        f"- {{name: j, runtime: python, operator: python, config: {{entrypoint: »{entrypoint}}}, {ORDERS}}}\n"
    )


def query(text: str) -> str:
    return f"- {{name: j, operator: sql, config: {{query: »{text!r}}}, {ORDERS}}}\n"


@pytest.mark.parametrize(
    "name",
    ["run", "late", "bound", "base", "chosen", "made", "pair", "rest", "walrus", "conditional", "Callable"],
)
def test_any_name_that_a_module_binds_may_be_an_entrypoint(name: str) -> None:
    assert problems(python(f"jobs:{name}")) == []


@pytest.mark.parametrize("entrypoint", ["stars:run", "dynamic:run", "lazy:run", "shop.fast:go"])
def test_a_name_that_may_be_defined_dynamically_is_accepted(entrypoint: str) -> None:
    assert problems(python(entrypoint)) == []


def test_a_query_that_can_be_read_in_two_ways_is_refused() -> None:
    (problem,) = problems(query("select /*+ x -- */ id from orders"))
    assert problem.code == "sql.unclear"
    assert "right after SELECT" in str(problem.suggestion)


def test_a_secret_that_is_no_value_in_a_query_is_refused() -> None:
    (problem,) = problems(query("select id from orders where id > ${secret:least}"))
    assert problem.code == "sql.misplaced_secret"
    assert "cast('${secret:NAME}' as bigint)" in str(problem.suggestion)
    assert problems(query('select id from orders where id > cast("${secret:least}" as bigint)')) == []


@pytest.mark.parametrize(
    ("entrypoint", "code", "suggestion"),
    [
        ("jobs:runn", "code.function_missing", "did you mean 'run'?"),
        ("shop.fast:run", "code.function_missing", "one of: go"),
        ("shop.fats:go", "code.module_missing", "did you mean 'shop.fast'?"),
        ("job:run", "code.module_missing", "did you mean 'jobs'?"),
        ("jobs.run", "code.bad_entrypoint", None),
        ("12", "code.bad_entrypoint", None),
    ],
)
def test_a_missing_entrypoint_is_reported_with_a_suggestion(
    entrypoint: str, code: str, suggestion: str | None
) -> None:
    (problem,) = problems(python(entrypoint))
    assert (problem.code, problem.value, problem.suggestion) == (code, entrypoint, suggestion)


@pytest.mark.parametrize(
    ("entrypoint", "suggestion"),
    [
        ("operator:run", "did you mean 'operators'?"),
        ("os.path:join", "one of: operators"),
    ],
)
def test_the_standard_library_has_no_operators(entrypoint: str, suggestion: str) -> None:
    code = {"operators.py": "def run(task): ...\n"}
    (problem,) = problems(python(entrypoint), code, is_elsewhere=True)
    assert (problem.code, problem.suggestion) == ("code.module_missing", suggestion)


def test_a_module_that_is_missing_here_may_be_on_the_workers() -> None:
    assert problems(python("elsewhere.jobs:run"), is_elsewhere=True) == []
    assert problems(python("shop.fast:gone"), is_elsewhere=True)[0].code == "code.function_missing"


def test_a_missing_entrypoint_or_query_is_reported_at_the_config_or_the_job() -> None:
    (problem,) = problems(f"- {{name: j, operator: pyspark, config: »{{x: 1}}, {ORDERS}}}\n")
    assert problem.code == "code.no_entrypoint"
    (problem,) = problems(f"- »{{name: j, operator: sql, {ORDERS}}}\n")
    assert (problem.code, problem.suggestion) == ("sql.no_query", "add query: select ...")
    (problem,) = problems(f"- {{name: j, operator: sql, config: {{query: »[a]}}, {ORDERS}}}\n")
    assert problem.code == "sql.no_query"


def test_a_missing_code_folder_is_named(tmp_path: Path) -> None:
    text = HEAD + python("jobs:run").replace("»", "")
    dag = dag_file.parse(text, "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
    with pytest.raises(SpecInvalid) as error:
        job_checks.refuse(
            dag,
            DEFAULT_RUNTIMES,
            code_project.project_in([]),
            text,
            "dag.yaml",
            is_elsewhere=lambda _: False,
            no_folder=str(tmp_path / "code"),
        )
    (problem,) = error.value.problems
    assert problem.code == "code.no_folder"
    assert str(tmp_path / "code") in problem.message


@pytest.mark.parametrize(
    ("text", "code", "said", "suggestion"),
    [
        ("selekt 1 frm orders", "sql.malformed", "line 1, column 8, at '1'", "the dialect is Spark's"),
        ("select amuont from orders", "sql.unknown_column", "'amuont'", "did you mean 'amount'?"),
        ("select o.dya from orders o", "sql.unknown_column", "'o.dya'", "did you mean 'day'?"),
        ("select id from", "sql.malformed", "'from'", "the dialect is Spark's"),
        ("select id from oders", "sql.unknown_relation", "'oders'", "did you mean 'orders'?"),
        ("select id from orders; drop table x", "sql.several_statements", "2 statements", "keep one"),
        ("create table x as select 1", "sql.not_a_query", "'create'", "write a SELECT"),
        ("insert into x select id from orders", "sql.not_a_query", "'insert'", "write a SELECT"),
        ("add jar '/tmp/x.jar'", "sql.not_a_query", "'add'", "write a SELECT"),
        ("set spark.sql.shuffle.partitions = 9", "sql.not_a_query", "'set'", "write a SELECT"),
    ],
)
def test_an_invalid_query_is_reported_with_a_suggestion(
    text: str, code: str, said: str, suggestion: str
) -> None:
    (problem,) = problems(query(text))
    assert (problem.code, problem.suggestion) == (code, suggestion)
    assert said in problem.message


def test_each_query_of_a_job_with_several_outputs_is_checked() -> None:
    two = ORDERS.replace("{name: o, dataset: out}", "{name: o, dataset: out}, {name: p, dataset: out2}")
    queries = "{query: {o: select id from orders, p: »select ix from orders}}"
    job = f"- {{name: j, operator: sql, config: {queries}, {two}}}\n"
    assert [p.code for p in problems(job)] == ["sql.unknown_column"]
    (problem,) = problems(f"- {{name: j, operator: sql, config: {{query: »select 1}}, {two}}}\n")
    assert problem.code == "sql.no_query"
    (problem,) = problems(
        f"- {{name: j, operator: sql, config: {{query: {{o: select 1, q: »select 1}}}}, {two}}}\n"
    )
    assert (problem.code, problem.suggestion) == ("sql.unknown_output", "one of: o, p")


def test_a_bulk_job_has_the_columns_of_the_dataset_it_batches() -> None:
    bulk = ORDERS + ", execution_strategy: Bulk, batch: {size: 10}"
    (problem,) = problems(
        f"- {{name: j, operator: sql, config: {{query: »select idd from orders}}, {bulk}}}\n"
    )
    assert problem.code == "sql.unknown_column"


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    found = problems(
        query("select ix from orders").replace("»", "")
        + python("jobs:no")
        .replace("»", "")
        .replace("dataset: out", "dataset: k")
        .replace("name: j", "name: k")
    )
    assert [(p.line, p.code) for p in found] == [(8, "sql.unknown_column"), (9, "code.function_missing")]


def test_a_name_with_a_dot_has_to_be_quoted() -> None:
    (fault,) = job_query.faults("select id from shop.orders", {"shop.orders": ["id"]})
    assert (fault.code, fault.known) == ("sql.unknown_relation", ("`shop.orders`",))
    assert job_query.faults("select id from `shop.orders`", {"shop.orders": ["id"]}) == []


INPUTS = {"t": ["a", "b", "ts", "arr", "s", "day"], "u": ["k", "x"], "n": None}


@pytest.mark.parametrize(
    "text",
    [
        "select a, :start from T where B between :start and :end;",
        "with c as (select a x from t) select x, c.x from c",
        "select t.*, l.z, s.f.g, t.s.f from t lateral view explode(t.arr) l as z",
        "select transform(arr, q -> q + 1), aggregate(arr, 0, (acc, q) -> acc + q, acc -> acc * 10) from t",
        "select * except (a) from t natural join u",
        "select a + 1 as y, y * 2 as z, sum(b) total from t group by a having total > 1 order by total",
        "select n.foo, t.a, bar from n join t on n.x = t.a",
        "select /*+ broadcast(u) */ * from t left anti join u on t.a = u.k",
        "select timestampdiff(day, ts, current_timestamp()), current_date, dateadd(month, 1, ts) from t",
        "select window.start, count(*) from t group by window(ts, '1 hour')",
        "select col from (select explode(arr) from t)",
        "select `sum(b)` from (select sum(b) from t)",
        "select one from t pivot (sum(b) for a in (1 as one))",
        "select x.a from t x where exists (select 1 from u where u.k = x.a)",
        "select col1 from values (1, 2)",
        "select named_struct('f', a).f, struct(a as q).q, from_json(a, 'q int').q from t",
        "select p.a, foo.bar from (select * from t) p join t as foo(bar)",
        "select anything from elsewhere.table",
        "select k, v from t lateral view posexplode(arr) p as k, v",
        "select a, rank() over w from t window w as (partition by day order by ts)",
        "select * from t, lateral (select x from u where k = a)",
        "table t",
        "from t select a",
        "select id from range(10)",
        "select a >>> 1, X 'F0' from t",
    ],
)
def test_what_spark_understands_is_not_refused(text: str) -> None:
    assert job_query.faults(text, INPUTS) == []


@pytest.mark.parametrize(
    ("runtime", "operator", "suggestion"),
    [
        ("python", "pyton", "did you mean 'python'?"),
        ("spark", "pysparc", "did you mean 'pyspark'?"),
        ("spark", "query", "one of: compact, integrity_check, pyspark, range_ingest, signal_generate, sql"),
        ("dispatcher", "agregator", "did you mean 'aggregator'?"),
    ],
)
def test_an_operator_that_its_runtime_lacks_is_reported_at_its_location(
    runtime: str, operator: str, suggestion: str
) -> None:
    (problem,) = problems(f"- {{name: j, runtime: {runtime}, operator: »{operator}, {ORDERS}}}\n")
    assert (problem.code, problem.value, problem.suggestion) == (
        "deploy.unknown_operator",
        operator,
        suggestion,
    )


def test_the_time_to_check_a_plan_does_not_grow_with_the_square_of_its_jobs() -> None:
    """The gateway answers nobody else meanwhile."""
    count = 2000
    jobs = [
        f"- {{name: j{n}, runtime: dispatcher, operator: aggregator, config: {{size: 1}}, "
        f"inputs: [{{from: {{dataset: {f'd{n - 1}' if n else 'shop.orders'}}}}}], outputs: [{{dataset: d{n}}}]}}\n"
        for n in range(count)
    ]
    readers = [
        f"- {{name: r{n}, operator: sql, config: {{query: select 1}}, "
        f"inputs: [{{name: i, from: {{dataset: shop.orders}}}}], outputs: [{{dataset: r{n}}}]}}\n"
        for n in range(count)
    ]
    known_runtimes = frozenset(DEFAULT_RUNTIMES)
    chain = dag_file.parse(HEAD + "".join(jobs), "dag.yaml", known_runtimes=known_runtimes)
    fan = dag_file.parse(HEAD + "".join(readers), "dag.yaml", known_runtimes=known_runtimes)
    start = time.process_time()
    assert {rows_of(dataset.dataset_id, chain) for dataset in chain.datasets} == {"shop.orders"}
    assert [f for job in fan.jobs for f in job_checks.query_faults(job, fan, DEFAULT_RUNTIMES)] == []
    assert time.process_time() - start < 60
