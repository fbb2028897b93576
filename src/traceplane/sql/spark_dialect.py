"""A query in Spark's dialect: translated from a checked tree, and checked again as Spark will read it. Pure.

Spark has no second barrier: no process per query, no locked configuration, and SQL can call Java and read any path. So
the text is not trusted just because the tree was good. It is split into tokens here, by rules simpler than Spark's own:
bare words must be listed, a text has no escapes but `\\\\` and `\\'`, an identifier is in backticks, and there are
no comments, hints, parameters or variables. Then sqlglot parses it as Spark SQL: one query, listed syntax, and only
relations that the platform named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache

import sqlglot
from sqlglot import ErrorLevel, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.generators.spark import SparkGenerator

from traceplane.errors import Forbidden, InvalidInput
from traceplane.sql import gate
from traceplane.sql.spark_functions import COLUMNS_OF_THE_SESSION, FUNCTIONS, KEYWORDS, TYPES, UNITS


def translated(sql: str, relations: Iterable[str]) -> str:
    """The gate's output in Spark's dialect. `relations` are the names that it may read."""
    return _translated(sql, frozenset(relations))


@lru_cache(maxsize=256)  # a deploy translates once to check and again to store
def _translated(sql: str, relations: frozenset[str]) -> str:
    tree = gate.read_again(sql, relations)
    _check_translatable(tree)
    try:
        text = tree.sql(dialect=_SparkText, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0][:300]
        raise InvalidInput(
            "virtual.not_for_spark",
            f"the SQL cannot be written in Spark's dialect: {first}",
            next_step=_OTHERWISE,
        ) from None
    text = _checked_words(text)
    found, expected = _relations(_checked_tree(text, relations)), _relations(tree)
    if found != expected:
        raise _denied(next(iter((found - expected) or (expected - found))))
    return text


def checked(text: str, relations: Collection[str]) -> str:
    """SQL for Spark, whoever wrote it, if it is one query over these relations and only computes."""
    text = _checked_words(text)
    _checked_tree(text, relations)
    return text


def _check_translatable(tree: exp.Expr) -> None:
    """Rejects what sqlglot writes in a way that Spark cannot parse, or that means something else there."""
    for node in tree.walk():
        match node:
            case exp.Table() if isinstance(node.this, exp.Func):
                raise _function_as_relation(node.this)
            case exp.Order() if isinstance(node.parent, exp.Func) and not isinstance(
                node.parent, exp.GroupConcat
            ):
                raise _missing("Spark's aggregates have no ORDER BY", node.sql(dialect="duckdb"))
            case exp.Star() if node.args.get("replace") or node.args.get("rename"):
                raise _missing("Spark has only EXCLUDE for *", node.sql(dialect="duckdb"))
            case exp.SetOperation() if node.args.get("by_name"):
                raise _missing(
                    "a set operation on Spark matches columns by their position",
                    "BY NAME",
                    "select the columns in the same order in both parts",
                )
            case exp.Select() if node.args.get("sample"):
                raise _missing(
                    "Spark can only sample a relation", "USING SAMPLE", "write TABLESAMPLE after the relation"
                )


_OTHERWISE = "write it with other functions, or read the datasets below it in the job"


def _missing(what: str, value: str, next_step: str = _OTHERWISE) -> InvalidInput:
    return InvalidInput("virtual.not_for_spark", what, value=value[:100], next_step=next_step)


def _function_as_relation(function: exp.Func) -> InvalidInput:
    return _missing(
        "a function cannot be read as a relation on Spark",
        function.sql(dialect="duckdb").partition("(")[0].lower(),
        "unnest an array beside a relation, or read a dataset with these rows",
    )


def _denied(value: str) -> Forbidden:
    return Forbidden(
        "query.syntax_denied",
        "the query has a part that cannot be written safely for Spark",
        value=value[:100],
        next_step="write that part in another way",
    )


# --- writing ----------------------------------------------------------------------------------------


class _SparkTextGenerator(SparkGenerator):
    def lateral_sql(self, expression: exp.Lateral) -> str:
        """sqlglot writes the alias of a LATERAL VIEW exactly as typed."""
        if not expression.args.get("view"):
            return super().lateral_sql(expression)
        alias = expression.args["alias"]
        columns = self.expressions(alias, key="columns", flat=True)
        return f"{self.seg('LATERAL VIEW')} {self.sql(expression, 'this')} {self.sql(alias, 'this')} AS {columns}"


class _SparkText(Spark):
    Generator = _SparkTextGenerator


# All other characters stand for themselves: sqlglot's octal escapes would swallow digits that follow.
_SparkText.ESCAPED_SEQUENCES = {"\\": "\\\\"}


# --- words ------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
      (?P<space>[ \n]+)
    | (?P<name>`(?:[^`]|``)+`)
    | (?P<text>'(?:[^'\\]|\\[\\'])*')
    | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.`'"]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?!['"`]))
    | (?P<mark>[(),.\[\]])
    | (?P<sign>[-+*/%<>=!|&^~:]+)
    """,
    re.VERBOSE,
)
_SIGNS = {
    "+", "-", "*", "/", "%", "<", ">", "<=", ">=", "=", "<>", "<=>", "||", "|", "&", "^", "~", "->", ">>", ">>>", ":",
}  # fmt: skip
"""Whole runs of them, so that `--`, `/*` and `|>` are none."""


