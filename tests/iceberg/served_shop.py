"""The shop of the query tests behind a gateway, as other engines reach it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from tests.gateway_http import GatewayHttp
from tests.iceberg.engines import ENGINES, rows_of
from tests.query.published import Shop


class ServedShop:
    def __init__(self, shop: Shop, http: GatewayHttp, token: str) -> None:
        self.shop, self.http, self.token = shop, http, token
        self.url = f"http://127.0.0.1:{http.port}"

    async def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        """Status and body of a call to the catalog."""
        status, text = await self.http.send(token or self.token, "GET", f"/iceberg/v1/{path}")
        return status, json.loads(text)

    async def pinned(self, warehouse: str = "") -> str:
        _, config = await self.get(f"config?warehouse={warehouse}")
        prefix: str = config["overrides"]["prefix"]
        return prefix

    async def query(self, sql: str, **more: Any) -> pa.Table:
        headers = {"authorization": f"Bearer {self.token}"}
        body = {"sql": sql, "format": "arrow", **more}
        async with self.http.session.post("/api/v1/query", json=body, headers=headers) as answer:
            content = await answer.read()
            assert answer.status == 200, content
        return ipc.open_stream(content).read_all()

    async def read(self, engine: str, dataset: str, warehouse: str = "", dag: str = "shop") -> pa.Table:
        return await asyncio.to_thread(ENGINES[engine], self.url, self.token, dag, dataset, warehouse)

    async def equal(self, dataset: str, warehouse: str = "", **more: Any) -> int:
        """All engines read what a query reads; how many rows these are."""
        expected = await self.query(f'select * from "{dataset}"', **more)
        for engine in ENGINES:
            actual = await self.read(engine, dataset, warehouse)
            assert sorted(actual.column_names) == sorted(expected.column_names), engine
            assert rows_of(actual) == rows_of(expected), engine
        return expected.num_rows
