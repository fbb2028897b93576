"""The catalog as people see it: what datasets there are, what is in them, and where their columns come from."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from traceplane.control_api import CatalogEntry, CatalogResponse, ColumnView, DatasetDetail
from traceplane.errors import NotFound
from traceplane.postgres import pinned
from traceplane.postgres.database import Database
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query.lineage import column_lineage
from traceplane.query.service import Caller, visible_columns

_NOTHING = (0, 0, 0)


async def catalog(database: Database, caller: Caller) -> CatalogResponse:
    async with database.snapshot() as tx:
        found = await pinned.datasets(tx, caller.org, None)
        wanted = {d.row_generation_id for d in found.values() if d.row_generation_id is not None}
        sizes = await pinned.sizes(tx, list(wanted))
    return CatalogResponse([_entry(dataset, sizes) for dataset in found.values()])


async def detail(database: Database, caller: Caller, dataset_id: str) -> DatasetDetail:
    async with database.snapshot() as tx:
        dataset = (await pinned.datasets(tx, caller.org, [dataset_id])).get(dataset_id)
        if dataset is None:
            raise NotFound(
                "dataset.unknown",
                "there is no such dataset",
                value=dataset_id,
                next_step="see `traceplane datasets`",
            )
        rows, generation = dataset.row_generation_id, dataset.generation_id
        sizes = await pinned.sizes(tx, [rows] if rows is not None else [])
        neighbours = await pinned.neighbours(tx, [generation] if generation is not None else [])
        inputs = await pinned.inputs_of(tx, rows) if rows is not None else []
        producers = await pinned.neighbours(tx, [rows]) if rows is not None else []
    written = [n for n in producers if n["writes"]]
    derived = _lineage(written, inputs) if written else {}
    return DatasetDetail(
        dataset=_entry(dataset, sizes),
        columns=[
            ColumnView(c.name, c.type, c.nullable, c.name.lower() in dataset.pii, derived.get(c.name.lower()))
            for c in visible_columns(dataset, caller)
        ],
        position=dataset.position,
        produced_by=sorted({f"{n['dag']}/{n['job']}" for n in neighbours if n["writes"]}),
        read_by=sorted({f"{n['dag']}/{n['job']}" for n in neighbours if not n["writes"]}),
    )


def _lineage(producers: list[dict[str, Any]], inputs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Known where the producer is SQL; what other operators do with their columns is theirs to know."""
    producer = producers[0]
    query = producer["query"]
    if isinstance(query, dict):
        query = query.get(producer["output"])
    if producer["operator"] != "sql" or not isinstance(query, str):
        return {}
    columns = {i["name"]: [c["name"] for c in i["columns"] or ()] for i in inputs}
    return column_lineage(query, columns, {i["name"]: i["dataset_id"] for i in inputs})


def _entry(dataset: PinnedDataset, sizes: dict[UUID, tuple[int, int, int]]) -> CatalogEntry:
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
        description=dataset.description,
    )
