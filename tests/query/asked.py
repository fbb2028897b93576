"""A query service as the gateway has it, asked by a reader or an administrator."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.query.published import Shop
from traceplane.adapters.object_cache import ObjectCache
from traceplane.query.datasets import NOW, AsOf, QueryCaller
from traceplane.query.engine_pool import EnginePool
from traceplane.query.service import Queries
from traceplane.query.wire import QueryLimits

READER = QueryCaller("default", "rita", "reader", sees_pii=False)
ADMIN = QueryCaller("default", "ada", "admin", sees_pii=True)


class Asked:
    """A query service on the shop, as the gateway has it."""

    def __init__(
        self,
        shop: Shop,
        spill: Path,
        *,
        of_one_caller: int | None = None,
        wait_seconds: float = 120,
        open_cache: Callable[[], Awaitable[ObjectCache]] | None = None,
    ) -> None:
        """`open_cache`: as if the store were in S3."""
        limits = QueryLimits(
            seconds=60, max_rows=10_000, max_bytes=1 << 22, memory_mb=256, spill_mb=64, threads=1
        )
        engines = EnginePool(
            spill_root=spill, concurrency=2, of_one_caller=of_one_caller, wait_seconds=wait_seconds
        )
        self.database = shop.plane.admin.database
        root = shop.store if open_cache is None else None
        self.service = Queries(engines, object_root=root, limits=limits, open_cache=open_cache)

    async def rows(self, sql: str, caller: QueryCaller = READER, as_of: AsOf = NOW) -> list[list[Any]]:
        found: list[list[Any]] = (await self.answer(sql, caller, as_of))["rows"]
        return found

    async def answer(self, sql: str, caller: QueryCaller = READER, as_of: AsOf = NOW) -> dict[str, Any]:
        result = await self.service.run(self.database, caller, sql, format_="json", as_of=as_of)
        found: dict[str, Any] = json.loads(b"".join([piece async for piece in result.pieces]))
        return found

    async def files(self, sql: str) -> list[int]:
        """How many files the query would read of each of its relations."""
        return [chosen.files for chosen in (await self.service.prepare(self.database, READER, sql)).chosen]
