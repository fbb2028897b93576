"""The checks of datasets in a DAG file: what they become, and what is refused, with its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceplane.errors import SpecInvalid, SpecProblem, TraceplaneError
from traceplane.model.checks import Check, CheckKind, Severity
from traceplane.model.dag import Dag
from traceplane.registry import fingerprint
from traceplane.registry.plan import Deployed, plan, render
from traceplane.registry.spec import dag_file, normalized
from traceplane.sql import row_condition

_FILE = """
version: 1
dag: shop
datasets:
  shop.orders:
    columns:
    - {{name: id, type: bigint}}
    - {{name: paid, type: boolean}}
    - {{name: day, type: date}}
    - {{name: amount, type: "decimal(18, 2)"}}
    - {{name: tags, type: "map<string, string>"}}
    - {{name: address, type: "struct<city: string>"}}
    checks: [{checks}]
jobs:
- {{name: days, activation: source, source: {{kind: manual}}, outputs: [{{dataset: shop.days}}]}}
- name: orders
  runtime: {runtime}
  operator: {operator}
  config: {config}
  inputs: [{{from: {{dataset: shop.days}}}}]
  outputs: [{{dataset: shop.orders}}]
"""
_RUNTIMES = frozenset({"python", "spark"})


def parse(checks: str, *, operator: str = "sql") -> Dag:
    on_spark = operator == "sql"
    text = _FILE.format(
        checks=checks,
        operator=operator,
        runtime="spark" if on_spark else "python",
        config="{query: select 1}" if on_spark else "{entrypoint: 'a:b'}",
    )
    return dag_file.parse(text, "shop.yaml", known_runtimes=_RUNTIMES)


def problem(checks: str, *, operator: str = "sql") -> SpecProblem:
    with pytest.raises(SpecInvalid) as refused:
        parse(checks, operator=operator)
    (found,) = refused.value.problems
    assert found.line >= 13
    return found


def checks_of(dag: Dag) -> tuple[Check, ...]:
    return dag.datasets_by_id["shop.orders"].checks


_ALL = """{not_null: id}, {unique: [id, day], severity: warn}, {accepted: {column: paid, values: [true]}},
    {range: {column: amount, min: 0, max: 10.5}}, {rows: {min: 1}}, {name: good, expression: "amount > 0"},
    {freshness: 2h}"""


def test_every_kind_is_read_with_its_defaults_and_survives_a_deploy() -> None:
    dag = parse(_ALL)
    assert checks_of(dag) == (
        Check("not_null_id", CheckKind.NOT_NULL, columns=("id",)),
        Check("unique_id_day", CheckKind.UNIQUE, Severity.WARN, columns=("id", "day")),
        Check("accepted_paid", CheckKind.ACCEPTED, columns=("paid",), values=(True,)),
        Check("range_amount", CheckKind.RANGE, columns=("amount",), min=0, max=10.5),
        Check("rows", CheckKind.ROWS, min=1),
        Check("good", CheckKind.EXPRESSION, expression="amount > 0"),
        Check("freshness", CheckKind.FRESHNESS, Severity.WARN, seconds=7200.0),
    )
    assert normalized.load(normalized.dump(dag)) == dag


@pytest.mark.parametrize(
    ("checks", "code", "says"),
    [
        ("{severity: warn}", "spec.bad_check", "exactly one kind"),
        ("{not_null: id, unique: id}", "spec.bad_check", "not not_null and unique"),
        ("{not_null: []}", "spec.bad_check", "empty"),
        ("{not_null: [id, id]}", "spec.duplicate_name", "already exists"),
        ("{not_null: idd}", "spec.unknown_column", "'idd'"),
        ("{unique: tags}", "spec.bad_check", "maps cannot be compared"),
        ("{accepted: {column: id, values: []}}", "spec.bad_check", "empty list"),
        ("{accepted: {column: id, values: [x]}}", "spec.wrong_type", "cannot hold 'x'"),
        ("{accepted: {column: idd, values: [1]}}", "spec.unknown_column", "'idd'"),
        ("{range: {column: id}}", "spec.bad_check", "without bounds"),
        ("{range: {column: id, min: 5, max: 4}}", "spec.bad_check", "from 5 to 4"),
        ("{range: {column: amount, min: 0.001}}", "spec.wrong_type", "cannot hold 0.001"),
        ("{range: {column: amount, min: '10', max: '9.5'}}", "spec.bad_check", "from 10 to 9.5"),
        ("{range: {column: day, min: 2026-11-18, max: 2026-11-17}}", "spec.bad_check", "from 2026-11-18"),
        ("{range: {column: paid, max: true}}", "spec.bad_check", "no order"),
        ("{range: {column: address, max: 1}}", "spec.wrong_type", "cannot hold 1"),
        ("{rows: {}}", "spec.bad_check", "without bounds"),
        ("{rows: {min: -1}}", "spec.out_of_range", "0 or more"),
        ("{rows: {min: 2, max: 1}}", "spec.bad_check", "from 2 to 1"),
        ("{rows: {least: 2}}", "spec.unknown_field", "'least'"),
        ("{expression: idd > 0}", "sql.unknown_column", "idd"),
        ("{expression: 'id > '}", "spec.sql_refused", "cannot be parsed"),
        ("{expression: sum(id) > 0}", "spec.sql_refused", "one row at a time"),
        ("{expression: id in (select id from shop.days)}", "spec.sql_refused", "more than an expression"),
        ("{expression: id + 1}", "spec.sql_refused", "neither true nor false"),
        ("{expression: (id)}", "sql.not_a_condition", "the column 'id' is bigint"),
        ("{freshness: soon}", "spec.bad_duration", "duration"),
        ("{freshness: 2h, severity: block}", "spec.bad_check", "cannot block"),
        ("{not_null: id, severity: fatal}", "spec.unknown_value", "'fatal'"),
        ("{not_null: id}, {name: not_null_id, unique: id}", "spec.duplicate_name", "already exists"),
        ("{expression: id > 0}, {expression: id < 9}", "spec.duplicate_name", "'expression'"),
        ("{no_null: id}", "spec.unknown_field", "'no_null'"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_refused_where_it_is_written(checks: str, code: str, says: str) -> None:
    found = problem(checks)
    assert (found.code, says in found.message) == (code, True), found


def test_rows_are_checked_only_where_spark_writes_them_and_freshness_everywhere() -> None:
    assert problem("{not_null: id}", operator="python").code == "spec.checks_need_spark"
    assert len(checks_of(parse("{freshness: 1d}", operator="python"))) == 1


def test_what_a_source_announces_has_no_rows_that_could_be_late() -> None:
    text = _FILE.format(checks="", operator="sql", runtime="spark", config="{query: select 1}").replace(
        "  shop.orders:", "  shop.days: {checks: [{freshness: 1h}]}\n  shop.orders:"
    )
    with pytest.raises(SpecInvalid) as refused:
        dag_file.parse(text, "shop.yaml", known_runtimes=_RUNTIMES)
    assert [p.code for p in refused.value.problems] == ["spec.bad_check"]


@pytest.mark.parametrize(
    "expression",
    [
        "", ";", "*", "id, day", "id as x", "1=1 from other --", "id > 0 from checked where true --",
        "id > 0 union select 1", "distinct id", "exists(select 1)", "(select 1) = 1", "count(*) > 0",
        "row_number() over () = 1", "unnest(a)", "read_csv('/etc/passwd') is null", "id > 0; drop table x",
        "java_method('java.lang.System', 'exit') = 1", "columns(*) > 0", "id /* x", "getenv('HOME') = ''",
    ],
)  # fmt: skip
def test_an_expression_is_one_condition_on_one_row(expression: str) -> None:
    with pytest.raises(TraceplaneError):
        row_condition.for_spark(expression)


def test_an_expression_reaches_spark_in_its_dialect_and_without_its_variables() -> None:
    assert row_condition.for_spark("regexp_matches(id, '^x') -- why") == "`id` RLIKE '^x'"
    assert row_condition.for_spark("a.b = '${env:HOME}'") == r"`a`.`b` = '\044{env:HOME}'"


def test_a_change_of_checks_rebuilds_nothing() -> None:
    before, after = parse("{not_null: id}"), parse("{not_null: id, severity: warn}, {rows: {min: 1}}")
    fingerprints = fingerprint.job_fingerprints(before, code_hash=str)
    definitions = fingerprint.definition_fingerprints(before, code_hash=str)
    assert fingerprint.job_fingerprints(after, code_hash=str) == fingerprints
    planned = plan(
        Deployed(1, before, fingerprints, definitions),
        after,
        fingerprints=fingerprints,
        definition_fingerprints=definitions,
    )
    assert not planned.is_noop
    assert len(planned.unchanged) == len(after.jobs)
    assert '      checks.not_null_id.severity: "block" → "warn"' in render(planned)
    assert '      checks.rows: (unset) → {"rows": {"min": 1}, "severity": "block"}' in render(planned)


def test_a_file_without_checks_is_as_it_was() -> None:
    dag = parse("{rows: {min: 1}}")
    dumped = normalized.dump(dag)
    for dataset in dumped["datasets"]:
        del dataset["checks"]
    stripped = replace(dag, datasets=tuple(replace(d, checks=()) for d in dag.datasets))
    assert normalized.load(dumped) == stripped
