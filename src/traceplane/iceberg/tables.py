"""Which datasets are tables, and for whom: the rights and rules are those of queries."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import date
from uuid import UUID

from traceplane.errors import Forbidden, NotFound
from traceplane.iceberg.column_types import NoIcebergType, iceberg_columns
from traceplane.iceberg.derivation import Derivation, DerivedTable, cut
from traceplane.iceberg.states import CatalogState
from traceplane.postgres import pinned
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.pinned import PinnedDataset
from traceplane.query.datasets import AsOf, QueryCaller, QueryDatasets, may_read_pinned, some_columns
from traceplane.sql.gate import Relation


class Tables:
    def __init__(self, derivation: Derivation) -> None:
        self._derivation = derivation

    async def names(
        self, database: Database, caller: QueryCaller, state: CatalogState
    ) -> dict[str, list[str]]:
        """By namespace, which is the name of a DAG: those that the caller can load."""
        async with database.snapshot() as tx:
            datasets = await pinned.datasets(tx, caller.org, None, versions=state.versions, at=state.at)
            tables = [
                d
                for d in datasets.values()
                if may_read_pinned(caller, d) and _has_files(d) and d.columns and d.generation_id is not None
            ]
            if not caller.sees_pii:
                tables = [d for d in await pinned.with_marks(tx, tables) if not _hides_columns(d, caller)]
        names: dict[str, list[str]] = {}
        for dataset in tables:
            with contextlib.suppress(NoIcebergType):
                await asyncio.to_thread(iceberg_columns, dataset.columns)
                names.setdefault(dataset.dag, []).append(dataset.dataset_id)
        return names

    async def load(
        self,
        database: Database,
        org_id: UUID,
        caller: QueryCaller,
        state: CatalogState,
        namespace: str,
        table: str,
    ) -> tuple[PinnedDataset, DerivedTable]:
        async with database.snapshot() as tx:
            dataset = await self._find(tx, caller, state, namespace, table)
            generation = dataset.row_generation_id
            cuts = [] if generation is None else await cut(dataset, pinned.listed(tx, generation, state.at))
            today: date = await pinned.today(tx)
        return dataset, await self._derivation.table(
            database, caller, dataset, cuts, org_id=org_id, today=today
        )

    async def _find(
        self, tx: Transaction, caller: QueryCaller, state: CatalogState, namespace: str, table: str
    ) -> PinnedDataset:
        """By its name, or by the rest of it after that of its DAG: the table orders of shop may be shop.orders."""
        names = [table, f"{namespace}.{table}"]
        datasets = await pinned.datasets(tx, caller.org, names, versions=state.versions, at=state.at)
        named = [d for name in names if (d := datasets.get(name)) is not None and d.dag == namespace]
        dataset = next((d for d in named if may_read_pinned(caller, d)), None)
        if dataset is None:
            raise NotFound(
                "iceberg.unknown_table",
                f"DAG {namespace} has no such dataset, or you have no access to it",
                value=table,
                next_step="list the tables of the namespace; the namespace is the DAG that the dataset belongs to",
            )
        if not _has_files(dataset):
            raise _no_files(dataset)
        versions = {dag: number for dag, number in state.versions.items() if dag == namespace}
        read = QueryDatasets(tx, caller.org, AsOf(versions, state.at))
        relation = Relation("tp_d0", dataset.dataset_id)
        await read.read([relation], caller)
        dataset = read.of(relation)
        if _hides_columns(dataset, caller):
            raise Forbidden(
                "iceberg.hidden_columns",
                "the files of the dataset have columns with personal data, which you may not see",
                value=dataset.dataset_id,
                next_step="query it with SQL, which leaves them out, or ask for a token issued with --pii",
            )
        some_columns(dataset, caller)
        return dataset


def _has_files(dataset: PinnedDataset) -> bool:
    return dataset.sql is None and dataset.storage != "postgres"


def _hides_columns(dataset: PinnedDataset, caller: QueryCaller) -> bool:
    return not caller.sees_pii and any(column.name.lower() in dataset.pii for column in dataset.columns)


def _no_files(dataset: PinnedDataset) -> NotFound:
    if dataset.sql is not None:
        problem = (
            "the dataset is virtual: its rows are computed when it is read, and there are no files of it"
        )
        step = "query it with SQL, or have a job write it"
    else:
        problem = "the rows of the dataset are in a hot table, not in files"
        step = "query it with SQL, or load the dataset that a compact job makes of it"
    return NotFound("iceberg.no_files", problem, value=dataset.dataset_id, next_step=step)
