"""A query as a Spark job: views over inputs; the last view is the result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from traceplane.auth.roles import Role
from traceplane.errors import InvalidInput
from traceplane.model.job_definition import InputView
from traceplane.postgres.database import Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query.datasets import (
    AsOf,
    NamedSql,
    QueryCaller,
    QueryDatasets,
    pin_of,
    pin_text,
    some_columns,
)
from traceplane.sql import gate, spark_dialect, virtual


@dataclass(frozen=True, slots=True)
class JobInput:
    name: str
    dataset: PinnedDataset
    columns: tuple[str, ...]
    """The visible columns; empty for all of them."""


@dataclass(frozen=True, slots=True)
class JobQuery:
    inputs: tuple[JobInput, ...]
    views: tuple[InputView, ...]
    read_roles: tuple[str, ...] | None
    """Who may read the result: whoever may read all that the query names."""


async def as_job(tx: Transaction, caller: QueryCaller, sql: str, as_of: AsOf) -> JobQuery:
    """The query over the generations that this transaction serves, in Spark's dialect. Personal data is left out for
    every caller, because the result is a dataset that others may read."""
    if "\0" in sql:  # Postgres cannot store it
        raise InvalidInput("query.malformed", "a query must not contain a NUL character")
    anybody = replace(caller, sees_pii=False)
    gated = await asyncio.to_thread(gate.admit, sql)
    datasets = QueryDatasets(tx, caller.org, as_of, only_stored=True)
    await datasets.read(gated.relations, anybody)
    expanded = await asyncio.to_thread(virtual.expand, gated.relations, datasets.sql_of)
    names = {pin: f"#{number}" for number, pin in enumerate(dict.fromkeys(map(pin_of, expanded.stored)))}
    for pin in names:
        if isinstance(pin[1], datetime) or datasets.by_pin[pin].storage != "parquet":
            raise InvalidInput(
                "query.not_for_a_job",
                "Spark reads no hot tables, and what it reads as of a time it reads as of the same",
                value=pin_text(pin),
                next_step="give one time for the whole query (--as-of), choose the engine duckdb,"
                " or compact hot rows and query the compacted dataset",
            )
        some_columns(datasets.by_pin[pin], anybody)
    views = await asyncio.to_thread(datasets.views, expanded, anybody)
    reads = [*(view.reads for view in expanded.views), gated.relations]
    return JobQuery(
        tuple(_job_input(name, datasets.by_pin[pin]) for pin, name in names.items()),
        tuple(
            InputView(
                view.name,
                spark_dialect.translated(view.sql, [r.name for r in relations]),
                {r.name: names[pin_of(r)] for r in relations if pin_of(r) in names},
            )
            for view, relations in zip([*views, NamedSql("tp_result", gated.sql)], reads, strict=True)
        ),
        _common_roles(map(datasets.of, gated.relations)),
    )


def _common_roles(datasets: Iterable[PinnedDataset]) -> tuple[str, ...] | None:
    restricted: dict[str, frozenset[str]] = {}
    for dataset in datasets:
        for dataset_id, roles in ((dataset.dataset_id, dataset.read_roles), *dataset.owners):
            if roles is not None and Role.READER not in roles:
                restricted[dataset_id] = frozenset(roles)
    if not restricted:
        return None
    common = frozenset.intersection(*restricted.values())
    if not common and len(set(restricted.values())) > 1:
        raise InvalidInput(
            "query.roles_differ",
            "no role may read all of these datasets, so nobody but admins could read the result",
            value=", ".join(sorted(restricted)),
            next_step="query without --to-dataset, or give the datasets a role in common",
        )
    return tuple(sorted(common))


def _job_input(name: str, dataset: PinnedDataset) -> JobInput:
    visible = tuple(c.name for c in dataset.columns if c.name.lower() not in dataset.pii)
    return JobInput(name, dataset, visible if dataset.pii else ())
