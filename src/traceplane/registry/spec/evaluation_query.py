"""The query of an alert's evaluation: made from the alert, and taken apart again. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import sqlglot
from sqlglot import ErrorLevel, exp
from sqlglot.errors import SqlglotError

from traceplane.errors import InvalidInput
from traceplane.model.positions import Range
from traceplane.registry.spec.yaml_reader import YamlMap
from traceplane.sql.spark_agreement import agreed

_ALL, _WHEN = "select * from rows", "select * from rows where (\n"


def of_alert(alert: YamlMap, fields: Collection[str], position: str | None) -> str:
    """`fields`: columns that are sent besides the subject."""
    condition = None if alert.lacks("when") else alert.get("when")
    rows = f"{_WHEN}{condition}\n)" if condition else alert.get("sql") or _ALL
    at = f"cast({_quoted(position)} as bigint)" if position else _THE_ONLY_POSITION
    event_time, emission = alert.get("event_time"), alert.get("emission")
    return (
        f"select {at} as position,\n"
        f"  {_json(alert.get('subject'))} as subject,\n"
        f"  {_json(fields)} as fields,\n"
        f"  cast({_quoted(event_time) if event_time else 'null'} as timestamp) as event_time,\n"
        f"  cast({_quoted(emission) if emission else 'null'} as string) as emission\n"
        f"from (\n{rows}\n) found"
    )


_POSITION = re.compile(r"select cast\(`((?:[^`]|``)+)` as bigint\) as position,\n")
_EVENT_TIME = re.compile(r"^  cast\(`((?:[^`]|``)+)` as timestamp\) as event_time", re.MULTILINE)
_ONE_COLUMN = re.compile(
    r"^  cast\(`((?:[^`]|``)+)` as (?:timestamp|string)\) as (?:event_time|emission)", re.MULTILINE
)


def sent_columns(query: str, columns: Iterable[str]) -> list[str]:
    """The columns that leave the platform by the query of an evaluation: these, its event time and its emission."""
    return list(dict.fromkeys([*columns, *(name.replace("``", "`") for name in _ONE_COLUMN.findall(query))]))


def columns_query(query: str, columns: Iterable[str]) -> str | None:
    """The query of an evaluation, with columns of the rows that it finds rather than what it makes of them. None: the
    rows are only chosen, so they have the columns that they had."""
    _, _, rows = query.partition("\nfrom (\n")
    if only_chooses(query):
        return None
    return f"select {', '.join(map(_quoted, columns))}\nfrom (\n{rows}"


def only_chooses(query: str) -> bool:
    """Whether an evaluation takes rows as they are: all of them, or those that meet a condition."""
    try:
        tree = sqlglot.parse_one(agreed(rows_query(query)), read="spark")
    except (InvalidInput, SqlglotError, RecursionError):
        return False
    bare = sqlglot.parse_one(_ALL, read="spark")
    return tree.copy().transform(lambda node: None if isinstance(node, exp.Where) else node) == bare


def position_column(query: str) -> str | None:
    """The column that an evaluation takes positions from."""
    match = _POSITION.match(query)
    return match[1].replace("``", "`") if match is not None else None


def event_time_column(query: str) -> str | None:
    """The column that an evaluation takes the time of an alert from."""
    match = _EVENT_TIME.search(query)
    return match[1].replace("``", "`") if match is not None else None


def written_as(query: str) -> Literal["when", "sql", "entrypoint"]:
    """The field of the alert that says which rows it is about."""
    rows = rows_query(query)
    return "when" if rows.startswith(_WHEN) else "entrypoint" if rows == _ALL else "sql"


def rows_query(query: str) -> str:
    """The query of the rows, as the user wrote it if the alert is given by `sql`."""
    return query.partition("\nfrom (\n")[2].removesuffix("\n) found")


def duckdb_query(
    query: str,
    columns: Sequence[str],
    *,
    dataset_id: str,
    position: str,
    positions: Range,
    most: int,
) -> str:
    """What an evaluation finds at these positions, in DuckDB's dialect: position, event time, emission, columns. The
    event time is as the column has it: DuckDB makes no times of numbers. Raises ValueError if it cannot be
    translated."""
    tree = _parsed(rows_query(query))
    outer = _parsed(query)
    for table in [t for t in tree.find_all(exp.Table) if t.name.lower() == "rows" and not t.db]:
        rows = exp.select("*").from_(exp.table_(dataset_id, quoted=True))
        rows = rows.where(exp.column(position, quoted=True).between(*positions))
        table.replace(rows.subquery(table.alias or "rows"))
    ends = {"start": positions[0], "end": positions[1]}
    for root in (tree, outer):
        for placeholder in list(root.find_all(exp.Placeholder)):
            if placeholder.name not in ends:
                raise ValueError(f"it has a parameter {placeholder.name!r}")
            placeholder.replace(exp.Literal.number(ends[placeholder.name]))
    made = {one.alias: one.this for one in outer.expressions}
    at, event_time = position_column(query), event_time_column(query)
    values = [
        exp.column(at, quoted=True) if at is not None else exp.Literal.number(positions[0]),
        made["event_time"] if event_time is None else exp.column(event_time, quoted=True),
        made["emission"],
        *(exp.column(name, quoted=True) for name in columns),
    ]
    if at is None and positions[0] != positions[1] and only_chooses(query):
        values[0] = exp.column(position, quoted=True)
    selected = [exp.alias_(value, f"c{number}") for number, value in enumerate(values)]
    whole = exp.select(*selected).from_(tree.subquery("found")).order_by("c1", "c0").limit(most)
    try:
        return whole.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError) as error:
        raise ValueError(str(error).partition("\n")[0][:300]) from None


def _parsed(sql: str) -> exp.Query:
    try:
        tree = sqlglot.parse_one(agreed(sql), read="spark")
    except (InvalidInput, SqlglotError, RecursionError) as error:
        raise ValueError(str(error).partition("\n")[0][:300]) from None
    if not isinstance(tree, exp.Query):
        raise ValueError("it is no query")
    return tree


_THE_ONLY_POSITION = (
    "if(:start = :end, cast(:start as bigint), cast(raise_error("
    "'a task has several positions here: name the column of the position in the alert, as position') as bigint))"
)


def _json(columns: Collection[str]) -> str:
    if not columns:
        return "'{}'"
    values = ", ".join(
        f"'{name.replace(chr(92), chr(92) * 2).replace(chr(39), chr(92) + chr(39))}', {_quoted(name)}"
        for name in columns
    )
    return f"to_json(named_struct({values}), map('ignoreNullFields', 'false'))"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
