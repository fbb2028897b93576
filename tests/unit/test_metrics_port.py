"""The metrics of a process are on a port of their own, and cannot fail its work."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import aiohttp
import pytest

from tests.http_app import make_app, running, status
from tests.platform import until
from traceplane import telemetry
from traceplane.http_service import metrics
from traceplane.http_service.server import DEFAULT_LIMITS


async def answers(port: int) -> str | None:
    with contextlib.suppress(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
            session.get("/metrics") as answer,
        ):
            return await answer.text()
    return None


async def test_a_port_in_use_is_reported_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "_TRY_AGAIN_SECONDS", 0.05)
    telemetry.configure("gateway", log_format="json")
    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serving = asyncio.create_task(metrics.serve_metrics("127.0.0.1", port, stop, DEFAULT_LIMITS))
        await asyncio.sleep(0.3)
        assert capsys.readouterr().err.count("metrics.not_served") == 1
    text = await until(lambda: answers(port), what="metrics")
    assert "process_cpu_seconds_total" in text
    stop.set()
    await asyncio.wait_for(serving, 10)


async def test_without_a_port_there_are_none() -> None:
    await asyncio.wait_for(metrics.serve_metrics("127.0.0.1", 0, asyncio.Event(), DEFAULT_LIMITS), 10)


async def test_a_service_itself_has_none() -> None:
    async with running(make_app()) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        assert await status(session.get("/metrics")) == 404
