"""The catalog as people see it: what datasets there are, what is in them, and where their columns come from."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from traceplane.errors import NotFound, UserError
from traceplane.gateway.coverage import view
from traceplane.postgres import coverage, pinned
from traceplane.postgres.coverage import Coverage
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query.lineage import column_lineage, virtual_lineage
from traceplane.query.service import NOW, Caller, Found, Queries, key, visible_columns
from traceplane.sql.gate import Relation
from traceplane.sql.virtual import expand
from traceplane.wire.control import CatalogEntry, CatalogResponse, ColumnView, DatasetDetail

_NOTHING = (0, 0, 0)


async def catalog(database: Database, caller: Caller) -> CatalogResponse:
    async with database.snapshot() as tx:
        found = await pinned.datasets(tx, caller.org, None)
        wanted = {d.row_generation_id for d in found.values() if d.row_generation_id is not None}
        sizes = await pinned.sizes(tx, list(wanted))
        held = await coverage.of_datasets(tx, caller.org)
    return CatalogResponse([_entry(dataset, sizes, held) for dataset in found.values()])


async def detail(database: Database, queries: Queries, caller: Caller, dataset_id: str) -> DatasetDetail:
    async with database.snapshot() as tx:
        dataset = (await pinned.datasets(tx, caller.org, [dataset_id])).get(dataset_id)
        if dataset is None:
            raise NotFound(
                "dataset.unknown",
                "there is no such dataset",
                value=dataset_id,
                next_step="see `traceplane datasets`",
            )
        held = await coverage.of_datasets(tx, caller.org, dataset_id)
        if dataset.sql is not None and dataset.generation_id is not None:
            _, derived = await _virtual_lineage(tx, caller, dataset_id)
            neighbours, sizes = [], {}
            readers = await pinned.read_by(tx, caller.org, dataset_id)
        else:
            rows, generation = dataset.row_generation_id, dataset.generation_id
            sizes = await pinned.sizes(tx, [rows] if rows is not None else [])
            neighbours = await pinned.neighbours(tx, [generation] if generation is not None else [])
            inputs = await pinned.inputs_of(tx, rows) if rows is not None else []
            producers = await pinned.neighbours(tx, [rows]) if rows is not None else []
            written = [n for n in producers if n["writes"]]
            derived = await _lineage(tx, caller, written[0], inputs) if written else {}
            readers = [f"{n['dag']}/{n['job']}" for n in neighbours if not n["writes"]]
    seen = visible_columns(dataset, caller)
    if dataset.sql is not None:
        with contextlib.suppress(UserError):  # of what is below it, nothing may be known yet
            seen = await queries.columns_of(caller, dataset_id)
    return DatasetDetail(
        dataset=_entry(dataset, sizes, held),
        columns=[
            ColumnView(c.name, c.type, c.nullable, c.name.lower() in dataset.pii, derived.get(c.name.lower()))
            for c in seen
        ],
        position=dataset.position,
        produced_by=sorted({f"{n['dag']}/{n['job']}" for n in neighbours if n["writes"]}),
        read_by=sorted(set(readers)),
        sql=dataset.sql,
    )


async def _virtual_lineage(
    tx: Transaction, caller: Caller, dataset_id: str
) -> tuple[list[str], dict[str, list[str]]]:
    """The columns of a virtual dataset, and which columns of what its SQL names they are computed from."""
    relation, found = Relation("tp_d0", dataset_id), Found(tx, caller.org, NOW)
    try:
        await found.read([relation])
        read = expand([relation], found.sql_of)
    except UserError:
        return [], {}
    columns = {r.name: [c.name for c in found.datasets[key(r)].columns] for r in read.stored}
    derived = virtual_lineage(read, columns)[relation.name]
    return list(derived), derived


async def _lineage(
    tx: Transaction, caller: Caller, producer: dict[str, Any], inputs: list[dict[str, Any]]
) -> dict[str, list[str]]:
    """Known where the producer is SQL; what other operators do with their columns is theirs to know."""
    query = producer["query"]
    if isinstance(query, dict):
        query = query.get(producer["output"])
    if producer["operator"] != "sql" or not isinstance(query, str):
        return {}
    columns = {i["name"]: [c["name"] for c in i["columns"] or ()] for i in inputs}
    ids = {i["name"]: i["dataset_id"] for i in inputs}
    for used in producer["virtual_inputs"] or ():
        if used["name"] not in columns:
            columns[used["name"]], _ = await _virtual_lineage(tx, caller, used["dataset_id"])
            ids[used["name"]] = used["dataset_id"]
    return column_lineage(query, {n: c for n, c in columns.items() if not n.startswith("#")}, ids)


def _entry(
    dataset: PinnedDataset, sizes: dict[UUID, tuple[int, int, int]], held: dict[str, Coverage]
) -> CatalogEntry:
    found = _NOTHING
    if dataset.row_generation_id is not None:
        found = sizes.get(dataset.row_generation_id, _NOTHING)
    return CatalogEntry(
        dataset=dataset.dataset_id,
        dag=dataset.dag,
        storage=dataset.storage,
        commits=found[0],
        rows=found[1],
        bytes=found[2],
        version=dataset.version,
        generation=dataset.generation_id,
        cursor=dataset.cursor,
        coverage=view(held.get(dataset.dataset_id)),
        description=dataset.description,
    )
