"""Processes say that they are there; who dies without a word is named. How a dataset grew is told in bounded time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from tests.query.published import Shop, orders
from traceplane.auth.roles import Role
from traceplane.postgres.processes import Presence


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[GatewayHttp]:
    async with ControlPlane.open(database_url) as plane, GatewayHttp.open(plane) as http:
        yield http


async def _health(http: GatewayHttp, token: str) -> tuple[dict[str, str], dict[str, bool]]:
    """What is not in order, and which processes there are, with whether they are silent."""
    _, text = await http.send(token, "GET", "/api/v1/health")
    answer = json.loads(text)
    findings = {one["code"]: one["sentence"] for one in answer["findings"] if one["level"] != "ok"}
    return findings, {one["kind"]: one.get("is_silent", False) for one in answer.get("processes", [])}


async def test_a_process_is_there_until_it_says_that_it_stops(http: GatewayHttp) -> None:
    plane, admin = http.plane, await http.token(Role.ADMIN)
    presence, stop = Presence(plane.database, "dispatcher"), asyncio.Event()
    await presence.run_once()
    findings, there = await _health(http, admin)
    assert there == {"dispatcher": False}
    assert set(findings) == {"no_worker"}
    stop.set()
    await presence.run(stop)
    findings, there = await _health(http, admin)
    assert there == {}
    assert set(findings) == {"no_dispatcher", "no_worker"}


async def test_a_silent_process_is_named_until_another_takes_its_place(http: GatewayHttp) -> None:
    plane, admin = http.plane, await http.token(Role.ADMIN)
    await Presence(plane.database, "gateway").run_once()
    await plane.sql("update processes set seen_at = tp_now() - interval '31 seconds'")
    findings, there = await _health(http, admin)
    assert there == {"gateway": True}
    assert "has not been seen for 3" in findings["process_silent"]
    await Presence(plane.database, "gateway").run_once()
    findings, there = await _health(http, admin)
    assert there == {"gateway": False}
    assert "process_silent" not in findings


async def test_readers_get_findings_and_no_processes(http: GatewayHttp) -> None:
    await Presence(http.plane.database, "gateway").run_once()
    findings, there = await _health(http, await http.token(Role.READER))
    assert (findings, there) == ({}, {})


async def test_a_dataset_tells_how_it_grew(database_url: str, tmp_path: Path) -> None:
    async with Shop.open(database_url, tmp_path / "objects") as shop, GatewayHttp.open(shop.plane) as http:
        await shop.plane.sql("update dataset_commits set committed_at = committed_at - interval '2 hours'")
        await shop.publish("shop.orders", orders(61, 65), 61, 65)
        token = await http.token(Role.READER)
        status, text = await http.send(token, "GET", "/api/v1/datasets/shop.orders/history")
        assert status == 200
        answer = json.loads(text)
        assert [(one["rows"], one["commits"]) for one in answer["points"]] == [(60, 3), (5, 1)]
        assert 100 < answer["seconds"] < 140
        assert answer["filled_at"] == answer["updated_at"]
        status, text = await http.send(token, "GET", "/api/v1/datasets/shop.nothing/history")
        assert (status, json.loads(text)["error"]["code"]) == (404, "dataset.unknown")
