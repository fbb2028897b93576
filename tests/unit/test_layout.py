"""The layout of the code: each package describes its modules once, and tests keep that true."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/traceplane"
PACKAGES = [init.parent for init in sorted(SOURCE.rglob("__init__.py")) if init.parent != SOURCE]
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]["contracts"]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_package_names_all_its_modules(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    named = set(re.findall(r"^ *(\w+) {2,}\S", text, re.MULTILINE))
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    assert modules <= named


def test_the_layers_are_those_of_the_architecture_page() -> None:
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    section = ARCHITECTURE.split("## Layers")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    assert [row.replace("`", "").replace(", ", " | ") for row in rows] == layers


@pytest.mark.parametrize("name", [contract["name"] for contract in CONTRACTS if contract["type"] != "layers"])
def test_a_contract_has_its_name_on_the_architecture_page(name: str) -> None:
    assert f"**{name}" in ARCHITECTURE


def test_every_folder_of_tests_is_explained() -> None:
    named = re.findall(r"^\| `tests/(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
    assert sorted(named) == sorted(folders)


def test_modules_have_no_import_cycles() -> None:
    graph = grimp.build_graph("traceplane", exclude_type_checking_imports=False)
    left = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while leaves := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in leaves}
    # What is left imports a circle, or is in one.
    while roots := {module for module in left if not any(module in imported for imported in left.values())}:
        left = {module: imported for module, imported in left.items() if module not in roots}
    assert set(left) == set()
