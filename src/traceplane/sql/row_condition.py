"""A condition on the rows of one dataset, as a check of its DAG file states it: an expression over its own columns, and
nothing else. Pure.

It is admitted as the only column of a query over the dataset, by the gate of queries, and translated for Spark like
one. What is left of that query is the expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from sqlglot import exp

from traceplane.errors import InvalidInput
from traceplane.sql import gate, job_query, spark_dialect, truth
from traceplane.sql.job_query import QueryFault

_RELATION = "checked"
_NO_CONDITION = "a check has to be true or false, and "
_PARTS_OF_THE_QUERY = {"kind", "expressions", "from_"}


def faults(expression: str, types: Mapping[str, str | None]) -> list[QueryFault]:
    """Columns that the expression names and that the dataset does not have; or that it is no condition. `types`: of
    the columns, as they were declared."""
    gated = _admitted(expression)
    unknown = job_query.unknown_columns(gated.sql, {relation.name: types for relation in gated.relations})
    tree = gate.read_again(gated.sql, [relation.name for relation in gated.relations])
    why = truth.never_true(tree.expressions[0], types)
    return unknown if unknown or why is None else [QueryFault("sql.not_a_condition", _NO_CONDITION + why, "")]


@lru_cache(maxsize=256)
def for_spark(expression: str) -> str:
    """The expression in Spark's dialect; raises the reason if it is refused."""
    gated = _admitted(expression)
    (relation,) = gated.relations
    query = spark_dialect.translated(gated.sql, [relation.name])
    before, after = "SELECT ", f" FROM `{relation.name}` AS `{_RELATION}`"
    if not (query.startswith(before) and query.endswith(after)):
        raise _refused("it cannot be separated from the query that it was checked in")
    return query[len(before) : -len(after)]


def _admitted(expression: str) -> gate.Gated:
    # The line ends after it, so that a comment in it hides nothing of the rest.
    gated = gate.admit(f"select {expression}\nfrom {_RELATION}")
    tree = gate.read_again(gated.sql, [relation.name for relation in gated.relations])
    more = {key for key, value in tree.args.items() if value} - _PARTS_OF_THE_QUERY
    if not isinstance(tree, exp.Select) or more or len(gated.relations) != 1:
        raise _refused("it is more than an expression over the columns of the dataset")
    if len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Alias | exp.Star):
        raise _refused("it has to be one condition, without a name")
    if (why := truth.never_true(tree.expressions[0])) is not None:
        raise _refused(f"it has to be true or false, and {why}")
    if len(list(tree.find_all(exp.Query))) > 1:
        raise _refused("it has a query within it")
    if tree.find(exp.AggFunc, exp.Window, exp.Explode, exp.Posexplode, exp.Unnest, exp.Star):
        raise _refused("it looks at one row at a time, so it cannot have aggregates, windows or *")
    return gated


def _refused(why: str) -> InvalidInput:
    return InvalidInput(
        "query.not_a_condition",
        f"the expression cannot be a check: {why}",
        next_step="write a condition that is true for a good row, such as: amount > 0 and currency is not null",
    )
