"""One column followed through datasets: what it is computed from, and what is computed from it, as far as it is known.

It is known where a dataset is computed by SQL. The walk goes from dataset to dataset by the graph of jobs, each dataset
looked at once, and stops after some. Columns that the caller may not see are left out, and what is behind them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access, access_of
from traceplane.errors import NotFound
from traceplane.gateway.datasets import column_of, derived_columns
from traceplane.gateway.refused_names import unknown_dataset
from traceplane.http_service.routes import Call, Route
from traceplane.postgres import graph, pinned
from traceplane.postgres.database import Transaction
from traceplane.query.datasets import Column, QueryCaller, may_read_pinned, visible_of
from traceplane.sql.virtual import reads
from traceplane.wire.queries import ColumnLineage, ColumnLineageQuery, DerivedColumn

_MOST_DATASETS = 60
"""That are looked at in one call."""


class ColumnLineageApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/datasets/{dataset_id}/column-lineage", None, ColumnLineage, self.lineage, "reader",
                  "What a column is computed from, and what from it.", query=ColumnLineageQuery),
        ]  # fmt: skip

    async def lineage(self, call: Call[None]) -> ColumnLineage:
        caller: Caller = call.principal
        root: Column = (call.path_params["dataset_id"], call.query.column.lower())
        async with caller.database.snapshot() as tx:
            access = await access_of(tx, caller.org, caller)
            walk = _Walk(tx, caller, access)
            await walk.begin()
            columns = await walk.columns_of(root[0])
            if columns is None:
                raise await unknown_dataset(tx, caller.org, root[0], access)
            if root[1] not in columns:
                raise NotFound(
                    "dataset.no_column",
                    f"{root[0]} has no such column",
                    value=call.query.column,
                    next_step=f"it has {', '.join(columns)}"
                    if columns
                    else "nothing is known of its columns yet",
                )
            upwards, downwards = await walk.upwards(root), await walk.downwards(root)
            seen = await walk.visible({column for edge in upwards | downwards for column in edge})
        found = _within(seen, root, upwards) | {
            (below, above)
            for above, below in _within(seen, root, {(above, below) for below, above in downwards})
        }
        edges: dict[Column, list[str]] = {root: []}
        for below, above in sorted(found):
            edges.setdefault(above, [])
            edges.setdefault(below, []).append(".".join(above))
        return ColumnLineage(
            [DerivedColumn(*column, derived_from=of) for column, of in edges.items()], walk.is_cut
        )


class _Walk:
    def __init__(self, tx: Transaction, caller: Caller, access: Access) -> None:
        self._tx, self._access, self._org = tx, access, caller.org
        self._caller = QueryCaller(
            *(caller.org, caller.name, str(caller.role), caller.sees_pii, caller.roles, caller.datasets),
            counted_as=caller.counted_as,
        )
        self._derived: dict[str, Mapping[str, list[str]]] = {}
        self._fed: dict[str, set[str]] = {}
        """By dataset, those that are computed from it."""
        self.is_cut = False

    async def begin(self) -> None:
        for row in await graph.jobs(self._tx, self._org, None):
            for used in {*(str(r["dataset"]) for r in row.reads), *row.declared_reads}:
                self._fed.setdefault(used, set()).update(row.writes)
        for dataset in await graph.datasets(self._tx, self._org):
            for used in reads(dataset.sql) if dataset.sql is not None else ():
                self._fed.setdefault(used, set()).add(dataset.dataset_id)

    async def columns_of(self, dataset_id: str) -> list[str] | None:
        dataset = (await pinned.datasets(self._tx, self._org, [dataset_id])).get(dataset_id)
        if (
            dataset is None
            or not self._access.reads(dataset_id)
            or not may_read_pinned(self._caller, dataset)
        ):
            return None
        names = [c.name.lower() for c in dataset.columns] or list(await self._of(dataset_id))
        seen = await self.visible({(dataset_id, name) for name in names})
        return [name for name in names if (dataset_id, name) in seen]

    async def visible(self, columns: Collection[Column]) -> set[Column]:
        return await visible_of(self._tx, self._caller, columns)

    async def upwards(self, root: Column) -> set[tuple[Column, Column]]:
        edges: set[tuple[Column, Column]] = set()
        seen, waiting = {root}, deque([root])
        while waiting:
            column = waiting.popleft()
            for text in (await self._of(column[0])).get(column[1]) or ():
                above = column_of(text)
                if self._access.reads(above[0]):
                    edges.add((column, above))
                    if above not in seen:
                        seen.add(above)
                        waiting.append(above)
        return edges

    async def downwards(self, root: Column) -> set[tuple[Column, Column]]:
        edges: set[tuple[Column, Column]] = set()
        seen, waiting = {root}, deque([root])
        while waiting:
            column = waiting.popleft()
            for dataset_id in sorted(self._fed.get(column[0], ())):
                for name, of in (await self._of(dataset_id)).items():
                    below = (dataset_id, name)
                    if column not in map(column_of, of or ()):
                        continue
                    edges.add((below, column))
                    if below not in seen:
                        seen.add(below)
                        waiting.append(below)
        return edges

    async def _of(self, dataset_id: str) -> Mapping[str, list[str]]:
        """What each of its columns is computed from."""
        if dataset_id in self._derived:
            return self._derived[dataset_id]
        if len(self._derived) >= _MOST_DATASETS:
            self.is_cut = True
            return {}
        dataset = None
        if self._access.reads(dataset_id):
            dataset = (await pinned.datasets(self._tx, self._org, [dataset_id])).get(dataset_id)
        found = {} if dataset is None else await derived_columns(self._tx, self._caller, dataset)
        self._derived[dataset_id] = found
        return found


def _within(
    seen: Collection[Column], root: Column, steps: set[tuple[Column, Column]]
) -> set[tuple[Column, Column]]:
    """The steps that lead from the root through columns that the caller sees."""
    by_start: defaultdict[Column, list[Column]] = defaultdict(list)
    for start, end in steps:
        if end in seen:
            by_start[start].append(end)
    reached, waiting = {root}, deque([root])
    while waiting:
        for end in by_start[waiting.popleft()]:
            if end not in reached:
                reached.add(end)
                waiting.append(end)
    return {(start, end) for start in reached for end in by_start[start]}
