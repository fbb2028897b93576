"""Checks the query of a `sql` job before it runs: whether it parses, and whether the names in it exist. Pure.
The columns that the SQL of a virtual dataset names are checked in the same way.

Spark decides in the end, so only what cannot work is rejected. A name counts as known if a relation, an alias or a
lambda anywhere in the query has it; a relation with undeclared columns may have any.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from traceplane.errors import InvalidInput
from traceplane.sql.spark_agreement import agreed
from traceplane.sql.spark_functions import COLUMNS_OF_THE_SESSION, UNITS

_ESCAPES = re.compile(r"\x1b\[\d*m")
_CHANGES_SOMETHING = (
    *(exp.Create, exp.Drop, exp.Alter, exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.TruncateTable),
    *(exp.Command, exp.Set, exp.Use, exp.Cache, exp.Uncache, exp.LoadData),
)
"""Their effects would outlive the task, be visible to others and disturb another attempt."""
_NAMES_ANYTHING = (exp.Pivot, exp.Command)
"""Parts of a query that create columns which its text does not name."""
_NAMES_ANYTHING_IN_DUCKDB = (exp.Unnest, exp.Explode, exp.Columns, exp.Comprehension, exp.Values)
_MADE_BY_SPARK = COLUMNS_OF_THE_SESSION | {
    "_metadata", "window", "session_window", "start", "end", "localtime", "localtimestamp",
}  # fmt: skip
_MADE_BY_GENERATORS = frozenset({"col", "pos", "key", "value", "id", *(f"col{n}" for n in range(1, 100))})
_GENERATORS = frozenset(
    {"stack", "inline", "inline_outer", "json_tuple", "explode_outer", "posexplode_outer"}
)
_UNITS = UNITS | {"nanosecond", "epoch"}
_UNKNOWN_TO_THE_PARSER = (
    (re.compile(r"\bwindow\s*\(", re.IGNORECASE), "window_("),
    (re.compile(r">>>"), ">>"),
    (re.compile(r"\bx\s+'", re.IGNORECASE), "x'"),
)
"""Everything in the examples of Spark's functions that it does not understand, and similar text."""


@dataclass(frozen=True, slots=True)
class QueryFault:
    code: str
    message: str
    word: str
    known: tuple[str, ...] = ()
    """Suggestions."""
    next_step: str | None = None


def faults(query: str, inputs: Mapping[str, Collection[str] | None]) -> list[QueryFault]:
    """`inputs` are the relations of the query and their columns; None if unknown."""
    try:
        statements = _parsed(query)
    except InvalidInput as error:
        return [QueryFault(error.code, error.message, str(error.value), next_step=error.next_step)]
    except ParseError as error:
        return [_unparsed(error)]
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        return [
            QueryFault("sql.malformed", f"the query cannot be parsed: {_first_line(str(error))}", query[:40])
        ]
    except RecursionError:
        return []
    if len(statements) != 1:
        return [
            QueryFault("sql.several_statements", f"the query has {len(statements)} statements", query[:40])
        ]
    (tree,) = statements
    if isinstance(tree, _CHANGES_SOMETHING):
        kind = query.split(maxsplit=1)[0]
        return [
            QueryFault(
                "sql.not_a_query", f"the query changes something instead of reading: {kind[:40]!r}", kind
            )
        ]
    if not isinstance(tree, exp.Query):
        return []
    try:
        return [*_unknown_relations(tree, inputs), *_unknown_columns(tree, inputs)]
    except RecursionError:
        return []


def unknown_columns(select: str, relations: Mapping[str, Collection[str] | None]) -> list[QueryFault]:
    """Of the SQL of a virtual dataset as the gate of queries has rewritten it, in DuckDB's dialect."""
    try:
        tree = sqlglot.parse_one(select, read="duckdb")
        if tree.find(*_NAMES_ANYTHING_IN_DUCKDB):
            return []
        return list(_unknown_columns(tree, relations))
    except (SqlglotError, RecursionError):
        return []


def _parsed(query: str) -> list[exp.Expr]:
    query = agreed(query)
    try:
        found = sqlglot.parse(query, read="spark")
    except ParseError:
        plainer = query
        for pattern, instead in _UNKNOWN_TO_THE_PARSER:
            plainer = pattern.sub(instead, plainer)
        if plainer == query:
            raise
        found = sqlglot.parse(plainer, read="spark")
    return [statement for statement in found if statement is not None]


def _unparsed(error: ParseError) -> QueryFault:
    told = error.errors[0] if error.errors else {}
    word = str(told.get("highlight") or "")
    place = f" at line {told['line']}, column {told['col'] - len(word) + 1}" if told.get("line") else ""
    return QueryFault("sql.malformed", f"the query cannot be parsed{place}, at {word[:40]!r}", word)


def _first_line(text: str) -> str:
    return _ESCAPES.sub("", text).strip().partition("\n")[0][:200]


