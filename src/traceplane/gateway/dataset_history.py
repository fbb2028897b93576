"""How a dataset grew over time, and how fresh it is."""

from __future__ import annotations

from collections.abc import Callable

from traceplane.auth.callers import Caller
from traceplane.auth.rights import access_of
from traceplane.gateway.refused_names import unknown_dataset
from traceplane.http_service.routes import Call, Route
from traceplane.postgres import dataset_history, pinned
from traceplane.query.datasets import QueryCaller, may_read_pinned
from traceplane.wire.queries import DatasetHistory, HistoryPoint

_MOST_COMMITS = 20_000
_SPANS = 60


class DatasetHistoryApi:
    def __init__(self, as_query_caller: Callable[[Caller], QueryCaller]) -> None:
        self._as_query_caller = as_query_caller

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/datasets/{dataset_id}/history", None, DatasetHistory, self.history, "reader",
                  "How a dataset grew over time, and how fresh it is."),
        ]  # fmt: skip

    async def history(self, call: Call[None]) -> DatasetHistory:
        org, dataset_id = call.principal.org, call.path_params["dataset_id"]
        caller = self._as_query_caller(call.principal)
        async with call.principal.database.snapshot() as tx:
            dataset = (await pinned.datasets(tx, org, [dataset_id])).get(dataset_id)
            if dataset is None or not may_read_pinned(caller, dataset):
                access = await access_of(tx, org, call.principal)
                raise await unknown_dataset(tx, org, dataset_id, access)
            generation = dataset.row_generation_id
            if generation is None:
                return DatasetHistory(dataset_id, [])
            grown = await dataset_history.growth(tx, generation, _MOST_COMMITS, _SPANS)
            fresh = await dataset_history.fresh(tx, generation)
        return DatasetHistory(
            dataset_id,
            [HistoryPoint(one.at, one.rows, one.bytes, one.commits) for one in grown],
            seconds=grown[0].lasts.total_seconds() if grown else None,
            updated_at=fresh.updated_at if fresh else None,
            filled_at=fresh.filled_at if fresh else None,
            is_cut=sum(one.commits for one in grown) >= _MOST_COMMITS,
        )
