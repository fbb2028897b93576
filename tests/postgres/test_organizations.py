"""Two organizations on one platform, with the same names for DAGs and datasets: neither sees or changes the other."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio

from tests.control_plane import ControlPlane, failed
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role
from traceplane.wire.tasks import TaskError

MARK = "only-of-the-first"
DAG = (
    dag("shop", source("shop.in"), job("copy", "shop.in", "shop.mid"))
    + """\
- name: run
  activation: source
  source: {kind: pipeline}
  runtime: python
  operator: python
  outputs: [{dataset: shop.runs}]
  config: {entrypoint: "basic:copy"}
datasets:
  shop.mid: {columns: [{name: n, type: bigint}]}
"""
)
MARKED_DAG = f"""
version: 1
dag: {MARK}
jobs:
- {{name: {MARK}, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {MARK}.in}}]}}
"""
PIPELINE = {
    "name": MARK,
    "user_id": MARK,
    "scanner_tickers": ["AAPL"],
    "config": {"target": "celery", "parameters": {"key": MARK}},
}
FIRST_ROWS = {
    "tasks": "select t.* from tasks t join jobs j using (job_id) join dags d using (dag_id) {mine} order by t.task_id",
    "events": "select t.* from events t join datasets d using (dataset_uuid) {mine} order by t.event_id",
    "datasets": "select d.* from datasets d {mine} order by d.dataset_uuid",
    "commits": "select t.* from dataset_commits t join generations using (generation_id)"
    " join datasets d using (dataset_uuid) {mine} order by t.commit_id",
    "jobs": "select t.* from jobs t join dags d using (dag_id) {mine} order by t.job_id",
    "dags": "select d.* from dags d {mine} order by d.dag_id",
    "letters": "select b.* from buffered_reports b join tasks using (task_id) join jobs using (job_id)"
    " join dags d using (dag_id) {mine} order by b.report_id",
    "pauses": "select t.* from job_pauses t join dags d using (dag_id) {mine} order by t.job",
    "versions": "select t.* from dag_versions t join dags d using (dag_id) {mine} order by t.dag_version_id",
    "pipelines": "select d.* from pipelines d {mine} order by d.pipeline_id",
    "executions": "select t.* from executions t join pipelines d using (pipeline_id) {mine} order by t.execution_id",
    "lists": "select d.* from scanner_lists d {mine} order by d.scanner_list_id",
    "secrets": "select v.* from secret_versions v join secrets d using (secret_id) {mine} order by v.secret_id",
    "roles": "select d.* from org_roles d {mine} order by d.name",
    "members": "select d.* from org_members d {mine} order by d.name",
    "memberships": "select d.* from org_role_memberships d {mine} order by d.member_id, d.role",
    "providers": "select d.* from identity_providers d {mine} order by d.name",
    "channels": "select d.* from channels d {mine} order by d.channel_id",
    "deliveries": "select d.* from alert_deliveries d {mine} order by d.number",
    "alerts": "select d.* from alert_events d {mine} order by d.alert_event_id",
    "silences": "select d.* from alert_silences d {mine} order by d.silence_id",
    "limits": "select d.* from trigger_user_limits d {mine} order by d.user_id",
}


class Two:
    """A first organization with something of everything, and a second that has only deployed the same DAG."""

    def __init__(self, plane: ControlPlane, http: GatewayHttp) -> None:
        self.plane, self.http = plane, http
        self.first, self.second, self.reader = "", "", ""
        self.dead = self.waiting = self.done = self.pipeline = self.execution = self.token = UUID(int=0)
        self.delivery = self.alert = self.silence = UUID(int=0)

    async def fill(self) -> None:
        await self.plane.sql("insert into orgs (slug) values ('other')")
        self.first = await self.http.token(Role.ADMIN)
        self.second = await self.http.token(Role.ADMIN, org="other")
        self.reader = await self.http.token(Role.READER, org="other")
        for token in (self.first, self.second):
            await self.expect(token, "POST", "/api/v1/deploy", {"text": DAG})
        await self.expect(self.first, "POST", "/api/v1/deploy", {"text": MARKED_DAG})
        await self.emit(self.first, "shop.in", 1, 2, 3)
        held = await self.plane.claim(await self.plane.send())
        error = TaskError("operator.failed", MARK, retryable=False)
        await self.plane.report((held[0], msgspec.structs.replace(failed(held[0]), error=error)))
        await self.plane.complete(held[1])
        self.dead, self.done, self.waiting = (h.task_id for h in held)
        await self.plane.sql(
            "insert into buffered_reports (task_id, attempt, lease_token, generation_id, report, failure, failed_at)"
            " select t.task_id, t.attempt, t.lease_token, o.generation_id, $2, $3, tp_now()"
            " from tasks t join job_outputs o using (job_id) where t.task_id = $1",
            self.dead,
            {"outputs": []},
            {"code": "commit.rows_unfit", "message": MARK},
        )
        made = json.loads(await self.expect(self.first, "POST", "/api/v1/pipelines", PIPELINE))
        self.pipeline = UUID(made["pipeline_id"])
        await self.expect(self.first, "PUT", f"/api/v1/scanner-lists/{MARK}", {"tickers": ["AAPL"]})
        await self.expect(self.first, "PUT", f"/api/v1/user-limits/{MARK}", {"launches_per_hour": 5})
        await self.expect(self.first, "PUT", f"/api/v1/secrets/user/{MARK}", {"value": "of the first"})
        await self.expect(self.first, "PUT", f"/api/v1/roles/{MARK}", {})
        await self.expect(self.first, "PUT", f"/api/v1/members/{MARK}", {})
        await self.expect(self.first, "PUT", f"/api/v1/members/{MARK}/roles/{MARK}", {})
        await self.expect(self.first, "POST", "/api/v1/tokens", {"name": MARK, "member": MARK})
        listed = json.loads(await self.expect(self.first, "GET", "/api/v1/tokens"))["tokens"]
        (self.token,) = [UUID(t["token_id"]) for t in listed if t["name"] == MARK]
        await self.plane.sql(
            "insert into identity_providers select org_id, $1, 'https://idp.example.com', $1, null, null, null, '{}',"
            " 'reader', '{}', '{openid}', $1, tp_now() from orgs where slug = 'default'",
            MARK,
        )
        channel = {"config": {"kind": "webhook", "url": "https://first.example/in"}}
        await self.expect(self.first, "PUT", f"/api/v1/channels/{MARK}", channel)
        self.delivery = await self.plane.value(
            "insert into alert_deliveries (org_id, channel_id, key, incident, kind, message)"
            " select org_id, channel_id, $1, $1, 'alert', $2 from channels returning delivery_id",
            MARK,
            {"alert": MARK, "severity": "info", "title": MARK},
        )
        self.alert = await self.plane.value(
            "insert into alert_events (org_id, dag, alert, key, severity, title, body, subject, fields, event_time,"
            " incident) select org_id, $1, $1, $1, 'info', $1, $1, $2, '{}', tp_now(), $1 from orgs"
            " where slug = 'default' returning alert_event_id",
            MARK,
            {"name": MARK},
        )
        silence = {"seconds": 3600, "reason": MARK, "alert": MARK}
        made = json.loads(await self.expect(self.first, "POST", "/api/v1/alert-silences", silence))
        self.silence = UUID(made["silence_id"])
        self.execution = await self.plane.value(
            "insert into executions (pipeline_id, target, signal_id, signal, created_at)"
            " values ($1, 'celery', $2, '{}', tp_now()) returning execution_id",
            self.pipeline,
            MARK,
        )
        await self.plane.sql(
            "insert into signal_minutes select org_id, date_trunc('minute', tp_now()), 1234567, 7654321, 0"
            " from orgs where slug = 'default'"
        )

    async def expect(self, token: str, method: str, path: str, body: Any = None) -> str:
        status, text = await self.http.send(token, method, path, body)
        assert status == 200, (method, path, text)
        return text

    async def emit(self, token: str, dataset: str, *cursors: int) -> dict[str, int]:
        events = [{"dataset": dataset, "scope": {"cursor": cursor}} for cursor in cursors]
        counts: dict[str, int] = json.loads(
            await self.expect(token, "POST", "/api/v1/events", {"events": events})
        )
        return counts

    async def rows_of(self, org: str) -> dict[str, list[str]]:
        mine = f"join orgs o on o.org_id = d.org_id and o.slug = '{org}'"
        return {
            name: [str(tuple(row)) for row in await self.plane.sql(sql.format(mine=mine))]
            for name, sql in FIRST_ROWS.items()
        }


@pytest_asyncio.fixture
async def two(database_url: str, tmp_path: Path) -> AsyncIterator[Two]:
    async with (
        ControlPlane.open(database_url, home=tmp_path) as plane,
        GatewayHttp.open(plane) as http,
    ):
        made = Two(plane, http)
        await made.fill()
        yield made


def reads(two: Two) -> dict[str, list[tuple[str, Any]]]:
    """Every call that only reads, with the first organization's names and ids wherever one can be given."""
    return {
        "GET /api/v1/versions": [("/api/v1/versions?dag=shop", None), (f"/api/v1/versions?dag={MARK}", None)],
        "GET /api/v1/dags": [("/api/v1/dags", None)],
        "GET /api/v1/overview": [("/api/v1/overview", None)],
        "GET /api/v1/graph": [("/api/v1/graph", None), (f"/api/v1/graph?dag={MARK}", None)],
        "GET /api/v1/webhooks": [("/api/v1/webhooks", None)],
        "GET /api/v1/audit": [("/api/v1/audit", None), ("/api/v1/audit?principal=default-admin", None)],
        "GET /api/v1/secrets": [("/api/v1/secrets", None)],
        "GET /api/v1/alerts": [("/api/v1/alerts", None), (f"/api/v1/alerts?dag={MARK}", None)],
        "GET /api/v1/alerts/{alert_id}": [(f"/api/v1/alerts/{two.alert}", None)],
        "GET /api/v1/alert-summary": [
            ("/api/v1/alert-summary", None),
            (f"/api/v1/alert-summary?alert={MARK}", None),
        ],
        "POST /api/v1/alerts/test": [
            ("/api/v1/alerts/test", {"dag": MARK, "alert": MARK, "start": 0, "end": 1}),
            ("/api/v1/alerts/test", {"text": MARKED_DAG, "alert": MARK, "start": 0, "end": 1}),
        ],
        "GET /api/v1/alert-silences": [("/api/v1/alert-silences", None)],
        "GET /api/v1/channels": [("/api/v1/channels", None)],
        "GET /api/v1/channels/{name}": [(f"/api/v1/channels/{MARK}", None)],
        "GET /api/v1/deliveries": [
            ("/api/v1/deliveries", None),
            (f"/api/v1/deliveries?channel={MARK}", None),
        ],
        "GET /api/v1/whoami": [("/api/v1/whoami", None)],
        "GET /api/v1/roles": [("/api/v1/roles", None)],
        "GET /api/v1/members": [("/api/v1/members", None)],
        "GET /api/v1/tokens": [("/api/v1/tokens", None)],
        "GET /api/v1/files": [("/api/v1/files", None)],
        "GET /api/v1/identity-providers": [("/api/v1/identity-providers", None)],
        "GET /api/v1/identity-providers/{name}": [(f"/api/v1/identity-providers/{MARK}", None)],
        "GET /api/v1/tasks": [
            ("/api/v1/tasks", None),
            ("/api/v1/tasks?dag=shop&job=copy&state=dead", None),
            (f"/api/v1/tasks?before={UUID(int=2**128 - 1)}", None),
        ],
        "GET /api/v1/tasks/{task_id}": [
            (f"/api/v1/tasks/{t}", None) for t in (two.dead, two.done, two.waiting)
        ],
        "GET /api/v1/tasks/{task_id}/effects": [
            (f"/api/v1/tasks/{t}/effects", None) for t in (two.dead, two.done, two.waiting)
        ],
        "GET /api/v1/events": [
            ("/api/v1/events", None),
            (f"/api/v1/events?dataset={MARK}.in", None),
            (f"/api/v1/events?task_id={two.done}", None),
            ("/api/v1/events?commit_id=1", None),
        ],
        "GET /api/v1/events/{event_id}/effects": [
            (f"/api/v1/events/{event_id}/effects", None) for event_id in range(1, 10)
        ],
        "GET /api/v1/tasks/{task_id}/explain": [(f"/api/v1/tasks/{two.dead}/explain", None)],
        "GET /api/v1/tasks/{task_id}/logs": [(f"/api/v1/tasks/{t}/logs", None) for t in (two.dead, two.done)],
        "GET /api/v1/dead-letters": [
            ("/api/v1/dead-letters", None),
            ("/api/v1/dead-letters?dag=shop&job=copy&dataset=shop.mid", None),
        ],
        "GET /api/v1/dead-letters/{task_id}": [(f"/api/v1/dead-letters/{two.dead}", None)],
        "GET /api/v1/datasets": [("/api/v1/datasets", None), ("/api/v1/datasets?find=mid&limit=1", None)],
        "GET /api/v1/datasets/{dataset_id}": [
            ("/api/v1/datasets/shop.mid", None),
            (f"/api/v1/datasets/{MARK}.in", None),
        ],
        "GET /api/v1/datasets/{dataset_id}/explain": [
            (f"/api/v1/datasets/{name}/explain?first=0&last=9", None) for name in ("shop.mid", f"{MARK}.in")
        ],
        "GET /api/v1/datasets/{dataset_id}/coverage": [
            (f"/api/v1/datasets/{name}/coverage", None) for name in ("shop.mid", f"{MARK}.in")
        ],
        "GET /api/v1/datasets/{dataset_id}/column-lineage": [
            (f"/api/v1/datasets/{name}/column-lineage?column=n", None) for name in ("shop.mid", f"{MARK}.in")
        ],
        "GET /api/v1/status": [
            ("/api/v1/status", None),
            (f"/api/v1/status?dag={MARK}", None),
            ("/api/v1/status?dataset=shop.mid&unmet=true", None),
        ],
        "GET /api/v1/health": [("/api/v1/health", None)],
        "GET /api/v1/datasets/{dataset_id}/history": [
            (f"/api/v1/datasets/{name}/history", None) for name in ("shop.mid", f"{MARK}.in")
        ],
        "GET /iceberg/v1/config": [("/iceberg/v1/config?warehouse=live", None)],
        "GET /iceberg/v1/{prefix}/namespaces": [("/iceberg/v1/live/namespaces", None)],
        "GET /iceberg/v1/{prefix}/namespaces/{namespace}": [
            (f"/iceberg/v1/live/namespaces/{dag}", None) for dag in ("shop", MARK)
        ],
        "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables": [
            (f"/iceberg/v1/live/namespaces/{dag}/tables", None) for dag in ("shop", MARK)
        ],
        "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}": [
            ("/iceberg/v1/live/namespaces/shop/tables/shop.mid", None),
            (f"/iceberg/v1/live/namespaces/{MARK}/tables/{MARK}.in", None),
        ],
        "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials": [
            ("/iceberg/v1/live/namespaces/shop/tables/shop.mid/credentials", None),
            (f"/iceberg/v1/live/namespaces/{MARK}/tables/{MARK}.in/credentials", None),
        ],
        "GET /api/v1/pipelines": [("/api/v1/pipelines", None), (f"/api/v1/pipelines?user_id={MARK}", None)],
        "GET /api/v1/signals": [("/api/v1/signals", None)],
        "GET /api/v1/pipelines/{pipeline_id}": [(f"/api/v1/pipelines/{two.pipeline}", None)],
        "GET /api/v1/scanner-lists": [("/api/v1/scanner-lists", None)],
        "GET /api/v1/user-limits": [("/api/v1/user-limits", None)],
        "GET /api/v1/executions": [
            ("/api/v1/executions", None),
            (f"/api/v1/executions?pipeline_id={two.pipeline}", None),
        ],
        "GET /api/v1/executions/{execution_id}": [(f"/api/v1/executions/{two.execution}", None)],
        "POST /api/v1/plan": [("/api/v1/plan", {"text": DAG}), ("/api/v1/plan", {"text": MARKED_DAG})],
        "POST /api/v1/query": [
            ("/api/v1/query", {"sql": "select count(*) as n from shop.mid"}),
            ("/api/v1/query", {"sql": f'select * from "{MARK}.in"'}),
            ("/api/v1/query", {"sql": "select count(*) as n from shop.mid", "as_of_version": {MARK: 1}}),
        ],
        "POST /api/v1/query-plan": [
            ("/api/v1/query-plan", {"sql": "select count(*) as n from shop.mid"}),
            ("/api/v1/query-plan", {"sql": f'select * from "{MARK}.in"'}),
        ],
    }


