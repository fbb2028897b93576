"""Pipelines on real processes: made over the API, run as tasks, followed to their end."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.control_plane import ControlPlane
from tests.platform import Platform, until
from traceplane.cli.main import cli
from traceplane.client import Client
from traceplane.dispatcher.loops.execution_status import ExecutionStatus
from traceplane.dispatcher.loops.periodic import PeriodicPipelines
from traceplane.errors import Conflict, InvalidInput, NotFound
from traceplane.wire.control import (
    ExecutionChange,
    ExecutionsResponse,
    ExecutionView,
    PipelineChange,
    PipelineConfig,
    PipelineRequest,
    PipelinesResponse,
    PipelineView,
    ScannerListRequest,
    ScannerListsResponse,
    ScannerListView,
    Subscription,
    TaskChanges,
    TaskSelection,
)

DAG = """
version: 1
dag: desk
defaults: {max_attempts: 2, retry: {base: 100ms}}
jobs:
- name: trade
  activation: source
  source: {kind: pipeline}
  runtime: python
  operator: python
  outputs: [{dataset: desk.trades}]
  config: {entrypoint: "pipeline_runs:trade"}
- name: audit
  runtime: python
  operator: python
  inputs: [{name: trades, from: {job: trade}}]
  outputs: [{dataset: desk.audited}]
  config: {entrypoint: "pipeline_runs:audit"}
