"""No value of a config reaches a reader: by a plan, by a task's error, by a pipeline or by any other route."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio

from tests.control_plane import ControlPlane, failed
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane import telemetry
from traceplane.auth.roles import Role
from traceplane.wire.tasks import RefusedRow, TaskError

SECRET = "s3cr3t-Pl4nted"
DAG = f"""
version: 1
dag: shop
jobs:
- {{name: numbers, activation: source, source: {{kind: manual}}, outputs: [{{dataset: shop.in}}]}}
- name: head
  activation: source
  source: {{kind: always_on}}
  runtime: python
  operator: block_follower
  outputs: [{{dataset: shop.heads}}]
  config: {{endpoints: ["https://rpc.example.com/v2/{SECRET}"], start: 7}}
- name: copy
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: shop.in}}, where: {{customer: "{SECRET}"}}}}]
  outputs: [{{dataset: shop.mid}}]
  config:
    entrypoint: "basic:copy"
    api_key: "{SECRET}"
    deep: {{list: [1, {{token: "{SECRET}"}}], "https://user:{SECRET}@example.com": 1}}
    "https://{SECRET}.example.com": 2
- name: label
  runtime: spark
  operator: sql
  inputs: [{{name: mid, from: {{dataset: shop.mid}}}}]
  outputs: [{{dataset: shop.labels}}]
  config: {{query: "select n, '{SECRET}' as label from mid"}}
- name: model
  runtime: spark
  operator: pyspark
  inputs: [{{from: {{dataset: shop.mid}}}}]
  outputs: [{{dataset: shop.model}}]
  config: {{entrypoint: "spark_jobs:copy", options: {{password: "{SECRET}"}}}}
- name: run
  activation: source
  source: {{kind: pipeline}}
  runtime: python
  operator: python
  outputs: [{{dataset: shop.runs}}]
  config: {{entrypoint: "basic:copy", key: "{SECRET}"}}
datasets:
  shop.mid: {{columns: [{{name: n, type: bigint}}, {{name: customer, type: string}}]}}
