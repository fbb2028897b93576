"""The demo's desk, which is told of large transfers: once each, and again if a reorganization removes one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from traceplane.http_service.client import Caller
from traceplane.postgres.database import Database
from traceplane.wire.channels import ChannelRequest, ChannelView
from traceplane.wire.deploys import DeployRequest, DeployResponse

ALERTS = Path(__file__).parent / "chain/alerts.yaml"
LARGE = 4_000 * 10**18
Until = Callable[[Callable[[], Awaitable[Any]], str], Awaitable[Any]]
Transfer = tuple[str, int]
"""The hash of its transaction, and the index of its log."""


class AlertDesk:
    """Receives messages like any service that takes JSON, and keeps them by their keys."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.messages: dict[str, dict[str, Any]] = {}

    async def receive(self, request: web.Request) -> web.Response:
        self.messages[request.headers["Idempotency-Key"]] = await request.json()
        return web.Response(status=204)

    def told(self, kind: str) -> Counter[Transfer]:
        subjects = [message["subject"] for message in self.messages.values() if message["kind"] == kind]
        return Counter((subject["transaction_hash"], subject["log_index"]) for subject in subjects)


@contextlib.asynccontextmanager
async def serve_desk() -> AsyncIterator[AlertDesk]:
    app = web.Application()
    runner = web.AppRunner(app, access_log=None)
    desk = AlertDesk("")
    app.router.add_post("/alerts", desk.receive)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        desk.url = f"http://127.0.0.1:{runner.addresses[0][1]}/alerts"
        yield desk
    finally:
        await runner.cleanup()


class Watch:
    """The alert on large transfers, from its deploy to its rebuild."""

    def __init__(self, desk: AlertDesk, database: Database, caller: Caller, until: Until) -> None:
        self.desk, self.database, self.caller, self.until = desk, database, caller, until

    async def begin(self, settled: Callable[[], Awaitable[bool]]) -> int:
        """Deploys it; how many large transfers it found in history, of which it tells nobody."""
        config = {"kind": "webhook", "url": self.desk.url, "per_second": 100, "burst": 100}
        await self.caller.call("PUT", "/api/v1/channels/desk", ChannelView, ChannelRequest(config))
        await self.deploy(ALERTS.read_text())
        await self.until(self.caught_up, "the alert is given all blocks")
        await self.until(settled, "the alert has seen all blocks")
        async with self.database.transaction() as tx:
            return int(await tx.value("select count(*) from alert_events where suppressed = 'backfill'"))

    async def rebuild(self, settled: Callable[[], Awaitable[bool]]) -> int:
        """Changes what it sends, so that all of history is evaluated anew; how many messages that sent."""
        before = len(self.desk.messages)
        await self.deploy(ALERTS.read_text().replace("columns: [value]", "columns: [value, token_address]"))
        await self.until(self.serving("watch", 2), "the new version serves")
        await self.until(settled, "everything is evaluated anew")
        await self.until(self.sent, "all messages are sent")
        return len(self.desk.messages) - before

    async def deploy(self, yaml: str) -> None:
        request = DeployRequest(yaml, "alerts.yaml")
        await self.caller.call("POST", "/api/v1/deploy", DeployResponse, request)

    async def sent(self) -> bool:
        async with self.database.transaction() as tx:
            waiting = await tx.value("select count(*) from alert_deliveries where state = 'waiting'")
        return bool(waiting == 0)

    async def caught_up(self) -> bool:
        async with self.database.transaction() as tx:
            return bool(await tx.value("select not exists (select 1 from replays)"))

    def serving(self, dag: str, version: int) -> Callable[[], Awaitable[bool]]:
        """Asks whether a version of a DAG serves."""

        async def serves() -> bool:
            async with self.database.transaction() as tx:
                number = await tx.value(
                    "select v.number from dags d join dag_versions v on v.dag_version_id = d.active_version_id"
                    " where d.name = $1",
                    dag,
                )
            return bool(number == version)

        return serves

    def checks(self, transfers: Iterable[dict[str, Any]], first_block: int, rebuilt: int) -> dict[str, bool]:
        """`transfers`: those of the chain; the alert told of what came from `first_block` on."""
        large = Counter(
            (row["transaction_hash"], row["log_index"])
            for row in transfers
            if row["block_number"] >= first_block
            and row["token_type"] == "erc20"
            and (row["value"] or 0) > LARGE
        )
        told, taken_back = self.desk.told("alert"), self.desk.told("retraction")
        return {
            f"{told.total():>5} alerts of large transfers arrived, and {taken_back.total()} of them were retracted":
            taken_back.total() > 0 and taken_back <= told,
            f"{large.total():>5} are left, which are the large transfers of the chain": told - taken_back == large,
            "nothing was sent when history was evaluated anew": rebuilt == 0,
        }  # fmt: skip