def _checked_words(text: str) -> str:
    """The same text, if every word and sign in it is listed."""
    spaced = _spaced(text)
    tokens = [(kind, token) for kind, token in spaced if kind != "space"]
    for number, (kind, token) in enumerate(tokens):
        before = tokens[number - 1] if number else ("", "")
        after = tokens[number + 1] if number + 1 < len(tokens) else ("", "")
        match kind:
            case "word":
                _check_word(token, is_called=after[1] == "(")
            case "text" if before[0] == "text":
                raise _denied("two texts side by side")  # which Spark joins, or takes for a quote
            case "name":
                if "${" in token:
                    raise _denied(token)
                if after[1] == "(" and not (before[1] == "AS" or _CTE.fullmatch(token.strip("`"))):
                    raise _denied(token)  # a quoted name is a function too
            case "sign" if token not in _SIGNS or (token == ":" and not _is_field(tokens, number)):  # noqa: S105 -- of SQL
                raise _denied(token)
    return "".join(_without_variables(token) if kind == "text" else token for kind, token in spaced)


_CTE = re.compile(r"tp_c[0-9]+")


def _spaced(text: str) -> list[tuple[str, str]]:
    """The whole text, as tokens with their kinds."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _denied(text[at : at + 20])
        found.append((str(token.lastgroup), token[0]))
        at = token.end()
    return found


def _check_word(word: str, *, is_called: bool) -> None:
    lower = word.lower()
    if lower in KEYWORDS or lower in TYPES or lower in (FUNCTIONS if is_called else UNITS):
        return
    if is_called:
        raise _missing("Spark has no such function, or it is not allowed there", lower)
    raise _missing("the SQL has a word that is not allowed in Spark's dialect", word)


def _is_field(tokens: list[tuple[str, str]], number: int) -> bool:
    """In `STRUCT<`a`: INT>`; anywhere else a colon starts a parameter."""
    return number >= 2 and tokens[number - 1][0] == "name" and tokens[number - 2][1] in ("<", ",")


def _without_variables(text: str) -> str:
    """Spark replaces `${env:HOME}` and the like before it parses, even inside texts; it does not know this one."""
    return text.replace("${", "\\044{")


# --- the tree ---------------------------------------------------------------------------------------

_SYNTAX: frozenset[type[exp.Expr]] = frozenset(
    {
        # queries
        exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Alias,
        exp.From, exp.Join, exp.Lateral, exp.Table, exp.Values, exp.Tuple, exp.Where, exp.Group, exp.Having,
        exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Distinct, exp.GroupingSets, exp.Cube, exp.Rollup,
        exp.TableSample, exp.Window, exp.WindowSpec, exp.WithinGroup, exp.Filter, exp.IgnoreNulls, exp.RespectNulls,
        # names and values
        exp.Star, exp.Column, exp.Identifier, exp.Dot, exp.Literal, exp.Null, exp.Boolean, exp.Var, exp.DataType,
        exp.DataTypeParam, exp.ColumnDef, exp.Interval, exp.IntervalSpan, exp.Paren, exp.Bracket, exp.Lambda,
        exp.PropertyEQ, exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript, exp.JSONPathWildcard,
        # operators
        exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ,
        exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Escape, exp.RegexpLike, exp.Add, exp.Sub, exp.Mul,
        exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor,
        exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.Exists, exp.AtTimeZone,
    }
)  # fmt: skip
_OF_A_TABLE = {"this", "alias", "sample", "joins", "laterals"}
_TYPE_NAMES = frozenset(
    """
    array bigint binary boolean char date decimal double float int interval list map smallint struct text timestamp
    timestampltz timestampntz timestamptz tinyint varchar
    """.upper().split()
)
"""By sqlglot's names."""


