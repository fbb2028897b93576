"""Alerts of a DAG file: the jobs that they become, and what is refused."""

from __future__ import annotations

import json

import pytest

from traceplane.errors import SpecInvalid
from traceplane.model.dag import Dag
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.registry import job_checks
from traceplane.registry.spec import dag_file
from traceplane.registry.spec.job_faults import placed

RUNTIMES = frozenset({"dispatcher", "python", "spark"})
FILE = """
version: 1
dag: chain
datasets:
  transfers:
    position: block
    read_roles: [finance]
    columns: [{name: block, type: bigint}, {name: tx, type: string}, {name: value, type: bigint}]
jobs:
- name: load
  runtime: python
  operator: python
  config: {entrypoint: "a:b"}
  inputs: [{from: {dataset: elsewhere}}]
  outputs: [{dataset: transfers}]
alerts:
- name: large
  dataset: transfers
  subject: [tx]
  title: "{tx}"
"""
WHEN = "  when: value > 1000\n"


def parse(text: str) -> Dag:
    return dag_file.parse(text, "dag.yaml", known_runtimes=RUNTIMES)


def refused(text: str) -> list[tuple[str, int]]:
    with pytest.raises(SpecInvalid) as error:
        parse(text)
    return [(problem.code, problem.line) for problem in error.value.problems]


def test_an_alert_is_two_jobs_and_a_hot_table_with_the_readers_of_its_dataset() -> None:
    dag = parse(FILE + WHEN)
    assert [job.name for job in dag.jobs] == ["load", "large", "large__route"]
    assert [job.operator for job in dag.jobs] == ["python", "alert_evaluate", "alert_route"]
    found = dag.datasets_by_id["chain.large#alerts"]
    assert (found.storage, found.write_mode, found.position) == ("postgres", "buffered", "position")
    assert found.read_roles == ("finance",)
    assert "cast(`block` as bigint) as position" in dag.jobs[1].config["query"]


def test_a_function_is_a_job_in_front() -> None:
    dag = parse(FILE + '  entrypoint: "watch:large"\n')
    assert [job.name for job in dag.jobs] == ["load", "large__rows", "large", "large__route"]
    assert dag.jobs[2].inputs[0].dataset_id == "chain.large#rows"
    assert dag.datasets_by_id["chain.large#rows"].read_roles == ("finance",)


def test_a_file_may_have_alerts_alone() -> None:
    text = FILE[: FILE.index("datasets:")] + "jobs: []\n" + FILE[FILE.index("alerts:") :] + WHEN
    dag = parse(text)
    assert [job.name for job in dag.jobs] == ["large", "large__route"]
    assert dag.external_datasets == ("transfers",)


def test_a_query_may_group_so_its_rows_have_the_position_of_the_task() -> None:
    query = "  sql: select tx, sum(value) as total from rows group by tx\n"
    assert ":start = :end" in parse(FILE + query).jobs[1].config["query"]


