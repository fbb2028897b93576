"""Every guarantee of the design is on docs/guarantees.md, and every test that it or the threat model names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guarantees.md").read_text()
THREATS = (ROOT / "docs/concepts/threat_model.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE + THREATS)))
FILES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE + THREATS)))


@pytest.mark.parametrize("file", FILES)
def test_a_named_file_exists(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_named_test_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert test in names


def test_each_guarantee_has_tests_or_comes_later() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE))
    assert list(rows) == [str(number) for number in range(1, 20)]
    sections = dict(re.findall(r"^## (\d+)\. .*?$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    for number, row in rows.items():
        assert row.endswith("comes with a later release") != ("::test_" in sections.get(number, ""))
