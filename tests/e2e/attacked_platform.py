"""A platform with a task that is running, and the requests that it must refuse without a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.dags import SOURCE, job
from tests.platform import Platform
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token, revoke_tokens
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.tasks import ClaimedTask, ClaimRequest, OutputRef

DAG = SOURCE + job("copy", "in", "mid", "lease: 1h")
JSON = "application/json"
NUL = "\0"
TASK = "/api/v1/tasks/{}"


@dataclass
class AttackedPlatform:
    platform: Platform
    http: aiohttp.ClientSession
    tasks: list[ClaimedTask]
    output: OutputRef
    token: str
    """The capability that covers the first task alone."""
    other_token: str
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def held(self) -> ClaimedTask:
        return self.tasks[0]

    @property
    def fence(self) -> dict[str, Any]:
        return {
            "task_id": str(self.held.task_id),
            "attempt": self.held.attempt,
            "lease_token": str(self.held.lease_token),
        }

    def manifest(self, **changes: Any) -> dict[str, Any]:
        return {
            "output_index": 0,
            "dataset_uuid": str(self.output.dataset_uuid),
            "dataset_version": str(self.output.dataset_version),
            "scope": {"cursor": 1},
            **changes,
        }

    async def contents(self) -> dict[str, str]:
        """A digest of every table but the audit log, where refusals are written down, the last use of tokens, and the
        signs of life of processes."""
        row = "(to_jsonb(x) - 'last_used_at')::text"
        tables = await self.platform.sql(
            "select relname from pg_class where relnamespace = 'traceplane'::regnamespace and relkind = 'r'"
        )
        return {
            t[0]: await self.platform.value(
                f"select count(*) || ':' || coalesce(md5(string_agg({row}, '|' order by {row})), '') from {t[0]} x"
            )
            for t in tables
            if t[0] not in ("audit_log", "processes")
        }

    async def send(
        self, method: str, url: str, *, token: str | None, raw: bytes | None = None, content_type: str = JSON
    ) -> tuple[int, dict[str, Any]]:
        headers = {"content-type": content_type} if raw is not None else {}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        async with self.http.request(method, url, data=raw, headers=headers) as answer:
            text = await answer.text()
        return answer.status, json.loads(text) if text else {}

    async def refused(self, method: str, url: str, **request: Any) -> tuple[int, str]:
        """Status and code of a refusal, having made sure that it is one and left no trace."""
        before = await self.contents()
        status, body = await self.send(method, url, **request)
        assert 400 <= status < 500, (status, body)
        error = body["error"]
        assert error["code"].count(".") == 1
        assert len(error["message"]) > 10
        assert "Traceback" not in json.dumps(body)
        assert await self.contents() == before
        return status, error["code"]

    async def gateway(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str]:
        options.setdefault("token", self.platform.user_token)
        raw = options.pop("raw", None if body is None else json.dumps(body).encode())
        return await self.refused(method, self.platform.gateway_url + path, raw=raw, **options)

    async def dispatcher(
        self, path: str, body: Any = None, *, method: str = "POST", **options: Any
    ) -> tuple[int, str]:
        options.setdefault("token", self.platform.worker_token)
        raw = options.pop("raw", None if body is None else json.dumps(body).encode())
        return await self.refused(method, self.platform.dispatcher_url + path, raw=raw, **options)


@asynccontextmanager
async def attacked_platform(
    server: EmbeddedPostgres, template_database: str, folder: Path
) -> AsyncIterator[AttackedPlatform]:
    name = folder.name
    url = await asyncio.to_thread(create_database, server, name, template=template_database)
    # Nothing may change by itself while tests compare: lost wake-ups are not sent again, and no history is looked for.
    patient = {"TRACEPLANE_RESEND_AFTER_SECONDS": "3600", "TRACEPLANE_BACKGROUND_GC": "false"}
    tokens = await _tokens(url)
    async with (
        Platform.start(url, folder, workers=0, environment=patient) as platform,
        aiohttp.ClientSession() as http,
    ):
        await platform.deploy(DAG)
        await platform.emit("in", range(3))
        ids = [r[0] for r in await platform.sql("select task_id from tasks order by task_id")]
        client = platform.worker_client()
        claims = [await client.claim(ClaimRequest("w", "python", chosen)) for chosen in (ids[:1], ids[1:])]
        await client.close()
        job = next(iter(claims[0].jobs.values()))
        tasks = [task for claim in claims for task in claim.tasks]
        yield AttackedPlatform(
            platform, http, tasks, job.outputs[0], claims[0].tokens[0], claims[1].tokens[0], tokens
        )
    await asyncio.to_thread(drop_database, server, name)


async def _tokens(url: str) -> dict[str, str]:
    """User and worker tokens that are good for little or nothing."""
    database = await Database.connect(url, connections=1)
    try:
        async with database.transaction() as tx:
            made = {
                "reader": await issue_token(tx, Principal.USER, org="default", name="r", role=Role.READER),
                "writer": await issue_token(tx, Principal.USER, org="default", name="w", role=Role.WRITER),
                "revoked": await issue_token(tx, Principal.USER, org="default", name="x", role=Role.ADMIN),
                "expired": await issue_token(
                    tx, Principal.USER, org="default", name="e", role=Role.ADMIN, lifetime_seconds=0.001
                ),
            }
            await revoke_tokens(tx, Principal.USER, org="default", name="x")
        return made
    finally:
        await database.close()


POSTS_TO_GATEWAY = [
    "/api/v1/events",
    "/api/v1/plan",
    "/api/v1/deploy",
    "/api/v1/tasks/retry",
    "/api/v1/tasks/cancel",
]
POSTS_TO_DISPATCHER = [
    f"/internal/{name}" for name in ("task-claim", "heartbeat", "events", "task-complete", "task-take")
]


def event(**changes: Any) -> dict[str, Any]:
    return {"dataset": "in", "scope": {"cursor": 1000}, **changes}