"""
OTHER_CONFIGS = DAG.replace(SECRET, "another")
NO_CONFIGS = dag("shop", source("shop.in"), job("copy", ("shop.in", "shop.in"), "shop.mid"))
ERROR = TaskError(
    "operator.failed",
    f"401 for https://rpc.example.com/v2/{SECRET}?x=1: no such key '{SECRET}'",
    type=f"Error_{SECRET}",
    traceback=f'File "basic.py", line 3\n  copy({SECRET})',
    logs=[f"using {SECRET}"],
    retryable=False,
)


class ShopWithSecrets:
    def __init__(self, plane: ControlPlane, http: GatewayHttp) -> None:
        self.plane, self.http = plane, http
        self.tokens: dict[Role, str] = {}
        self.dead = self.queued = self.pipeline = UUID(int=0)
        self.executions: list[UUID] = []
        self.query_dag = ""

    async def fill(self) -> None:
        self.tokens = {role: await self.http.token(role) for role in Role}
        await self.send(Role.ADMIN, "POST", "/api/v1/deploy", {"text": DAG})
        event = {"dataset": "shop.in", "scope": {"cursor": 1}}
        more = {"dataset": "shop.in", "scope": {"cursor": 2}}
        await self.send(Role.WRITER, "POST", "/api/v1/events", {"events": [event, more]})
        held = await self.plane.claim(await self.plane.send())
        self.dead, self.queued = (h.task_id for h in held)
        log = f"connecting to https://rpc.example.com/v2/{SECRET}"
        await self.plane.report((held[0], msgspec.structs.replace(failed(held[0]), error=ERROR, log=log)))
        await self.plane.sql(
            "insert into buffered_reports (task_id, attempt, lease_token, generation_id, report, failure, failed_at)"
            " select t.task_id, t.attempt, t.lease_token, o.generation_id, $2, $3, tp_now()"
            " from tasks t join job_outputs o using (job_id) where t.task_id = $1",
            self.dead,
            {"outputs": []},
            msgspec.to_builtins(msgspec.structs.replace(ERROR, row=RefusedRow(row=1, value=SECRET))),
        )
        again = msgspec.structs.replace(ERROR, retryable=True)
        await self.plane.report((held[1], msgspec.structs.replace(failed(held[1]), error=again)))
        await self.plane.sql(
            "update tasks set progress = $2 where task_id = $1", self.queued, {f"at {SECRET}": [SECRET]}
        )
        asked = {"sql": f"select n, '{SECRET}' as label from shop.mid", "dataset": "shop.result"}
        self.query_dag = (await self.send(Role.WRITER, "POST", "/api/v1/query-tasks", asked))["dag"]
        for name, config in (("task", {"dag": "shop", "job": "run"}), ("celery", {"target": "celery"})):
            pipeline = {
                "name": name,
                "scanner_tickers": ["AAPL"],
                "config": {**config, "parameters": {"key": SECRET, "n": 1}},
            }
            made = await self.send(Role.WRITER, "POST", "/api/v1/pipelines", pipeline)
            self.pipeline = UUID(made["pipeline_id"])
            execution: UUID = await self.plane.value(
                "insert into executions (pipeline_id, target, signal_id, signal, status, error, created_at,"
                " finished_at) values ($1, $2, 's', '{}', 'FAILED', $3, tp_now(), tp_now()) returning execution_id",
                self.pipeline,
                name,
                msgspec.to_builtins(ERROR),
            )
            self.executions.append(execution)
            if name == "task":
                await self.plane.sql(
                    "insert into tasks (task_id, job_id, state, priority, kind, attempt, reported_attempt, error,"
                    " created_at, ready_at, finished_at) select $1, job_id, 'dead', 0, 'data', 1, 1, $2, tp_now(),"
                    " tp_now(), tp_now() from jobs where name = 'run'",
                    execution,
                    msgspec.to_builtins(ERROR),
                )

    async def send(self, role: Role, method: str, path: str, body: Any = None) -> Any:
        status, text = await self.http.send(self.tokens[role], method, path, body)
        assert status == 200, (method, path, text)
        return json.loads(text)

    def reads(self) -> dict[str, list[tuple[str, Any]]]:
        """Everything that a reader may call."""
        return {
            "GET /api/v1/versions": [
                ("/api/v1/versions?dag=shop", None),
                (f"/api/v1/versions?dag={self.query_dag}", None),
            ],
            "GET /api/v1/dags": [("/api/v1/dags", None)],
            "GET /api/v1/webhooks": [("/api/v1/webhooks", None)],
            "GET /api/v1/files": [("/api/v1/files", None)],
            "GET /api/v1/tasks": [("/api/v1/tasks", None)],
            "GET /api/v1/tasks/{task_id}": [
                (f"/api/v1/tasks/{t}", None) for t in (self.dead, self.queued, self.executions[0])
            ],
            "GET /api/v1/tasks/{task_id}/logs": [
                (f"/api/v1/tasks/{t}/logs", None) for t in (self.dead, self.queued)
            ],
            "GET /api/v1/tasks/{task_id}/explain": [
                (f"/api/v1/tasks/{t}/explain", None) for t in (self.dead, self.queued, self.executions[0])
            ],
            "GET /api/v1/dead-letters": [("/api/v1/dead-letters", None)],
            "GET /api/v1/dead-letters/{task_id}": [(f"/api/v1/dead-letters/{self.dead}", None)],
            "GET /api/v1/alerts": [("/api/v1/alerts", None)],
            "GET /api/v1/alerts/{alert_id}": [(f"/api/v1/alerts/{self.dead}", None)],
            "GET /api/v1/alert-summary": [("/api/v1/alert-summary", None)],
            "GET /api/v1/alert-silences": [("/api/v1/alert-silences", None)],
            "GET /api/v1/datasets": [("/api/v1/datasets", None)],
            "GET /api/v1/datasets/{dataset_id}": [
                (f"/api/v1/datasets/shop.{name}", None) for name in ("in", "mid", "labels", "model", "result")
            ],
            "GET /api/v1/graph": [("/api/v1/graph", None)],
            "GET /api/v1/overview": [("/api/v1/overview", None)],
            "GET /api/v1/datasets/{dataset_id}/coverage": [("/api/v1/datasets/shop.mid/coverage", None)],
            "GET /api/v1/datasets/{dataset_id}/explain": [
                ("/api/v1/datasets/shop.mid/explain?first=0&last=9", None)
            ],
            "GET /api/v1/secrets": [("/api/v1/secrets", None)],
            "PUT /api/v1/secrets/{namespace}/{name}": [("/api/v1/secrets/user/x", {"value": "x"})],
            "GET /api/v1/status": [("/api/v1/status", None)],
            "GET /api/v1/health": [("/api/v1/health", None)],
            "GET /api/v1/datasets/{dataset_id}/history": [("/api/v1/datasets/shop.mid/history", None)],
            "GET /api/v1/datasets/{dataset_id}/column-lineage": [
                ("/api/v1/datasets/shop.mid/column-lineage?column=position", None)
            ],
            "GET /api/v1/events": [("/api/v1/events", None)],
            "GET /api/v1/events/{event_id}/effects": [
                (f"/api/v1/events/{n}/effects", None) for n in range(1, 4)
            ],
            "GET /api/v1/tasks/{task_id}/effects": [
                (f"/api/v1/tasks/{t}/effects", None) for t in (self.dead, self.executions[0])
            ],
            "GET /iceberg/v1/config": [("/iceberg/v1/config", None)],
            "GET /iceberg/v1/{prefix}/namespaces": [("/iceberg/v1/live/namespaces", None)],
            "GET /iceberg/v1/{prefix}/namespaces/{namespace}": [("/iceberg/v1/live/namespaces/shop", None)],
            "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables": [
                ("/iceberg/v1/live/namespaces/shop/tables", None)
            ],
            "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}": [
                (f"/iceberg/v1/live/namespaces/shop/tables/shop.{name}", None) for name in ("mid", "labels")
            ],
            "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials": [
                ("/iceberg/v1/live/namespaces/shop/tables/shop.mid/credentials", None)
            ],
            "GET /api/v1/pipelines": [("/api/v1/pipelines", None)],
            "GET /api/v1/signals": [("/api/v1/signals", None)],
            "GET /api/v1/pipelines/{pipeline_id}": [(f"/api/v1/pipelines/{self.pipeline}", None)],
            "GET /api/v1/scanner-lists": [("/api/v1/scanner-lists", None)],
            "GET /api/v1/user-limits": [("/api/v1/user-limits", None)],
            "GET /api/v1/executions": [("/api/v1/executions", None)],
            "GET /api/v1/executions/{execution_id}": [
                (f"/api/v1/executions/{e}", None) for e in self.executions
            ],
            "POST /api/v1/query": [("/api/v1/query", {"sql": "select label from shop.labels"})],
            "POST /api/v1/query-plan": [("/api/v1/query-plan", {"sql": "select label from shop.labels"})],
            "GET /api/v1/whoami": [("/api/v1/whoami", None)],
            "GET /api/v1/roles": [("/api/v1/roles", None)],
            "GET /api/v1/tokens": [("/api/v1/tokens", None)],
            "DELETE /api/v1/tokens/{token_id}": [(f"/api/v1/tokens/{self.dead}", None)],
            "GET /healthz": [("/healthz", None)],
            "GET /readyz": [("/readyz", None)],
            "POST /hooks/{org}/{path}": [("/hooks/default/none", {})],
        }


@pytest_asyncio.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[ShopWithSecrets]:
    telemetry.configure("test", log_level="debug")
    async with (
        ControlPlane.open(database_url, home=tmp_path) as plane,
        GatewayHttp.open(plane) as http,
    ):
        made = ShopWithSecrets(plane, http)
        await made.fill()
        yield made


async def test_no_value_of_a_config_reaches_a_reader_or_the_log(
    capfd: pytest.CaptureFixture[str], world: ShopWithSecrets
) -> None:
    seen = {}
    for route, calls in world.reads().items():
        for path, body in calls:
            status, text = await world.http.send(world.tokens[Role.READER], route.split()[0], path, body)
            assert status < 500, (path, text)
            if SECRET in text:
                seen[path] = text
    assert seen == {}
    assert SECRET not in "".join(capfd.readouterr())


async def test_the_calls_above_are_all_that_a_reader_may_make(world: ShopWithSecrets) -> None:
    for route in await world.http.routes() - set(world.reads()):
        method, path = route.split()
        # For those who have no token yet; names of what changed, in a stream without end.
        if path.startswith("/auth/") or path == "/api/v1/changes":
            continue
        path = path.format_map(
            dict.fromkeys(("name", "namespace", "user_id", "role", "member", "silence_id"), "x") | _ids(world)
        )
        status, text = await world.http.send(world.tokens[Role.READER], method, path, {})
        assert (status, json.loads(text)["error"]["code"]) == (403, "access.role_required"), route


def _ids(world: ShopWithSecrets) -> dict[str, str]:
    return {"pipeline_id": str(world.pipeline), "execution_id": str(world.executions[0])}


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
async def test_a_plan_confirms_no_guess_of_a_config(world: ShopWithSecrets, role: Role) -> None:
    answers = {
        await world.http.send(world.tokens[role], "POST", "/api/v1/plan", {"text": text})
        for text in (DAG, OTHER_CONFIGS, NO_CONFIGS)
    }
    ((status, text),) = answers
    assert (status, json.loads(text)["error"]["code"]) == (403, "access.role_required")


async def test_who_may_deploy_sees_what_changes(world: ShopWithSecrets) -> None:
    plan = await world.send(Role.ADMIN, "POST", "/api/v1/plan", {"text": NO_CONFIGS})
    assert f'config.api_key: "{SECRET}" → (unset)' in plan["text"]
    detail = await world.send(Role.ADMIN, "GET", f"/api/v1/tasks/{world.dead}")
    assert SECRET in detail["task"]["error"]["message"]
    letter = await world.send(Role.ADMIN, "GET", f"/api/v1/dead-letters/{world.dead}")
    assert letter["row"]["value"] == SECRET


async def test_an_admins_token_that_may_not_deploy_sees_no_config(world: ShopWithSecrets) -> None:
    """It is cut down to some datasets, so it may deploy nothing."""
    cut_down = {"name": "cut", "roles": ["admin"], "datasets": ["shop.*"]}
    world.tokens[Role.ADMIN] = (await world.send(Role.ADMIN, "POST", "/api/v1/tokens", cut_down))["token"]
    await world.plane.api.refresh()
    for path in (f"tasks/{world.dead}", f"tasks/{world.dead}/logs", f"executions/{world.executions[0]}"):
        answer = await world.send(Role.ADMIN, "GET", f"/api/v1/{path}")
        answer.pop("parameters", None)  # it may set those
        assert SECRET not in json.dumps(answer), path


async def test_an_error_stays_readable_without_the_values_in_it(world: ShopWithSecrets) -> None:
    error = (await world.send(Role.READER, "GET", f"/api/v1/tasks/{world.dead}"))["task"]["error"]
    assert error["code"] == "operator.failed"
    assert error["message"] == "401 for https://rpc.example.com/v2/***?x=1: no such key '***'"
    assert error["traceback"] == 'File "basic.py", line 3\n  copy(***)'


async def test_parameters_of_pipelines_are_for_those_who_may_set_them(world: ShopWithSecrets) -> None:
    for role, shown in ((Role.WRITER, True), (Role.READER, False)):
        pipeline = await world.send(role, "GET", f"/api/v1/pipelines/{world.pipeline}")
        execution = await world.send(role, "GET", f"/api/v1/executions/{world.executions[1]}")
        parameters = {"key": SECRET, "n": 1} if shown else {}
        assert pipeline["config"].get("parameters", {}) == execution["parameters"] == parameters
        assert (
            pipeline["hidden_parameters"] == execution["hidden_parameters"] == ([] if shown else ["key", "n"])
        )
