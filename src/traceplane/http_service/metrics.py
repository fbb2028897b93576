"""The metrics of a process, on a port of their own: they tell of the traffic of all organizations."""

from __future__ import annotations

import asyncio

from traceplane import __version__, telemetry
from traceplane.errors import Conflict, Unauthenticated
from traceplane.http_service.app import App
from traceplane.http_service.routes import PUBLIC, Call, Incoming, Reply, Route
from traceplane.http_service.server import ConnectionLimits, serve
from traceplane.runtime.process import describe
from traceplane.runtime.retrying import happens

_TRY_AGAIN_SECONDS = 5.0


def metrics_app(title: str) -> App:
    """`/metrics`, and what every service answers; nothing that needs a token."""

    async def render(_: Call[None]) -> Reply:
        return Reply(telemetry.render_metrics(), telemetry.METRICS_CONTENT_TYPE)

    route = Route("GET", "/metrics", None, Reply, render, PUBLIC, "Metrics in Prometheus's text format.")
    return App([route], authenticate=_nobody, title=title, version=__version__)


async def serve_metrics(
    host: str, port: int, stop: asyncio.Event, limits: ConnectionLimits, setting: str | None = None
) -> None:
    """Until `stop`; not at all if the port is 0. A port in use is tried again: telemetry cannot fail the work."""
    app, is_told = metrics_app("Traceplane metrics"), False
    while port and not stop.is_set():
        try:
            await serve(app, host=host, port=port, setting=setting, stop=stop, grace=1.0, limits=limits)
        except Conflict as error:
            if not is_told:
                telemetry.emit("metrics.not_served", "warning", port=port, **describe(error))
            is_told = True
            await happens(stop, within=_TRY_AGAIN_SECONDS)


def _nobody(_: Incoming) -> object:
    raise Unauthenticated("token.missing", "only public endpoints are here")
