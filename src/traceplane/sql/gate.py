"""The first barrier: parses a query, allows what is listed, and rewrites it. Pure.

Every relation of the query gets a name chosen by the gate (`tp_d0` for the first dataset it reads, `tp_c0` for the
first common table expression), so nothing that a caller wrote can name a file, a Python variable or a catalog table.
The output is generated from the tree, without comments and with all identifiers quoted. It is then parsed again, and
used only if it passes the same check and is the same query. A generator writes some parts of a tree without quotes
(units of time, names of types), so the tree alone does not determine its text.

A relation also carries the query's conditions on it from WHERE (`Condition`s), so that files which cannot hold matching
rows are left out before the engine sees them. Users of conditions drop those on columns that the caller may not see
(`virtual.expand`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from traceplane.errors import Forbidden, InvalidInput, TooLarge, TraceplaneError
from traceplane.model.pruning import Condition
from traceplane.sql.allowed_syntax import check, moment_of, syntax_denied
from traceplane.sql.conditions import conditions

LONGEST_SQL = 65_536
MOST_WORDS = 10_000
DEEPEST = 40
MOST_RELATIONS = 100
_DUCKDB = DuckDB()

# sqlglot logs that it does not know a statement; the gate's answer is enough.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Relation:
    """One place in the query where a dataset is read."""

    name: str
    dataset_id: str
    conditions: tuple[Condition, ...] = ()
    as_of: Moment = None


Moment = int | datetime | None
"""Which state of a dataset is read: a version of its DAG, the state at a time, or the current one."""


@dataclass(frozen=True, slots=True)
class Gated:
    sql: str
    relations: tuple[Relation, ...]

    @property
    def dataset_ids(self) -> list[str]:
        return sorted({relation.dataset_id for relation in self.relations})


@lru_cache(maxsize=256)  # dashboards repeat the same queries
def admit(sql: str, *, within: str = "tp_d") -> Gated:
    """The query as the engine gets it; raises the reason if it is rejected.

    `within` prefixes the names of its relations, so that one query can be nested in another.
    """
    tree = _parse(sql)
    try:
        check(tree)
        ctes = _rename_ctes(tree)
        relations = _rename_relations(tree, ctes, within)
        text = written(tree, {relation.name for relation in relations})
    except RecursionError:
        raise _too_deep() from None
    except (SqlglotError, ValueError) as error:
        raise _malformed(sql, error) from None
    return Gated(text, tuple(relations))


def read_again(sql: str, relations: Collection[str]) -> exp.Expr:
    """The tree of a text that the gate wrote; it must pass the gate again and read no other relations."""
    try:
        statements = sqlglot.parse(sql, read="duckdb")
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError):
        raise _changed("a text that cannot be parsed") from None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, _QUERIES):
        raise _changed("another statement")
    check(tree)
    known = {*relations, *(cte.alias for cte in tree.find_all(exp.CTE))}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Func) and (len(table.parts) != 1 or table.name not in known):
            raise _changed(f"the relation {'.'.join(part.name for part in table.parts)}")
    return tree


def written(tree: exp.Expr, relations: Collection[str]) -> str:
    """A checked tree as text for DuckDB, which must parse as the same query over the same relations."""
    text = tree.sql(dialect="duckdb", identify=True, comments=False)
    again = read_again(text, relations)
    (parts, texts), (parts_again, texts_again) = _shape(tree), _shape(again)
    if parts != parts_again:
        raise _changed(next(iter((parts_again - parts) or (parts - parts_again))))
    if lost := texts - texts_again:  # some are added, such as the default separator of string_agg
        raise _changed(next(iter(lost)))
    return text


def _shape(tree: exp.Expr) -> tuple[Counter[str], Counter[str]]:
    """The parts and the texts of a query, which stay the same however its functions are spelled."""
    parts, texts = Counter[str](), Counter[str]()
    for node in tree.walk():
        kind = type(node)
        if kind in _TEXTS and (kind is not exp.Literal or node.is_string):
            texts[node.name] += 1
        elif kind is exp.Table:
            parts[f"the relation {node.name}"] += 1
        elif kind is exp.CTE:
            parts[f"the common table expression {node.alias}"] += 1
        elif kind in _PARTS:
            parts[kind.__name__.upper()] += 1
    return parts, texts


_QUERIES = (exp.Select, exp.SetOperation, exp.Subquery)
_TEXTS = {exp.Literal, exp.RawString, exp.ByteString, exp.National}
_PARTS = {
    exp.Select, exp.Union, exp.Except, exp.Intersect, exp.With, exp.From, exp.Join, exp.Where, exp.Group, exp.Having,
    exp.Qualify, exp.Order, exp.Limit, exp.Offset, exp.Window, exp.Values, exp.Star,
}  # fmt: skip


def _changed(part: str) -> Forbidden:
    return Forbidden(
        "query.syntax_denied",
        "the query has a part that cannot be written safely",
        value=part[:100],
        next_step="write that part in another way",
    )


# --- parsing ----------------------------------------------------------------------------------------


def _parse(sql: str) -> exp.Expr:
    if len(sql) > LONGEST_SQL:
        raise TooLarge("query.too_long", f"a query has at most {LONGEST_SQL} characters", value=len(sql))
    try:
        parsed = _DUCKDB.parser().parse(_tokens_within_depth(sql), sql)
        statements = [s for s in parsed if s is not None]
    except RecursionError:
        raise _too_deep() from None
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        # Whatever a parser raises on hostile text is the text's fault.
        raise _malformed(sql, error) from None
    if not statements:
        raise InvalidInput(
            "query.empty",
            "there is no SQL in the query",
            next_step="write a SELECT, for example: select 1 as n",
        )
    if len(statements) != 1:
        raise Forbidden(
            "query.several_statements",
            "a query is exactly one statement",
            value=len(statements),
            next_step="send the statements one by one",
        )
    (tree,) = statements
    if not isinstance(tree, _QUERIES):
        raise Forbidden(
            "query.not_a_select",
            "only SELECT is allowed",
            value=type(tree).__name__.upper(),
            next_step="datasets are changed by jobs; schemas are at GET /api/v1/datasets",
        )
    return tree


_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_UNARY = {TokenType.NOT, TokenType.DASH, TokenType.TILDE, TokenType.PLUS}


def _tokens_within_depth(sql: str) -> list[Token]:
    """Parsers recurse, here and in the engine, and take time: a query that is nested too deeply or too long is rejected
    before either sees it."""
    depth = run = 0
    tokens = _DUCKDB.tokenize(sql)
    if len(tokens) > MOST_WORDS:
        raise TooLarge(
            "query.too_long", f"a query has at most {MOST_WORDS} words, numbers and signs", value=len(tokens)
        )
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        run = run + 1 if token.token_type in _UNARY else 0
        if depth > DEEPEST or run > DEEPEST:
            raise _too_deep()
    return tokens


def _too_deep() -> InvalidInput:
    return InvalidInput("query.too_deep", f"the query is nested more than {DEEPEST} levels deep")


def _malformed(sql: str, error: Exception) -> InvalidInput:
    """Where the query is invalid, in terms of the query: the parser's messages name its own classes."""
    first = re.match(r"\s*(\w+)", sql)
    if first is not None and first[1].lower() not in _FIRST_WORDS:
        problem = f"it begins with {first[1][:40]!r}; a query begins with SELECT or WITH"
    elif isinstance(error, ParseError) and error.errors:
        problem = _place(error.errors[0])
    elif isinstance(error, TokenError):
        problem = "a quotation mark, a comment or a number in it does not end"
    else:
        problem = "a part of it cannot be understood"
    return InvalidInput(
        "query.malformed", f"the query cannot be parsed: {problem}", next_step="the dialect is DuckDB's"
    )