def changes(two: Two) -> dict[str, list[tuple[str, Any]]]:
    """Every call that changes something, aimed at what the first organization has."""
    tasks = [str(task) for task in (two.dead, two.done, two.waiting)]
    event = {"dataset": f"{MARK}.in", "scope": {"cursor": 9}}
    return {
        "POST /api/v1/cutover": [("/api/v1/cutover", {"dag": MARK})],
        "POST /api/v1/rollback": [("/api/v1/rollback", {"dag": MARK})],
        "POST /api/v1/abort": [("/api/v1/abort", {"dag": MARK})],
        "POST /api/v1/delete": [("/api/v1/delete", {"dag": MARK, "force": True})],
        "POST /api/v1/events": [("/api/v1/events", {"events": [event]})],
        "POST /api/v1/backfill": [("/api/v1/backfill", {"dataset": f"{MARK}.in", "start": 0, "end": 9})],
        "POST /api/v1/jobs/pause": [("/api/v1/jobs/pause", {"dag": MARK, "job": MARK})],
        "POST /api/v1/jobs/resume": [("/api/v1/jobs/resume", {"dag": MARK, "job": MARK})],
        "POST /api/v1/batches/close": [("/api/v1/batches/close", {"dag": MARK, "job": MARK})],
        "POST /api/v1/tasks/retry": [("/api/v1/tasks/retry", {"task_ids": tasks})],
        "POST /api/v1/tasks/cancel": [
            ("/api/v1/tasks/cancel", {"task_ids": tasks}),
            ("/api/v1/tasks/cancel", {"dag": MARK}),
        ],
        "POST /api/v1/tasks/acknowledge": [
            ("/api/v1/tasks/acknowledge", {"task_ids": tasks}),
            ("/api/v1/tasks/acknowledge", {"dag": MARK}),
        ],
        **{
            f"POST /api/v1/dead-letters/{verb}": [
                (f"/api/v1/dead-letters/{verb}", {"task_ids": tasks}),
                (f"/api/v1/dead-letters/{verb}", {"dag": MARK}),
            ]
            for verb in ("replay", "drop")
        },
        "POST /api/v1/query-tasks": [
            ("/api/v1/query-tasks", {"sql": f'select * from "{MARK}.in"', "dataset": "shop.result"})
        ],
        "PATCH /api/v1/pipelines/{pipeline_id}": [(f"/api/v1/pipelines/{two.pipeline}", {"name": "mine"})],
        "DELETE /api/v1/pipelines/{pipeline_id}": [(f"/api/v1/pipelines/{two.pipeline}", None)],
        "DELETE /api/v1/scanner-lists/{name}": [(f"/api/v1/scanner-lists/{MARK}", None)],
        "DELETE /api/v1/secrets/{namespace}/{name}": [(f"/api/v1/secrets/user/{MARK}", None)],
        "POST /api/v1/secrets/{namespace}/{name}/rights": [
            (f"/api/v1/secrets/user/{MARK}/rights", {"any_job": True})
        ],
        "POST /api/v1/alerts/acknowledge": [
            ("/api/v1/alerts/acknowledge", {"alert_ids": [str(two.alert)]}),
            ("/api/v1/alerts/acknowledge", {"alert": MARK}),
        ],
        "POST /api/v1/alert-silences": [
            ("/api/v1/alert-silences", {"seconds": 60, "reason": "x", "alert": MARK})
        ],
        "DELETE /api/v1/alert-silences/{silence_id}": [(f"/api/v1/alert-silences/{two.silence}", None)],
        "DELETE /api/v1/channels/{name}": [(f"/api/v1/channels/{MARK}?drop=true", None)],
        "POST /api/v1/channels/{name}/test": [(f"/api/v1/channels/{MARK}/test", None)],
        **{
            f"POST /api/v1/deliveries/{verb}": [
                (f"/api/v1/deliveries/{verb}", {"delivery_ids": [str(two.delivery)]}),
                (f"/api/v1/deliveries/{verb}", {"channel": MARK}),
            ]
            for verb in ("replay", "drop")
        },
        "DELETE /api/v1/identity-providers/{name}": [(f"/api/v1/identity-providers/{MARK}", None)],
        "PATCH /api/v1/executions/{execution_id}": [
            (f"/api/v1/executions/{two.execution}", {"status": "RUNNING"})
        ],
        "DELETE /api/v1/roles/{role}": [(f"/api/v1/roles/{MARK}", None)],
        "DELETE /api/v1/members/{member}": [(f"/api/v1/members/{MARK}", None)],
        "PUT /api/v1/members/{member}/roles/{role}": [(f"/api/v1/members/{MARK}/roles/reader", {})],
        "DELETE /api/v1/members/{member}/roles/{role}": [(f"/api/v1/members/{MARK}/roles/{MARK}", None)],
        "POST /api/v1/tokens": [("/api/v1/tokens", {"name": "x", "member": MARK})],
        "DELETE /api/v1/tokens/{token_id}": [(f"/api/v1/tokens/{two.token}", None)],
    }


