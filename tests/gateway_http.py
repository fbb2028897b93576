"""The gateway's routes over real HTTP on the pool of a `ControlPlane`, with tokens of any organization and role."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from tests.control_plane import ControlPlane
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.http_service.server import serve

Answer = tuple[int, str]


class GatewayHttp:
    def __init__(self, plane: ControlPlane, session: aiohttp.ClientSession, port: int) -> None:
        self.plane, self.session, self.port = plane, session, port

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, plane: ControlPlane) -> AsyncIterator[GatewayHttp]:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(plane.api.app(), port=0, stop=stop, bound=bound, grace=1.0))
        try:
            port = await bound
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                yield cls(plane, session, port)
        finally:
            stop.set()
            await server
            await plane.api.close()

    async def token(
        self, role: Role, *, org: str = "default", name: str | None = None, sees_pii: bool = False
    ) -> str:
        async with self.plane.database.transaction() as tx:
            token = await issue_token(
                tx, Principal.USER, org=org, name=name or f"{org}-{role}", role=role, sees_pii=sees_pii
            )
        await self.plane.api.refresh()
        return token

    async def worker_token(self, *, org: str = "default") -> str:
        async with self.plane.database.transaction() as tx:
            token = await issue_token(tx, Principal.WORKER, org=org, name=f"{org}-worker")
        await self.plane.api.refresh()
        return token

    async def routes(self) -> set[str]:
        """All that the gateway answers, such as `GET /api/v1/tasks/{task_id}`."""
        async with self.session.get("/openapi.json") as answer:
            paths = (await answer.json())["paths"]
        return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    async def send(self, token: str, method: str, path: str, body: Any = None) -> Answer:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, path, data=data, headers=headers) as answer:
            return answer.status, await answer.text()