_FIRST_WORDS = frozenset({"select", "with", "from", "values"})
_PLAIN_WORDS = re.compile(r"Expect(?:ing|ed) (\S+|END after CASE)")


def _place(problem: Mapping[str, Any]) -> str:
    where = f"line {problem.get('line')}, column {problem.get('col')}"
    near = f"near {str(problem.get('highlight'))[:40]!r}" if problem.get("highlight") else "at its end"
    plain = _PLAIN_WORDS.fullmatch(str(problem.get("description")))
    missing = f", where {plain[1]} is expected" if plain else ""
    if not str(problem.get("end_context") or "").strip() and not plain:
        return f"something is missing or too much {near}, its last word ({where})"
    return f"it goes wrong {near} ({where}){missing}"


# --- names ------------------------------------------------------------------------------------------


def _rename_ctes(tree: exp.Expr) -> dict[str, str]:
    """Names of common table expressions are unique in a query, so that a name has one meaning everywhere."""
    names: dict[str, str] = {}
    for cte in tree.find_all(exp.CTE):
        name = cte.alias.lower()
        if name in names:
            raise InvalidInput(
                "query.duplicate_cte",
                "two common table expressions have one name",
                value=cte.alias,
                next_step="rename one of them",
            )
        names[name] = f"tp_c{len(names)}"
        cte.args["alias"].set("this", exp.to_identifier(names[name], quoted=True))
    return names