def own(two: Two) -> dict[str, list[tuple[str, Any]]]:
    """Calls by which the second organization makes something under names that the first has too."""
    event = {"dataset": "shop.in", "scope": {"cursor": 1}}
    return {
        "POST /api/v1/deploy": [("/api/v1/deploy", {"text": DAG + "description: theirs\n"})],
        "POST /api/v1/events": [("/api/v1/events", {"events": [event]})],
        "POST /api/v1/backfill": [
            ("/api/v1/backfill", {"dataset": "shop.mid", "start": 1, "end": 5, "only": "all"}),
        ],
        "POST /api/v1/query-tasks": [
            ("/api/v1/query-tasks", {"sql": "select n from shop.mid", "dataset": "shop.result"})
        ],
        "POST /api/v1/pipelines": [("/api/v1/pipelines", PIPELINE)],
        "PUT /api/v1/scanner-lists/{name}": [(f"/api/v1/scanner-lists/{MARK}", {"tickers": ["MSFT"]})],
        "PUT /api/v1/user-limits/{user_id}": [(f"/api/v1/user-limits/{MARK}", {"launches_per_hour": None})],
        "PUT /api/v1/secrets/{namespace}/{name}": [(f"/api/v1/secrets/user/{MARK}", {"value": "theirs"})],
        "PUT /api/v1/channels/{name}": [
            (f"/api/v1/channels/{MARK}", {"config": {"kind": "webhook", "url": "https://theirs.example/in"}})
        ],
        "PUT /api/v1/roles/{role}": [(f"/api/v1/roles/{MARK}", {"includes": "admin"})],
        "PUT /api/v1/members/{member}": [(f"/api/v1/members/{MARK}", {"kind": "service"})],
        "POST /api/v1/jobs/resume": [("/api/v1/jobs/resume", {"dag": "shop", "job": "copy"})],
        "POST /api/v1/rollback": [("/api/v1/rollback", {"dag": "shop"})],
    }


