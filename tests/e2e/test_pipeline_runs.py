"""Pipelines on real processes: created over the API or from the command line, run as tasks, followed to their end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from click.testing import CliRunner

from tests.e2e.test_pipelines import DAG, TRADE, ended, launch
from tests.platform import Platform, until
from traceplane.cli.main import cli
from traceplane.client import Client
from traceplane.errors import Conflict, InvalidInput, NotFound
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.control import TaskChanges, TaskSelection
from traceplane.wire.pipelines import (
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
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Desk:
    """A platform with a DAG that pipelines run."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.api = platform, platform.api

    async def create(self, name: str, **fields: Any) -> PipelineView:
        request = PipelineRequest(name, **{"config": TRADE, "scanner_tickers": ["AAPL"], **fields})
        return await self.api.call("POST", "/api/v1/pipelines", PipelineView, request)

    async def pipeline(self, pipeline_id: UUID) -> PipelineView:
        return await self.api.call("GET", f"/api/v1/pipelines/{pipeline_id}", PipelineView)

    async def change(self, pipeline_id: UUID, change: PipelineChange) -> PipelineView:
        return await self.api.call("PATCH", f"/api/v1/pipelines/{pipeline_id}", PipelineView, change)

    async def launched(self, pipeline_id: UUID, number: int = 1) -> UUID:
        execution_id = await launch(self.platform, pipeline_id, number)
        assert execution_id is not None
        return execution_id

    async def execution(self, execution_id: UUID) -> ExecutionView:
        return await self.api.call("GET", f"/api/v1/executions/{execution_id}", ExecutionView)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Desk]:
    url = create_database(postgres_server, "desk", template=template_database)
    async with Platform.start(url, tmp_path_factory.mktemp("desk")) as platform:
        await platform.deploy(DAG)
        yield Desk(platform)
    drop_database(postgres_server, "desk")


async def test_a_pipeline_that_cannot_run_is_refused(desk: Desk) -> None:
    with pytest.raises(NotFound, match="no such job"):
        await desk.create("nowhere", config=PipelineConfig("desk", "nothing"))
    with pytest.raises(InvalidInput, match="source kind pipeline"):
        await desk.create("no source", config=PipelineConfig("desk", "audit"))
    with pytest.raises(InvalidInput, match="rules cannot be understood"):
        await desk.create("no such market", rules={"market_hours": "Moon"})


async def test_a_pipeline_belongs_to_its_creator_and_its_name_is_unique(desk: Desk) -> None:
    subscriptions = [Subscription("mock", 60.0, "BULLISH")]
    made = await desk.create("named", signal_subscriptions=subscriptions)
    assert (made.user_id, made.running, made.scanner_tickers) == ("test", None, ["AAPL"])
    with pytest.raises(Conflict, match="of this name"):
        await desk.create("named")


async def test_it_is_launched_once_for_a_signal_and_not_while_it_runs(desk: Desk) -> None:
    config = PipelineConfig("desk", "trade", {"sleep": 600})
    pipeline_id = (await desk.create("once", config=config)).pipeline_id
    first = await desk.launched(pipeline_id, 1)
    assert await launch(desk.platform, pipeline_id, 2) is None, "it is running"
    await desk.api.call("POST", "/api/v1/tasks/cancel", TaskChanges, TaskSelection([first]))
    await ended(desk.platform, first)
    assert await launch(desk.platform, pipeline_id, 1) is None, "once per signal"
    await desk.change(pipeline_id, PipelineChange(config=TRADE))
    second = await desk.launched(pipeline_id, 2)
    assert (await ended(desk.platform, second)).status == "COMPLETED"


async def test_it_runs_as_a_task_whose_rows_are_committed_and_read_by_others(desk: Desk) -> None:
    pipeline_id = (await desk.create("momentum")).pipeline_id
    executions = []
    for number in (1, 2):
        executions.append(await desk.launched(pipeline_id, number))
        done = await ended(desk.platform, executions[-1])
        assert (done.status, done.signal_id, done.pipeline) == ("COMPLETED", f"s{number}", "momentum")
        assert done.signal is not None
        assert done.signal["tickers"][0]["confidence"] == 80
        assert done.started_at is not None
        assert done.finished_at is not None
    await desk.platform.settled()
    rows = Client(desk.platform.gateway_url, desk.platform.user_token).query(
        "select t.*, a.execution_id as audited from desk.trades t left join desk.audited a using (execution_id)"
        f" where execution_id in ('{executions[0]}', '{executions[1]}') order by signal_id"
    )
    assert [(r["execution_id"], r["signal_id"], r["user_id"], r["audited"]) for r in rows.to_pylist()] == [
        (str(execution), f"s{number}", "test", str(execution))
        for number, execution in enumerate(executions, start=1)
    ]


async def test_a_failed_execution_says_why_and_cannot_be_retried_by_hand(desk: Desk) -> None:
    config = PipelineConfig("desk", "trade", {"fail": "no money"})
    execution_id = await desk.launched((await desk.create("failing", config=config)).pipeline_id)
    failed = await ended(desk.platform, execution_id)
    assert failed.error is not None
    assert (failed.status, failed.error["code"]) == ("FAILED", "operator.raised")
    assert "no money" in failed.error["message"]
    assert await desk.platform.value("select attempt from tasks where task_id = $1", execution_id) == 2
    retried = await desk.api.call("POST", "/api/v1/tasks/retry", TaskChanges, TaskSelection([execution_id]))
    assert retried.unchanged == [execution_id]


