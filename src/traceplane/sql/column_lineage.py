"""Which columns the columns of a query are computed from. Pure.

A column depends on every column that its expression names: arguments of functions and aggregates, branches and
conditions of CASE, keys of windows, everything in a scalar subquery. Columns that only decide which rows there are
(WHERE, ON, GROUP BY, DISTINCT, ORDER BY) are kept apart: `count(*)` of the rows of one customer is a number, whatever
chose them.

What cannot be analyzed completely is not analyzed at all, so a caller can rely on an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope

from traceplane.errors import InvalidInput
from traceplane.sql.spark_agreement import agreed

Source = tuple[str, str]
"""A relation of the query and a column of it, both in lower case."""
Sources = frozenset[Source]

RelationColumns = tuple[tuple[str, tuple[str, ...] | None], ...]
"""The relations that a query may read, with their columns; None if these are not known."""

_UNNAMED = "tp_unnamed_"
_NOTHING: Sources = frozenset()
_NOT_ANALYZED = (
    exp.Pivot,
    exp.MatchRecognize,
    exp.Columns,
    exp.Command,
    exp.Into,
    exp.QueryTransform,
    exp.TableColumn,  # a whole row, by the name of its relation
    exp.PositionalColumn,
)
_READ_WHAT_A_TEXT_NAMES = frozenset(
    ("identifier", "query", "query_table", "getvariable", "reflect", "try_reflect", "java_method")
)
_COMPUTE_ROWS_FROM_ARGUMENTS = frozenset(
    (
        *("range", "generate_series", "unnest", "stack", "inline", "inline_outer", "json_tuple"),
        *("explode", "explode_outer", "posexplode", "posexplode_outer"),
    )
)
"""Functions that return a table; others read files, or tables that a text names."""


class _NotAnalyzable(Exception):
    pass


@dataclass(frozen=True, slots=True)
class QueryLineage:
    columns: dict[str, Sources]
    """By the name of the column, in lower case."""
    unnamed: Sources
    """Of the columns to which the query gives no name, so that the engine does."""
    has_unnamed: bool
    rows: Sources
    """What decides which rows there are, and in which order."""


@lru_cache(maxsize=2048)  # the analysis takes longer than many a query
def lineage_of(sql: str, relations: RelationColumns, dialect: str) -> QueryLineage | None:
    """None if the query cannot be analyzed."""
    try:
        text = agreed(sql) if dialect == "spark" else sql
        tree, *more = sqlglot.parse(text, read=dialect)
        if more or not isinstance(tree, exp.Query):
            return None
        return _analyzed(tree, relations, dialect)
    except (InvalidInput, SqlglotError, _NotAnalyzable):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _analyzed(tree: exp.Query, relations: RelationColumns, dialect: str) -> QueryLineage:
    if any(map(_hides_columns, tree.walk())):
        raise _NotAnalyzable
    if any(part.args.get("recursive") for part in tree.find_all(exp.With)):
        raise _NotAnalyzable
    if any(str(join.args.get("method") or "").upper() == "NATURAL" for join in tree.find_all(exp.Join)):
        raise _NotAnalyzable
    if any(union.args.get("by_name") for union in tree.find_all(exp.SetOperation)):
        raise _NotAnalyzable
    names = _rename_relations(tree, [name.lower() for name, _ in relations])
    _name_all_columns(tree)
    schema: dict[str, object] = {
        f"tp_r{number}": dict.fromkeys((column.lower() for column in columns), "text")
        for number, (_, columns) in enumerate(relations)
        if columns is not None
    }
    qualified = qualify(tree, schema=schema, dialect=dialect, validate_qualify_columns=True)
    if any(_hides_columns(node) or _is_all_columns(node) for node in qualified.walk()):
        raise _NotAnalyzable
    root = build_scope(qualified)
    if root is None:
        raise _NotAnalyzable
    answer = _Analysis(names).of(root)
    named = {name: sources for name, sources in answer.columns.items() if not name.startswith(_UNNAMED)}
    unnamed = [sources for name, sources in answer.columns.items() if name.startswith(_UNNAMED)]
    return QueryLineage(named, _NOTHING.union(*unnamed), bool(unnamed), answer.rows)


def _hides_columns(node: exp.Expr) -> bool:
    """Whether it may depend on columns that the query does not name, or names otherwise than their relation does."""
    match node:
        case exp.Table(this=exp.Identifier()):
            return bool(node.alias_column_names)
        case exp.Table(this=exp.Func()):
            return _function_name(node.this) not in _COMPUTE_ROWS_FROM_ARGUMENTS
        case exp.Table():
            return True
        case exp.Func():
            return isinstance(node, _NOT_ANALYZED) or _function_name(node) in _READ_WHAT_A_TEXT_NAMES
    return isinstance(node, _NOT_ANALYZED)


def _function_name(function: exp.Func) -> str:
    return (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).lower()


def _is_all_columns(node: exp.Expr) -> bool:
    """A star that stands for values, as in `to_json(struct(*))`; that of `count(*)` stands for none."""
    if not isinstance(node, exp.Star):
        return False
    return not isinstance(node.parent, exp.Count) or any(node.args.values())


def _rename_relations(tree: exp.Query, relations: Sequence[str]) -> dict[str, str]:
    """Gives the relations names that need no quotes; returns the old names by the new ones."""
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    new = {name: f"tp_r{number}" for number, name in enumerate(relations)}
    if ctes & new.keys():
        raise _NotAnalyzable  # which of the two a name means depends on its place
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            continue  # a function that returns a table
        name = table.name.lower()
        if len(table.parts) == 1 and name in ctes:
            continue
        if len(table.parts) > 1 or name not in new:
            raise _NotAnalyzable
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
        table.set("this", exp.to_identifier(new[name]))
    return {value: key for key, value in new.items()}


def _name_all_columns(tree: exp.Query) -> None:
    """What has no name in the query gets one that no column has: how engines name it is not known here."""
    number = 0
    for select in list(tree.find_all(exp.Select)):
        expressions = []
        for column in select.expressions:
            is_named = isinstance(column, exp.Alias | exp.Column | exp.Star | exp.Dot) and column.output_name
            if is_named or column.is_star:
                expressions.append(column)
                continue
            inner = column.this if isinstance(column, exp.Aliases) else column
            expressions.append(exp.alias_(inner, f"{_UNNAMED}{number}", quoted=True))
            number += 1
        select.set("expressions", expressions)


@dataclass(slots=True)
class _Answer:
    columns: dict[str, Sources]
    rows: Sources
    anything: Sources | None = None
    """Of what has columns that the query does not list: each may depend on all of this."""

    def of(self, column: str) -> Sources:
        if self.anything is not None:
            return self.anything
        return self.columns[column.lower()]

    @property
    def all(self) -> Sources:
        return self.rows.union(*self.columns.values(), self.anything or _NOTHING)


@dataclass(slots=True)
class _Physical:
    relation: str

    def of(self, column: str) -> Sources:
        return frozenset({(self.relation, column.lower())})


@dataclass(slots=True)
class _Analysis:
    relations: dict[str, str]
    _known: dict[int, _Answer] = field(default_factory=dict)

    def of(self, scope: Scope) -> _Answer:
        answer = self._known.get(id(scope))
        if answer is None:
            answer = self._known[id(scope)] = self._analyze(scope)
        return answer

    def _analyze(self, scope: Scope) -> _Answer:
        expression = scope.expression
        if isinstance(expression, exp.SetOperation):
            return self._of_set(scope, expression)
        if isinstance(expression, exp.Select):
            return self._of_select(scope, expression)
        if isinstance(expression, exp.Subquery) and len(scope.subquery_scopes) == 1:
            return self.of(scope.subquery_scopes[0])
        if isinstance(expression, exp.UDTF | exp.Lateral | exp.Unnest | exp.Values):
            found = self._in(expression, scope)
            return _Answer({}, found, found)
        raise _NotAnalyzable

    def _of_set(self, scope: Scope, expression: exp.SetOperation) -> _Answer:
        left, right = (self.of(side) for side in scope.set_operation_scopes)
        if left.anything is not None or right.anything is not None or len(left.columns) != len(right.columns):
            raise _NotAnalyzable
        columns = {
            name: sources | other
            for (name, sources), other in zip(left.columns.items(), right.columns.values(), strict=True)
        }
        rows = left.rows | right.rows
        keeps_all = isinstance(expression, exp.Union) and expression.args.get("distinct") is False
        if not keeps_all or expression.args.get("limit") or expression.args.get("order"):
            rows = rows.union(*columns.values())
        return _Answer(columns, rows)

    def _of_select(self, scope: Scope, select: exp.Select) -> _Answer:
        columns: dict[str, Sources] = {}
        windows = self._among(select.args.get("windows") or (), scope)
        for projection in select.expressions:
            name = projection.alias_or_name.lower()
            if projection.is_star or not name or name in columns:
                raise _NotAnalyzable
            sources = self._in(projection, scope)
            if any(window.args.get("alias") for window in projection.find_all(exp.Window)):
                sources |= windows
            columns[name] = sources
        rows = self._among(self._deciding(select), scope)
        group = select.args.get("group")
        if select.args.get("distinct") or (group is not None and group.args.get("all")):
            rows = rows.union(*columns.values())
        for projection in select.expressions:
            if projection.find(exp.Explode, exp.Posexplode, exp.Inline, exp.Unnest):
                rows |= columns[projection.alias_or_name.lower()]
        for _, source in scope.selected_sources.values():
            if isinstance(source, Scope):
                rows |= self.of(source).rows
            elif not isinstance(source.this, exp.Identifier):
                rows |= self._in(source, scope)
        return _Answer(columns, rows)

    @staticmethod
    def _deciding(select: exp.Select) -> Iterable[exp.Expr]:
        """The parts that choose, group or sort rows."""
        for key, value in select.args.items():
            if key in ("expressions", "from_", "from", "with_", "with", "laterals", "windows", "hint"):
                continue
            parts = value if isinstance(value, list) else [value]
            for part in parts:
                if isinstance(part, exp.Join):
                    conditions = (part.args.get(name) for name in ("on", "using", "match_condition"))
                    for condition in conditions:
                        yield from (
                            condition if isinstance(condition, list) else [condition] if condition else []
                        )
                elif isinstance(part, exp.Expr):
                    yield part

    def _among(self, expressions: Iterable[exp.Expr], scope: Scope) -> Sources:
        return _NOTHING.union(*(self._in(expression, scope) for expression in expressions))

    def _in(self, expression: exp.Expr, scope: Scope) -> Sources:
        """All columns that an expression names; of a query within it, all that its result depends on."""
        found: set[Source] = set()
        waiting: list[exp.Expr] = [expression]
        while waiting:
            node = waiting.pop()
            if isinstance(node, exp.Query):
                found |= self._subquery(node, scope)
            elif isinstance(node, exp.Column):
                found |= self._column(node, scope)
            else:
                waiting.extend(node.iter_expressions())
        return frozenset(found)

    def _subquery(self, query: exp.Query, scope: Scope) -> Sources:
        inner = query.unnest() if isinstance(query, exp.Subquery) else query
        at: Scope | None = scope
        while at is not None:
            for below in at.subquery_scopes:
                if below.expression is inner or below.expression is query:
                    return self.of(below).all
            at = at.parent
        raise _NotAnalyzable

    def _column(self, column: exp.Column, scope: Scope) -> Sources:
        if isinstance(column.this, exp.Star) or not column.table:
            raise _NotAnalyzable
        at: Scope | None = scope
        while at is not None:
            source = at.sources.get(column.table)
            if source is not None:
                return self._source(source, at).of(column.name)
            at = at.parent
        raise _NotAnalyzable

    def _source(self, source: Scope | exp.Expr, scope: Scope) -> _Answer | _Physical:
        if isinstance(source, Scope):
            return self.of(source)
        if not isinstance(source, exp.Table):
            raise _NotAnalyzable
        if not isinstance(source.this, exp.Identifier):
            found = self._in(source, scope)
            return _Answer({}, found, found)
        return _Physical(self.relations[source.name])
