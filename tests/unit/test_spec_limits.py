"""A DAG file that is too large, too deep or missing is refused, and quickly."""

from __future__ import annotations

import re
import time
from pathlib import Path

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
    assert time.process_time() - started < 2


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
    assert time.process_time() - started < 10


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