NOT_FOR_READERS = (
    "/api/v1/plan",
    "/api/v1/alerts/test",
    "/api/v1/members",
    "/api/v1/audit",
    "/api/v1/audit?principal=default-admin",
    "/api/v1/identity-providers",
    f"/api/v1/identity-providers/{MARK}",
    "/api/v1/channels",
    f"/api/v1/channels/{MARK}",
    "/api/v1/deliveries",
    f"/api/v1/deliveries?channel={MARK}",
)
PUBLIC = {"GET /healthz", "GET /readyz", "POST /hooks/{org}/{path}"}
WITH_A_PROVIDER = {
    "PUT /api/v1/identity-providers/{name}",
    "GET /auth/login",
    "GET /auth/callback",
    "POST /auth/logout",
    "POST /auth/device",
    "POST /auth/device/token",
}
"""Driven in `test_sign_in`, which has one."""
OF_BROWSERS = {"POST /auth/browser-link", "POST /auth/browser", "GET /api/v1/changes"}
"""Driven in `test_web_ui`."""


async def test_every_route_is_driven(two: Two) -> None:
    driven = {*reads(two), *changes(two), *own(two)}
    assert driven | PUBLIC | WITH_A_PROVIDER | OF_BROWSERS == await two.http.routes()


async def test_nothing_of_another_organization_is_seen(two: Two) -> None:
    asked = (MARK, *(str(i) for i in (two.dead, two.done, two.waiting, two.pipeline, two.execution)))
    for route, calls in reads(two).items():
        for path, body in calls:
            for token in (two.second, two.reader):
                status, text = await two.http.send(token, route.split()[0], path, body)
                refused = (403,) if token == two.reader and path in NOT_FOR_READERS else (400, 404)
                assert status in (200, *refused), (path, text)
                # A refusal may repeat what was asked for, which the caller knew.
                shown = text if status == 200 and body is None else ""
                assert not [secret for secret in asked if secret in shown], (path, text)
                if any(secret in path for secret in asked) and "?" not in path:
                    assert status == (403 if 403 in refused else 404), (path, text)
    assert json.loads(await two.expect(two.second, "GET", "/api/v1/tasks")) == {"tasks": []}
    assert json.loads(await two.expect(two.second, "GET", "/api/v1/status")) == {
        "counts": {},
        "datasets": [
            {"dataset": name, "commits": 0, "rows": 0, "bytes": 0, "storage": "parquet"}
            for name in ("shop.in", "shop.mid", "shop.runs")
        ],
        "outbox_lag_seconds": 0.0,
    }
    counted = await two.expect(
        two.second, "POST", "/api/v1/query", {"sql": "select count(*) as n from shop.mid"}
    )
    assert json.loads(counted)["rows"] == [[0]]
    status, _ = await two.http.send(
        two.second, "POST", "/api/v1/query", {"sql": f'select * from "{MARK}.in"'}
    )
    assert status == 404
    plan = json.loads(await two.expect(two.second, "POST", "/api/v1/plan", {"text": MARKED_DAG}))
    assert plan.get("deployed_version") is None


