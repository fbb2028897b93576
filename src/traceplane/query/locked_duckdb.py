"""A DuckDB locked down to one query, and a second check of the query on DuckDB's own tree."""

from __future__ import annotations

import json
import re
from typing import Any

import duckdb

from traceplane.query.failures import QueryRefused
from traceplane.query.wire import EngineColumn, EngineRelation, EngineRequest, FileGroup
from traceplane.sql.functions import OPERATORS, SCALARS_AND_AGGREGATES, TABLE_FUNCTIONS


def open_empty() -> duckdb.DuckDBPyConnection:
    """An empty DuckDB without threads, so that a fork copies it completely: opening one takes longer than many a
    query."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
            "python_scan_all_frames": False,
            "enable_external_file_cache": False,
            "preserve_insertion_order": True,
        },
    )
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("select json_serialize_sql('select 1')").fetchall()
    return connection


def open_locked(
    request: EngineRequest, connection: duckdb.DuckDBPyConnection | None = None, files: Any = None
) -> duckdb.DuckDBPyConnection:
    """A DuckDB with the relations, which can read their files and nothing else, and can no longer be changed.
    `files`: the file system of those that are read in parts."""
    connection = connection or open_empty()
    if files is not None:
        connection.register_filesystem(files)
    query = request.query
    connection.execute(f"set memory_limit = '{query.limits.memory_mb}MB'")
    connection.execute(f"set temp_directory = {_text(request.spill)}")
    connection.execute(f"set max_temp_directory_size = '{query.limits.spill_mb}MB'")
    connection.execute(f"set threads = {query.limits.threads}")
    paths = sorted(
        {path for relation in query.relations for group in relation.groups for path in group.paths}
    )
    connection.execute(f"set allowed_paths = {_list(paths)}")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    earlier: set[str] = set()
    for relation in query.relations:
        if relation.sql is not None:
            check_tree(connection, relation.sql, earlier)
        connection.execute(f"create view {_quoted(relation.name)} as {relation.sql or _rows_of(relation)}")
        earlier.add(relation.name)
    return connection


def _rows_of(relation: EngineRelation) -> str:
    if not relation.groups:
        return f"select {', '.join(map(_null, relation.columns))} where false"
    if relation.left_out:
        return " union all ".join(_left_out(relation, group) for group in relation.groups)
    names = ", ".join(_null(c) if c.absent else _quoted(c.name) for c in relation.columns)
    return " union all ".join(
        f"select {names} from read_parquet({_list(group.paths)}, hive_partitioning = false, {_schema(relation)}"
        f"{_cardinality(group)}){_kept(relation, group)}"
        for group in relation.groups
    )


def _left_out(relation: EngineRelation, group: FileGroup) -> str:
    """Of the files, DuckDB is told the position column alone: no other can take the place of the row's number."""
    assert relation.position is not None
    files = f"read_parquet({_list(group.paths)}, hive_partitioning = false, {_schema(relation)})"
    kept = f"coalesce({_within(relation.position, group)}, false)"
    return f"select filename, file_row_number from {files} where not {kept}"


def _null(column: EngineColumn) -> str:
    return f"null::{column.type or 'varchar'} as {_quoted(column.name)}"


def _schema(relation: EngineRelation) -> str:
    """The generation's schema, so that no file must be opened for it, and a column that a file lacks is null."""
    columns = [column for column in relation.columns if not column.absent]
    if relation.position is not None and relation.position not in columns:
        columns.append(relation.position)
    if not columns or any(column.type is None for column in columns):
        return "union_by_name = true"
    fields = (
        f"{_text(c.name)}: {{name: {_text(c.name)}, type: {_text(str(c.type))}, default_value: null}}"
        for c in columns
    )
    return f"schema = map {{{', '.join(fields)}}}"


def _cardinality(group: FileGroup) -> str:
    """Given the schema, DuckDB opens no file when it plans, and would take any file for one of 1,000 rows."""
    return "" if group.rows is None else f", explicit_cardinality = {max(1, group.rows)}"


def _kept(relation: EngineRelation, group: FileGroup) -> str:
    if not group.kept or relation.position is None:
        return ""
    return f" where {_within(relation.position, group)}"


def _within(position: EngineColumn, group: FileGroup) -> str:
    return " or ".join(_between(position, *values) for values in group.kept)


def _between(column: EngineColumn, first: int | str | None, end: int | str | None) -> str:
    name = _quoted(column.name)
    bounds = [
        f"{name} {sign} {_value(v, column)}" for sign, v in ((">=", first), ("<", end)) if v is not None
    ]
    return f"({' and '.join(bounds)})" if bounds else f"{name} is not null"


def _value(value: int | str, column: EngineColumn) -> str:
    return str(value) if isinstance(value, int) else f"cast({_text(value)} as {column.type})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _list(values: list[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


# --- the second line: DuckDB's own tree -------------------------------------------------------------

_REFUSED_NODES = {"SHOW_REF", "PIVOT", "COLUMN_DATA", "DELIM_GET", "BOUND_TABLE_REF", "VALUE_PARAMETER"}
_CTE = re.compile(r"tp_c[0-9]+")


def check_tree(connection: duckdb.DuckDBPyConnection, sql: str, relations: set[str]) -> None:
    """Rejects the query if DuckDB finds a relation or function in it that is not listed."""
    row = connection.execute("select json_serialize_sql(?::varchar)", [sql]).fetchone()
    assert row is not None
    tree = json.loads(row[0])  # unlike msgspec's, it reads the Infinity that DuckDB writes for 1e400
    if tree.get("error"):
        if tree.get("error_type") == "not implemented":
            raise QueryRefused("query.not_a_select", "only SELECT is allowed")
        raise QueryRefused("query.malformed", f"the query cannot be parsed: {tree.get('error_message')}")
    if len(tree["statements"]) != 1:
        raise QueryRefused("query.several_statements", "a query is exactly one statement")
    waiting: list[tuple[Any, frozenset[str]]] = [(tree["statements"][0], SCALARS_AND_AGGREGATES | OPERATORS)]
    while waiting:
        node, functions = waiting.pop()
        if isinstance(node, list):
            waiting += [(item, SCALARS_AND_AGGREGATES | OPERATORS) for item in node]
        elif isinstance(node, dict):
            _check_node(node, functions, relations)
            table_function = node.get("type") == "TABLE_FUNCTION"
            for key, item in node.items():
                listed = TABLE_FUNCTIONS if table_function and key == "function" else None
                waiting.append((item, listed or SCALARS_AND_AGGREGATES | OPERATORS))


def _check_node(node: dict[str, Any], functions: frozenset[str], relations: set[str]) -> None:
    if str(node.get("type")) in _REFUSED_NODES:
        raise QueryRefused("query.syntax_denied", "the query uses syntax that is not allowed")
    if "function_name" in node:
        name = str(node["function_name"]).lower()
        elsewhere = node.get("catalog") not in (None, "", "system") or node.get("schema") not in (
            None,
            "",
            "main",
        )
        if name not in functions or elsewhere:
            raise QueryRefused("query.function_denied", "the query calls a function that is not allowed")
    if node.get("type") == "BASE_TABLE":
        name, elsewhere = (
            str(node.get("table_name")),
            bool(node.get("schema_name") or node.get("catalog_name")),
        )
        if elsewhere or not (name in relations or _CTE.fullmatch(name)):
            raise QueryRefused("query.unknown_relation", "the query reads a relation that is not granted")
