"""Virtual datasets: SQL in place of a name, evaluated lazily, nested to any allowed depth. Pure.

Their SQL is in the dialect of queries and passes the same gate. A query reads a virtual dataset as a view over its
inputs; so does a Spark job, in its own dialect (`spark_dialect`). Nothing is stored, so a change below is visible
immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage
from sqlglot.optimizer.pushdown_projections import pushdown_projections
from sqlglot.optimizer.qualify import qualify

from traceplane.errors import Forbidden, InvalidInput, TooLarge
from traceplane.model.pruning import Condition
from traceplane.sql.conditions import is_plain_join, is_plain_table
from traceplane.sql.gate import MOST_RELATIONS, Gated, Relation, admit, written

DEEPEST = 16
"""The deepest nesting of virtual datasets."""


@dataclass(frozen=True, slots=True)
class View:
    """A virtual dataset at one place in a query, over the relations that it reads."""

    relation: Relation
    sql: str
    reads: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Expanded:
    views: tuple[View, ...]
    """Each after those that it reads."""
    stored: tuple[Relation, ...]
    """The stored datasets that are read in the end."""


@lru_cache(maxsize=1024)
def checked(sql: str, within: str = "tp_d") -> Gated:
    """The SQL of a virtual dataset, if it is valid."""
    gated = admit(sql, within=within)
    if any(relation.as_of is not None for relation in gated.relations):
        raise InvalidInput(
            "query.bad_as_of",
            "a virtual dataset cannot use AS OF in its own SQL",
            next_step="leave AS OF to the query that reads it",
        )
    if not gated.relations:
        raise InvalidInput("query.malformed", "a virtual dataset reads at least one dataset")
    return gated


def reads(sql: str) -> list[str]:
    """The datasets that the SQL of a virtual dataset names."""
    return checked(sql).dataset_ids


def expand(
    relations: Iterable[Relation],
    sql_of: Callable[[Relation], str | None],
    hidden_of: Callable[[Relation], frozenset[str]] = lambda _: frozenset(),
) -> Expanded:
    """Relations down to stored datasets; `sql_of` returns the SQL of a virtual one, and None for others.

    `hidden_of` are the columns, in lower case, that the caller may not see. Conditions on them are dropped: a query
    cannot mean a column that its relation does not have, and the choice of files must not depend on hidden values.
    """
    views: list[View] = []
    stored: list[Relation] = []

    def visit(relation: Relation, path: tuple[str, ...]) -> None:
        sql = sql_of(relation)
        if relation.conditions and (hidden := hidden_of(relation)):
            seen = tuple(c for c in relation.conditions if c.column not in hidden)
            relation = replace(relation, conditions=seen)
        if sql is None:
            stored.append(relation)
        else:
            if relation.dataset_id in path:
                raise _cycle((*path, relation.dataset_id))
            if len(path) >= DEEPEST:
                raise TooLarge(
                    "query.too_deep",
                    f"virtual datasets are nested more than {DEEPEST} levels deep",
                    value=relation.dataset_id,
                )
            gated = checked(sql, f"{relation.name}_")
            asked = _passed_on(gated.sql, relation.conditions)
            inner = tuple(
                replace(r, conditions=(*r.conditions, *asked.get(r.name, ())), as_of=relation.as_of)
                for r in gated.relations
            )
            for below in inner:
                visit(below, (*path, relation.dataset_id))
            views.append(View(relation, gated.sql, inner))
        if len(stored) > MOST_RELATIONS:
            raise TooLarge(
                "query.too_many_relations",
                f"a query reads at most {MOST_RELATIONS} relations, those of virtual datasets included",
            )

    for relation in relations:
        visit(relation, ())
    return Expanded(tuple(views), tuple(stored))


def _cycle(path: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        "virtual.cycle",
        f"virtual datasets read each other: {' → '.join(path)}",
        value=path[-1],
        next_step="let one of them read stored datasets only",
    )


# --- conditions -------------------------------------------------------------------------------------

_CHANGES_WITH_ROWS = ("group", "having", "qualify", "limit", "offset", "sample", "distinct", "windows")


def _passed_on(sql: str, conditions: Sequence[Condition]) -> dict[str, list[Condition]]:
    """Conditions on a view, as conditions on the relations below it: where a column is passed on unchanged, and rows
    that fail could also have been missing from the start."""
    if not conditions:
        return {}
    select = sqlglot.parse_one(sql, read="duckdb")
    if not isinstance(select, exp.Select) or any(select.args.get(key) for key in _CHANGES_WITH_ROWS):
        return {}
    joins = select.args.get("joins") or []
    if select.find(exp.Window) or select.find(exp.AggFunc) or not all(is_plain_join(join) for join in joins):
        return {}
    sources = [s.this for s in (select.args.get("from_"), *joins) if s is not None]
    tables = [t for t in sources if isinstance(t, exp.Table) and is_plain_table(t)]
    if len(tables) != len(sources):
        return {}
    found: dict[str, list[Condition]] = {}
    for condition in conditions:
        meant = [
            output
            for output in select.expressions
            if output.find(exp.Star, exp.Columns) or output.alias_or_name.lower() == condition.column
        ]
        if len(meant) != 1:
            continue
        column = meant[0].unalias()
        if isinstance(column, exp.Star) and not any(column.args.values()) and len(tables) == 1:
            found.setdefault(tables[0].name, []).append(condition)
        elif isinstance(column, exp.Column) and not isinstance(column.this, exp.Star):
            of = [t for t in tables if column.table.lower() in ("", t.alias.lower())]
            if len(of) == 1:
                found.setdefault(of[0].name, []).append(replace(condition, column=column.name.lower()))
    return found


# --- personal data ----------------------------------------------------------------------------------


def without(
    view: View,
    columns: Mapping[str, Sequence[str]],
    hidden: Mapping[str, frozenset[str]],
    own: frozenset[str],
) -> tuple[str, tuple[str, ...], frozenset[str]]:
    """A view that computes nothing from hidden columns, its remaining columns, and the hidden ones.

    `columns` are those of relations by name, including the `hidden` ones; `own` are columns of the view that are hidden
    regardless of their source. If its rows depend on a hidden column, there is no such view.
    """
    found = _without(
        view.sql,
        tuple((r.name, tuple(c.lower() for c in columns[r.name]), hidden[r.name]) for r in view.reads),
        own,
    )
    if found is None:
        raise Forbidden(
            "query.personal_data",
            "the rows of this virtual dataset depend on personal data, which you may not see",
            value=view.relation.dataset_id,
            next_step="ask for a token issued with --pii, or read the datasets below it",
        )
    return found


@lru_cache(maxsize=512)  # the analysis takes longer than many a query
def _without(
    sql: str, relations: tuple[tuple[str, tuple[str, ...], frozenset[str]], ...], own: frozenset[str]
) -> tuple[str, tuple[str, ...], frozenset[str]] | None:
    schema: dict[str, object] = {
        name: dict.fromkeys(columns, "text") for name, columns, _ in relations if columns
    }
    hidden = {name: gone for name, _, gone in relations}
    try:
        tree = qualify(sqlglot.parse_one(sql, read="duckdb"), schema=schema, dialect="duckdb")
        if not isinstance(tree, exp.Query):
            return None
        names = tuple(tree.named_selects)
        gone = {
            name
            for name in names
            if name.lower() in own
            or any(
                isinstance(node.expression, exp.Table)
                and node.name.rpartition(".")[2].strip('"').lower()
                in hidden.get(node.expression.name, frozenset())
                for node in lineage(name, tree.copy(), schema=schema, dialect="duckdb").walk()
            )
        }
        if not gone and not _touched(tree, hidden):
            return sql, names, frozenset()
        if tree.find(exp.Unnest, exp.Explode, exp.Posexplode) or any(
            group.args.get("all") for group in tree.find_all(exp.Group)
        ):
            return None  # its rows may depend on which columns are computed
        left = tuple(name for name in names if name not in gone)
        outer = exp.select(*(exp.column(name, "v", quoted=True) for name in left)).from_(
            exp.Subquery(this=tree, alias=exp.TableAlias(this=exp.to_identifier("v", quoted=True)))
        )
        pruned = pushdown_projections(qualify(outer, schema=schema, dialect="duckdb"))
        if not left or _touched(pruned, hidden):
            return None
        text = written(pruned, hidden)
    except (SqlglotError, ValueError, KeyError, RecursionError):
        return None
    return text, left, frozenset(n.lower() for n in gone)


def _touched(tree: exp.Expr, hidden: Mapping[str, frozenset[str]]) -> bool:
    """Whether a hidden column is named anywhere; compares only names, so it may find too many."""
    names: set[str] = set().union(*hidden.values())
    return any(column.name.lower() in names for column in tree.find_all(exp.Column))
