"""Every named statement fits the migrated schema, says what it is for, and has one place that runs it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import asyncpg
import pytest

from traceplane.postgres.database import SCHEMA, statements

_FOLDER = Path(str(resources.files("traceplane.postgres")))
_FILES = sorted(path.stem for path in (_FOLDER / "sql").glob("*.sql"))
_STATEMENTS = [(table, name) for table in _FILES for name in statements(table)]


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(database_url, server_settings={"search_path": SCHEMA})
    yield opened
    await opened.close()


async def test_every_statement_can_be_prepared_on_the_migrated_schema(connection: asyncpg.Connection) -> None:
    assert len(_STATEMENTS) > 60
    broken = {}
    for table, name in _STATEMENTS:
        try:
            prepared = await connection.prepare(statements(table)[name])
        except asyncpg.PostgresError as error:
            broken[f"{table}.{name}"] = str(error)
            continue
        # A parameter whose type nobody said would be guessed, differently some day.
        assert all(kind.name != "unknown" for kind in prepared.get_parameters()), f"{table}.{name}"
    assert not broken


@pytest.mark.parametrize("table", _FILES)
def test_every_statement_has_a_line_of_purpose(table: str) -> None:
    text = (_FOLDER / "sql" / f"{table}.sql").read_text()
    assert text.startswith("-- "), "a file says what its statements are about"
    headings = re.findall(r"^-- name: (\w+)\n(.*)$", text, re.MULTILINE)
    assert len(headings) == len({name for name, _ in headings}) == len(statements(table))
    for name, purpose in headings:
        assert re.match(r"-- [a-zA-Z].*[a-z]", purpose), f"{table}.{name} does not say what it is for"


def _users() -> dict[tuple[str, str], list[str]]:
    """(file, statement) -> the functions that run it, as they stand in the code."""
    users: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in _FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text())
        tables = {
            ast.unparse(node.targets[0]): ast.literal_eval(node.value.args[0])
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id == "statements"
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if (
                        isinstance(node, ast.Subscript)
                        and isinstance(node.value, ast.Name)
                        and node.value.id in tables
                    ):
                        statement = ast.literal_eval(node.slice)
                        users[tables[node.value.id], statement].append(f"{path.stem}.{function.name}")
    return users


def test_every_statement_is_run_by_exactly_one_function() -> None:
    users = _users()
    assert set(users) <= set(_STATEMENTS), "a function asks for a statement that does not exist"
    unused = {f"{table}.{name}" for table, name in _STATEMENTS if not users.get((table, name))}
    assert not unused
    assert not {f"{t}.{n}": by for (t, n), by in users.items() if len(by) != 1}


def test_only_the_postgres_package_runs_sql() -> None:
    package = _FOLDER.parent
    strangers = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if _FOLDER not in path.parents and re.search(r"\basyncpg\b|\bstatements\(", path.read_text())
    ]
    assert not strangers
