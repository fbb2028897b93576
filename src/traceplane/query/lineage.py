"""Which columns the SQL of a job or a virtual dataset computes its columns from. A best effort: what cannot be told
is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage
from sqlglot.optimizer.qualify import qualify

from traceplane.sql.virtual import Expanded


def column_lineage(
    sql: str, columns: Mapping[str, Sequence[str]], dataset_ids: Mapping[str, str], dialect: str = "spark"
) -> dict[str, list[str]]:
    """By output column, in lower case: `dataset.column` of each input column that it depends on.

    `columns` are those of the inputs, by the names that the query reads them under.
    """
    schema: dict[str, object] = {name: dict.fromkeys(found, "text") for name, found in columns.items()}
    try:
        tree = qualify(parse_one(sql, read=dialect), schema=schema, dialect=dialect, quote_identifiers=False)
        if not isinstance(tree, exp.Query):
            return {}
        return {
            name.lower(): _leaves(lineage(name, tree, schema=schema, dialect=dialect), dataset_ids)
            for name in tree.named_selects
            if name and name != "*"
        }
    except (SqlglotError, ValueError, RecursionError, KeyError):
        return {}


def virtual_lineage(read: Expanded, columns: Mapping[str, Sequence[str]]) -> dict[str, dict[str, list[str]]]:
    """By relation of a virtual dataset, what its columns are computed from in the datasets that it names; `columns` are
    those of stored relations."""
    known = dict(columns)
    found: dict[str, dict[str, list[str]]] = {}
    for view in read.views:
        inputs = {r.name: known[r.name] for r in view.reads}
        ids = {r.name: r.dataset_id for r in view.reads}
        found[view.relation.name] = column_lineage(view.sql, inputs, ids, "duckdb")
        known[view.relation.name] = list(found[view.relation.name])
    return found


def _leaves(root: Node, dataset_ids: Mapping[str, str]) -> list[str]:
    found = set()
    for node in root.walk():
        if isinstance(node.expression, exp.Table) and not node.downstream:
            dataset = dataset_ids.get(node.expression.name)
            column = node.name.rpartition(".")[2].strip('"`')
            if dataset is not None and column != "*":
                found.add(f"{dataset}.{column}")
    return sorted(found)