async def test_nothing_of_another_organization_is_changed(two: Two) -> None:
    first, second = await two.rows_of("default"), await two.rows_of("other")
    for route, calls in changes(two).items():
        for path, body in calls:
            status, text = await two.http.send(two.second, route.split()[0], path, body)
            if "task_ids" in (body or {}):
                assert json.loads(text)["changed"] == {}
            elif "alert_ids" in (body or {}):
                assert json.loads(text)["unchanged"] == {str(two.alert): "unknown"}
            elif "delivery_ids" in (body or {}):
                assert json.loads(text)["changed"] == 0
            else:
                assert status == 404, (path, text)
    assert await two.rows_of("default") == first
    assert await two.rows_of("other") == second


async def test_what_has_the_same_name_is_its_own(two: Two) -> None:
    await two.expect(two.first, "POST", "/api/v1/jobs/pause", {"dag": "shop", "job": "copy"})
    first = await two.rows_of("default")
    for route, calls in own(two).items():
        for path, body in calls:
            status, text = await two.http.send(two.second, route.split()[0], path, body)
            assert status == 200 or route == "POST /api/v1/rollback", (path, text)
    assert await two.rows_of("default") == first
    theirs = await two.rows_of("other")
    assert len(theirs["events"]) == 1
    assert len(theirs["tasks"]) == 6  # of the event, of four further positions, and of the query
    status = json.loads(await two.expect(two.second, "GET", "/api/v1/status"))
    assert sum(status["counts"]["shop/copy"].values()) == 5


