"""What the gateway does not serve, however it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role

INTERNAL = (
    "/internal/task-claim",
    "/internal/heartbeat",
    "/internal/jwks",
    "/internal%2Ftask-claim",
    "/%69nternal/task-claim",
    "//internal/task-claim",
    "/api/v1/../../internal/task-claim",
    "/api/v1/..%2f..%2finternal/task-claim",
    "/api/v1/tasks/%2e%2e/%2e%2e/%2e%2e/internal/task-claim",
    "/INTERNAL/task-claim",
    "/internal/task-claim/",
    "/internal;x/task-claim",
    "http://127.0.0.1:7460/internal/task-claim",
)
METRICS = ("/metrics", "//metrics", "/metrics/", "/%6detrics", "/api/v1/metrics")


@pytest.fixture
async def http(plane: ControlPlane) -> AsyncIterator[GatewayHttp]:
    async with GatewayHttp.open(plane) as opened:
        yield opened


async def raw_status(port: int, method: str, target: str, token: str | None) -> int:
    """The target as it is, which no HTTP client would leave alone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    authorization = "" if token is None else f"authorization: Bearer {token}\r\n"
    head = f"{method} {target} HTTP/1.1\r\nhost: x\r\n{authorization}content-type: application/json\r\n"
    writer.write(f"{head}content-length: 2\r\nconnection: close\r\n\r\n{{}}".encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize("path", [*INTERNAL, *METRICS])
async def test_the_internal_api_and_metrics_are_not_served(http: GatewayHttp, path: str) -> None:
    admin, worker = await http.token(Role.ADMIN), await http.worker_token()
    for method in ("GET", "POST"):
        for token in (None, admin, worker):
            assert await raw_status(http.port, method, path, token) == 404, (method, token)


async def test_a_caller_that_calls_too_often_is_told_when_to_come_again(database_url: str) -> None:
    async with (
        ControlPlane.open(database_url, rate_limit_per_second=0.1, rate_limit_burst=3) as plane,
        GatewayHttp.open(plane) as http,
    ):
        reader, other = await http.token(Role.READER), await http.token(Role.WRITER)
        for path in ("/api/v1/status", "/api/v1/tasks"):
            assert (await http.send(reader, "GET", path))[0] == 200
        # What is refused counts too.
        assert (await http.send(reader, "PUT", "/api/v1/secrets/user/x", {"value": "x"}))[0] == 403
        async with http.session.get(
            "/api/v1/status", headers={"authorization": f"Bearer {reader}"}
        ) as answer:
            assert answer.status == 429
            assert answer.headers["retry-after"] == "10"
            assert (await answer.json())["error"]["code"] == "access.rate_limited"
        assert (await http.send(other, "GET", "/api/v1/status"))[0] == 200


async def test_tokens_of_one_name_do_not_share_a_limit_and_those_of_one_member_do(database_url: str) -> None:
    async with (
        ControlPlane.open(database_url, rate_limit_per_second=0.1, rate_limit_burst=3) as plane,
        GatewayHttp.open(plane) as http,
    ):
        mine, theirs = [await http.token(Role.READER, name="laptop") for _ in range(2)]
        for _ in range(3):
            assert (await http.send(mine, "GET", "/api/v1/status"))[0] == 200
        assert (await http.send(mine, "GET", "/api/v1/status"))[0] == 429
        assert (await http.send(theirs, "GET", "/api/v1/status"))[0] == 200
        await plane.sql(
            "insert into org_members (org_id, kind, name, created_by)"
            " select org_id, 'user', 'rita', 'test' from orgs where slug = 'default'"
        )
        one, two = [await http.token(Role.READER, name=name) for name in ("one", "two")]
        await plane.sql(
            "update access_tokens set member_id = (select member_id from org_members where name = 'rita')"
            " where name in ('one', 'two')"
        )
        await plane.api.refresh()
        statuses = [(await http.send(token, "GET", "/api/v1/status"))[0] for token in (one, two, one, two)]
        assert 429 not in statuses[:3]
        assert statuses[3] == 429


async def test_a_caller_that_expects_another_organization_changes_nothing(database_url: str) -> None:
    async with ControlPlane.open(database_url) as plane, GatewayHttp.open(plane) as http:
        token = await http.token(Role.ADMIN)
        for org, code in (("acme", "access.other_org"), ("default", None)):
            headers = {"authorization": f"Bearer {token}", "traceplane-org": org}
            async with http.session.get("/api/v1/status", headers=headers) as answer:
                assert (await answer.json()).get("error", {}).get("code") == code


async def test_two_authorization_headers_are_refused(database_url: str) -> None:
    async with ControlPlane.open(database_url) as plane, GatewayHttp.open(plane) as http:
        token = await http.token(Role.READER)
        headers = [("authorization", "Bearer tpu_other"), ("authorization", f"Bearer {token}")]
        async with http.session.get("/api/v1/status", headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == "request.two_authorizations"