async def test_a_canceled_execution_has_failed(desk: Desk) -> None:
    config = PipelineConfig("desk", "trade", {"sleep": 600})
    pipeline_id = (await desk.create("canceled", config=config)).pipeline_id
    execution_id = await desk.launched(pipeline_id)

    async def runs() -> bool:
        running = (await desk.pipeline(pipeline_id)).running
        return running == execution_id and (await desk.execution(execution_id)).status == "RUNNING"

    await until(runs, what="the execution runs")
    path = f"/api/v1/executions/{execution_id}"
    with pytest.raises(Conflict, match="a task of the platform"):
        await desk.api.call("PATCH", path, ExecutionView, ExecutionChange("FAILED"))
    await desk.api.call("POST", "/api/v1/tasks/cancel", TaskChanges, TaskSelection([execution_id]))
    canceled = await ended(desk.platform, execution_id)
    assert canceled.error is not None
    assert (canceled.status, canceled.error["code"]) == ("FAILED", "execution.canceled")


async def test_a_scanner_list_is_shared_and_stays_while_a_pipeline_uses_it(desk: Desk) -> None:
    path = "/api/v1/scanner-lists/big%20tech"
    pipeline_id = (await desk.create("listed")).pipeline_id
    await desk.api.call("PUT", path, ScannerListView, ScannerListRequest(["MSFT", "AAPL", "MSFT"]))
    changed = await desk.change(pipeline_id, PipelineChange(scanner_list="big tech", is_active=False))
    assert (changed.scanner_tickers, changed.scanner_list, changed.is_active) == (None, "big tech", False)
    lists = await desk.api.call("GET", "/api/v1/scanner-lists", ScannerListsResponse)
    assert [(x.name, x.tickers, x.pipelines) for x in lists.scanner_lists] == [
        ("big tech", ["MSFT", "AAPL"], 1)
    ]
    with pytest.raises(Conflict, match="this list is used by 1 pipeline"):
        await desk.api.call("DELETE", path, ScannerListView)
    listed = await desk.api.call("GET", "/api/v1/pipelines", PipelinesResponse, query={"ticker": "MSFT"})
    assert [pipeline.pipeline_id for pipeline in listed.pipelines] == [pipeline_id]
    await desk.api.call("DELETE", f"/api/v1/pipelines/{pipeline_id}", PipelineView)
    await desk.api.call("DELETE", path, ScannerListView)


async def test_a_deleted_pipeline_is_not_listed_but_its_executions_are(desk: Desk) -> None:
    pipeline_id = (await desk.create("deleted")).pipeline_id
    executions = []
    for number in (1, 2):
        executions.append(await desk.launched(pipeline_id, number))
        await ended(desk.platform, executions[-1])
    await desk.api.call("DELETE", f"/api/v1/pipelines/{pipeline_id}", PipelineView)
    listed = await desk.api.call("GET", "/api/v1/pipelines", PipelinesResponse)
    assert pipeline_id not in [pipeline.pipeline_id for pipeline in listed.pipelines]
    query = {"pipeline_id": str(pipeline_id), "status": "COMPLETED"}
    found = await desk.api.call("GET", "/api/v1/executions", ExecutionsResponse, query=query)
    assert [execution.execution_id for execution in found.executions] == executions[::-1]


async def test_pipelines_are_created_changed_and_followed_from_the_command_line(desk: Desk) -> None:
    execution_id = await desk.launched((await desk.create("followed")).pipeline_id)
    await ended(desk.platform, execution_id)
    environment = {
        "TRACEPLANE_GATEWAY_URL": desk.platform.gateway_url,
        "TRACEPLANE_USER_TOKEN": desk.platform.user_token,
    }

    def tp(*words: str) -> str:
        result = CliRunner().invoke(cli, words, env=environment, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def by_hand() -> None:
        tp("scanner-lists", "set", "metals", "GLD", "SLV")
        said = ("--scanner-list", "metals", "--on", "golden_cross:bullish>=70", "--on", "*")
        line = tp("pipelines", "create", "gold", *said, "--runs", "desk/trade", "--parameters", '{"a": 1}')
        identity = re.match(r"[0-9a-f-]{36}", line)
        assert identity is not None
        gold = identity[0]
        assert "idle  test  gold  metals" in line
        line = tp("pipelines", "update", gold, "--tickers", "GLD", "--inactive", "--parameters", "{}")
        assert "inactive  test  gold  GLD" in line
        shown = json.loads(tp("pipelines", "show", gold, "--json"))
        assert shown["signal_subscriptions"] == [
            {"signal_type": "golden_cross", "min_confidence": 70.0, "direction": "BULLISH"},
            {"min_confidence": 0.0},
        ]
        assert shown["config"] == {"dag": "desk", "job": "trade"}
        assert "metals  2 tickers, 0 pipelines" in tp("scanner-lists", "list")
        assert gold in tp("pipelines", "list", "--ticker", "GLD")
        assert "COMPLETED  followed  signal s1" in tp("executions", "list", "--status", "COMPLETED")
        assert json.loads(tp("executions", "show", str(execution_id), "--json"))["status"] == "COMPLETED"
        assert tp("pipelines", "limit", "test", "60") == "test  60 launches per hour\n"
        assert tp("pipelines", "limit", "test") == ""
        tp("scanner-lists", "delete", "metals")
        tp("pipelines", "delete", gold)

    await asyncio.to_thread(by_hand)
