"""A platform in the middle of its work, and its gateway, for pages to look at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.control_plane import ControlPlane, Held, failed
from tests.dags import dag, job, source
from tests.ports import free_port
from tests.query import published
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.http_service.server import serve
from traceplane.postgres.processes import Presence
from traceplane.wire.tasks import TaskError

HOSTILE = "<img src=x onerror=alert(1)>"

SHOP = dag(
    "shop",
    source("shop.orders", name="orders"),
    source("shop.refunds", name="refunds"),
    job("clean", "shop.orders", "shop.clean_orders", "max_queue_depth: 8"),
    job("enrich", ("shop.clean_orders", "shop.refunds"), "shop.enriched", "max_attempts: 1"),
    job("per_customer", "shop.enriched", "shop.customers"),
    job("per_day", "shop.enriched", "shop.days"),
    job("forecast", "shop.days", "shop.forecast"),
    job("fraud", "shop.enriched", "shop.suspicious"),
)
MARKET = dag(
    "market",
    source("market.bars", name="bars"),
    job("average", "market.bars", "market.averages"),
    job("signals", ("market.averages", "shop.days"), "market.signals"),
)
TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/pandas/core/frame.py", line 4102, in __getitem__
    indexer = self.columns.get_loc(key)
  File "code/shop/enrich.py", line 41, in enrich
    total = orders["amount"] / orders["items"]
ZeroDivisionError: division by zero
"""


@dataclass
class World:
    plane: ControlPlane
    url: str
    admin: str
    """The token of an admin."""
    store: Path
    """Where files of datasets are."""

    async def link(self, token: str | None = None) -> str:
        """One that signs a browser in."""
        headers = {"authorization": f"Bearer {token or self.admin}"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/auth/browser-link", headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["url"])

    async def token(self, role: Role, org: str = "default") -> str:
        async with self.plane.database.transaction() as tx:
            token = await issue_token(tx, Principal.USER, org=org, name=f"{org}-{role}", role=role)
        await self.plane.api.refresh()
        return token

    async def orders(self, dag_text: str = published.DAG) -> None:
        """60 orders in three files, which can be asked for."""
        await self.plane.deploy(dag_text)
        shop = published.Shop(self.plane, self.store)
        for first in (1, 21, 41):
            await shop.publish("shop.orders", published.orders(first, first + 19), first, first + 19)

    async def held(self) -> list[Held]:
        await self.plane.meter()
        return await self.plane.claim(await self.plane.send())

    async def busy(self) -> None:
        """Tasks in every state, a queue that holds what feeds it, a pause."""
        plane = self.plane
        await plane.deploy(SHOP)
        await plane.deploy(MARKET)
        await plane.emit("shop.orders", range(40))
        await plane.emit("market.bars", range(20))
        await plane.run_all()
        await plane.emit("shop.refunds", [3])
        for held in await self.held():
            error = TaskError(
                "operator.raised",
                f"division by zero {HOSTILE}",
                type="ZeroDivisionError",
                traceback=TRACEBACK,
                file="code/shop/enrich.py",
                line=41,
                logs=["read 120 rows", HOSTILE],
            )
            await plane.report((held, failed(held, error=error, log=f"read 120 rows\n{HOSTILE}\n")))
        await plane.pause("shop", "forecast", "the model is being trained anew")
        await plane.emit("shop.orders", range(100, 130))
        await self.held()
        await plane.backpressure.run_once()


@contextlib.asynccontextmanager
async def world_of(database_url: str, home: Path) -> AsyncIterator[World]:
    port = free_port()
    async with ControlPlane.open(
        database_url, home=home, object_store=str(home / "objects"), gateway_port=port
    ) as plane:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(plane.api.app(), port=port, stop=stop, bound=bound, grace=1.0))
        await bound
        dispatcher = asyncio.create_task(Presence(plane.database, "dispatcher").run(stop))
        try:
            async with plane.database.transaction() as tx:
                admin = await issue_token(tx, Principal.USER, org="default", name="laptop", role=Role.ADMIN)
            await plane.api.refresh()
            yield World(plane, f"http://127.0.0.1:{port}", admin, home / "objects")
        finally:
            stop.set()
            await dispatcher
            await server
            await plane.api.close()