async def test_events_that_are_committed_together_go_each_to_its_own_dataset(two: Two) -> None:
    tokens = [two.first, two.second] * 20
    await asyncio.gather(
        *(two.emit(token, "shop.in", 100 + position) for position, token in enumerate(tokens))
    )
    rows = await two.plane.sql(
        "select o.slug, e.range_start from events e join datasets using (dataset_uuid) join orgs o using (org_id)"
        " where e.range_start >= 100"
    )
    assert sorted((100 + n, "default" if n % 2 == 0 else "other") for n in range(40)) == sorted(
        (row["range_start"], row["slug"]) for row in rows
    )


async def test_a_token_works_for_tasks_of_its_own_organization(two: Two) -> None:
    changed = json.loads(
        await two.expect(two.first, "POST", "/api/v1/tasks/retry", {"task_ids": [str(two.dead)]})
    )
    assert changed["changed"] == {str(two.dead): "queued"}
    explained = await two.expect(two.first, "GET", f"/api/v1/tasks/{two.dead}/explain")
    assert str(two.dead) in explained
    detail = json.loads(await two.expect(two.first, "GET", f"/api/v1/tasks/{two.done}"))
    assert [len(detail[side]) for side in ("inputs", "outputs")] == [1, 1]


@pytest.mark.parametrize(
    "command", [["token", "issue", "user", "bob", "--role", "reader"], ["migrate"]], ids=lambda c: c[0]
)
async def test_an_unknown_organization_is_reported_as_such(
    database_url: str, tmp_path: Path, command: list[str]
) -> None:
    code, out, err = await traceplane(database_url, tmp_path, *command, org="nobody")
    assert (code, out) == (2, "")
    assert err.startswith("org.unknown: the organization does not exist (value: 'nobody') → ")
    assert err.count("\n") == 1
    assert "default" in err