# --- relations --------------------------------------------------------------------------------------


def _unknown_relations(tree: exp.Expr, inputs: Mapping[str, object]) -> Iterator[QueryFault]:
    known = {name.lower() for name in inputs} | {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            continue
        name = ".".join(part.name for part in table.parts)
        if len(table.parts) > 1:
            # Any table that Spark's own catalog has, unless it is what an input is called.
            if name.lower() in known:
                message = f"the query reads {name!r}, which for Spark is a table of a database"
                yield QueryFault("sql.unknown_relation", message, name, (f"`{name}`",))
            continue
        if name.lower() in known or table.find_ancestor(exp.Hint):
            continue
        known.add(name.lower())
        message = f"the query reads {name!r}, which is no input of the job"
        yield QueryFault("sql.unknown_relation", message, name, tuple(inputs))


# --- columns ----------------------------------------------------------------------------------------


def _unknown_columns(tree: exp.Expr, inputs: Mapping[str, Collection[str] | None]) -> Iterator[QueryFault]:
    if any(True for _ in tree.find_all(*_NAMES_ANYTHING)):
        return
    relations = _Relations.of(tree, inputs)
    anywhere = relations.columns | _names_made(tree) | _MADE_BY_SPARK
    seen: set[str] = set()
    for column in tree.find_all(exp.Column):
        parts = [part.name for part in column.parts]
        first = parts[0].lower()
        if isinstance(column.this, exp.Star) or "(" in column.name or column.find_ancestor(exp.Hint):
            continue
        if len(parts) > 1 and first in relations.by_alias and first not in anywhere:
            # Of that relation; what follows the column's name are fields of it.
            known = relations.by_alias[first]
            if known is None or parts[1].lower() in {*known, *_MADE_BY_SPARK}:
                continue
            told, word = f"{parts[0]}.{parts[1]}", parts[1]
        else:
            is_unit = first in _UNITS and isinstance(column.parent, exp.Func)
            if not relations.all_known or is_unit or first in anywhere or first in relations.by_alias:
                continue
            known, told, word = relations.columns, ".".join(parts), parts[0]
        if told.lower() not in seen:
            seen.add(told.lower())
            message = f"the query names the column {told!r}, which none of its inputs has"
            yield QueryFault("sql.unknown_column", message, word, tuple(sorted(known)))


@dataclass(frozen=True, slots=True)
class _Relations:
    columns: frozenset[str]
    """Of all inputs that the query reads, in lower case like all names here."""
    all_known: bool
    """Whether the columns of each of them are."""
    by_alias: Mapping[str, frozenset[str] | None]
    """What can stand before the dot of a column, and the columns that are there, None if not known."""

    @classmethod
    def of(cls, tree: exp.Expr, inputs: Mapping[str, Collection[str] | None]) -> _Relations:
        given = {name.lower(): found for name, found in inputs.items()}
        ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        columns: set[str] = set()
        by_alias: dict[str, frozenset[str] | None] = {}
        all_known = True
        for table in tree.find_all(exp.Table):
            name, alias = table.name.lower(), table.alias.lower()
            if table.find_ancestor(exp.Hint):
                continue
            found: frozenset[str] | None = None
            if isinstance(table.this, exp.Identifier) and len(table.parts) == 1 and name in ctes:
                pass  # its columns are those of inputs, or named in the query
            elif (
                isinstance(table.this, exp.Identifier)
                and len(table.parts) == 1
                and given.get(name) is not None
            ):
                found = frozenset(column.lower() for column in given[name] or ())
                columns |= found
            else:
                all_known = False
            renamed = table.args.get("alias") is not None and table.args["alias"].args.get("columns")
            key = alias or name
            both = by_alias.get(key, frozenset())
            by_alias[key] = None if found is None or both is None or renamed else both | found
        for query in tree.find_all(exp.Subquery, exp.Lateral, exp.CTE):
            if query.alias:
                by_alias[query.alias.lower()] = None
        return cls(frozenset(columns), all_known, by_alias)


def _names_made(tree: exp.Expr) -> set[str]:
    """Every name that the query gives to something: aliases, columns of aliases, fields, parameters of lambdas."""
    made: set[str] = set()
    for node in tree.walk():
        match node:
            case exp.Alias():
                made.add(node.alias.lower())
            case exp.Aliases() | exp.Lambda():
                made |= {identifier.name.lower() for identifier in node.expressions}
            case exp.TableAlias():
                made |= {column.name.lower() for column in node.args.get("columns") or ()}
            case exp.PropertyEQ() | exp.Kwarg() | exp.ColumnDef():
                made.add(node.this.name.lower())
            case exp.Values() | exp.Explode() | exp.Posexplode() | exp.Inline() | exp.UDTF():
                made |= _MADE_BY_GENERATORS
            case exp.Anonymous() if str(node.this).lower() in _GENERATORS:
                made |= _MADE_BY_GENERATORS
    return made
