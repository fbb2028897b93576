"""What the web UI shows of the trigger: counted by the minute, to each organization of its own pipelines alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from tests.platform import until
from tests.trigger.signals import Pipelines, mock_cluster, signal, trigger_process
from traceplane.auth.roles import Role
from traceplane.errors import DatabaseUnavailable
from traceplane.postgres import signal_minutes
from traceplane.trigger.cache import PipelineCache
from traceplane.trigger.figures import SignalFigures
from traceplane.trigger.matching import OrgCounts


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[GatewayHttp]:
    async with ControlPlane.open(database_url) as plane, GatewayHttp.open(plane) as http:
        yield http


async def minutes_of(http: GatewayHttp, token: str) -> list[dict[str, Any]]:
    status, text = await http.send(token, "GET", "/api/v1/signals")
    assert status == 200, text
    minutes: list[dict[str, Any]] = json.loads(text)["minutes"]
    assert len(minutes) == 60
    return minutes


def total(minutes: list[dict[str, Any]], name: str) -> int:
    return sum(minute.get(name, 0) for minute in minutes)


async def test_each_organization_is_shown_what_its_own_pipelines_make_of_a_shared_topic(
    http: GatewayHttp, database_url: str, tmp_path: Path
) -> None:
    pipelines = await Pipelines.of(http.plane.database)
    other = await http.plane.value("insert into orgs (slug) values ('other') returning org_id")
    await http.plane.sql("insert into orgs (slug) values ('third')")
    await pipelines.add_many([(["AAPL", "TSLA"], []), (["AAPL"], [{"signal_type": "never"}])])
    await pipelines.add("MSFT", org_id=other)
    first, second, third = [await http.token(Role.READER, org=org) for org in ("default", "other", "third")]
    with mock_cluster() as topic:
        topic.publish([b"{", signal("both", "AAPL", "MSFT"), signal("noise", "ZZZZ")], partition=0)
        topic.publish([signal(f"apple-{n}", "AAPL", "TSLA") for n in range(4)], partition=1)
        process = trigger_process("trigger", database_url, tmp_path, topic.brokers)
        await process.start()
        try:

            async def counted() -> bool:
                return total(await minutes_of(http, first), "signals") >= 5

            await until(counted, what="the signals of the first organization")
        finally:
            assert await process.stop() == 0
    of_first, of_second = await minutes_of(http, first), await minutes_of(http, second)
    assert (total(of_first, "signals"), total(of_second, "signals")) == (5, 1)
    # Of one pipeline at most once per batch; the one that subscribes to something else matches nothing.
    assert 1 <= total(of_first, "matches") <= 5
    assert total(of_second, "matches") == 1
    read = [minute for minute in of_first if minute.get("signals")]
    assert all(minute["has_trigger"] and minute["lag_seconds"] >= 0 for minute in read)
    assert all(minute.keys() == {"at", "seconds"} for minute in await minutes_of(http, third))


async def test_minutes_without_a_trigger_are_empty_and_old_ones_are_forgotten(http: GatewayHttp) -> None:
    plane, token = http.plane, await http.token(Role.READER)
    await (await Pipelines.of(plane.database)).add("AAPL")
    await plane.sql(
        "insert into signal_minutes"
        " select org_id, date_trunc('minute', tp_now()) - ago * interval '1 minute', 30, 3, 2.5"
        " from orgs, unnest(array[5, 61]) ago where slug = 'default'"
    )
    cache = PipelineCache(plane.database, interval=30)
    await cache.refresh()
    await SignalFigures(plane.database, cache).run_once()
    minutes = await minutes_of(http, token)
    there = {ago: minute for ago, minute in enumerate(reversed(minutes)) if minute.get("has_trigger")}
    # The minute may have changed since it was written.
    before, now = sorted(there, reverse=True)
    assert before - now == 5
    assert (there[before]["signals"], there[before]["matches"], there[before]["lag_seconds"]) == (30, 3, 2.5)
    assert (there[now]["signals"], there[now]["matches"], "lag_seconds" in there[now]) == (0, 0, False)
    assert there[before]["seconds"] == 60
    assert await plane.value("select count(*) from signal_minutes") == 2


async def test_counts_of_several_instances_add_up_and_survive_a_failed_write(
    http: GatewayHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, token = http.plane, await http.token(Role.READER)
    pipelines = await Pipelines.of(plane.database)
    cache = PipelineCache(plane.database, interval=30)
    instances = [SignalFigures(plane.database, cache) for _ in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(signal_minutes, "add", failing)
        for n, figures in enumerate(instances):
            figures.add({pipelines.org_id: OrgCounts(10, 1)}, lag_seconds=float(n))
            with pytest.raises(DatabaseUnavailable):
                await figures.run_once()
            figures.add({pipelines.org_id: OrgCounts(10, 1)}, lag_seconds=None)
    await asyncio.gather(*(figures.run_once() for figures in instances))
    await asyncio.gather(*(figures.run_once() for figures in instances))
    minutes = await minutes_of(http, token)
    assert (total(minutes, "signals"), total(minutes, "matches")) == (60, 6)
    assert max(minute.get("lag_seconds", 0.0) for minute in minutes) == 2.0


async def failing(*_: object) -> None:
    raise ConnectionError