def _rename_relations(tree: exp.Expr, ctes: Mapping[str, str], within: str) -> list[Relation]:
    tables: list[tuple[exp.Table, str, Moment]] = []
    unaliased: dict[tuple[str, ...], exp.Identifier] = {}
    for table in [*tree.find_all(exp.Table)]:
        if isinstance(table.this, exp.Func):
            continue
        parts = [part.name for part in table.parts]
        last = exp.to_identifier(parts[-1], quoted=True)
        if len(parts) == 1 and parts[0].lower() in ctes:
            name = ctes[parts[0].lower()]
            if table.args.get("version"):
                raise syntax_denied("AS OF of a common table expression")
        else:
            name = f"{within}{len(tables)}"
            version = table.args.pop("version", None)
            tables.append((table, ".".join(parts), None if version is None else moment_of(version)))
            if not table.alias:
                unaliased[tuple(part.lower() for part in parts)] = last
        _point_at(table, name, last)
    if len(tables) > MOST_RELATIONS:
        raise TooLarge("query.too_many_relations", f"a query reads at most {MOST_RELATIONS} relations")
    _requalify_columns(tree, unaliased)
    asked = conditions(tree)
    return [
        Relation(table.name, dataset_id, tuple(asked.get(table.name, ())), as_of)
        for table, dataset_id, as_of in tables
    ]


def _point_at(table: exp.Table, name: str, alias: exp.Identifier) -> None:
    table.set("this", exp.to_identifier(name, quoted=True))
    table.set("db", None)
    table.set("catalog", None)
    given = table.args.get("alias")
    if given is None:
        table.set("alias", exp.TableAlias(this=alias))
    elif given.this is None:
        given.set("this", alias)


def _requalify_columns(tree: exp.Expr, unaliased: Mapping[tuple[str, ...], exp.Identifier]) -> None:
    """`chain.logs.block_number` names the column by its dataset: the part before it becomes the relation's alias."""
    for column in [*tree.find_all(exp.Column)]:
        parts = list(column.parts)
        for size in range(len(parts) - 1, 1, -1):
            prefix = tuple(part.name.lower() for part in parts[:size])
            if prefix in unaliased:
                first = exp.Column(this=parts[size].copy(), table=unaliased[prefix].copy())
                rest = [part.copy() for part in parts[size + 1 :]]
                column.replace(exp.Dot.build([first, *rest]) if rest else first)
                break


def denied(error: TraceplaneError) -> bool:
    """Whether an error is a denial to be audited, rather than a mistake."""
    return error.code in DENIALS


DENIALS = frozenset(
    {
        "query.several_statements",
        "query.not_a_select",
        "query.function_denied",
        "query.syntax_denied",
        "query.unknown_relation",
        "query.too_deep",
        "query.too_long",
        "query.personal_data",
    }
)