"""
TRADE = PipelineConfig("desk", "trade", {"ticker": "AAPL"})

# What the trigger does for a match, as far as these tests need it.
LAUNCH = """
with launched as (
  insert into executions (pipeline_id, target, signal_id, signal, created_at)
  select pipeline_id, config->>'target', $2::text, $3::jsonb, tp_now() from pipelines where pipeline_id = $1
  on conflict do nothing returning execution_id, pipeline_id, target
), made as (
  insert into tasks (task_id, job_id, state, priority, kind, created_at, ready_at)
  select l.execution_id, j.job_id, 'queued', 0, 'data', tp_now(), tp_now()
  from launched l join pipelines p using (pipeline_id) join dags d on d.name = p.config->>'dag'
  join jobs j on j.dag_id = d.dag_id and j.name = p.config->>'job' and j.routed and not j.building
  where l.target = 'task'
), messages as (
  insert into celery_outbox (execution_id) select execution_id from launched where target = 'celery'
)
select execution_id, pg_notify('traceplane_work', '') from launched
"""


def signal(number: int) -> str:
    ticker = {"ticker": "AAPL", "signal": "BULLISH", "confidence": 80}
    return json.dumps({"signal_id": f"s{number}", "signal_type": "mock", "tickers": [ticker]})


async def launch(platform: Platform | ControlPlane, pipeline_id: UUID, number: int) -> UUID | None:
    if isinstance(platform, ControlPlane):
        rows = await platform.sql(LAUNCH, pipeline_id, f"s{number}", json.loads(signal(number)))
    else:
        rows = await platform.sql(LAUNCH, pipeline_id, f"s{number}", signal(number))
    return rows[0]["execution_id"] if rows else None


async def ended(platform: Platform, execution_id: UUID | None) -> ExecutionView:
    async def over() -> ExecutionView | None:
        path = f"/api/v1/executions/{execution_id}"
        view = await platform.api.call("GET", path, ExecutionView)
        return view if view.status in ("COMPLETED", "FAILED") else None

    found: ExecutionView = await until(over, seconds=120, what="the execution has ended")
    return found


async def test_a_pipeline_is_made_run_and_followed_to_its_end(database_url: str, tmp_path: Path) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        api = platform.api

        async def create(name: str, **fields: Any) -> PipelineView:
            request = PipelineRequest(name, **{"config": TRADE, "scanner_tickers": ["AAPL"], **fields})
            return await api.call("POST", "/api/v1/pipelines", PipelineView, request)

        with pytest.raises(NotFound, match="no such job"):
            await create("too early")
        await platform.deploy(DAG)
        with pytest.raises(InvalidInput, match="source kind pipeline"):
            await create("no source", config=PipelineConfig("desk", "audit"))
        with pytest.raises(InvalidInput, match="rules cannot be understood"):
            await create("no such market", rules={"market_hours": "Moon"})
        made = await create("momentum", signal_subscriptions=[Subscription("mock", 60.0, "BULLISH")])
        assert (made.user_id, made.running, made.scanner_tickers) == ("test", None, ["AAPL"])
        with pytest.raises(Conflict, match="of this name"):
            await create("momentum")

        # It runs as a task that knows what it is run for; its rows are committed, and others react to them.
        first = await launch(platform, made.pipeline_id, 1)
        assert await launch(platform, made.pipeline_id, 2) is None, "it is running"
        done = await ended(platform, first)
        assert (done.status, done.signal_id, done.pipeline) == ("COMPLETED", "s1", "momentum")
        assert done.signal is not None
        assert done.signal["tickers"][0]["confidence"] == 80
        assert done.started_at is not None
        assert done.finished_at is not None
        assert await launch(platform, made.pipeline_id, 1) is None, "once per signal"
        second = await launch(platform, made.pipeline_id, 2)
        assert (await ended(platform, second)).status == "COMPLETED"
        await platform.settled()
        rows = Client(platform.gateway_url, platform.user_token).query(
            "select t.*, a.execution_id as audited from desk.trades t left join desk.audited a using (execution_id)"
            " order by signal_id"
        )
        assert [
            (r["execution_id"], r["signal_id"], r["user_id"], r["audited"]) for r in rows.to_pylist()
        ] == [
            (str(first), "s1", "test", str(first)),
            (str(second), "s2", "test", str(second)),
        ]

        # One that fails is FAILED with its error after its attempts, and cannot be run again by hand.
        change = PipelineChange(config=PipelineConfig("desk", "trade", {"fail": "no money"}))
        await api.call("PATCH", f"/api/v1/pipelines/{made.pipeline_id}", PipelineView, change)
        third = await launch(platform, made.pipeline_id, 3)
        failed = await ended(platform, third)
        assert failed.error is not None
        assert (failed.status, failed.error["code"]) == ("FAILED", "operator.raised")
        assert "no money" in failed.error["message"]
        assert await platform.value("select attempt from tasks where task_id = $1", third) == 2
        assert third is not None
        retried = await api.call("POST", "/v1/tasks/retry", TaskChanges, TaskSelection([third]))
        assert retried.unchanged == [third]

        # One that is canceled is FAILED.
        change = PipelineChange(config=PipelineConfig("desk", "trade", {"sleep": 600}))
        await api.call("PATCH", f"/api/v1/pipelines/{made.pipeline_id}", PipelineView, change)
        fourth = await launch(platform, made.pipeline_id, 4)
        assert fourth is not None

        async def runs() -> bool:
            view = await api.call("GET", f"/api/v1/pipelines/{made.pipeline_id}", PipelineView)
            status = (await api.call("GET", f"/api/v1/executions/{fourth}", ExecutionView)).status
            return view.running == fourth and status == "RUNNING"

        await until(runs, seconds=120, what="the execution runs")
        with pytest.raises(Conflict, match="a task of the platform"):
            await api.call("PATCH", f"/api/v1/executions/{fourth}", ExecutionView, ExecutionChange("FAILED"))
        await api.call("POST", "/v1/tasks/cancel", TaskChanges, TaskSelection([fourth]))
        canceled = await ended(platform, fourth)
        assert canceled.error is not None
        assert (canceled.status, canceled.error["code"]) == ("FAILED", "execution.canceled")

        # Lists are shared; what is deleted is no longer listed, its executions are.
        path = "/api/v1/scanner-lists/big%20tech"
        await api.call("PUT", path, ScannerListView, ScannerListRequest(["MSFT", "AAPL", "MSFT"]))
        change = PipelineChange(scanner_list="big tech", is_active=False)
        changed = await api.call("PATCH", f"/api/v1/pipelines/{made.pipeline_id}", PipelineView, change)
        assert (changed.scanner_tickers, changed.scanner_list, changed.is_active) == (None, "big tech", False)
        lists = await api.call("GET", "/api/v1/scanner-lists", ScannerListsResponse)
        assert [(x.name, x.tickers, x.pipelines) for x in lists.scanner_lists] == [
            ("big tech", ["MSFT", "AAPL"], 1)
        ]
        with pytest.raises(Conflict, match="1 pipelines use this list"):
            await api.call("DELETE", path, ScannerListView)
        query = {"ticker": "MSFT"}
        found = await api.call("GET", "/api/v1/pipelines", PipelinesResponse, query=query)
        assert [p.pipeline_id for p in found.pipelines] == [made.pipeline_id]
        await api.call("DELETE", f"/api/v1/pipelines/{made.pipeline_id}", PipelineView)
        await api.call("DELETE", path, ScannerListView)
        assert (await api.call("GET", "/api/v1/pipelines", PipelinesResponse)).pipelines == []
        query = {"pipeline_id": str(made.pipeline_id), "status": "FAILED"}
        listed = await api.call("GET", "/api/v1/executions", ExecutionsResponse, query=query)
        assert [e.execution_id for e in listed.executions] == [fourth, third]

        # The same by hand.
        def tp(*words: str) -> str:
            result = CliRunner().invoke(
                cli,
                words,
                env={
                    "TRACEPLANE_GATEWAY_URL": platform.gateway_url,
                    "TRACEPLANE_USER_TOKEN": platform.user_token,
                },
                catch_exceptions=False,
            )
            assert result.exit_code == 0, result.output
            return result.output

        def by_hand() -> None:
            tp("scanner-lists", "set", "metals", "GLD", "SLV")
            said = ("--scanner-list", "metals", "--on", "golden_cross:bullish>=70", "--on", "*")
            line = tp(
                "pipelines", "create", "gold", *said, "--runs", "desk/trade", "--parameters", '{"a": 1}'
            )
            identity = re.match(r"[0-9a-f-]{36}", line)[0]  # type: ignore[index]
            assert "idle     test  gold  metals" in line
            line = tp("pipelines", "update", identity, "--tickers", "GLD", "--inactive", "--parameters", "{}")
            assert "inactive test  gold  GLD" in line
            shown = json.loads(tp("pipelines", "show", identity))
            assert shown["signal_subscriptions"] == [
                {"signal_type": "golden_cross", "min_confidence": 70.0, "direction": "BULLISH"},
                {"min_confidence": 0.0},
            ]
            assert shown["config"] == {"dag": "desk", "job": "trade"}
            assert "metals  2 tickers, 0 pipelines" in tp("scanner-lists", "list")
            assert identity in tp("pipelines", "list", "--ticker", "GLD")
            assert "COMPLETED momentum  signal s1" in tp("executions", "list", "--status", "COMPLETED")
            assert json.loads(tp("executions", "show", str(first)))["status"] == "COMPLETED"
            assert tp("pipelines", "limit", "test", "60") == "test  60 launches per hour\n"
            assert tp("pipelines", "limit", "test") == ""
            tp("scanner-lists", "delete", "metals")
            tp("pipelines", "delete", identity)

        await asyncio.to_thread(by_hand)


async def test_a_pipeline_given_up_for_dead_runs_again_and_its_lost_worker_changes_nothing(
    database_url: str,
) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(DAG.replace("max_attempts: 2", "max_attempts: 1"))
        pipeline_id = await _pipeline_in(plane, "signal")
        status = ExecutionStatus(plane.database)
        first = await launch(plane, pipeline_id, 1)
        await plane.meter()
        (held,) = await plane.claim(await plane.send())
        assert held.task.execution is not None
        assert (held.task.execution.pipeline, held.task.execution.parameters) == ("p", {"x": 1})
        assert (await status.run_once()).started == 1
        await plane.pass_time(3600)
        await plane.reaper.run_once()
        assert (await status.run_once()).failed == 1
        assert (await status.run_once()).counts() == {"started": 0, "completed": 0, "failed": 0}
        row = (await plane.sql("select status, error from executions where execution_id = $1", first))[0]
        assert (row["status"], row["error"]["code"]) == ("FAILED", "lease.expired")
        assert await launch(plane, pipeline_id, 2) is not None, "the pipeline is free"
        # The worker was only silent, and comes back.
        assert await plane.heartbeat(held) == ["stale"]
        assert await plane.complete(held) == ["dead"]
        assert await plane.value("select count(*) from dataset_commits") == 0
        assert await plane.states("trade") == {"dead": 1, "queued": 1}


async def test_a_periodic_pipeline_is_launched_once_for_each_of_its_times(database_url: str) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.set_clock(0)  # midnight
        await plane.deploy(DAG)
        pipeline_id = await _pipeline_in(plane, "periodic", schedule="*/10 * * * *")
        both = [PeriodicPipelines(plane.database), PeriodicPipelines(plane.database)]
        status = ExecutionStatus(plane.database)

        async def at(seconds: float) -> int:
            await plane.set_clock(seconds)
            return sum([(await loop.run_once()).launched for loop in both])

        async def finish() -> None:
            await plane.meter()
            await plane.complete(*await plane.claim(await plane.send()))
            await status.run_once()

        assert await at(30) == 0, "midnight itself had passed when it was made"
        assert await at(601) == 1
        assert await at(605) == 0
        assert await at(1205) == 0, "it is still running"
        await finish()
        assert await at(1210) == 1, "the time that came meanwhile is made up for"
        await finish()
        assert await at(9000) == 1, "of many times that nobody saw, the newest"
        await finish()
        await plane.sql("update pipelines set is_active = false where pipeline_id = $1", pipeline_id)
        assert await at(9601) == 0
        rows = await plane.sql("select scheduled_for, status from executions order by 1")
        assert [(f"{r['scheduled_for']:%H:%M}", r["status"]) for r in rows] == [
            ("00:10", "COMPLETED"),
            ("00:20", "COMPLETED"),
            ("02:30", "COMPLETED"),
        ]


async def _pipeline_in(plane: ControlPlane, mode: str, schedule: str | None = None) -> UUID:
    rows = await plane.sql(
        "insert into pipelines (org_id, user_id, name, trigger_mode, scanner_tickers, schedule, config)"
        " select org_id, 'u', 'p', $1::text, case when $1 = 'signal' then array['AAPL'] end, $2::text, $3::jsonb"
        " from orgs returning pipeline_id",
        mode,
        schedule,
        {"target": "task", "dag": "desk", "job": "trade", "parameters": {"x": 1}},
    )
    return UUID(str(rows[0]["pipeline_id"]))
