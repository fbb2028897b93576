"""The `when` of an alert: one expression in Spark SQL that looks at one row. Pure.

It becomes the WHERE of a query over the rows of a task. What Spark refuses there, such as an aggregate, would fail
every task of the alert. What looks at other rows would see those of one task, which nobody who reads the condition
expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from traceplane.sql import truth

_BEFORE, _AFTER = "select 1 where (\n", "\n)"
_EXAMPLE = "write for example value > 1000"
_GENERATORS = (exp.Explode, exp.Posexplode, exp.Inline, exp.Stack, exp.Unnest)
_UNKNOWN_AGGREGATES = frozenset(
    {"count_min_sketch", "every", "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "mean", "some", "std",
     "try_avg", "try_sum"}
)  # fmt: skip
"""Aggregates of Spark that the parser takes for any function."""
_UNKNOWN_GENERATORS = frozenset({"inline_outer", "json_tuple"})
_LONGEST_PART = 60


class ConditionFault(NamedTuple):
    message: str
    suggestion: str


@lru_cache(maxsize=512)
def fault(condition: str) -> ConditionFault | None:
    """Why it cannot be the condition of an alert, and what to write instead. It is as `spark_agreement` leaves it."""
    try:
        tree = _expression(condition)
        if tree is None:
            return _several()
        if (signs := truth.shift_apart(condition, tree)) is not None:
            return ConditionFault(f"the condition cannot be parsed at {signs!r}", _EXAMPLE)
        return _no_condition(truth.never_true(tree)) or _one_row_fault(tree)
    except ParseError as error:
        return _unparsed(error, condition)
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError):
        return ConditionFault("the condition cannot be parsed", f"the dialect is Spark's; {_EXAMPLE}")
    except RecursionError:
        return ConditionFault("the condition is nested too deeply", "write it with fewer brackets")


def fault_of_types(condition: str, types: Mapping[str, str | None]) -> ConditionFault | None:
    """Of a condition without another fault, now that the types of the columns are known."""
    tree = _expression(condition)
    return None if tree is None else _no_condition(truth.never_true(tree, types))


def _no_condition(why: str | None) -> ConditionFault | None:
    return None if why is None else ConditionFault(f"this is not a condition: {why}", _EXAMPLE)


def _expression(condition: str) -> exp.Expr | None:
    """Parsed in brackets and without them: what is put in brackets must not end them."""
    statements = sqlglot.parse(f"{_BEFORE}{condition}{_AFTER}", read="spark")
    try:
        alone: exp.Expr = sqlglot.parse_one(condition, read="spark", into=exp.Condition)
    except ParseError:
        return None
    where = statements[0].args.get("where") if len(statements) == 1 and statements[0] is not None else None
    is_one = where is not None and isinstance(where.this, exp.Paren) and where.this.this == alone
    return alone if is_one and not isinstance(alone, exp.Star) else None


def _several() -> ConditionFault:
    return ConditionFault("the condition is not one expression", _EXAMPLE)


def _unparsed(error: ParseError, condition: str) -> ConditionFault:
    told = error.errors[0] if error.errors else {}
    line, word = int(told.get("line") or 0) - _BEFORE.count("\n"), str(told.get("highlight") or "")
    if not 1 <= line <= condition.count("\n") + 1:
        message = "the condition cannot be parsed: it is incomplete, or its brackets do not match"
        return ConditionFault(message, _EXAMPLE)
    column = int(told["col"]) - len(word) + 1
    message = f"the condition cannot be parsed at {word[:40]!r} (its line {line}, column {column})"
    return ConditionFault(message, f"the dialect is Spark's; {_EXAMPLE}")


def _one_row_fault(tree: exp.Expr) -> ConditionFault | None:
    for node in tree.walk():
        match node:
            case exp.Query():
                return _looks_further(
                    node,
                    "a subquery",
                    "sql: select * from rows where value > (select avg(value) from rows)",
                )
            case exp.Window():
                return _looks_further(
                    node,
                    "a window",
                    "sql: select * from (select *, lag(value) over (order by at) as before from rows) "
                    "where value > 2 * before",
                )
            case exp.Func() | exp.Any() if _is_aggregate(node):
                return _looks_further(
                    node,
                    "an aggregate",
                    "sql: select account, sum(value) as total from rows group by account having sum(value) > 1000",
                )
            case exp.Func() if _makes_rows(node):
                return _looks_further(
                    node,
                    "a function that makes several rows",
                    "sql: select *, explode(items) as item from rows",
                )
    return None


def _is_aggregate(node: exp.Expr) -> bool:
    match node:
        case exp.Any():  # `any(x)`, not `x like any (…)`
            return not isinstance(node.parent, exp.Like | exp.ILike)
        case exp.Anonymous():
            return str(node.this).lower() in _UNKNOWN_AGGREGATES
        case _:
            return isinstance(node, exp.AggFunc)


def _makes_rows(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower() in _UNKNOWN_GENERATORS
    return isinstance(node, _GENERATORS)


def _looks_further(node: exp.Expr, what: str, instead: str) -> ConditionFault:
    part = node.sql(dialect="spark")
    shown = part if len(part) <= _LONGEST_PART else f"{part[: _LONGEST_PART - 1]}…"
    message = f"a condition looks at one row at a time, and {shown!r} is {what}"
    return ConditionFault(message, f"write a query instead of when, for example {instead}")
