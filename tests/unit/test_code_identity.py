"""A job's code hash changes if, and only if, the behaviour of its code may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceplane.errors import InvalidInput, TooLarge
from traceplane.model.code_bundle import MAX_MODULE_BYTES, decode, encode
from traceplane.model.dag import Dag
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.registry import code_identity
from traceplane.registry.spec import dag_file
from traceplane.registry.sql_identity import say_the_same, with_deployed_queries

FILES = {
    "operators.py": '''\
"""The operators."""
import json
import numpy.linalg
from shop import prices
from shop.tax import rate

def run(task):
    """Adds up."""
    total = prices.of(task) * (1 + rate("de"))  # with tax
    return [{"total": total, "text": f"{total:>{8}} EUR"}]
''',
    "shop/__init__.py": "VERSION = 1\n",
    "shop/prices.py": "from .base import of\n",
    "shop/base/__init__.py": "from . import table\n\ndef of(task):\n    return table.PRICES[task.scope]\n",
    "shop/base/table.py": "PRICES = {1: 2.5}\n",
    "shop/tax.py": "def rate(country, *, default=None):\n    return {'de': 0.19}.get(country, default)\n",
    "shop/unused.py": "def nobody(): ...\n",
    "other.py": "def run(task): ...\n",
}
NEEDED = set(FILES) - {"shop/unused.py", "other.py"}


def dag(entrypoint: str = "operators:run") -> Dag:
    return parse(f"runtime: python, operator: python, config: {{entrypoint: '{entrypoint}'}}")


def parse(job: str) -> Dag:
    ends = "inputs: [{from: {dataset: x}}], outputs: [{name: o, dataset: o}]"
    text = f"version: 1\ndag: d\njobs: [{{name: j, {job}, {ends}}}]\n"
    return dag_file.parse(text, "f", known_runtimes=frozenset(DEFAULT_RUNTIMES))


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    return folder


def collect(*folders: Path, entrypoint: str = "operators:run", installed: bool = False) -> dict[str, str]:
    return code_identity.collect(
        dag(entrypoint), DEFAULT_RUNTIMES, folders, is_installed=lambda name: installed
    )


def code_hash(files: dict[str, str]) -> str:
    code = code_identity.identify(dag(), DEFAULT_RUNTIMES, files)
    assert code is not None
    return code.hashes["j"]


def edited(path: str, old: str, new: str) -> dict[str, str]:
    assert FILES[path].count(old) == 1
    return {**FILES, path: FILES[path].replace(old, new)}


def test_exactly_the_modules_that_an_entrypoint_imports_are_collected(tmp_path: Path) -> None:
    assert set(collect(write(tmp_path, FILES))) == NEEDED


def test_a_collected_bundle_has_the_same_hash_as_its_folder(tmp_path: Path) -> None:
    taken = collect(write(tmp_path, FILES))
    assert code_hash(taken) == code_hash(FILES)
    assert decode(encode(taken)) == taken
    assert encode(dict(reversed(taken.items()))) == encode(taken)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("operators.py", "  # with tax", ""),
        ("operators.py", '"""Adds up."""', '"""Adds up, with tax."""'),
        ("operators.py", '    """Adds up."""\n', ""),
        ("operators.py", '"""The operators."""\n', "# The operators.\n\n\n"),
        ("operators.py", "total = prices.of(task) * (1 + ", "total = (prices.of(task)\n        * (1+"),
        ("operators.py", '{"total": total, "text"', "{'total': total,\n'text'"),
        ("shop/tax.py", "\n", "\r\n"),
        ("shop/unused.py", "nobody", "somebody"),
        ("other.py", "task", "it"),
    ],
)
def test_formatting_and_unrelated_modules_do_not_change_the_hash(path: str, old: str, new: str) -> None:
    files = {**FILES, path: FILES[path].replace(old, new)}
    if new.startswith("total = (prices"):
        files[path] = files[path].replace('rate("de"))', 'rate("de")))')
    assert files != FILES
    assert code_hash(files) == code_hash(FILES)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("operators.py", "1 + rate", "1 - rate"),
        ("operators.py", "{8}", "{9}"),
        ("operators.py", " EUR", " USD"),
        ("shop/__init__.py", "1", "2"),
        ("shop/base/table.py", "2.5", "2.50001"),
        ("shop/base/table.py", "{1:", "{True:"),
        ("shop/tax.py", "*, default=None", "*, default"),
        ("shop/tax.py", "'de'", "b'de'"),
    ],
)
def test_a_change_in_any_imported_module_changes_the_hash(path: str, old: str, new: str) -> None:
    assert code_hash(edited(path, old, new)) != code_hash(FILES)


def test_a_hash_is_stable_across_releases_and_python_versions() -> None:
    # If this fails, every deployed job with code would be rebuilt by the upgrade: change it only on purpose.
    assert code_hash(FILES) == "d31580603a3f08c04639481c506e3608a0ea30ae42832ada2db5f22d6f7fc09e"


def test_several_folders_are_searched_as_python_does(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"operators.py": "import space.a, space.b, helper\n", "space/a.py": ""})
    two = write(tmp_path / "two", {"space/b.py": "", "helper.py": "X = 2\n", "operators.py": "import no\n"})
    assert set(collect(one, two)) == {"operators.py", "space/a.py", "space/b.py", "helper.py"}


@pytest.mark.parametrize(
    ("files", "line", "code"),
    [
        ({"operators.py": "import json\ndef run(task:\n"}, 2, "code.syntax"),
        ({"operators.py": "import helper\n", "helper.py": "\n\nx = = 1\n"}, 3, "code.syntax"),
        ({"operators.py": "(" * 5000}, 1, "code.syntax"),
        (edited("operators.py", "from shop.tax", "from shop.taxes"), 5, "code.module_missing"),
        (edited("shop/prices.py", ".base", ".bases"), 1, "code.module_missing"),
        (edited("shop/prices.py", ".base", "...base"), 1, "code.module_missing"),
        ({"operators.py": "from . import x\n"}, 1, "code.module_missing"),
    ],
)
def test_invalid_code_is_reported_with_file_and_line(
    tmp_path: Path, files: dict[str, str], line: int, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        collect(write(tmp_path, files))
    assert refused.value.code == code
    assert str(refused.value.value).startswith(str(tmp_path))
    assert str(refused.value.value).endswith(f".py:{line}")
    with pytest.raises(InvalidInput) as refused:  # the gateway sees it too
        code_hash(files)
    assert refused.value.code == code


def test_optional_imports_may_be_missing(tmp_path: Path) -> None:
    text = "import typing\nimport requests.adapters\nclass C:\n  def f():\n    import lazy\n"
    text += "try:\n    from shop import fast, slow\n    import shop.fast\nexcept ImportError: pass\n"
    text += "if typing.TYPE_CHECKING:\n    import shop.types\n"
    assert set(collect(write(tmp_path, {"operators.py": text, "shop/__init__.py": "", "lazy.py": ""}))) == {
        "operators.py",
        "lazy.py",
        "shop/__init__.py",
    }


def test_an_entrypoint_must_be_in_the_folders_or_installed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        collect(tmp_path, entrypoint="nowhere.to_be:found")
    assert refused.value.code == "code.module_missing"
    assert collect(tmp_path, entrypoint="nowhere.to_be:found", installed=True) == {}
    with pytest.raises(InvalidInput) as refused:
        collect(tmp_path, entrypoint="operators.run")
    assert refused.value.code == "code.bad_entrypoint"


def test_code_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"operators.py": "import big, größe\n", "big.py": "", "größe.py": ""})
    with pytest.raises(InvalidInput) as refused:
        collect(tmp_path)
    assert refused.value.code == "code.bad_path"
    (tmp_path / "operators.py").write_text("import big\n")
    (tmp_path / "big.py").write_text("#" * (MAX_MODULE_BYTES + 1))
    with pytest.raises(TooLarge) as too_large:
        collect(tmp_path)
    assert too_large.value.code == "code.too_large"
    (tmp_path / "big.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(InvalidInput) as refused:
        collect(tmp_path)
    assert refused.value.code == "code.not_utf8"


@pytest.mark.parametrize(
    "path", ["../x.py", "/x.py", "a/../x.py", "a//x.py", "x.txt", "", "a\\x.py", "x.py\n"]
)
def test_a_bundle_contains_only_modules(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        decode(encode({path: ""}))


# --- SQL ------------------------------------------------------------------------------------------

QUERY = "select a, count(*) as n from t where a > :start and b = 'x' group by a"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("SELECT a,\n  COUNT(*) AS n -- how many\nFROM t WHERE a>:start AND b='x' GROUP BY a;", True),
        (QUERY.replace("'x'", "'X'"), False),
        (QUERY.replace(":start", ":end"), False),
        (QUERY.replace("select a", "select /*+ BROADCAST(t) */ a"), False),
        ("select from where (", False),
    ],
)
def test_queries_are_compared_as_parsed(other: str, same: bool) -> None:
    assert say_the_same(QUERY, other) is same
    assert say_the_same(other, other)


def test_an_equivalent_query_keeps_its_deployed_text() -> None:
    def with_query(text: str) -> Dag:
        return parse(f"runtime: spark, operator: sql, config: {{query: {{o: {text!r}}}, z: 1}}")

    deployed = with_query("select 1 as one")
    assert with_deployed_queries(with_query("SELECT 1  AS one -- same"), deployed) == deployed
    assert with_deployed_queries(with_query("SELECT 2 AS one"), deployed) == with_query("SELECT 2 AS one")