async def test_an_organization_begins_with_the_token_of_its_admin(
    two: Two, database_url: str, tmp_path: Path
) -> None:
    run = partial(traceplane, database_url, tmp_path)
    code, token, err = await run("org", "create", "acme")
    assert (code, err) == (0, "")
    await two.plane.api.refresh()
    assert json.loads(await two.expect(token.strip(), "GET", "/api/v1/tasks")) == {"tasks": []}
    await two.expect(token.strip(), "POST", "/api/v1/deploy", {"text": DAG})
    ids = {row["slug"]: str(row["org_id"]) for row in await two.plane.sql("select slug, org_id from orgs")}
    listed = [line.split() for line in (await run("org", "list"))[1].splitlines()]
    assert listed == [[name, ids[name]] for name in ("acme", "default", "other")]
    for name, refused in (("acme", "org.exists"), ("Acme", "org.bad_name"), ("a/b", "org.bad_name")):
        code, out, err = await run("org", "create", name)
        assert (code, out, err.partition(":")[0]) == (2, "", refused)


async def test_a_worker_token_serves_the_organization_of_the_settings_unless_it_says_otherwise(
    two: Two, database_url: str, tmp_path: Path
) -> None:
    run = partial(traceplane, database_url, tmp_path, "token")
    for command, serves in {
        ("plain",): ["other"],
        ("both", "--org", "other", "--org", "default", "--org", "other"): ["other", "default"],
        ("all", "--all-orgs"): None,
    }.items():
        assert (await run("issue", "worker", *command, org="other"))[0] == 0
        assert (await run("rotate", "worker", command[0], org="other"))[0] == 0
        stored = await two.plane.sql("select org, serves from access_tokens where name = $1", command[0])
        assert [(r["org"], r["serves"]) for r in stored] == [("other", serves)] * 2
    code, out, err = await run("issue", "worker", "w", "--org", "nobody")
    assert (code, out, err.partition(":")[0]) == (2, "", "org.unknown")
    assert "'nobody'" in err


async def traceplane(url: str, home: Path, *command: str, org: str = "default") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "traceplane.cli.main", *command),
        env={
            "PATH": os.environ["PATH"],
            "TRACEPLANE_HOME": str(home),
            "TRACEPLANE_ORG": org,
            "TRACEPLANE_STATE_URL": url,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