def test_days_have_one_position_each() -> None:
    text = FILE.replace("position: block", "position: block\n    partitions: {by: day}").replace(
        "{name: block, type: bigint}", "{name: block, type: date}"
    )
    assert ":start = :end" in parse(text + WHEN).jobs[1].config["query"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("", "spec.bad_condition"),
        (WHEN + "  sql: select * from rows\n", "spec.bad_condition"),
        ("  when: value >\n", "spec.bad_condition"),
        ("  when: '1 = 1) union all (select 1'\n", "spec.bad_condition"),
        ("  when: '1 = 1; drop table x'\n", "spec.bad_condition"),
        ("  when: '1 = 1) group by all having (count(*) >= 0'\n", "spec.bad_condition"),
        ("  when: '1 = 1) or (2 = 2'\n", "spec.bad_condition"),
        ("  when: '1 = 1) order by (value'\n", "spec.bad_condition"),
        ("  when: 'value > 1, value > 2'\n", "spec.bad_condition"),
        ("  when: 'select value from rows'\n", "spec.bad_condition"),
        ("  when: '*'\n", "spec.bad_condition"),
        (
            '  when: "-- \\\\\\n value > 1 /*\\n 1 = 1) union all select * from rows where (1 = 1 -- */"\n',
            "spec.bad_condition",
        ),
        (
            "  when: '1 = 1 /* /*+ */) union all select * from rows where (1 = 1 -- */'\n",
            "spec.bad_condition",
        ),
        ("  when: 'value > 1 /*+ x */'\n", "sql.unclear"),
        ("  when: 'value > 1 /* x'\n", "sql.unclear"),
        ("  sql: select /*+ x('/*') */ * from rows\n", "sql.unclear"),
        ("  when: 'value > ${secret:limit}'\n", "sql.misplaced_secret"),
        ("  sql: select * from rows limit ${secret:limit}\n", "sql.misplaced_secret"),
        (WHEN + "  columns: [nothing]\n", "spec.unknown_column"),
        (WHEN + "  event_time: nothing\n", "spec.unknown_column"),
        (WHEN + "  text: '{nobody}'\n", "spec.bad_template"),
        (WHEN + "  text: '${secret:key}'\n", "spec.bad_template"),
        (WHEN + f"  text: '{'x' * 5_001}'\n", "spec.bad_template"),
        (WHEN + f"  text: '{'{tx}' * 51}'\n", "spec.bad_template"),
        (WHEN + "  severity: bad\n", "spec.unknown_value"),
        (WHEN + "  throttle: {most: 1}\n", "spec.missing_field"),
        (WHEN + "  channels: ['a b']\n", "spec.bad_name"),
    ],
)
def test_what_cannot_work_is_refused_at_its_place(more: str, code: str) -> None:
    problems = refused(FILE + more)
    assert [problem for problem, _ in problems] == [code], problems
    assert all(line >= FILE.count("\n") - 4 for _, line in problems)


def test_comments_of_a_condition_cannot_go_on_into_the_query_around_it() -> None:
    for condition in ('when: "value > 1 -- \\\\"', 'sql: "select * from rows -- \\\\"'):
        query = parse(FILE + f"  {condition}\n").jobs[1].config["query"]
        assert "--" not in query
        assert query.endswith("\n) found")


