"""A DAG file that is too large, too deep or missing is refused, and quickly."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NoReturn

import pytest

from tests.dag_texts import FULL, HEAD, RUNTIMES, SOURCE, parse, problems_of
from traceplane.errors import NotFound, SpecInvalid
from traceplane.registry.spec import dag_file, yaml_reader


def test_a_file_over_one_mebibyte_is_refused() -> None:
    (problem,) = problems_of("# " + "x" * yaml_reader.MAX_BYTES)
    assert problem.code == "spec.too_large"


@pytest.mark.parametrize("item", ["[{}]", "{{a: {}}}", "{{<<: [{}]}}"])
def test_an_alias_bomb_is_refused_at_once(item: str) -> None:
    lines = ["version: 1", "dag: d", "jobs: []", f"x0: &x0 {{a: {'lol' * 100}}}"]
    for level in range(1, 30):
        aliases = ", ".join([f"*x{level - 1}"] * 9) if "[" in item else f"*x{level - 1}, b: *x{level - 1}"
        lines.append(f"x{level}: &x{level} {item.format(aliases)}")
    started = time.process_time()
    (problem,) = problems_of("\n".join(lines))
    assert problem.code == "spec.too_large"
    assert time.process_time() - started < 60


def test_a_chain_of_aliases_cannot_nest_too_deep() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, 5000)]
    (problem,) = problems_of("\n".join(lines))
    assert problem.code == "spec.too_deep"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500_000,
        "- " * 500_000,
        "{a: " * 250_000,
        "version: 1\ndag: d\njobs: [" + "x," * 500_000 + "]",
        "version: 1\ndag: d\njobs: [" + "{}," * 100_000 + "]",
        HEAD + "- {name: a, operator: f, inputs: [" + "{from: {job: b}}," * 30_000 + "]}",
        HEAD
        + "".join(f"- {{name: j{n}, operator: f, inputs: [{{from: {{job: k}}}}]}}\n" for n in range(12_000)),
        "".join(f"k{n}: 1\n" for n in range(50_000)),
        "a: &a " + "x" * 1000 + "\nb: [" + "*a," * 300_000 + "]",
    ],
    ids=lambda text: text[-30:].strip(),
)
def test_no_file_takes_long_to_refuse(text: str) -> None:
    started = time.process_time()
    assert 1 <= len(problems_of(text)) <= yaml_reader.MAX_PROBLEMS
    assert time.process_time() - started < 120


_ALERT = "dataset: a.b, subject: [x], title: t"
_LONG = " or ".join(f"a = {n}" for n in range(1_000))
_MUCH_SQL = {
    "a long condition": f"alerts:\n- {{name: p, {_ALERT}, when: '{'a = 1 or ' * 1_200} true'}}\n",
    "a long query": f"alerts:\n- {{name: p, {_ALERT}, sql: 'select {'1,' * 60_000} 1 from rows'}}\n",
    "many conditions": "alerts:\n"
    + "".join(f"- {{name: p{n}, {_ALERT}, when: a > 1}}\n" for n in range(8_000)),
    "one condition many times": f"alerts:\n- {{name: p, {_ALERT}, when: &w '{_LONG}'}}\n"
    + "".join(f"- {{name: p{n}, {_ALERT}, when: *w}}\n" for n in range(300)),
    "merged conditions": f"alerts:\n- &m {{name: p, {_ALERT}, when: '{_LONG}'}}\n"
    + "".join(f"- {{<<: *m, name: p{n}}}\n" for n in range(100)),
    "many checks": "datasets:\n  a.c:\n    checks:\n"
    + "".join(f"    - {{name: c{n}, expression: a > {n}}}\n" for n in range(10_000)),
    "queries of outputs": "jobs:\n- name: j\n  operator: sql\n  config:\n    query:\n"
    + "".join(f"      o{n}: \"select '{'x' * 90_000}'\"\n" for n in range(3)),
}


@pytest.mark.parametrize("text", _MUCH_SQL.values(), ids=_MUCH_SQL)
def test_a_file_with_too_much_sql_is_refused_before_it_is_parsed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the SQL was parsed")

    monkeypatch.setattr("sqlglot.parser.Parser.parse", parse)
    monkeypatch.setattr("sqlglot.tokens.Tokenizer.tokenize", parse)
    (problem,) = problems_of("version: 1\ndag: d\n" + text)
    assert (problem.code, bool(problem.suggestion)) == ("spec.too_large", True)


def test_a_long_chain_of_jobs_is_read() -> None:
    jobs = "".join(
        f"- {{name: j{n}, operator: f, inputs: [{{from: {{job: j{n + 1}}}}}],\n"
        f"   outputs: [{{dataset: d{n}}}]}}\n"
        for n in range(3000)
    )
    dag = parse(HEAD + jobs + SOURCE.replace("name: a", "name: j3000"))
    assert [job.name for job in dag.jobs[:2]] == ["j3000", "j2999"]


# ── files ────────────────────────────────────────────────────────────────────────────────────────────


def test_load_reads_a_file_and_names_it_in_problems(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(FULL)
    assert dag_file.load(path, known_runtimes=RUNTIMES) == parse(FULL)
    path.write_bytes(b"dag: \xff\xfe")
    with pytest.raises(SpecInvalid, match=re.escape(f"{path}:1:1: spec.syntax")):
        dag_file.load(path, known_runtimes=RUNTIMES)
    path.write_text("#" + "é" * yaml_reader.MAX_BYTES)
    with pytest.raises(SpecInvalid, match=r"spec\.too_large"):
        dag_file.load(str(path), known_runtimes=RUNTIMES)


def test_loading_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"spec\.unreadable"):
        dag_file.load(tmp_path / "none.yaml", known_runtimes=RUNTIMES)
    with pytest.raises(NotFound, match=r"spec\.unreadable"):
        dag_file.load(tmp_path, known_runtimes=RUNTIMES)
