"""Which columns the columns of a job's SQL or a virtual dataset are computed from. A best effort: unknown ones are left
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify

from traceplane.errors import InvalidInput
from traceplane.sql.spark_agreement import agreed
from traceplane.sql.virtual import Expanded


def column_lineage(
    sql: str, columns: Mapping[str, Sequence[str]], dataset_ids: Mapping[str, str], dialect: str = "spark"
) -> dict[str, list[str]]:
    """By output column, in lower case: `dataset.column` of each input column that it depends on.

    `columns` are those of the inputs, by the names that the query uses.
    """
    schema: dict[str, object] = {name: dict.fromkeys(names, "text") for name, names in columns.items()}
    try:
        text = agreed(sql) if dialect == "spark" else sql
        tree = qualify(parse_one(text, read=dialect), schema=schema, dialect=dialect, quote_identifiers=False)
        if not isinstance(tree, exp.Query):
            return {}
        return {
            name.lower(): _leaves(lineage(name, tree, schema=schema, dialect=dialect), dataset_ids)
            for name in tree.named_selects
            if name and name != "*"
        }
    except (InvalidInput, SqlglotError, ValueError, RecursionError, KeyError):
        return {}


def virtual_lineage(read: Expanded, columns: Mapping[str, Sequence[str]]) -> dict[str, dict[str, list[str]]]:
    """By relation of a virtual dataset, the columns of its inputs that its columns are computed from; `columns` are
    those of stored relations."""
    known_columns = dict(columns)
    lineages: dict[str, dict[str, list[str]]] = {}
    for view in read.views:
        inputs = {r.name: known_columns[r.name] for r in view.reads}
        ids = {r.name: r.dataset_id for r in view.reads}
        lineages[view.relation.name] = column_lineage(view.sql, inputs, ids, "duckdb")
        known_columns[view.relation.name] = list(lineages[view.relation.name])
    return lineages


def _leaves(root: Node, dataset_ids: Mapping[str, str]) -> list[str]:
    sources = set()
    for node in root.walk():
        if isinstance(node.expression, exp.Table) and not node.downstream:
            dataset = dataset_ids.get(node.expression.name)
            column = node.name.rpartition(".")[2].strip('"`')
            if dataset is not None and column != "*":
                sources.add(f"{dataset}.{column}")
    return sorted(sources)
