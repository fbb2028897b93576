"""Compares queries as parsed, so that formatting and comments do not count as a change.

A query that is equivalent to the deployed one keeps the deployed text. So fingerprints stay plain hashes of text, and
an upgrade of the parser rebuilds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlglot
from sqlglot.errors import SqlglotError

from traceplane.errors import InvalidInput
from traceplane.model.dag import Dag, Dataset, Job
from traceplane.operators import catalog
from traceplane.sql.spark_agreement import agreed


def with_deployed_queries(desired: Dag, deployed: Dag) -> Dag:
    """`desired`, with the deployed text of each query that differs only in formatting."""
    before = {job.name: job for job in deployed.jobs}
    texts = deployed.virtual
    return replace(
        desired,
        jobs=tuple(_with_query_of(before.get(job.name), job) for job in desired.jobs),
        datasets=tuple(_with_sql_of(texts.get(d.dataset_id), d) for d in desired.datasets),
    )


def _with_sql_of(old: str | None, new: Dataset) -> Dataset:
    same = old is not None and new.sql is not None and say_the_same(old, new.sql, "duckdb")
    return replace(new, sql=old) if same else new


def _with_query_of(old: Job | None, new: Job) -> Job:
    operator = catalog.find(new.operator)
    field = operator.query_field if operator is not None else None
    if old is None or old.operator != new.operator or field is None or field not in new.config:
        return new
    return replace(new, config={**new.config, field: _kept(old.config.get(field), new.config[field])})


def _kept(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {name: _kept(old.get(name), text) for name, text in new.items()}
    if isinstance(old, str) and isinstance(new, str) and say_the_same(old, new):
        return old
    return new


def say_the_same(one: str, other: str, dialect: str = "spark") -> bool:
    if one == other:
        return True
    try:
        if dialect == "spark":
            one, other = agreed(one), agreed(other)
        first, second = (sqlglot.parse(text, dialect=dialect) for text in (one, other))
        # Both: comparing trees ignores the case of some names, and generated text may leave out syntax that the
        # dialect's generator does not know.
        return first == second and _text(first, dialect) == _text(second, dialect)
    except (InvalidInput, SqlglotError, RecursionError):
        return False  # queries that cannot be parsed are compared by their text


def _text(statements: list[Any], dialect: str) -> list[str | None]:
    return [s.sql(dialect=dialect, comments=False) if s is not None else None for s in statements]
