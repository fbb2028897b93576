"""Both services against their own description: whatever is sent, right or wrong, no 5xx, and every answer is as
`/openapi.json` says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.dags import SOURCE, batches, job
from tests.platform import Platform
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.tasks import ClaimRequest

DAG = SOURCE + job("copy", "in", "mid", "lease: 1h") + batches("tens", "in", "tens", 10)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


class FuzzedPlatform:
    """A gateway and a dispatcher with something to do, and a worker's lease."""

    def __init__(self, url: str, folder: Any) -> None:
        self.loop = asyncio.Runner()
        self._starting = Platform.start(url, folder, workers=0)
        self.platform = self.loop.run(self._starting.__aenter__())
        self.fence: dict[str, Any] = {}
        self.token = ""
        self.loop.run(self._prepare())

    async def _prepare(self) -> None:
        await self.platform.deploy(DAG)
        await self.platform.emit("in", range(5))
        ids: list[UUID] = [
            row[0]
            for row in await self.platform.sql(
                "select task_id from tasks where state = 'dispatched' order by 1"
            )
        ]
        client = self.platform.worker_client()
        claim = await client.claim(ClaimRequest("w", "python", ids[:1]))
        await client.close()
        held = claim.tasks[0]
        self.token = claim.tokens[0]
        self.fence = {
            "task_id": str(held.task_id),
            "attempt": held.attempt,
            "lease_token": str(held.lease_token),
            "token": 0,
        }

    def close(self) -> None:
        self.loop.run(self._starting.__aexit__(None, None, None))
        self.loop.close()

    def make_meaningful(self, case: schemathesis.Case) -> None:
        """Puts known names where a random one would only ever meet "unknown", half of the time."""
        body: Any = case.body
        if not isinstance(body, dict):
            return
        if isinstance(body.get("tokens"), list) and body["tokens"] and isinstance(body["tokens"][0], str):
            body["tokens"][0] = self.token
        for item in _items(body, "beats", "emissions", "completions"):
            if all(
                type(item.get(name)) is type(value) for name, value in self.fence.items() if name != "token"
            ):
                item.update(self.fence)
        if isinstance(body.get("fence"), dict):
            body["fence"].update(self.fence)
        for event in _items(body, "events"):
            if isinstance(event.get("dataset"), str) and len(event["dataset"]) % 2:
                event["dataset"] = "in"


def _items(body: dict[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    for name in names:
        if isinstance(found := body.get(name), list):
            yield from (item for item in found if isinstance(item, dict))


@pytest.fixture(scope="module")
def world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FuzzedPlatform]:
    url = create_database(postgres_server, "fuzz", template=template_database)
    made = FuzzedPlatform(url, tmp_path_factory.mktemp("platform"))
    yield made
    made.close()
    drop_database(postgres_server, "fuzz")


GATEWAY = [
    "POST /api/v1/plan",
    "POST /api/v1/deploy",
    "GET /api/v1/versions",
    "POST /api/v1/cutover",
    "POST /api/v1/rollback",
    "POST /api/v1/abort",
    "POST /api/v1/delete",
    "GET /api/v1/dags",
    "GET /api/v1/graph",
    "GET /api/v1/overview",
    "POST /api/v1/backfill",
    "POST /api/v1/events",
    "GET /api/v1/tasks",
    "GET /api/v1/tasks/{task_id}",
    "GET /api/v1/tasks/{task_id}/explain",
    "GET /api/v1/tasks/{task_id}/logs",
    "POST /api/v1/tasks/acknowledge",
    "POST /api/v1/tasks/retry",
    "POST /api/v1/tasks/cancel",
    "GET /api/v1/dead-letters",
    "GET /api/v1/dead-letters/{task_id}",
    "POST /api/v1/dead-letters/replay",
    "POST /api/v1/dead-letters/drop",
    "POST /api/v1/jobs/pause",
    "POST /api/v1/jobs/resume",
    "POST /api/v1/batches/close",
    "GET /api/v1/webhooks",
    "GET /api/v1/files",
    "POST /hooks/{org}/{path}",
    "GET /api/v1/secrets",
    "PUT /api/v1/secrets/{namespace}/{name}",
    "DELETE /api/v1/secrets/{namespace}/{name}",
    "GET /api/v1/alerts",
    "GET /api/v1/alerts/{alert_id}",
    "GET /api/v1/alert-summary",
    "POST /api/v1/alerts/acknowledge",
    "POST /api/v1/alerts/test",
    "GET /api/v1/alert-silences",
    "POST /api/v1/alert-silences",
    "DELETE /api/v1/alert-silences/{silence_id}",
    "GET /api/v1/channels",
    "GET /api/v1/channels/{name}",
    "PUT /api/v1/channels/{name}",
    "DELETE /api/v1/channels/{name}",
    "POST /api/v1/channels/{name}/test",
    "GET /api/v1/deliveries",
    "POST /api/v1/deliveries/replay",
    "POST /api/v1/deliveries/drop",
    "GET /api/v1/whoami",
    "GET /api/v1/roles",
    "PUT /api/v1/roles/{role}",
    "DELETE /api/v1/roles/{role}",
    "GET /api/v1/members",
    "PUT /api/v1/members/{member}",
    "DELETE /api/v1/members/{member}",
    "PUT /api/v1/members/{member}/roles/{role}",
    "DELETE /api/v1/members/{member}/roles/{role}",
    "GET /api/v1/tokens",
    "POST /api/v1/tokens",
    "DELETE /api/v1/tokens/{token_id}",
    "POST /api/v1/secrets/{namespace}/{name}/rights",
    "GET /api/v1/identity-providers",
    "GET /api/v1/identity-providers/{name}",
    "PUT /api/v1/identity-providers/{name}",
    "DELETE /api/v1/identity-providers/{name}",
    "GET /api/v1/audit",
    "GET /auth/login",
    "GET /auth/callback",
    "POST /auth/logout",
    "POST /auth/browser-link",
    "POST /auth/browser",
    "POST /auth/device",
    "POST /auth/device/token",
    "POST /api/v1/query",
    "POST /api/v1/query-plan",
    "POST /api/v1/query-tasks",
    "GET /api/v1/datasets",
    "GET /api/v1/datasets/{dataset_id}",
    "GET /api/v1/datasets/{dataset_id}/explain",
    "GET /api/v1/datasets/{dataset_id}/coverage",
    "GET /api/v1/status",
    "GET /api/v1/health",
    "GET /api/v1/datasets/{dataset_id}/history",
    "GET /api/v1/datasets/{dataset_id}/column-lineage",
    "GET /api/v1/events",
    "GET /api/v1/events/{event_id}/effects",
    "GET /api/v1/tasks/{task_id}/effects",
    "GET /iceberg/v1/config",
    "GET /iceberg/v1/{prefix}/namespaces",
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}",
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables",
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
    "POST /api/v1/pipelines",
    "GET /api/v1/pipelines",
    "GET /api/v1/signals",
    "GET /api/v1/pipelines/{pipeline_id}",
    "PATCH /api/v1/pipelines/{pipeline_id}",
    "DELETE /api/v1/pipelines/{pipeline_id}",
    "GET /api/v1/scanner-lists",
    "PUT /api/v1/scanner-lists/{name}",
    "DELETE /api/v1/scanner-lists/{name}",
    "GET /api/v1/user-limits",
    "PUT /api/v1/user-limits/{user_id}",
    "GET /api/v1/executions",
    "GET /api/v1/executions/{execution_id}",
    "PATCH /api/v1/executions/{execution_id}",
]
STREAMED = ["GET /api/v1/changes"]
"""It goes on for as long as it is asked to."""
DISPATCHER = [
    "POST /internal/task-claim",
    "GET /internal/task-fetch",
    "POST /internal/heartbeat",
    "POST /internal/events",
    "POST /internal/task-complete",
    "POST /internal/buffer-publish",
    "POST /internal/task-take",
    "POST /internal/worker-hello",
    "POST /internal/worker-leave",
    "GET /internal/code",
    "POST /internal/input-rows",
    "POST /internal/input-files",
    "GET /internal/jwks",
]
SERVICE = ["GET /healthz", "GET /readyz"]


