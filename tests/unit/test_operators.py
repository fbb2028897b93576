"""The catalog of operators: listed operators can be used, and problems of a job or a package are reported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from traceplane.cli.main import cli
from traceplane.errors import SpecInvalid, SpecProblem
from traceplane.model.runtimes import DEFAULT_RUNTIMES, Driver, InvokerKind, Runtime
from traceplane.operators import catalog
from traceplane.registry import code_project, job_checks
from traceplane.registry.spec import dag_file
from traceplane.sdk import load

Install = Callable[..., Path]

MODULE = """
from typing import Annotated
from msgspec import Meta
from traceplane.operators.spec import Config, ErrorCode, OperatorSpec, Ports

class RoundConfig(Config, frozen=True, kw_only=True):
    digits: Annotated[int, Meta(ge=0, le=9, description="Digits that are kept.")] = 2
    workers: Annotated[int, Meta(ge=1, description="Threads.")] = 1

SPEC = OperatorSpec(
    name="round", summary="Rounds.", runtimes=frozenset({"python"}), entrypoint="rounding.code:run",
    config=RoundConfig, execution_fields=frozenset({"workers"}), inputs=Ports(least=1, most=1), position="n",
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package where Python finds it, as pip would."""
    before = set(sys.modules)

    def put(
        module: str = MODULE, *, package: str = "rounding", entries: str = "round = rounding:SPEC"
    ) -> Path:
        folder = tmp_path / package
        (folder / "rounding").mkdir(parents=True)
        (folder / "rounding/__init__.py").write_text(module)
        (folder / "rounding/code.py").write_text("def run(task): ...\n")
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[traceplane.operators]\n{entries}\n")
        monkeypatch.syspath_prepend(str(folder))
        catalog.forget()
        return folder

    yield put
    monkeypatch.undo()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "rounding":
            del sys.modules[name]
    catalog.forget()


HEAD = """\
version: 1
dag: d
jobs:
- {name: source, activation: source, source: {kind: manual}, outputs: [{dataset: in}]}
"""
PORTS = "inputs: [{from: {dataset: in}}], outputs: [{dataset: out}]"
ALONE = {"called": Runtime("called", Driver.INVOKE, invoker=InvokerKind.PROCESS)}


def problems(job: str, runtimes: dict[str, Runtime] | None = None) -> list[SpecProblem]:
    """`»` marks where they are."""
    line = f"- {{name: j, {job}}}\n" if "inputs" in job else f"- {{name: j, {PORTS}, {job}}}\n"
    text = HEAD + line.replace("»", "")
    known = {**DEFAULT_RUNTIMES, **(runtimes or {})}
    dag = dag_file.parse(text, "dag.yaml", known_runtimes=frozenset(known))
    found: tuple[SpecProblem, ...] = ()
    try:
        project = code_project.project_sent({})
        job_checks.refuse(dag, known, project, text, "dag.yaml", is_elsewhere=lambda _: True)
    except SpecInvalid as invalid:
        found = invalid.problems
    marks = [i for i, character in enumerate(line) if character == "»"]
    assert [p.column for p in found] == [i + 1 - line[:i].count("»") for i in marks]
    return list(found)


def test_every_built_in_operator_can_be_used_and_has_its_code() -> None:
    for name in catalog.BUILT_IN:
        assert catalog.problem(name) is None
        operator = catalog.find(name)
        assert operator is not None
        assert operator.summary.endswith(".")
        if operator.entrypoint is not None:
            load(operator.entrypoint)


def test_built_in_operators_are_found_without_searching_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scanned(**_: Any) -> Any:
        raise AssertionError("all packages were looked at")

    catalog.forget()
    monkeypatch.setattr(metadata, "entry_points", scanned)
    assert catalog.find("sql") is not None


@pytest.mark.parametrize(
    ("job", "code", "message", "suggestion"),
    [
        ("runtime: spark, operator: »sqll", "deploy.unknown_operator", "no operator 'sqll'", "'sql'"),
        ("runtime: python, operator: »sql", "deploy.unknown_operator", "does not run", "runtime: spark"),
        ("runtime: spark, operator: »query", "deploy.unknown_operator", "cannot be used in DAG", "one of: compact"),
        ("runtime: dispatcher, operator: aggregator, config: »{}", "deploy.config_invalid",
         "one of size, every_seconds, all and each must be set", ""),
        ("runtime: dispatcher, operator: aggregator, config: {size: »0}", "deploy.config_invalid",
         "expected a whole number, 1 or more or nothing, found the number 0", "write a whole number, 1 or more"),
        ("runtime: dispatcher, operator: aggregator, config: {size: 1, final: »3}", "deploy.config_invalid",
         "config has no field 'final'", "did you mean 'finality'?"),
        ("runtime: dispatcher, operator: pass, config: {size: »1}", "deploy.config_invalid", "no field 'size'",
         "this operator has no config"),
        ("runtime: spark, operator: compact, config: {sort: »id}", "deploy.config_invalid",
         "expected a list, each text, found text", "write a list"),
        ("runtime: spark, operator: compact, inputs: »[{from: {dataset: in}}, {from: {dataset: x}}], "
         "outputs: [{dataset: out}]", "deploy.config_invalid", "it needs 1 input, but the job has 2", ""),
        ("runtime: spark, operator: signal_generate, config: »{sma_fast: 300}", "deploy.config_invalid",
         "sma_fast must be below sma_slow", ""),
        ("runtime: python, operator: range_ingest, config: {endpoints: ['http://a']}, inputs: [{from: {dataset: in}}], "
         "outputs: »[{dataset: out}]", "deploy.config_invalid", "'out' is not one of its outputs", "one of: blocks"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_fit_its_operator_is_refused_at_its_location(
    job: str, code: str, message: str, suggestion: str
) -> None:
    problem = next(p for p in problems(job) if message in p.message)
    assert problem.code == code
    assert suggestion in (problem.suggestion or "")


def test_all_problems_of_a_config_are_reported_at_once() -> None:
    found = problems(
        "runtime: spark, operator: compact, config: {sort: »1, target_file_mb: »5000, delete: »true}"
    )
    assert [p.value for p in found] == ["1", "5000", "true"]


def test_custom_fields_are_allowed_if_the_operator_passes_them_on() -> None:
    assert problems("runtime: python, operator: python, config: {entrypoint: 'a:b', anything: [1]}") == []


def test_a_function_is_its_own_operator() -> None:
    assert problems("runtime: called, operator: sql, config: {anything: 1}", ALONE) == []


def test_an_operator_from_an_installed_package_works_like_any_other(install: Install) -> None:
    install()
    operator = catalog.find("round")
    assert operator is not None
    assert str(catalog.package("round")) == "rounding 1.0"
    assert problems("runtime: python, operator: round, config: {digits: 3}") == []
    (problem,) = problems("runtime: python, operator: round, config: {digits: »10}")
    assert "from 0 to 9" in problem.message
    dag = dag_file.parse(
        HEAD + f"- {{name: j, {PORTS}, runtime: python, operator: round}}\n", "f",
        known_runtimes=frozenset(DEFAULT_RUNTIMES),
    )  # fmt: skip
    assert [d.position for d in dag.datasets if d.dataset_id == "out"] == ["n"]


@pytest.mark.parametrize(
    ("module", "entries", "reason"),
    [
        ("import no_such_module_anywhere", "round = rounding:SPEC", "ModuleNotFoundError"),
        ("raise SystemExit(1)", "round = rounding:SPEC", "SystemExit"),
        ("SPEC = 1", "round = rounding:SPEC", "is not an OperatorSpec"),
        (MODULE, "round = rounding:OTHER", "AttributeError"),
        (MODULE, "around = rounding:SPEC", "is named 'round'"),
        (MODULE.replace('"workers"', '"threads"'), "round = rounding:SPEC", "no field 'threads'"),
        (MODULE.replace(', description="Threads."', ""), "round = rounding:SPEC", "no description"),
        (MODULE.replace('{"python"}', '{"dispatcher"}'), "round = rounding:SPEC", "only built-in"),
        (MODULE.replace("position=", "runs_once=True, position="), "round = rounding:SPEC", "run once"),
        (MODULE.replace('{"python"}', '{"gpu"}'), "round = rounding:SPEC", "no runtime 'gpu'"),
        (MODULE.replace('"rounding.code:run"', "None"), "round = rounding:SPEC", "no entrypoint"),
    ],
)
def test_a_broken_package_affects_only_the_jobs_that_use_it(
    install: Install, module: str, entries: str, reason: str
) -> None:
    install(module, entries=entries)
    name = entries.partition(" ")[0]
    (problem,) = problems(f"runtime: python, operator: »{name}")
    assert problem.code == "deploy.operator_broken"
    assert "rounding 1.0" in problem.message
    assert reason in problem.message
    assert catalog.find(name) is None
    assert problems("runtime: spark, operator: compact") == []


def test_packages_installed_on_the_deploying_machine_do_not_count() -> None:
    text = HEAD + f"- {{name: j, {PORTS}, runtime: python, operator: round}}\n"
    dag = dag_file.parse(text, "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
    project = code_project.project_sent({})
    job_checks.refuse(
        dag, DEFAULT_RUNTIMES, project, text, "f", is_elsewhere=lambda _: True, knows_packages=False
    )
    (problem,) = problems("runtime: python, operator: »round")
    assert problem.code == "deploy.unknown_operator"


def test_the_command_lists_what_is_installed_and_what_is_wrong_with_it(install: Install) -> None:
    install()
    shown = CliRunner().invoke(cli, ["operators", "round"])
    assert "digits: a whole number from 0 to 9; default 2" in shown.stdout
    assert "Changing it rebuilds nothing." in shown.stdout
    listed = CliRunner().invoke(cli, ["operators"])
    assert listed.exit_code == 0
    assert "(rounding 1.0)" in listed.stdout
    install(package="another")
    wrong = CliRunner().invoke(cli, ["operators"])
    assert wrong.exit_code == 1
    assert "PROBLEM" in wrong.stdout
    assert "sql" in wrong.stdout


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    install()
    install(package="another")
    (problem,) = problems("runtime: python, operator: »round")
    assert problem.code == "deploy.operator_ambiguous"
    assert "rounding 1.0" in problem.message
    assert "another 1.0" in problem.message


def test_no_package_can_take_the_name_of_a_built_in_operator(install: Install) -> None:
    install(entries="compact = rounding:SPEC")
    (problem,) = problems("runtime: spark, operator: »compact")
    assert problem.code == "deploy.operator_ambiguous"
    assert "traceplane and rounding 1.0" in problem.message


def test_the_files_of_a_package_are_its_identity(install: Install) -> None:
    folder = install()
    before = catalog.code_identity("round")
    catalog.forget()
    assert catalog.code_identity("round") == before != ""
    (folder / "rounding/code.py").write_text("def run(task): return []\n")
    catalog.forget()
    assert catalog.code_identity("round") != before
    assert catalog.code_identity("sql") == ""


def test_no_statement_names_an_operator() -> None:
    """What matters of an operator is in its spec; statements get the names of those that have a property."""
    folder = files("traceplane.postgres") / "sql"
    named = re.compile(r"\boperator\s*(?:=|<>|(?:not )?in)\s*\(?'", re.IGNORECASE)
    assert [file.name for file in folder.iterdir() if named.search(file.read_text())] == []


def test_operators_are_found_by_what_their_specs_say() -> None:
    assert catalog.running_once() == ["query"]
    assert catalog.publishing_signals() == ["signal_publish"]