@pytest.mark.parametrize(
    ("condition", "message", "suggestion"),
    [
        ("value > avg(value)", "'AVG(value)' is an aggregate", "group by account having"),
        ("any(value > 1)", "is an aggregate", "sql: select"),
        ("try_sum(value) > 1", "is an aggregate", "sql: select"),
        ("value > (select max(value) from rows)", "is a subquery", "sql: select * from rows where"),
        ("tx in (select 'a')", "is a subquery", "sql: select"),
        ("exists (select 1 from rows)", "is a subquery", "sql: select"),
        ("row_number() over (order by value) = 1", "is a window", "sql: select"),
        ("explode(array(value)) > 1", "is a function that makes several rows", "sql: select"),
        ("value >", "it is incomplete, or its brackets do not match", "value > 1000"),
        ("value > 1)", "it is incomplete, or its brackets do not match", "value > 1000"),
        ("value > > 5", "cannot be parsed at '> >'", "value > 1000"),
        ("value", "not a condition: the column 'value' is bigint", "value > 1000"),
        ("(value + 1)", "it is a calculation", "value > 1000"),
        ("value > 1 adn tx = 'a'", "cannot be parsed at 'tx' (its line 1, column 15)", "Spark"),
        ("value > 1 and\n  tx = = 'a'", "cannot be parsed at '=' (its line 2, column 8)", "Spark"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused_with_what_to_write(
    condition: str, message: str, suggestion: str
) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse(f"{FILE}  when: {json.dumps(condition)}\n")
    (problem,) = error.value.problems
    assert (problem.code, problem.line, problem.column) == ("spec.bad_condition", FILE.count("\n") + 1, 9)
    assert message in problem.message
    assert "sqlglot" not in problem.message
    assert suggestion in (problem.suggestion or "")


@pytest.mark.parametrize(
    "condition",
    [
        "greatest(value, 1) > 2",
        "exists(array(1, 2), x -> x > value)",
        "aggregate(array(1), 0, (a, b) -> a + b) > value",
        "tx like any ('a%', 'b%')",
        "array_max(array(value)) > 1 -- the largest",
    ],
)
def test_functions_of_one_row_are_conditions(condition: str) -> None:
    assert parse(f"{FILE}  when: {json.dumps(condition)}\n")


@pytest.mark.parametrize("type_", ["string", "boolean", "double", "'decimal(18, 2)'", "array<timestamp>"])
def test_an_event_time_that_holds_no_times_is_refused(type_: str) -> None:
    text = FILE.replace(
        "{name: value, type: bigint}", f"{{name: value, type: bigint}}, {{name: at, type: {type_}}}"
    )
    with pytest.raises(SpecInvalid) as error:
        parse(f"{text}{WHEN}  event_time: at\n")
    (problem,) = error.value.problems
    assert (problem.code, problem.line, problem.column) == ("spec.wrong_type", FILE.count("\n") + 2, 15)
    assert "holds no times" in problem.message
    assert "type timestamp" in (problem.suggestion or "")


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "date", "bigint"])
def test_times_and_seconds_are_event_times(type_: str) -> None:
    text = FILE.replace(
        "{name: value, type: bigint}", f"{{name: value, type: bigint}}, {{name: at, type: {type_}}}"
    )
    assert parse(f"{text}{WHEN}  event_time: at\n")


@pytest.mark.parametrize(
    ("more", "column", "message"),
    [
        ("  when: valuee > 1\n", 9, "names the column 'valuee'"),
        ("  sql: selec tx frm rows\n", 8, "line 1, column 10, at 'frm'"),
        ("  sql: |\n    select tx from rows\n    where valuee > 1\n", 8, "names the column 'valuee'"),
    ],
)
def test_faults_of_the_sql_are_placed_at_what_the_user_wrote(more: str, column: int, message: str) -> None:
    dag = parse(FILE + more)
    faults = [fault for job in dag.jobs for fault in job_checks.query_faults(job, dag, DEFAULT_RUNTIMES)]
    invalid = placed(faults, FILE + more, "dag.yaml")
    assert invalid is not None
    (problem,) = invalid.problems
    assert (problem.line, problem.column) == (FILE.count("\n") + 1, column)
    assert message in problem.message


@pytest.mark.parametrize(
    ("more", "message", "suggestion"),
    [
        ("  text: '{xt}'\n", "there is no placeholder {xt}", "one of: {alert}"),
        ("  text: '{severty}'\n", "there is no placeholder {severty}", "did you mean {severity}?"),
        ("  columns: [value]\n  text: '{value}'\n", "there is no placeholder {value}", "{fields.value}?"),
        ("  text: '{value}'\n", "there is no placeholder {value}", "add value to columns of the alert"),
    ],
)
def test_an_unknown_placeholder_is_refused_with_the_one_that_was_meant(
    more: str, message: str, suggestion: str
) -> None:
    with pytest.raises(SpecInvalid) as error:
        parse(FILE + WHEN + more)
    (problem,) = error.value.problems
    assert (problem.code, problem.message) == ("spec.bad_template", message)
    assert suggestion in (problem.suggestion or "")


@pytest.mark.parametrize("title", ["x" * 501, "{tx}" * 51])
def test_a_title_is_short(title: str) -> None:
    assert [code for code, _ in refused(FILE.replace('"{tx}"', f'"{title}"') + WHEN)] == ["spec.bad_template"]


def test_names_are_those_of_jobs() -> None:
    text = FILE.replace("name: load", "name: large__route")
    assert [code for code, _ in refused(text + WHEN)] == ["spec.duplicate_name"]


def test_without_spark_there_are_no_alerts() -> None:
    with pytest.raises(SpecInvalid, match="evaluated by Spark"):
        dag_file.parse(FILE + WHEN, "dag.yaml", known_runtimes=frozenset({"dispatcher", "python"}))