def _checked_tree(text: str, relations: Collection[str]) -> exp.Expr:
    try:
        statements = sqlglot.parse(text, read="spark")
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError, RecursionError):
        raise _missing("the SQL has no form that Spark can parse", text) from None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        raise _denied("another statement")
    for node in tree.walk():
        _check_node(node)
    known = {*relations, *(cte.alias for cte in tree.find_all(exp.CTE) if _CTE.fullmatch(cte.alias))}
    if unknown := {name for name in _relations(tree) if not name.startswith("WITH ")} - known:
        raise _denied(min(unknown))
    return tree


def _relations(tree: exp.Expr) -> Counter[str]:
    """The relations that a tree reads, and the common table expressions that it defines."""
    found = Counter(".".join(part.name for part in table.parts) for table in tree.find_all(exp.Table)
                    if not isinstance(table.this, exp.Func))  # fmt: skip
    return found + Counter(f"WITH {cte.alias}" for cte in tree.find_all(exp.CTE))


def _check_node(node: exp.Expr) -> None:
    if type(node) not in _SYNTAX and not isinstance(node, exp.Func):
        raise _missing("Spark has no such syntax, or it is not allowed there", type(node).__name__)
    match node:
        case exp.Anonymous() | exp.AnonymousAggFunc() if str(node.this).lower() not in FUNCTIONS:
            raise _missing("Spark has no such function, or it is not allowed there", str(node.this))
        case exp.Table() if isinstance(node.this, exp.Func):
            raise _function_as_relation(node.this)
        case exp.Table() if any(value and key not in _OF_A_TABLE for key, value in node.args.items()):
            raise _denied(node.sql(dialect="spark"))
        case exp.Lateral() if node.args.get("view") and not isinstance(
            node.this, exp.Explode | exp.Posexplode
        ):
            raise _denied(type(node.this).__name__)
        case exp.Dot() if isinstance(node.expression, exp.Func):
            raise _denied("a function after a dot")
        case exp.IntervalSpan():
            pass  # its units are words, which were looked at
        case exp.DataType():
            if (
                not isinstance(node.this, exp.DType)
                or node.this.name not in _TYPE_NAMES
                or node.args.get("kind")
            ):
                raise _missing("Spark has no such type", node.sql(dialect="spark"))
        case exp.Interval() if not isinstance(node.this, exp.Literal):
            raise _missing("an interval has to be a constant", node.sql(dialect="spark"))
        case exp.Column() if not node.table and node.name.lower() in COLUMNS_OF_THE_SESSION:
            if isinstance(node.this, exp.Identifier) and node.this.quoted:
                raise _missing(
                    "Spark may take this column for a function of its session",
                    node.name,
                    "name the column with its relation, as in o.user",
                )
        case exp.Select() if any(
            node.args.get(key) for key in ("hint", "into", "locks", "kind", "operation_modifiers")
        ):
            raise _denied("SELECT with a hint")
