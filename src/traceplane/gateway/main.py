"""The gateway process, wired by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from traceplane.gateway.api import PublicApi
from traceplane.gateway.audit import FLUSH_SECONDS
from traceplane.gateway.webhooks import REFRESH_SECONDS
from traceplane.http_service.metrics import serve_metrics
from traceplane.http_service.server import connection_limits, serve
from traceplane.http_service.tls import ServerCertificate
from traceplane.postgres.database import Database, OrgDatabases
from traceplane.postgres.processes import Presence
from traceplane.postgres.tokens import ACCESS_CHANGED
from traceplane.runtime.process import run_loop, task_group
from traceplane.settings import Settings


async def _at_end(stop: asyncio.Event, end: Callable[[], None]) -> None:
    await stop.wait()
    end()


async def run(settings: Settings, stop: asyncio.Event, bound: asyncio.Future[int] | None = None) -> None:
    assert settings.state_url is not None
    certificate = ServerCertificate.of(settings)
    database = await Database.connect(settings.state_url, connections=settings.database_connections)
    orgs = await OrgDatabases.connect(settings.state_url, connections=settings.database_connections)
    api = PublicApi(database=database, orgs=orgs, settings=settings)
    access_changed = asyncio.Event()
    try:
        await api.vault.check()
        await api.refresh()
        await api.webhooks.refresh()
        await task_group(
            stop,
            api=serve(
                api.app(),
                host=settings.host,
                port=settings.gateway_port,
                setting="gateway_port",
                stop=stop,
                bound=bound,
                limits=connection_limits(settings),
                certificate=certificate,
            ),
            metrics=serve_metrics(
                settings.metrics_host,
                settings.gateway_metrics_port,
                stop,
                connection_limits(settings),
                "gateway_metrics_port",
            ),
            tokens=run_loop("tokens", api.refresh, interval=2.0, kick=access_changed, stop=stop),
            access_listener=database.listen([ACCESS_CHANGED], lambda *_: access_changed.set(), stop),
            presence=Presence(database, "gateway").run(stop),
            streams=_at_end(stop, api.changes.end),
            issuers=run_loop("issuers", api.sign_in.refresh_issuers, interval=30.0, stop=stop),
            audit=run_loop("audit", api.audit.flush, interval=FLUSH_SECONDS, stop=stop),
            webhooks=run_loop("webhooks", api.webhooks.refresh, interval=REFRESH_SECONDS, stop=stop),
        )
    finally:
        await api.close()
        await orgs.close()
        await database.close()