@pytest.fixture(scope="module")
def gateway(world: FuzzedPlatform) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{world.platform.gateway_url}/openapi.json")


@pytest.fixture(scope="module")
def dispatcher(world: FuzzedPlatform) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{world.platform.dispatcher_url}/openapi.json")


def test_every_operation_is_fuzzed(
    gateway: schemathesis.BaseSchema, dispatcher: schemathesis.BaseSchema
) -> None:
    for schema, tried in ((gateway, [*GATEWAY, *STREAMED]), (dispatcher, DISPATCHER)):
        operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
        assert sorted(operation.label for operation in operations) == sorted([*tried, *SERVICE])


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("label", [*GATEWAY, *SERVICE])
def test_the_gateway_conforms_to_its_openapi_document(
    gateway: schemathesis.BaseSchema, world: FuzzedPlatform, label: str, mode: GenerationMode
) -> None:
    fuzz(gateway, label, mode, world, world.platform.user_token)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("label", [*DISPATCHER, *SERVICE])
def test_the_dispatcher_conforms_to_its_openapi_document(
    dispatcher: schemathesis.BaseSchema, world: FuzzedPlatform, label: str, mode: GenerationMode
) -> None:
    fuzz(dispatcher, label, mode, world, world.platform.worker_token)


def fuzz(
    schema: schemathesis.BaseSchema, label: str, mode: GenerationMode, world: FuzzedPlatform, token: str
) -> None:
    method, path = label.split()
    operation = schema[path][method.lower()]
    tried = 0

    @settings(max_examples=8, print_blob=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: schemathesis.Case) -> None:
        nonlocal tried
        tried += 1
        if path == "/internal/task-take" and isinstance(case.body, dict):
            case.body.setdefault("wait_seconds", 0)
            if mode is GenerationMode.POSITIVE:
                case.body["wait_seconds"] = 0
        if mode is GenerationMode.POSITIVE:
            world.make_meaningful(case)
        answer = case.call(headers={"authorization": f"Bearer {token}"}, timeout=120)
        if answer.status_code == 413:  # refused for its size alone, which the checks do not know of
            return
        # An object or a list as a parameter is text, or nothing, on its way: what was made wrong by it may be right.
        plain = all(isinstance(value, str | int | float) for value in (case.query or {}).values())
        checks = CHECKS if plain else [c for c in CHECKS if c is not negative_data_rejection]
        case.validate_response(answer, checks=checks)

    try:
        call()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # a call without parameters cannot be made wrong
    else:
        assert tried
