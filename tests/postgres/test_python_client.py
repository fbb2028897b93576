"""The Python client on a real gateway: what it sets it reads back, and every listing answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role
from traceplane.client import Client
from traceplane.errors import Conflict, Forbidden, NotFound
from traceplane.wire.pipelines import PipelineChange, PipelineConfig, PipelineRequest


@pytest.fixture
async def http(database_url: str, tmp_path: Path) -> AsyncIterator[GatewayHttp]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane, GatewayHttp.open(plane) as opened:
        await plane.deploy(dag("main", source("in"), job("copy", "in", "out")))
        yield opened


@pytest.fixture
async def client(http: GatewayHttp) -> Client:
    return Client(f"http://127.0.0.1:{http.port}", await http.token(Role.ADMIN))


async def test_work_is_followed_and_changed(http: GatewayHttp, client: Client) -> None:
    def use() -> None:
        assert client.whoami().role == "admin"
        assert client.emit("in", range(3)).accepted == 3
        newest, _, oldest = client.tasks(dag="main", start=0, end=2)
        assert client.task(newest.task_id).inputs[0].dataset == "in"
        assert client.explain(newest.task_id).job == "copy"
        assert client.logs(str(newest.task_id)).attempts == []
        assert client.jobs.pause("main", "copy", reason="looking").changed
        assert client.status().paused[0].reason == "looking"
        assert client.jobs.resume("main", "copy").changed
        with pytest.raises(Conflict, match="collects no batches"):
            client.jobs.close_batches("main", "copy")
        assert client.cancel(newest.task_id).changed == {str(newest.task_id): "canceled"}
        assert len(client.cancel(dag="main", start=0, end=1).changed) == 2
        assert len(client.retry(dag="main", state="canceled").changed) == 3
        assert client.acknowledge(oldest.task_id).why_unchanged == {str(oldest.task_id): "queued"}
        assert client.backfill("out", 0, 2, dry_run=True).unfinished == 3
        assert client.datasets.explain("out", 0, 2).missing == ((0, 2),)
        assert client.datasets.get("out").produced_by == ["main/copy"]
        assert [found.dag for found in client.dags.all()] == ["main"]
        assert client.dags.delete("main", force=True).datasets == ["in", "out"]

    await asyncio.to_thread(use)


async def test_what_admins_set_is_read_back(client: Client) -> None:
    def use() -> None:
        client.roles.define("finance", includes="writer")
        client.members.add("ada", email="ada@example.com")
        assert [g.role for g in client.members.grant("ada", "finance", lasts="30d").roles] == ["finance"]
        assert client.members.withdraw("ada", "finance").roles == []
        client.tokens.issue("notebook", member="ada", datasets=["out"])
        token = next(token for token in client.tokens.all() if token.name == "notebook")
        assert client.tokens.revoke(token.token_id).name == "notebook"
        assert client.members.disable("ada").disabled_at is not None
        client.roles.delete("finance")
        assert client.secrets.set("rpc", "value", roles=["writer"]).version == 1
        assert client.secrets.allow("rpc", allowed_jobs=["main/copy"]).allowed_jobs == ["main/copy"]
        assert [secret.name for secret in client.secrets.all()] == ["rpc"]
        assert client.secrets.remove("rpc").name == "rpc"
        channel = {"kind": "webhook", "url": "https://hooks.example.com/in"}
        client.channels.set("ops", channel, platform_alerts=True)
        assert client.channels.get("ops").config == channel
        assert client.deliveries.drop(channel="ops").changed == 0
        assert client.deliveries.replay(channel="ops").changed == 0
        client.channels.remove("ops")
        silence = client.silences.add(3600, "maintenance", alert="dead_tasks", subject={"dag": "main"})
        assert client.silences.end(silence.silence_id).reason == "maintenance"
        with pytest.raises(NotFound):
            client.identity_providers.get("idp")
        acts = [entry.action for entry in client.audit.each(oldest_first=True, outcome="ok")]
        assert acts == [entry.action for entry in client.audit.each(outcome="ok")][::-1]
        assert "PUT /api/v1/secrets/{namespace}/{name}" in acts

    await asyncio.to_thread(use)


async def test_pipelines_are_made_and_changed(client: Client) -> None:
    def use() -> None:
        made = client.pipelines.create(
            PipelineRequest("tech", PipelineConfig(target="celery"), scanner_tickers=["AAPL"])
        )
        changed = client.pipelines.change(made.pipeline_id, PipelineChange(is_active=False))
        assert not changed.is_active
        assert [p.name for p in client.pipelines.each(is_active=False)] == ["tech"]
        assert list(client.pipelines.each(is_active=True)) == []
        assert client.pipelines.get(made.pipeline_id).name == "tech"
        assert client.user_limits.set("ada", 5) == {"ada": 5}
        assert client.user_limits.set("ada", None) == client.user_limits.all() == {}
        client.scanner_lists.set("big", ["AAPL", "MSFT"])
        assert client.scanner_lists.all()[0].tickers == ["AAPL", "MSFT"]
        client.scanner_lists.delete("big")
        client.pipelines.delete(made.pipeline_id)
        with pytest.raises(NotFound):
            client.executions.get(made.pipeline_id)

    await asyncio.to_thread(use)


async def test_every_listing_answers(client: Client) -> None:
    groups = [
        group for _, group in inspect.getmembers(client) if type(group).__module__.startswith("traceplane")
    ]

    def use() -> None:
        listings = [
            getattr(group, name) for group in groups for name in ("all", "each") if hasattr(group, name)
        ]
        assert len(listings) == 20
        for listing in listings:
            answer = listing()
            assert isinstance(list(answer) if isinstance(answer, Iterator) else answer, list | dict)
        assert client.alerts.summary() == []

    await asyncio.to_thread(use)


async def test_a_reader_is_refused_what_admins_may(http: GatewayHttp) -> None:
    reader = Client(f"http://127.0.0.1:{http.port}", await http.token(Role.READER))
    with pytest.raises(Forbidden) as refused:
        await asyncio.to_thread(lambda: list(reader.audit.each()))
    assert refused.value.code == "access.role_required"
