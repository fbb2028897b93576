"""The catalog as people see it: what datasets there are, what is in them, and where their columns come from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from uuid import UUID

from traceplane.auth.rights import Access, access_of
from traceplane.errors import UserError
from traceplane.gateway import cron_sources
from traceplane.gateway.coverage import last_position, view
from traceplane.gateway.refused_names import unknown_dataset
from traceplane.operators.catalog import find as find_operator
from traceplane.postgres import coverage, events, pinned
from traceplane.postgres.coverage import Coverage
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.events import Tally
from traceplane.postgres.pinned import GenerationSize, Neighbour, PinnedDataset, ProducerInput
from traceplane.query.datasets import (
    NOW,
    Column,
    QueryCaller,
    QueryDatasets,
    may_read_pinned,
    visible_columns,
    visible_of,
)
from traceplane.query.lineage import column_lineage, virtual_lineage
from traceplane.query.service import Queries
from traceplane.sql.gate import Relation
from traceplane.sql.virtual import expand, reads
from traceplane.wire.queries import CatalogEntry, CatalogQuery, CatalogResponse, ColumnView, DatasetDetail

_EMPTY = GenerationSize(0, 0, 0)
_MOST_LOOKED_AT = 2_000
"""Datasets at a time, until a page is full."""


async def catalog(database: Database, caller: QueryCaller, query: CatalogQuery) -> CatalogResponse:
    async with database.snapshot() as tx:
        datasets, after = await _page(tx, caller, query)
        generations = {d.row_generation_id for d in datasets if d.row_generation_id is not None}
        sizes = await pinned.sizes(tx, list(generations))
        tallies = await events.tally(tx, list(generations - sizes.keys()))
        held = await coverage.of_datasets(tx, caller.org, [d.dataset_id for d in datasets])
    return CatalogResponse([_entry(dataset, sizes, tallies, held) for dataset in datasets], after)


async def _page(
    tx: Transaction, caller: QueryCaller, query: CatalogQuery
) -> tuple[list[PinnedDataset], str | None]:
    """The datasets that are asked for and that the caller may read, and after which one the next page begins."""
    found: list[PinnedDataset] = []
    after, more = query.after, None if query.limit is None else query.limit + 1
    while True:
        names = await pinned.names(tx, caller.org, find=query.find, after=after, limit=more)
        pages = await pinned.datasets(tx, caller.org, names)
        found += [dataset for dataset in pages.values() if may_read_pinned(caller, dataset)]
        if query.limit is None or more is None:
            return found, None
        if len(found) > query.limit:
            return found[: query.limit], found[query.limit - 1].dataset_id
        if len(names) < more:
            return found, None
        # There may be thousands that the caller may not read.
        after, more = names[-1], min(more * 4, _MOST_LOOKED_AT)


async def detail(database: Database, queries: Queries, caller: QueryCaller, dataset_id: str) -> DatasetDetail:
    async with database.snapshot() as tx:
        dataset = (await pinned.datasets(tx, caller.org, [dataset_id])).get(dataset_id)
        access = await access_of(tx, caller.org, caller)
        if dataset is None or not may_read_pinned(caller, dataset):
            raise await unknown_dataset(tx, caller.org, dataset_id, access)
        (dataset,) = await pinned.with_marks(tx, [dataset])
        held = await coverage.of_datasets(tx, caller.org, [dataset_id])
        cron = await cron_sources.views(tx, caller.org, dataset_id)
        if dataset.sql is not None and dataset.generation_id is not None:
            _, derived = await _virtual_lineage(tx, caller, dataset_id)
            neighbours, sizes, tallies = [], {}, {}
            readers = [
                n for n in await pinned.read_by(tx, caller.org, dataset_id) if access.sees(*n.split("/", 1))
            ]
        else:
            rows, generation = dataset.row_generation_id, dataset.generation_id
            sizes = await pinned.sizes(tx, [rows] if rows is not None else [])
            tallies = await events.tally(tx, [rows] if rows is not None and not sizes else [])
            neighbours = await pinned.neighbours(tx, [generation] if generation is not None else [])
            inputs = await pinned.inputs_of(tx, rows) if rows is not None else []
            producers = await pinned.neighbours(tx, [rows]) if rows is not None else []
            writers = [n for n in producers if n.writes]
            derived = await _lineage(tx, caller, writers[0], inputs) if writers else {}
            readers = [n.name for n in neighbours if not n.writes and access.sees(n.dag, n.job)]
        derived = await _readable(tx, caller, derived, access)
    seen = visible_columns(dataset, caller)
    if dataset.sql is not None:
        with contextlib.suppress(UserError):  # of what is below it, nothing may be known yet
            seen = await queries.columns_of(database, caller, dataset_id)
    return DatasetDetail(
        dataset=_entry(dataset, sizes, tallies, held),
        columns=[
            ColumnView(
                *(c.name, c.type, c.nullable, c.name.lower() in dataset.pii),
                derived.get(c.name.lower()),
                dataset.declassified.get(c.name.lower()),
            )
            for c in seen
        ],
        position=dataset.position,
        produced_by=sorted({n.name for n in neighbours if n.writes}),
        read_by=sorted(set(readers)),
        sql=dataset.sql if dataset.sql is None or all(map(access.reads, reads(dataset.sql))) else None,
        cron=cron[0] if cron else None,
        read_roles=None if dataset.read_roles is None else list(dataset.read_roles),
        write_roles=None if dataset.write_roles is None else list(dataset.write_roles),
    )


async def _readable(
    tx: Transaction, caller: QueryCaller, derived: Mapping[str, list[str]], access: Access
) -> dict[str, list[str]]:
    """What columns are computed from, without what the caller may not see."""
    columns = {column_of(text) for of in derived.values() for text in of}
    seen = await visible_of(tx, caller, {column for column in columns if access.reads(column[0])})
    return {name: [text for text in of if column_of(text) in seen] for name, of in derived.items()}


def column_of(text: str) -> Column:
    """Of `dataset.column`."""
    dataset_id, _, column = text.rpartition(".")
    return dataset_id, column.lower()


async def derived_columns(
    tx: Transaction, caller: QueryCaller, dataset: PinnedDataset
) -> dict[str, list[str]]:
    """Which columns, as dataset.column, each of its columns is computed from, as far as it is known."""
    if dataset.sql is not None:
        return (await _virtual_lineage(tx, caller, dataset.dataset_id))[1]
    rows = dataset.row_generation_id
    if rows is None:
        return {}
    writers = [n for n in await pinned.neighbours(tx, [rows]) if n.writes]
    return await _lineage(tx, caller, writers[0], await pinned.inputs_of(tx, rows)) if writers else {}


async def _virtual_lineage(
    tx: Transaction, caller: QueryCaller, dataset_id: str
) -> tuple[list[str], dict[str, list[str]]]:
    """The columns of a virtual dataset, and which columns of what its SQL names they are computed from."""
    relation, datasets = Relation("tp_d0", dataset_id), QueryDatasets(tx, caller.org, NOW)
    try:
        await datasets.read([relation])
        expanded = expand([relation], datasets.sql_of)
    except UserError:
        return [], {}
    columns = {r.name: [c.name for c in datasets.of(r).columns] for r in expanded.stored}
    derived = virtual_lineage(expanded, columns)[relation.name]
    return list(derived), derived


async def _lineage(
    tx: Transaction, caller: QueryCaller, producer: Neighbour, inputs: list[ProducerInput]
) -> dict[str, list[str]]:
    """Known where the producer is SQL; what other operators do with their columns is theirs to know."""
    operator = find_operator(producer.operator)
    if operator is None or operator.query_field is None:
        return {}
    query = producer.config.get(operator.query_field)
    if isinstance(query, dict):
        query = query.get(producer.output)
    if not isinstance(query, str):
        return {}
    columns = {i.name: i.columns for i in inputs}
    ids = {i.name: i.dataset_id for i in inputs}
    for used in producer.virtual_inputs:
        if used.name not in columns:
            columns[used.name], _ = await _virtual_lineage(tx, caller, used.dataset_id)
            ids[used.name] = used.dataset_id
    return column_lineage(query, {n: c for n, c in columns.items() if not n.startswith("#")}, ids)


def _entry(
    dataset: PinnedDataset,
    sizes: dict[UUID, GenerationSize],
    tallies: dict[UUID, Tally],
    held: dict[str, Coverage],
) -> CatalogEntry:
    size, tally = _EMPTY, None
    if (rows := dataset.row_generation_id) is not None:
        size, tally = sizes.get(rows, _EMPTY), tallies.get(rows)
    cursor, cursor_name = last_position(
        dataset.cursor if tally is None else tally.last, held.get(dataset.dataset_id)
    )
    return CatalogEntry(
        dataset=dataset.dataset_id,
        dag=dataset.dag,
        storage=dataset.storage,
        commits=size.commits,
        rows=size.rows,
        bytes=size.bytes,
        at_most=size.at_most,
        events=tally.events if tally is not None else None,
        version=dataset.version,
        generation=dataset.generation_id,
        cursor=cursor,
        coverage=view(held.get(dataset.dataset_id)),
        description=dataset.description,
        cursor_name=cursor_name,
    )
